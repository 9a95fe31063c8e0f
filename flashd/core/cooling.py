"""What launches taught about a place: when it may be tried again, by how many at a time, and whom it took."""

from __future__ import annotations

from dataclasses import dataclass, replace

WIDTH_FIRST = 1  # a probe
WIDTH_MAX = 32
REMEMBER_S = 3600.0
RUNS_REMEMBERED = 8


@dataclass(frozen=True, slots=True)
class PlaceHealth:
    """One place. `width`: launches that may be under way; it doubles with each machine and halves with each refusal.

    `refused`: the newest runs that it refused though it showed stock; `took`: those that it gave a machine; with times.
    """

    cooling_until: float = 0.0
    cooled_at: float = 0.0
    for_stock: bool = False
    width: int = WIDTH_FIRST
    refused: tuple[tuple[str, float], ...] = ()
    took: tuple[tuple[str, float], ...] = ()


def out_of_stock(health: PlaceHealth, now: float, cooldown_s: float) -> PlaceHealth:
    """A launch was refused and a fresh stock read says none: the place cools for everybody."""
    return replace(
        health,
        cooling_until=now + cooldown_s,
        cooled_at=now,
        for_stock=True,
        width=max(1, health.width // 2),
    )


def refused(health: PlaceHealth, run_id: str, now: float, cooldown_s: float) -> PlaceHealth:
    """A launch was refused though the place shows stock: it cools for everybody when a second run is refused too."""
    others = any(other != run_id and now - at < REMEMBER_S for other, at in health.refused)
    noted = replace(health, refused=_noted(health.refused, run_id, now), width=max(1, health.width // 2))
    if not others:
        return noted
    return replace(noted, cooling_until=now + cooldown_s, cooled_at=now, for_stock=False)


def made(health: PlaceHealth, run_id: str, now: float) -> PlaceHealth:
    """The place gave a machine."""
    return replace(
        health,
        cooling_until=0.0,
        width=min(WIDTH_MAX, health.width * 2),
        refused=(),
        took=_noted(health.took, run_id, now),
    )


def restocked(health: PlaceHealth, read_began_at: float) -> PlaceHealth:
    """A stock read that began after the refusal says available: a cool-down for want of stock ends, with one probe."""
    if not health.for_stock or read_began_at <= health.cooled_at or health.cooling_until <= read_began_at:
        return health
    return replace(health, cooling_until=0.0, width=1)


def sold_out(health: PlaceHealth) -> PlaceHealth:
    """A stock read shows the place empty: what comes free there is probed for, however much there was before."""
    return replace(health, width=1)


def took_others(health: PlaceHealth, run_id: str) -> bool:
    """Whether the place gave a machine to some other run: then a refusal is about the run itself."""
    return any(other != run_id for other, _ in health.took)


def _noted(runs: tuple[tuple[str, float], ...], run_id: str, now: float) -> tuple[tuple[str, float], ...]:
    return (*(item for item in runs if item[0] != run_id), (run_id, now))[-RUNS_REMEMBERED:]
