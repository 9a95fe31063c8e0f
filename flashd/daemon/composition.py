"""The one place where a daemon is put together; the process and the simulator both call it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from flashd.adapters.clock import Clock, Random
from flashd.adapters.hub import Hub
from flashd.adapters.store import Store
from flashd.config import Settings
from flashd.daemon.alarms import Alarms
from flashd.daemon.desk import BootSettings, Cloud, Desk, FleetLimits, Lease, Ledger
from flashd.daemon.memory import StateDirectory
from flashd.daemon.observer import FleetObserver
from flashd.daemon.supervisor import Daemon, Plan
from flashd.daemon.sweeper import SweepSettings
from flashd.daemon.watcher import Watchers
from flashd.providers import catalog
from flashd.providers.base import Provider

LEASE_MARGIN_SHARE = 0.1
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Secrets:
    """Credentials and run secrets, asked for whenever they are needed so that a renewed one works at once."""

    box_token: Callable[[], str]
    run_secret: Callable[[str], str | None]
    run_secret_names: Callable[[], frozenset[str]]


@dataclass(frozen=True, slots=True)
class Outside:
    """Everything a daemon touches: time, chance, Redis, the clouds, the Hub, its disk."""

    clock: Clock
    random: Random
    store: Store
    hub: Hub
    providers: Mapping[str, Provider]
    owner: str
    secrets: Secrets
    holder: str = ""
    state: StateDirectory | None = None
    on_takeover: Mapping[str, Callable[[], None]] = field(default_factory=dict)


def compose(settings: Settings, outside: Outside) -> Daemon:
    """A daemon that has not started yet."""
    clock, random = outside.clock, outside.random
    poll_s = {"hyperstack": settings.providers.hyperstack.poll_interval_s}
    clouds = {
        name: Cloud(
            provider,
            FleetObserver(provider, settings.namespace, clock, random, poll_s.get(name, 15.0)),
            on_takeover=outside.on_takeover.get(name, _nothing),
        )
        for name, provider in outside.providers.items()
    }
    hub = settings.hub
    desk = Desk(
        ns=settings.namespace,
        owner=outside.owner,
        policy=settings.policy,
        limits=FleetLimits(settings.limits.max_machines, settings.limits.max_usd_per_hour),
        clock=clock,
        random=random,
        store=outside.store,
        hub=outside.hub,
        clouds=clouds,
        watchers=Watchers(outside.hub, clock, random, hub.poll_interval_s, hub.commits_per_hour),
        lease=Lease(clock, settings.policy.lease_ttl_s * LEASE_MARGIN_SHARE),
        ledger=Ledger(),
        boot=BootSettings(
            ns=settings.namespace,
            hub_endpoint=hub.endpoint,
            box_token=outside.secrets.box_token,
            first_commit_after_s=hub.first_commit_after_s,
            commit_interval_s=hub.commit_interval_s,
            secret=outside.secrets.run_secret,
        ),
        gpu_names=catalog.class_names(),
        default_image=settings.worker.image,
        alarms=Alarms(),
    )
    for name, cloud in clouds.items():
        cloud.observer.owners = partial(desk.ledger.accounts, name)
    plan = Plan(
        sweep=SweepSettings(
            interval_s=settings.sweep.interval_s,
            initial_interval_s=settings.sweep.initial_interval_s,
            grace_s=settings.sweep.grace_s,
            max_deletes=settings.sweep.max_deletes,
            dry_run=settings.sweep.dry_run,
        ),
        runs_per_repo=hub.runs_per_repo,
        runs_s=settings.retention.runs_days * DAY_S,
        remember_s=settings.retention.remember_days * DAY_S,
        secret_names=outside.secrets.run_secret_names,
    )
    holder = outside.holder or outside.owner
    return Daemon(desk, plan, holder, outside.state, owns_directory=outside.state is not None)


def _nothing() -> None:
    return None
