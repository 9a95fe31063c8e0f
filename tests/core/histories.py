"""Whatever can be told to a run at any time, drawn at random: the material of the tests over whole histories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from flashd.core.machines import Machine, MachinePhase
from flashd.core.model import Claim, Evidence, MetricsState, Reason, Run
from flashd.core.names import launch_label
from flashd.core.observations import (
    ArtifactsRead,
    Beat,
    CancelAsked,
    FleetSeen,
    Granted,
    HubUnreadable,
    IntentRefused,
    LateSuccess,
    LaunchUnknown,
    LookedUp,
    LookUpFailed,
    MachineRead,
    MachineUnreadable,
    Made,
    MustWait,
    NameTaken,
    NoLateSuccess,
    NoMoneyLeft,
    NotSent,
    NowherePossible,
    Observation,
    PostOutcome,
    ProvedGone,
    RefusedForSure,
    StoreRefusal,
    TakenOver,
    Throttled,
    TimePassed,
)
from flashd.core.places import RefusalKind
from tests.core.kit import H100, L40, granted

REGIONS = ["R1", "R2", "R3", "R4"]
WAITING_REASONS = [
    Reason.NO_CAPACITY,
    Reason.COOLDOWN,
    Reason.AUTH,
    Reason.NO_CREDIT,
    Reason.HUB_BUDGET,
    Reason.MAX_MACHINES,
    Reason.DRAINING,
    Reason.LEDGER,
]


def a_grant(chance: Random, run: Run) -> Granted:
    place = replace(chance.choice([L40, H100]), region=chance.choice(REGIONS))
    token = f"{run.next_number:032x}"
    return replace(granted(place, run.next_number), token=token, last_choice=chance.random() < 0.3)


def a_placing(chance: Random, run: Run, now: float) -> Observation:
    wait = MustWait(chance.choice(WAITING_REASONS), (), chance.choice([None, now + 30]))
    answers: list[Observation] = [
        a_grant(chance, run),
        a_grant(chance, run),
        wait,
        NoMoneyLeft("no money"),
        NowherePossible("nowhere"),
        IntentRefused(chance.choice(list(StoreRefusal))),
    ]
    return chance.choice(answers)


def a_post_outcome(chance: Random, run: Run) -> PostOutcome:
    answers: list[PostOutcome] = [
        Made(f"m{run.next_number}"),
        Made(f"m{run.next_number}"),
        RefusedForSure(chance.choice(list(RefusalKind)), "no", itself=chance.random() < 0.5),
        NotSent("held"),
        Throttled(chance.choice([1.0, 60.0])),
        NameTaken(),
        LaunchUnknown("504"),
    ]
    return chance.choice(answers)


def a_machine(chance: Random, run: Run, now: float) -> Machine:
    attempt = run.attempt
    name, id_, token = (attempt.name, attempt.machine_id, attempt.token) if attempt else ("flash-t-x", None, "0" * 32)
    labels = chance.choice([(), (f"launch={launch_label(token)}",), ("launch=00000000",)])
    phase = chance.choice([*MachinePhase, MachinePhase.RUNNING, MachinePhase.RUNNING, MachinePhase.RUNNING])
    created_at = chance.choice([None, now, now - 4000])
    return Machine(id_ or f"m{run.next_number}", name, phase, phase.value.upper(), created_at, labels=labels)


def a_look_up(chance: Random, run: Run, now: float) -> Observation:
    found = LookedUp((a_machine(chance, run, now),))
    answers: list[Observation] = [LookedUp(()), LookedUp(()), found, LookUpFailed()]
    return chance.choice(answers)


def a_machine_read(chance: Random, run: Run, now: float) -> Observation:
    found = MachineRead(a_machine(chance, run, now))
    answers: list[Observation] = [MachineRead(None), found, MachineUnreadable()]
    return chance.choice(answers)


def a_claim(chance: Random, now: float) -> Claim | None:
    metrics = chance.choice([MetricsState.PRESENT, MetricsState.ABSENT, MetricsState.UNREADABLE])
    match chance.randrange(8):
        case 0:
            return Claim(Evidence.MARKER, True, "e" * 40, now, metrics=metrics)
        case 1:
            exit_code = chance.choice([1, 124, None])
            return Claim(Evidence.MARKER, False, "e" * 40, now, chance.random() < 0.7, "boom", exit_code)
        case 2:
            return Claim(Evidence.DONE, True, "f" * 40, now, metrics=metrics)
        case _:
            return None


def some_beats(chance: Random, now: float) -> tuple[Beat, ...]:
    beat = Beat(
        chance.choice(["boot", "train", ""]),
        chance.choice([None, 0, 1, 50]),
        chance.random() < 0.4,
        now - chance.choice([0, 0, 10, 100_000, -50]),
        chance.choice([None, True, False]),
        chance.choice(["", "a|1|2", f"b|{now}"]),
    )
    return () if chance.random() < 0.5 else (beat,)


def an_artifacts_read(chance: Random, run: Run, now: float, *, fresh: bool) -> ArtifactsRead:
    number = run.attempt.number if run.attempt else 0
    if not fresh and chance.random() < 0.1:
        number -= 1
    return ArtifactsRead(number, "e" * 40, now, a_claim(chance, now), some_beats(chance, now), fresh)


def a_last_look(chance: Random, run: Run, now: float) -> Observation:
    number = chance.choice(run.history).number if run.history else 0
    found = LateSuccess(number, Claim(Evidence.MARKER, True, "e" * 40, now, metrics=MetricsState.PRESENT))
    answers: list[Observation] = [found, NoLateSuccess(), NoLateSuccess(), HubUnreadable()]
    return chance.choice(answers)


def an_observation(chance: Random, run: Run, now: float) -> Observation:
    """Any observation at all, whether or not the run asked for it."""
    rare = chance.random() < 0.1
    draws: list[Callable[[], Observation]] = [
        TimePassed,
        TakenOver,
        HubUnreadable,
        lambda: ProvedGone("x"),
        lambda: CancelAsked("me", "why not", now) if rare else TimePassed(),
        lambda: a_last_look(chance, run, now) if rare else TimePassed(),
        lambda: a_placing(chance, run, now),
        lambda: a_placing(chance, run, now),
        lambda: a_post_outcome(chance, run),
        lambda: a_post_outcome(chance, run),
        lambda: a_look_up(chance, run, now),
        lambda: FleetSeen(a_machine(chance, run, now) if chance.random() < 0.7 else None, now),
        lambda: a_machine_read(chance, run, now),
        lambda: an_artifacts_read(chance, run, now, fresh=False),
        lambda: an_artifacts_read(chance, run, now, fresh=True),
    ]
    return chance.choice(draws)()
