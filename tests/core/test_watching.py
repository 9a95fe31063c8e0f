"""What was seen of a machine and its box, taken in without a verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashd.core.actions import EventKind
from flashd.core.machines import DEAD_PHASES, Machine, MachinePhase
from flashd.core.model import Attempt, Reason, State, Suspicion, Trouble
from flashd.core.observations import ArtifactsRead, Beat, FleetSeen, MachineRead
from flashd.core.watching import (
    artifacts_read,
    beat_seen,
    confirmation_due_at,
    fleet_seen,
    machine_read,
    machine_seen,
    stage_event,
)
from tests.core.kit import POLICY, T0, attempt_of, booting, claim, tick, training, with_attempt

NOW = T0 + 1000
RUNNING = Machine("77", "flash-t-r1-aaaaaaaaaa-a0", MachinePhase.RUNNING, "ACTIVE", T0)
ERROR = replace(RUNNING, phase=MachinePhase.FAILED, raw_status="ERROR")
GONE = Trouble("missing", T0 + 900, passes=2)


def fresh_attempt(**changes: object) -> Attempt:
    return attempt_of(with_attempt(booting(), **changes))


def listed(attempt: Attempt, machine: Machine | None, now: float = NOW) -> Attempt:
    return fleet_seen(attempt, FleetSeen(machine, now - 1), tick(now, hub_blind=7.0))


# The machine in lists ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", list(MachinePhase))
def test_f31_each_status_has_its_class(phase: MachinePhase) -> None:
    seen = listed(fresh_attempt(), replace(RUNNING, phase=phase, raw_status="RAW"))
    assert (seen.trouble is not None) is (phase in DEAD_PHASES)
    assert (seen.active_at is not None) is (phase is MachinePhase.RUNNING)


def test_unknown_and_building_are_never_dead() -> None:
    assert frozenset({MachinePhase.STOPPED, MachinePhase.FAILED, MachinePhase.DELETING}) == DEAD_PHASES


def test_active_is_remembered_from_its_first_sight_with_the_blind_time_until_then() -> None:
    first = listed(fresh_attempt(), RUNNING, T0 + 120)
    assert (first.active_at, first.active_blind_hub) == (T0 + 120, 7.0)
    assert listed(first, RUNNING, T0 + 300) == first


def test_a_young_machine_that_a_list_does_not_show_proves_nothing() -> None:
    assert listed(fresh_attempt(), None, T0 + 60).trouble is None
    assert listed(fresh_attempt(), None, T0 + 61).trouble == Trouble("missing", T0 + 61)
    assert listed(fresh_attempt(live_at=None), None, T0 + 61).trouble is None


def test_passes_in_a_row_are_counted_and_a_sighting_ends_them() -> None:
    once = listed(fresh_attempt(), None)
    twice = listed(once, None, NOW + 15)
    assert twice.trouble == Trouble("missing", NOW, passes=2)
    assert listed(twice, RUNNING, NOW + 30).trouble is None


def test_another_status_is_another_trouble_until_one_is_confirmed() -> None:
    dead = listed(fresh_attempt(), ERROR)
    assert dead.trouble == Trouble("ERROR", NOW)
    assert listed(dead, None, NOW + 15).trouble == Trouble("missing", NOW + 15)
    proved = replace(dead, trouble=Trouble("ERROR", NOW, confirmed=True))
    assert listed(proved, None, NOW + 15).trouble == Trouble("ERROR", NOW, passes=2, confirmed=True)


def test_a_namesake_with_another_id_is_not_ours_to_judge() -> None:
    attempt = fresh_attempt()
    assert listed(attempt, replace(ERROR, id="78")) is attempt


def test_a_machine_of_another_name_under_our_id_is_not_ours() -> None:
    """The create call answered a wrong id: another's machine must not stand for the one that was made."""
    other = replace(RUNNING, name="somebody-else")
    seen = listed(fresh_attempt(), other, T0 + 61)
    assert (seen.active_at, seen.trouble) == (None, Trouble("missing", T0 + 61))
    read = got(seen, other)
    assert read.trouble is not None
    assert read.trouble.confirmed


def test_a_machine_found_by_look_up_is_taken_in_like_a_listed_one() -> None:
    assert machine_seen(fresh_attempt(), RUNNING, tick(NOW)).active_at == NOW
    assert machine_seen(fresh_attempt(), ERROR, tick(NOW)).trouble == Trouble("ERROR", NOW)


