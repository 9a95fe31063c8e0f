"""Short ways to runs, attempts and ticks for tests of the core."""

from __future__ import annotations

from dataclasses import replace

from flashd.core.launching import begin, made
from flashd.core.ledger import Gone
from flashd.core.model import Attempt, Claim, Evidence, MetricsState, Run, State, Terms
from flashd.core.observations import Granted, Made, Tick
from flashd.core.places import Offer, Place
from flashd.core.policy import Policy

T0 = 1_800_000_000.0
POLICY = Policy()
TOKEN = "0f" * 16
L40 = Place("hyperstack", "acc", "NORWAY-1", "L40", "n3-L40x1", 1.0)
H100 = Place("hyperstack", "acc", "US-1", "H100", "n3-H100x1", 2.5)


def terms(**changes: object) -> Terms:
    base = Terms(
        run_id="r1",
        phase="sft",
        seed=0,
        mode="train",
        repo="me/runs",
        prefix="sft/r1/seed0",
        max_wall_s=3600.0,
        max_attempts=3,
        priority=0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def a_run(**changes: object) -> Run:
    """A run as accepted; unknown names change its terms."""
    own = {name: value for name, value in changes.items() if name in Run.__dataclass_fields__}
    rest = {name: value for name, value in changes.items() if name not in own}
    return replace(Run(terms(**rest), accepted_at=T0, sequence=1), **own)  # type: ignore[arg-type]


def tick(now: float = T0, **changes: object) -> Tick:
    return replace(Tick(now, POLICY), **changes)  # type: ignore[arg-type]


def granted(place: Place = L40, number: int = 0, **changes: object) -> Granted:
    base = Granted(place, f"flash-t-r1-aaaaaaaaaa-a{number}", TOKEN, "c" * 40, "d" * 40)
    return replace(base, **changes)  # type: ignore[arg-type]


def launching(at: float = T0, **changes: object) -> Run:
    """A run whose intent is recorded."""
    return begin(a_run(**changes), granted(), tick(at)).run


def booting(at: float = T0, **changes: object) -> Run:
    """A run whose machine's id is known."""
    run = launching(at, **changes)
    assert run.attempt is not None
    return made(run, run.attempt, Made("77"), tick(at)).run


def with_attempt(run: Run, **changes: object) -> Run:
    assert run.attempt is not None
    return replace(run, attempt=replace(run.attempt, **changes))  # type: ignore[arg-type]


def training(at: float = T0, **changes: object) -> Run:
    """A run that trains: active after 2, first step after 10 minutes."""
    run = replace(booting(at, **changes), state=State.TRAINING)
    return with_attempt(
        run,
        active_at=at + 120,
        first_sign_at=at + 180,
        training_at=at + 600,
        progress_at=at + 600,
        heartbeat_at=at + 600,
        stage="train",
        step=1,
    )


def attempt_of(run: Run) -> Attempt:
    assert run.attempt is not None
    return run.attempt


def claim(ok: bool = True, **changes: object) -> Claim:
    base = Claim(Evidence.MARKER, ok, "e" * 40, T0 + 1000, metrics=MetricsState.PRESENT if ok else MetricsState.UNASKED)
    return replace(base, **changes)  # type: ignore[arg-type]


def gone(run: Run, name: str, at: float, machine_id: str | None = "77") -> dict[str, Gone]:
    return {name: Gone(name, machine_id, run.accepted_at, at)}


def offer(place: Place = L40, **changes: object) -> Offer:
    base = Offer(place, available=True, vram_gb=48, disk_gb=500, ram_gb=58)
    return replace(base, **changes)  # type: ignore[arg-type]
