"""Health over HTTP: /livez, /readyz, /statusz, /metrics. Read-only; looking changes nothing and asks nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import anyio
import structlog
from aiohttp import web

from flashd import __version__
from flashd.core.ledger import RowState
from flashd.daemon.health import Health
from flashd.daemon.metrics import CONTENT_TYPE, Metrics
from flashd.daemon.reload import Reloader
from flashd.daemon.supervisor import Daemon
from flashd.logs import Recent
from flashd.redaction import Redactor
from flashd.wire.events import rfc3339

log = structlog.get_logger(__name__)

BIND_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class Told:
    """What is told besides the daemon's own state. `recent` lines are free of secrets already."""

    health: Health
    metrics: Metrics
    reloader: Reloader
    redactor: Redactor
    recent: Recent


class Admin:
    """The HTTP server of one daemon; `listen` is `host:port`, "" = off."""

    def __init__(self, daemon: Daemon, told: Told, listen: str) -> None:
        self._daemon = daemon
        self._told = told
        self._health = told.health
        self._metrics = told.metrics
        self._listen = listen
        self._started_at = daemon.desk.clock.now()
        self.address = ""

    async def serve(self) -> None:
        """Until cancelled. A taken port is an alarm and is tried again: health must not stop the work."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._health.measure_lag)
            if not self._listen:
                return
            while True:
                try:
                    await self._serve_once()
                except (OSError, OverflowError) as error:  # the latter for a port above 65535
                    self._daemon.desk.alarms.set("http_listen", f"{self._listen}: {error}")
                    await anyio.sleep(BIND_RETRY_S)

    async def _serve_once(self) -> None:
        app = web.Application()
        app.add_routes(
            [
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/statusz", self._statusz),
                web.get("/metrics", self._metricsz),
            ]
        )
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        try:
            host, _, port = self._listen.rpartition(":")
            site = web.TCPSite(runner, host.strip("[]"), int(port))
            await site.start()
            self.address = _address(runner)
            self._daemon.desk.alarms.set("http_listen", None)
            log.info("health_served", address=self.address)
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(2.0):
                await runner.cleanup()

    async def _livez(self, _request: web.Request) -> web.Response:
        moving = self._health.is_moving()
        return web.json_response({"live": moving}, status=200 if moving else 503)

    async def _readyz(self, _request: web.Request) -> web.Response:
        pulse = self._health.pulse()
        body = {"ready": not pulse.reason, "reason": pulse.reason or None, "last_pass_age_s": pulse.ages}
        return web.json_response(body, status=503 if pulse.reason else 200)

    async def _metricsz(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _statusz(self, _request: web.Request) -> web.Response:
        return web.json_response(_redacted(self.status(), self._told.redactor))

    def status(self) -> dict[str, object]:
        """Everything an operator asks first, as JSON."""
        daemon, desk, rooms = self._daemon, self._daemon.desk, self._daemon.rooms
        now = desk.clock.now()
        rows = [row for row in desk.ledger.rows.values() if rooms and row.state is not RowState.ABANDONED]
        reason = self._health.reason()
        reloader = self._told.reloader
        return {
            "version": __version__,
            "namespace": desk.ns,
            "time": rfc3339(now),
            "started": rfc3339(self._started_at),
            "ready": not reason,
            "reason": reason or None,
            "leading": daemon.leadership.leading,
            "leader": None if daemon.leadership.leading else daemon.leadership.other or None,
            "status": self._health.status_line(),
            "safe_mode": desk.safe_mode or None,
            "last_pass_age_s": self._health.pulse().ages,
            "configuration": {
                "generation": reloader.generation,
                "loaded": rfc3339(reloader.loaded_at),
                "needs_a_restart": list(reloader.pending),
            },
            "draining": desk.draining,
            "alarms": [{"alarm": name, "detail": desk.alarms.up[name]} for name in sorted(desk.alarms.up)],
            "runs": dict(Counter(runner.run.state.value for runner in rooms.keeper.runners.values())) if rooms else {},
            "waiting": rooms.admission.waiting if rooms else 0,
            "machines": dict(Counter(row.state.value for row in rows)),
            "usd_per_hour": round(sum(row.usd_per_hour for row in rows), 4),
            "limits": {
                "max_machines": desk.limits.max_machines,
                "max_usd_per_hour": desk.limits.max_usd_per_hour,
            },
            "providers": {name: self._provider(name, now) for name in sorted(desk.clouds)},
            "repositories": self._repositories(now),
            "recent": [f"{line.stamp} {line.level} {line.message}" for line in self._told.recent.lines],
        }

    def _provider(self, name: str, now: float) -> dict[str, object]:
        cloud = self._daemon.desk.clouds[name]
        last = cloud.observer.last_pass_at
        return {
            "account": cloud.account or None,
            "last_complete_list_age_s": round(now - last, 1) if last is not None else None,
            "problem": cloud.observer.problem.value if cloud.observer.problem else None,
            "launches_paused": cloud.pause.reason.value if cloud.pause else None,
            "pause_text": cloud.pause.text if cloud.pause else None,
        }

    def _repositories(self, now: float) -> dict[str, object]:
        found: dict[str, object] = {}
        for repo, watcher in sorted(self._daemon.desk.watchers.watchers().items()):
            found[repo] = {
                "head": watcher.snapshot.head if watcher.snapshot else None,
                "problem": watcher.problem.value if watcher.problem else None,
                "commits_last_hour": watcher.commits_last_hour(now),
            }
        return found


def _redacted(value: object, redactor: Redactor) -> object:
    """The same JSON value, every text in it without secrets: details hold words of providers and of user code."""
    match value:
        case str():
            return redactor.text(value)
        case Mapping():
            return {key: _redacted(item, redactor) for key, item in value.items()}
        case list():
            return [_redacted(item, redactor) for item in value]
        case _:
            return value


def _address(runner: web.AppRunner) -> str:
    host, port = runner.addresses[0][:2]
    return f"{host}:{port}"
