"""Every observation in every phase: there is always an answer, and what is over stays over."""

from __future__ import annotations

import pytest

from flashd.core.actions import Decision
from flashd.core.ending import cancelled
from flashd.core.lifecycle import GRAPH
from flashd.core.model import TERMINAL, Reason, Run
from flashd.core.observations import (
    Beat,
    CancelAsked,
    FleetSeen,
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
    ProvedGone,
    RefusedForSure,
    StoreRefusal,
    TakenOver,
    Throttled,
    TimePassed,
)
from flashd.core.places import RefusalKind
from tests.core.kit import T0, claim, granted, launching, tick, training
from tests.core.phases import DONE, ERROR, NAME, OK, PHASES, RUNNING, read, tell, unknown

OVER: dict[str, Run] = {
    "succeeded": tell(training(), read(T0 + 1000, OK), T0 + 1000).run,
    "failed": tell(training(), read(T0 + 1000, claim(False)), T0 + 1000).run,
    "cancelled": cancelled(launching(), tick(T0 + 1000)).run,
}
SEEN: list[Observation] = [
    TimePassed(),
    TakenOver(),
    CancelAsked("me", "x", T0 + 1000),
    granted(number=5),
    MustWait(Reason.NO_CAPACITY),
    NoMoneyLeft("x"),
    NowherePossible("x"),
    *(IntentRefused(why) for why in StoreRefusal),
    Made("99"),
    RefusedForSure(RefusalKind.REFUSED, "400", itself=True),
    NotSent("x"),
    Throttled(5.0),
    NameTaken(),
    LaunchUnknown("504"),
    LookedUp(()),
    LookedUp((RUNNING,)),
    LookUpFailed(),
    FleetSeen(None, T0 + 999),
    FleetSeen(RUNNING, T0 + 999),
    FleetSeen(ERROR, T0 + 999),
    MachineRead(None),
    MachineRead(RUNNING),
    MachineRead(ERROR),
    MachineUnreadable(),
    read(T0 + 1000),
    read(T0 + 1000, OK),
    read(T0 + 1000, claim(False)),
    read(T0 + 1000, DONE),
    read(T0 + 1000, None, Beat("train", 5, False, T0 + 1000), fresh=False),
    HubUnreadable(),
    LateSuccess(0, OK),
    NoLateSuccess(),
    ProvedGone(NAME),
]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("seen", SEEN, ids=lambda seen: type(seen).__name__)
def test_every_observation_has_an_answer_in_every_phase(phase: str, seen: Observation) -> None:
    run = PHASES[phase]
    decision = tell(run, seen, T0 + 1000)
    event = decision.save.event if decision.save else None
    assert decision.run.sequence == run.sequence + (event is not None)
    assert decision.run.state in GRAPH[run.state] if event else decision.run.state is run.state
    if not decision.run.is_over:
        assert decision.acts or decision.wake_at is not None or decision.run.attempt is None


@pytest.mark.parametrize("state", OVER)
@pytest.mark.parametrize("seen", SEEN, ids=lambda seen: type(seen).__name__)
def test_what_is_over_stays_as_it_is(state: str, seen: Observation) -> None:
    run = OVER[state]
    assert run.state.value == state and run.state in TERMINAL
    assert tell(run, seen, T0 + 1000) == Decision(run)


def test_news_of_a_launch_that_is_over_change_nothing() -> None:
    for seen in (Made("99"), NameTaken(), LookedUp(()), granted(number=1), MustWait(Reason.AUTH)):
        assert tell(training(), seen, T0 + 1000).run == training()


def test_news_of_a_machine_that_is_not_known_yet_are_looked_at_later() -> None:
    for seen in (FleetSeen(ERROR, T0), MachineRead(None), read(T0 + 40)):
        assert tell(unknown(), seen, T0 + 40) == Decision(unknown(), wake_at=T0 + 55)


def test_another_attempts_artifacts_change_nothing() -> None:
    assert tell(training(), read(T0 + 1000, claim(False), number=3), T0 + 1000).run == training()
