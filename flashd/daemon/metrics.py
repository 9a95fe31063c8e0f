"""Prometheus metrics: counters as things happen, gauges computed when asked for. No label per run or machine."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from flashd import __version__
from flashd.core.ledger import LedgerRow
from flashd.core.model import TERMINAL, Reason, State
from flashd.core.orphans import Ownership
from flashd.core.retry import RULES
from flashd.daemon.health import Health
from flashd.daemon.launcher import RESULTS
from flashd.daemon.supervisor import Daemon, Rooms

disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double every counter

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SHOWN_OWNERS = tuple(whose.value for whose in Ownership if whose is not Ownership.FOREIGN)


class Metrics:
    """The registry of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._provider_requests = self._counter(
            "flashd_provider_requests", "Requests to a provider's API; code 0 = no answer", ("provider", "lane", "code")
        )
        self._hub_requests = self._counter(
            "flashd_hub_requests", "Requests to the Hub; code 0 = no answer", ("kind", "code")
        )
        self._launches = self._counter(
            "flashd_machine_launches", "Create calls by their result", ("provider", "result")
        )
        self._finished = self._counter("flashd_runs_finished", "Runs that ended", ("outcome", "reason"))
        self._cost = self._counter("flashd_cost_usd", "Dollars of released runs", ())

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def watch(self, daemon: Daemon, health: Health) -> None:
        """Take gauges from this daemon from now on, and count what happens in it."""
        self.registry.register(_Gauges(daemon, health))
        self._begin_at_zero(daemon)
        daemon.desk.tally = self

    def _begin_at_zero(self, daemon: Daemon) -> None:
        """`increase()` does not see the first event of a series that begins with it."""
        for provider in daemon.desk.clouds:
            for result in RESULTS.values():
                self._launches.labels(provider, result)
        self._finished.labels(State.SUCCEEDED.value, "")
        self._finished.labels(State.CANCELLED.value, Reason.CANCELLED.value)
        for reason in RULES:
            self._finished.labels(State.FAILED.value, reason.value)

    def provider_request(self, provider: str, lane: str, code: int) -> None:
        self._provider_requests.labels(provider, lane, str(code)).inc()

    def hub_request(self, kind: str, code: int) -> None:
        self._hub_requests.labels(kind, str(code)).inc()

    def launched(self, provider: str, result: str) -> None:
        self._launches.labels(provider, result).inc()

    def ended(self, outcome: str, reason: str) -> None:
        self._finished.labels(outcome, reason).inc()

    def spent(self, usd: float) -> None:
        self._cost.inc(max(0.0, usd))

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)


class _Gauges(Collector):
    """Reads the daemon's memory only. A standby shows every name too, with nothing in it."""

    def __init__(self, daemon: Daemon, health: Health) -> None:
        self._daemon = daemon
        self._health = health
        self._started_at = daemon.desk.clock.now()

    def collect(self) -> Iterable[Metric]:
        rooms = self._daemon.rooms
        rows = self._rows()
        yield from self._process()
        yield from self._money(rows)
        yield from self._queue(rooms)
        yield self._runs(rooms)
        yield self._machines(rooms)
        pending_s = rooms.releaser.oldest_pending_s() if rooms else 0.0
        yield _gauge("flashd_machine_delete_oldest_pending_seconds", "Longest release under way", pending_s)
        swept = [sweeper.last_success_at or 0.0 for sweeper in rooms.sweepers] if rooms else []
        text = "Last whole sweep, of the provider where it is longest ago; 0 = none since this daemon leads"
        yield _gauge("flashd_sweep_last_success_timestamp_seconds", text, min(swept, default=0.0))

    def _process(self) -> Iterable[Metric]:
        desk, pulse = self._daemon.desk, self._health.pulse()
        now = desk.clock.now()
        yield _gauge("flashd_ready", "1 = ready", 0.0 if pulse.reason else 1.0)
        yield _labelled("flashd_leader", "1 = this daemon works, 0 = it stands by", "ns", {desk.ns: pulse.leading})
        yield _labelled("flashd_build_info", "Version", "version", {__version__: 1.0})
        yield _gauge("flashd_start_timestamp_seconds", "When this process started", self._started_at)
        yield _labelled("flashd_alarm", "1 = the alarm is up", "alarm", dict.fromkeys(desk.alarms.up, 1.0))
        yield _gauge(
            "flashd_event_loop_lag_seconds", "Worst delay of a timer in the last minute", self._health.loop_lag_s
        )
        passes = {loop: now - age for loop, age in pulse.ages.items() if age is not None}
        text = "Last completed pass of intake, releaser and each provider's observer"
        yield _labelled("flashd_last_pass_timestamp_seconds", text, "loop", passes)

    def _money(self, rows: tuple[LedgerRow, ...]) -> Iterable[Metric]:
        spent = sum(row.usd_per_hour for row in rows)
        yield _gauge("flashd_spend_usd_per_hour", "Price of all machines in the ledger", spent)
        limit = self._daemon.desk.limits.max_usd_per_hour
        yield _gauge("flashd_spend_limit_usd_per_hour", "limits.max_usd_per_hour", limit)

    def _queue(self, rooms: Rooms | None) -> Iterable[Metric]:
        queue = rooms.intake.queue if rooms else None
        yield _gauge("flashd_queue_requests", "Requests not yet accepted", float(queue.length) if queue else 0.0)
        oldest_at = queue.oldest_at if queue else None
        age_s = self._daemon.desk.clock.now() - oldest_at if oldest_at is not None else 0.0
        yield _gauge("flashd_queue_oldest_request_age_seconds", "Age of the oldest of them", max(0.0, age_s))

    def _runs(self, rooms: Rooms | None) -> Metric:
        states = Count(runner.run.state.value for runner in rooms.keeper.runners.values()) if rooms else Count[str]()
        shown = {state.value: float(states[state.value]) for state in State if state not in TERMINAL}
        return _labelled("flashd_runs_active", "Runs that have not ended", "state", shown)

    def _machines(self, rooms: Rooms | None) -> Metric:
        """By the last sweep; every owner begins at zero, so that the first orphan is a change."""
        found = {sweeper.provider: sweeper.counts() for sweeper in rooms.sweepers} if rooms else {}
        family = GaugeMetricFamily(
            "flashd_machines", "Machines listed, by whose they are", labels=["provider", "owned"]
        )
        for provider in sorted(self._daemon.desk.clouds):
            counts: Mapping[str, int] = found.get(provider, {})
            for owned in SHOWN_OWNERS:
                family.add_metric([provider, owned], float(counts.get(owned, 0)))
        return family

    def _rows(self) -> tuple[LedgerRow, ...]:
        if self._daemon.rooms is None:
            return ()  # what an earlier term knew is the new leader's now
        return self._daemon.desk.ledger.counted()


def _gauge(name: str, text: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, text)
    family.add_metric([], value)
    return family


def _labelled(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key in sorted(values):
        family.add_metric([key], values[key])
    return family