# The GET that confirms -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trouble", "due_at"),
    [
        (None, None),
        (Trouble("ERROR", NOW), NOW),
        (Trouble("missing", NOW), None),
        (Trouble("missing", NOW, passes=2), NOW),
        (Trouble("ERROR", NOW, confirmed=True), None),
        (Trouble("ERROR", NOW, asked_at=NOW + 30), NOW + 45),  # unanswered: not again at once
    ],
)
def test_a_trouble_is_confirmed_once_it_is_worth_a_get(trouble: Trouble | None, due_at: float | None) -> None:
    assert confirmation_due_at(fresh_attempt(trouble=trouble)) == due_at


def got(attempt: Attempt, machine: Machine | None) -> Attempt:
    return machine_read(attempt, MachineRead(machine), tick(NOW))


def test_a_get_that_finds_nothing_confirms() -> None:
    assert got(fresh_attempt(trouble=GONE), None).trouble == replace(GONE, confirmed=True)
    assert got(fresh_attempt(), None).trouble == Trouble("missing", NOW, confirmed=True)


def test_a_get_that_finds_it_dead_confirms_in_the_providers_words() -> None:
    stopped = replace(RUNNING, phase=MachinePhase.STOPPED, raw_status="SHUTOFF")
    assert got(fresh_attempt(trouble=GONE), stopped).trouble == replace(GONE, status="SHUTOFF", confirmed=True)
    assert got(fresh_attempt(), stopped).trouble == Trouble("SHUTOFF", NOW, confirmed=True)


def test_scenario_22_a_get_that_finds_it_alive_ends_the_trouble() -> None:
    assert got(fresh_attempt(trouble=replace(GONE, passes=3)), RUNNING).trouble is None


def test_f18_a_heartbeat_younger_than_the_trouble_vetoes_a_missing_machine() -> None:
    beaten = fresh_attempt(trouble=GONE, heartbeat_at=T0 + 901)
    assert got(beaten, None).trouble == Trouble("missing", NOW, passes=0)
    stale = fresh_attempt(trouble=GONE, heartbeat_at=T0 + 899)
    assert got(stale, None).trouble == replace(GONE, confirmed=True)


def test_no_heartbeat_vetoes_a_status_that_is_dead() -> None:
    dead = fresh_attempt(trouble=Trouble("ERROR", T0 + 900), heartbeat_at=T0 + 950)
    assert got(dead, None).trouble == Trouble("ERROR", T0 + 900, confirmed=True)


# Signs of life -------------------------------------------------------------------------------------------------------


def beat(**changes: object) -> Beat:
    return replace(Beat("train", None, False, NOW), **changes)  # type: ignore[arg-type]


def test_the_first_sign_proves_that_the_machine_is_active() -> None:
    seen = beat_seen(fresh_attempt(), beat(stage="boot", liveness=True), tick(NOW, hub_blind=3.0))
    assert (seen.first_sign_at, seen.active_at, seen.active_blind_hub, seen.stage) == (NOW, NOW, 3.0, "boot")
    later = beat_seen(seen, beat(at=NOW + 50), tick(NOW + 50))
    assert (later.first_sign_at, later.active_at, later.heartbeat_at) == (NOW, NOW, NOW + 50)


def test_f29_liveness_is_no_progress() -> None:
    seen = beat_seen(fresh_attempt(), beat(liveness=True, step=5), tick(NOW))
    assert (seen.progress_at, seen.training_at, seen.step) == (None, None, None)
    assert seen.heartbeat_at == NOW


@pytest.mark.parametrize(("step", "trains"), [(None, False), (0, False), (1, True), (70, True)])
def test_f28_only_a_step_is_training(step: int | None, trains: bool) -> None:
    seen = beat_seen(fresh_attempt(), beat(step=step, stage="model_prefetched"), tick(NOW))
    assert (seen.training_at is not None) is trains
    assert seen.progress_at == NOW


def test_steps_do_not_go_back_and_training_begins_once() -> None:
    seen = beat_seen(fresh_attempt(), beat(step=50), tick(NOW))
    again = beat_seen(seen, beat(step=3, at=NOW + 9, stage=""), tick(NOW + 9))
    assert (again.step, again.training_at, again.progress_at, again.stage) == (50, NOW, NOW + 9, "train")


@pytest.mark.parametrize(("at", "taken"), [(T0 - 3600, T0), (NOW + 3600, NOW), (T0 + 500, T0 + 500)])
def test_f26_times_of_the_box_are_clamped(at: float, taken: float) -> None:
    seen = beat_seen(fresh_attempt(), beat(at=at), tick(NOW))
    assert (seen.progress_at, seen.heartbeat_at) == (taken, taken)


def test_an_older_beat_moves_no_clock() -> None:
    seen = beat_seen(fresh_attempt(), beat(), tick(NOW, hub_blind=5.0))
    older = beat_seen(seen, beat(at=NOW - 100), tick(NOW + 1, hub_blind=9.0))
    assert (older.progress_at, older.progress_blind_hub, older.heartbeat_at) == (NOW, 5.0, NOW)


