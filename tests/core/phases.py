"""One run in each phase, for tests of the life cycle."""

from __future__ import annotations

from dataclasses import replace

from flashd.core.actions import Decision
from flashd.core.ending import conclude
from flashd.core.lifecycle import decide
from flashd.core.machines import Machine, MachinePhase
from flashd.core.model import Claim, Evidence, MetricsState, Reason, Run, State
from flashd.core.observations import (
    ArtifactsRead,
    Beat,
    LaunchUnknown,
    Observation,
    Throttled,
)
from flashd.core.verdicts import Failure
from tests.core.kit import T0, a_run, attempt_of, booting, claim, launching, tick, training, with_attempt

NAME = "flash-t-r1-aaaaaaaaaa-a0"
RUNNING = Machine("77", NAME, MachinePhase.RUNNING, "ACTIVE", T0)
ERROR = replace(RUNNING, phase=MachinePhase.FAILED, raw_status="ERROR")
OK = claim()
OK_UNREADABLE = claim(metrics=MetricsState.UNREADABLE)
DONE = Claim(Evidence.DONE, True, "f" * 40, 0.0, metrics=MetricsState.PRESENT)


def tell(run: Run, seen: Observation, at: float, **changes: object) -> Decision:
    return decide(run, seen, tick(at, **changes))


def read(at: float, found: Claim | None = None, *beats: Beat, fresh: bool = True, number: int = 0) -> ArtifactsRead:
    return ArtifactsRead(number, "e" * 40, at, found, beats, fresh)


def end_of(decision: Decision) -> tuple[State, Reason | None]:
    assert decision.run.end is not None, decision.run.state
    return decision.run.end.state, decision.run.end.reason


def unknown() -> Run:
    return tell(launching(), LaunchUnknown("504"), T0 + 30).run


def backoff() -> Run:
    run = training()
    return conclude(run, attempt_of(run), Failure(Reason.STALLED, "x"), tick(T0 + 1000)).run


PHASES: dict[str, Run] = {
    "queued": a_run(),
    "requested": launching(),
    "throttled": tell(launching(), Throttled(60.0), T0 + 1).run,
    "unknown": unknown(),
    "booting": booting(),
    "setup": replace(with_attempt(booting(), active_at=T0 + 60, first_sign_at=T0 + 90), state=State.SETUP),
    "training": training(),
    "released": with_attempt(training(), released=True),
    "backoff": backoff(),
}
