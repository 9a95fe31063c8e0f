"""Is this daemon well? By the age of its loops' last completed passes, never by a ping."""

from __future__ import annotations

import anyio

from flashd.core.ledger import RowState
from flashd.daemon.supervisor import Daemon

INTAKE_STALE_S = 60.0
RELEASER_STALE_S = 60.0
OBSERVER_SLACK_S = 60.0
OBSERVER_STUCK_S = 400.0  # a list may take up to 300 s before it counts as no answer
LEASE_STALE_S = 60.0
LAG_INTERVAL_S = 1.0


class Health:
    """Readiness, liveness and the one status line."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self.loop_lag_s = 0.0

    def reason(self) -> str:
        """Why the daemon is not ready; "" when it is."""
        daemon, now = self._daemon, self._daemon.desk.clock.now()
        rooms = daemon.rooms
        if "redis_down" in daemon.desk.alarms.up:
            return "redis_down"
        if not daemon.leadership.leading or rooms is None:
            return "standby" if daemon.leadership.other else "starting"
        if not rooms.recovered:
            return "starting"
        if daemon.desk.safe_mode:
            return "safe_mode"
        if _age(rooms.intake.last_pass_at, now) > INTAKE_STALE_S:
            return "intake_stalled"
        if _age(rooms.releaser.last_pass_at, now) > RELEASER_STALE_S:
            return "releaser_stalled"
        for name, cloud in sorted(daemon.desk.clouds.items()):
            if _age(cloud.observer.last_pass_at, now) > OBSERVER_SLACK_S:
                return f"observer_stalled: {name}: {cloud.observer.problem or 'no complete list yet'}"
        return ""

    def may_serve(self) -> bool:
        """Whether systemd may call the unit started: it works, or it stands by for another leader."""
        rooms = self._daemon.rooms
        return bool(self._daemon.leadership.other) or (rooms is not None and rooms.recovered)

    def is_moving(self) -> bool:
        """Whether the loops turn, whatever the outside answers: the watchdog's question."""
        daemon, now = self._daemon, self._daemon.desk.clock.now()
        rooms = daemon.rooms
        if rooms is None or not rooms.recovered or not daemon.leadership.leading:
            return _age(daemon.leadership.last_try_at, now) < LEASE_STALE_S
        observers = [cloud.observer.last_try_at for cloud in daemon.desk.clouds.values()]
        return (
            _age(rooms.intake.last_pass_at, now) < INTAKE_STALE_S
            and _age(rooms.releaser.last_pass_at, now) < RELEASER_STALE_S
            and all(_age(at, now) < OBSERVER_STUCK_S for at in observers)
        )

    def status_line(self) -> str:
        """`3 runs, 3 machines, queue 0, $7.20/h`."""
        desk, rooms = self._daemon.desk, self._daemon.rooms
        if rooms is None:
            return f"standby for {self._daemon.leadership.other}" if self._daemon.leadership.other else "starting"
        rows = [row for row in desk.ledger.rows.values() if row.state is not RowState.ABANDONED]
        line = f"{len(rooms.keeper.runners)} runs, {len(rows)} machines, queue {rooms.admission.waiting}, "
        line += f"${sum(row.usd_per_hour for row in rows):.2f}/h"
        alarms = ", ".join(sorted(desk.alarms.up))
        return f"{line}; ALARM {alarms}" if alarms else line

    async def measure_lag(self) -> None:
        """Keep `loop_lag_s`: how late a timer of one second fires; until cancelled."""
        clock = self._daemon.desk.clock
        while True:
            before = clock.monotonic()
            await anyio.sleep(LAG_INTERVAL_S)
            self.loop_lag_s = max(0.0, clock.monotonic() - before - LAG_INTERVAL_S)


def _age(at: float | None, now: float) -> float:
    return float("inf") if at is None else now - at