def test_reattach_is_not_progress() -> None:
    seen = beat_seen(fresh_attempt(), beat(key="train|5|1"), tick(NOW))
    assert beat_seen(seen, beat(key="train|5|1", at=NOW + 600), tick(NOW + 600)) is seen
    newer = beat_seen(seen, beat(key="train|6|2", at=NOW + 600), tick(NOW + 600))
    assert newer.progress_at == NOW + 600


def test_what_a_heartbeat_says_of_retrying_holds_until_one_says_otherwise() -> None:
    said = beat_seen(fresh_attempt(), beat(retriable=True, key="a"), tick(NOW))
    assert said.retriable
    assert beat_seen(said, beat(at=NOW + 1), tick(NOW + 1)).retriable  # a title does not say
    assert not beat_seen(said, beat(at=NOW + 1, retriable=False, key="b"), tick(NOW + 1)).retriable


# Reads ---------------------------------------------------------------------------------------------------------------


def read(asked_at: float, *, fresh: bool = True, **changes: object) -> ArtifactsRead:
    base = ArtifactsRead(0, "e" * 40, asked_at, None, (), fresh)
    return replace(base, **changes)  # type: ignore[arg-type]


def suspected(reads: int = 0, read_at: float | None = None) -> Attempt:
    return fresh_attempt(suspicion=Suspicion(Reason.STALLED, "x", NOW, reads, read_at))


def reads_after(attempt: Attempt, seen: ArtifactsRead, now: float) -> tuple[int, float | None]:
    suspicion = artifacts_read(attempt, seen, tick(now)).suspicion
    assert suspicion is not None
    return suspicion.reads, suspicion.read_at


def test_only_fresh_reads_asked_for_after_the_suspicion_count() -> None:
    assert reads_after(suspected(), read(NOW - 1), NOW + 1) == (0, None)
    assert reads_after(suspected(), read(NOW, fresh=False), NOW + 1) == (0, None)
    assert reads_after(suspected(), read(NOW), NOW + 1) == (1, NOW + 1)


def test_the_second_read_counts_only_when_the_hub_had_time_to_settle_since_the_first() -> None:
    once = suspected(reads=1, read_at=NOW + 400)  # the Hub was away for a while
    settled_at = NOW + 400 + POLICY.hub_settle_s
    assert reads_after(once, read(settled_at - 1), settled_at) == (1, NOW + 400)
    assert reads_after(once, read(settled_at), settled_at + 1) == (2, NOW + 400)


def test_the_workers_own_error_text_is_kept_with_the_suspicion() -> None:
    told = artifacts_read(suspected(), read(NOW, told="KeyError"), tick(NOW + 1))
    again = artifacts_read(told, read(NOW + 60), tick(NOW + 61))
    assert again.suspicion is not None and again.suspicion.told == "KeyError"


def test_a_read_without_suspicion_counts_nothing() -> None:
    assert artifacts_read(fresh_attempt(), read(NOW), tick(NOW)).suspicion is None


def test_a_claim_is_stamped_with_the_time_it_was_seen_and_beats_are_taken_in_order() -> None:
    beats = (beat(step=1, at=NOW - 20), beat(step=2, at=NOW - 10))
    seen = artifacts_read(fresh_attempt(), read(NOW, claim=claim(), beats=beats), tick(NOW))
    assert seen.claim is not None and (seen.claim.seen_at, seen.claim.read_at) == (NOW, NOW)
    assert (seen.step, seen.progress_at) == (2, NOW - 10)


@pytest.mark.parametrize(
    ("state", "changes", "event"),
    [
        (State.BOOTING, {}, None),
        (State.BOOTING, {"first_sign_at": NOW}, (State.SETUP, EventKind.SETUP)),
        (State.BOOTING, {"first_sign_at": NOW, "training_at": NOW}, (State.TRAINING, EventKind.TRAINING)),
        (State.SETUP, {"first_sign_at": NOW}, None),
        (State.SETUP, {"first_sign_at": NOW, "training_at": NOW}, (State.TRAINING, EventKind.TRAINING)),
        (State.TRAINING, {"first_sign_at": NOW, "training_at": NOW}, None),
    ],
)
def test_the_state_follows_the_signs_and_never_goes_back(
    state: State, changes: dict[str, object], event: tuple[State, EventKind] | None
) -> None:
    run = replace(with_attempt(booting(), **changes), state=state)
    assert stage_event(run, attempt_of(run)) == event
    assert stage_event(training(), attempt_of(training())) is None
