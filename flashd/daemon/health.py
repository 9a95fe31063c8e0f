"""Is this daemon well? By the age of its loops' last completed passes, never by a ping of somebody else."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import anyio

from flashd.daemon.supervisor import Daemon

LOOP_STALE_S = 60.0  # intake and releaser pass every few seconds
LEASE_STALE_S = 60.0
INTERRUPTED_S = 10.0  # an intake that Redis has not answered for so long is worth a word
LAG_INTERVAL_S = 1.0
LAG_WINDOW = 60  # seconds over which the worst lag is shown, so that no scrape misses it
NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class ObserverPulse:
    """One provider's reader. `turn_s`: since a pass began, answered or not; `list_s`: since the last complete list."""

    name: str
    list_s: float
    turn_s: float
    late_s: float  # a list older than this is late
    stuck_s: float  # no pass takes longer, pause included
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Pulse:
    """How long ago everything last moved, in seconds; NEVER = not yet. A turn is a try, a pass is a completed one."""

    leading: bool = False
    recovered: bool = False
    other: str = ""  # who leads instead
    redis_down: bool = False
    safe_mode: bool = False
    lease_turn_s: float = NEVER
    lease_stale_s: float = LEASE_STALE_S
    intake_pass_s: float = NEVER
    intake_turn_s: float = NEVER
    intake_interrupted: bool = False
    releaser_pass_s: float = NEVER
    observers: tuple[ObserverPulse, ...] = ()

    @property
    def reason(self) -> str:
        """Why the daemon is not ready; "" when it is."""
        if self.redis_down or (self.intake_interrupted and self.intake_pass_s > INTERRUPTED_S):
            return "redis_down"
        if not self.leading:
            return "standby" if self.other else "starting"
        if not self.recovered:
            return "starting"
        if self.safe_mode:
            return "safe_mode"
        if self.intake_pass_s > LOOP_STALE_S:
            return "intake_stalled"
        if self.releaser_pass_s > LOOP_STALE_S:
            return "releaser_stalled"
        late = next((one for one in self.observers if one.list_s > one.late_s), None)
        return f"observer_stalled: {late.name}: {late.problem or 'no complete list yet'}" if late else ""

    @property
    def is_moving(self) -> bool:
        """Whether the loops turn, whatever the outside answers: the watchdog's question.

        An outage of Redis or of a provider must not restart us, since a restart would not mend it.
        """
        if not self.leading or not self.recovered:
            return self.lease_turn_s < self.lease_stale_s
        return (
            self.intake_turn_s < LOOP_STALE_S
            and self.releaser_pass_s < LOOP_STALE_S
            and all(one.turn_s < one.stuck_s for one in self.observers)
        )

    @property
    def ages(self) -> dict[str, float | None]:
        """Seconds since each loop's last completed pass; None = none yet."""
        found = {"intake": self.intake_pass_s, "releaser": self.releaser_pass_s}
        found |= {f"observer_{one.name}": one.list_s for one in self.observers}
        return {name: None if age == NEVER else round(age, 1) for name, age in found.items()}


class Health:
    """Takes the pulse of one daemon, and knows its one status line."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._lags: deque[float] = deque(maxlen=LAG_WINDOW)

    def pulse(self) -> Pulse:
        daemon = self._daemon
        desk, rooms, leadership = daemon.desk, daemon.rooms, daemon.leadership
        now = desk.clock.now()
        return Pulse(
            leading=leadership.leading and rooms is not None,
            recovered=rooms is not None and rooms.recovered,
            other=leadership.other,
            redis_down="redis_down" in desk.alarms.up,
            safe_mode=bool(desk.safe_mode),
            lease_turn_s=_age(leadership.last_try_at, now),
            lease_stale_s=max(LEASE_STALE_S, desk.policy.lease_ttl_s),
            intake_pass_s=_age(rooms.intake.last_pass_at if rooms else None, now),
            intake_turn_s=_age(rooms.intake.last_turn_at if rooms else None, now),
            intake_interrupted=rooms is not None and rooms.intake.trouble is not None,
            releaser_pass_s=_age(rooms.releaser.last_pass_at if rooms else None, now),
            observers=tuple(
                ObserverPulse(
                    name=name,
                    list_s=_age(cloud.observer.last_pass_at, now),
                    turn_s=_age(cloud.observer.last_try_at, now),
                    late_s=cloud.observer.slack_s,
                    stuck_s=cloud.observer.longest_turn_s,
                    problem=cloud.observer.problem.value if cloud.observer.problem else "",
                )
                for name, cloud in sorted(desk.clouds.items())
            ),
        )

    def reason(self) -> str:
        """Why the daemon is not ready; "" when it is."""
        return self.pulse().reason

    def is_moving(self) -> bool:
        """Whether systemd's watchdog may be fed."""
        return self.pulse().is_moving

    def may_serve(self) -> bool:
        """Whether systemd may call the unit started: it works, or it stands by for another leader."""
        rooms = self._daemon.rooms
        return bool(self._daemon.leadership.other) or (rooms is not None and rooms.recovered)

    def status_line(self) -> str:
        """`3 runs, 3 machines, queue 0, $7.20/h`; before there is anything to count, what it waits for."""
        desk, rooms, other = self._daemon.desk, self._daemon.rooms, self._daemon.leadership.other
        alarms = ", ".join(sorted(desk.alarms.up))
        if rooms is None:
            line = f"standby for {other}" if other else "starting"
        else:
            rows = desk.ledger.counted()
            line = f"{len(rooms.keeper.runners)} runs, {len(rows)} machines, queue {rooms.admission.waiting}, "
            line += f"${sum(row.usd_per_hour for row in rows):.2f}/h"
        return f"{line}; ALARM {alarms}" if alarms else line

    @property
    def loop_lag_s(self) -> float:
        """The most that a timer was late within the last minute."""
        return max(self._lags, default=0.0)

    async def measure_lag(self) -> None:
        """Keep `loop_lag_s`: how late a timer of one second fires; until cancelled."""
        clock = self._daemon.desk.clock
        while True:
            before = clock.monotonic()
            await anyio.sleep(LAG_INTERVAL_S)
            self._lags.append(max(0.0, clock.monotonic() - before - LAG_INTERVAL_S))


def _age(at: float | None, now: float) -> float:
    return NEVER if at is None else now - at
