"""Alarms that no loop raises itself: what providers and the Hub refuse, and outages that last."""

from __future__ import annotations

import anyio

from flashd.core.model import Reason
from flashd.daemon.alarms import some
from flashd.daemon.desk import Cloud, Desk
from flashd.daemon.observer import FleetProblem
from flashd.daemon.release_machine import another_account
from flashd.daemon.watcher import HubProblem

LOOK_INTERVAL_S = 5.0
OUTAGE_S = 300.0  # shorter ones come and go by themselves
_REFUSED = (FleetProblem.AUTH, FleetProblem.FORBIDDEN)


class Conditions:
    """Looks at what the leader's readers know. Asks nobody."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._began_at = desk.clock.now()
        self._hub_silent_since: float | None = None

    async def serve(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await anyio.sleep(LOOK_INTERVAL_S)

    def look(self) -> None:
        now = self._desk.clock.now()
        for name, cloud in sorted(self._desk.clouds.items()):
            self._look_at_key(name, cloud)
            self._look_at_outage(name, cloud, now)
            self._look_at_pause(name, cloud, now)
        self._look_at_hub(now)
        self._desk.alarms.lapse(now)

    def _look_at_key(self, name: str, cloud: Cloud) -> None:
        text = None
        if cloud.observer.problem in _REFUSED:
            text = f"{cloud.observer.problem_text}; nothing is seen, launched or deleted there until a key works"
        self._desk.alarms.set(f"provider_key_refused_{name}", text)

    def _look_at_outage(self, name: str, cloud: Cloud, now: float) -> None:
        observer, text = cloud.observer, None
        last = observer.last_pass_at if observer.last_pass_at is not None else self._began_at
        silent_s = now - max(last, self._began_at)
        if observer.problem is not None and observer.problem not in _REFUSED and silent_s >= OUTAGE_S:
            text = f"no complete list for {silent_s / 60:.0f} min: {observer.problem_text}"
        self._desk.alarms.set(f"provider_unreachable_{name}", text)

    def _look_at_pause(self, name: str, cloud: Cloud, now: float) -> None:
        alarms, pause = self._desk.alarms, cloud.pause
        no_credit = pause is not None and pause.reason is Reason.NO_CREDIT
        alarms.set(f"no_credit_{name}", pause.text if pause is not None and no_credit else None)
        if pause is not None and pause.reason is Reason.AUTH and another_account(name) not in alarms.up:
            # The pause ends every minute for another try; the alarm should not.
            alarms.incident(f"launches_refused_{name}", pause.text, now)

    def _look_at_hub(self, now: float) -> None:
        alarms = self._desk.alarms
        problems = {repo: watcher.problem for repo, watcher in self._desk.watchers.watchers().items()}
        refused = [repo for repo, problem in problems.items() if problem is HubProblem.AUTH]
        forbidden = [repo for repo, problem in problems.items() if problem is HubProblem.FORBIDDEN]
        alarms.set("hub_token_refused", f"it does not know us; asked for {some(sorted(refused))}" if refused else None)
        alarms.set("hub_forbidden", f"our token has no rights to {some(sorted(forbidden))}" if forbidden else None)
        silent = bool(problems) and all(problem is HubProblem.UNREACHABLE for problem in problems.values())
        if not silent:
            self._hub_silent_since = None
        elif self._hub_silent_since is None:
            self._hub_silent_since = now
        silent_s = now - self._hub_silent_since if self._hub_silent_since is not None else 0.0
        text = f"no answer for {silent_s / 60:.0f} min about {some(sorted(problems))}" if silent_s >= OUTAGE_S else None
        alarms.set("hub_unreachable", text)
