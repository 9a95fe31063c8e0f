"""Prometheus metrics: counters as things happen, gauges computed when asked for. No label per run or machine."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from flashd import __version__
from flashd.core.ledger import RowState
from flashd.core.model import TERMINAL, State
from flashd.daemon.health import Health
from flashd.daemon.supervisor import Daemon

disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double every counter

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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
        daemon.desk.tally = self

    def provider_request(self, provider: str, lane: str, code: int) -> None:
        self._provider_requests.labels(provider, str(lane), str(code)).inc()

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
    def __init__(self, daemon: Daemon, health: Health) -> None:
        self._daemon = daemon
        self._health = health

    def collect(self) -> Iterable[Metric]:
        desk, rooms = self._daemon.desk, self._daemon.rooms
        rows = [row for row in desk.ledger.rows.values() if row.state is not RowState.ABANDONED]
        yield _gauge("flashd_ready", "1 = ready", 0.0 if self._health.reason() else 1.0)
        yield _labelled("flashd_build_info", "Version", "version", {__version__: 1.0})
        yield _labelled("flashd_alarm", "1 = the alarm is up", "alarm", {name: 1.0 for name in desk.alarms.up})
        yield _gauge("flashd_spend_usd_per_hour", "Price of all machines", sum(row.usd_per_hour for row in rows))
        yield _gauge("flashd_spend_limit_usd_per_hour", "limits.max_usd_per_hour", desk.limits.max_usd_per_hour)
        yield _gauge("flashd_event_loop_lag_seconds", "How late a timer fires", self._health.loop_lag_s)
        states = Count(runner.run.state.value for runner in rooms.keeper.runners.values()) if rooms else Count()
        shown = {state.value: float(states[state.value]) for state in State if state not in TERMINAL}
        yield _labelled("flashd_runs_active", "Runs that have not ended", "state", shown)
        yield self._machines()
        if rooms is not None:
            now = desk.clock.now()
            queue = rooms.intake.queue
            yield _gauge("flashd_queue_requests", "Requests not yet accepted", float(queue.length))
            oldest = now - queue.oldest_at if queue.oldest_at is not None else 0.0
            yield _gauge("flashd_queue_oldest_request_age_seconds", "Age of the oldest of them", max(0.0, oldest))
            pending_s = rooms.releaser.oldest_pending_s()
            yield _gauge("flashd_machine_delete_oldest_pending_seconds", "Longest release under way", pending_s)
            swept = [sweeper.last_success_at for sweeper in rooms.sweepers if sweeper.last_success_at is not None]
            yield _gauge("flashd_sweep_last_success_timestamp_seconds", "Last whole sweep", min(swept, default=0.0))

    def _machines(self) -> Metric:
        family = GaugeMetricFamily(
            "flashd_machines", "Machines listed, by whose they are", labels=["provider", "owned"]
        )
        rooms = self._daemon.rooms
        for sweeper in rooms.sweepers if rooms else ():
            for owned, count in sorted(sweeper.counts().items()):
                family.add_metric([sweeper.provider, owned], float(count))
        return family


def _gauge(name: str, text: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, text)
    family.add_metric([], value)
    return family


def _labelled(name: str, text: str, label: str, values: dict[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key in sorted(values):
        family.add_metric([key], values[key])
    return family
