"""`flashd run`: the daemon as a process with real time, real clients, signals, health and systemd."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import structlog

from flashd.adapters.clock import Random, SystemClock, system_random
from flashd.adapters.hub_http import HttpHub
from flashd.adapters.notify import Notifier
from flashd.adapters.store import Store, connect
from flashd.config import Settings
from flashd.daemon.admin import Admin
from flashd.daemon.composition import Outside, Secrets, compose
from flashd.daemon.health import Health
from flashd.daemon.memory import StateDirectory
from flashd.daemon.metrics import Metrics
from flashd.daemon.supervisor import Daemon
from flashd.providers.hyperstack import Hyperstack
from flashd.providers.hyperstack import Settings as HyperstackSettings

log = structlog.get_logger(__name__)

STOP_WITHIN_S = 9.0  # after SIGTERM; systemd and the contract give ten seconds
HEALTH_INTERVAL_S = 2.0
RUN_SECRET_MAX_BYTES = 8 * 1024


class CredentialsAtHand:
    """The credentials in use; a reload replaces them for every request that follows."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def hf_token(self) -> str:
        return self.settings.credentials.hf_token.reveal()

    def box_token(self) -> str:
        if self.settings.hub.share_daemon_token:
            return self.hf_token()
        return self.settings.credentials.hf_box_token.reveal()

    def hyperstack_api_key(self) -> str:
        return self.settings.credentials.hyperstack_api_key.reveal()

    def run_secret(self, name: str) -> str | None:
        """A run secret from the secrets directory, None when it is not there."""
        path = Path(self.settings.secrets.directory) / name
        try:
            if path.stat().st_size > RUN_SECRET_MAX_BYTES:
                return None
            return path.read_text().rstrip("\n")
        except (OSError, UnicodeError):
            return None

    def run_secret_names(self) -> frozenset[str]:
        try:
            return frozenset(entry.name for entry in Path(self.settings.secrets.directory).iterdir() if entry.is_file())
        except OSError:
            return frozenset()


@dataclass(frozen=True, slots=True)
class Clients:
    """Real clients of everything outside, under one process's identity."""

    clock: SystemClock
    random: Random
    owner: str
    at_hand: CredentialsAtHand
    metrics: Metrics
    store: Store
    hub: HttpHub
    hyperstack: Hyperstack


@asynccontextmanager
async def clients(settings: Settings) -> AsyncIterator[Clients]:
    """Clients that have not asked anything yet; closed on the way out."""
    clock, random = SystemClock(), system_random()
    at_hand, metrics = CredentialsAtHand(settings), Metrics()
    owner = random.randbytes(16).hex()
    async with AsyncExitStack() as stack:
        store = connect(settings.credentials.redis_url.reveal(), settings.namespace, owner)
        stack.push_async_callback(store.link.close)
        hub = HttpHub(settings.hub.endpoint, at_hand.hf_token, clock, metrics.hub_request)
        await stack.enter_async_context(hub)
        hyperstack = Hyperstack(
            _hyperstack_settings(settings, at_hand),
            clock,
            random,
            lambda lane, code: metrics.provider_request("hyperstack", lane.label, code),
        )
        stack.push_async_callback(hyperstack.aclose)
        yield Clients(clock, random, owner, at_hand, metrics, store, hub, hyperstack)


def _hyperstack_settings(settings: Settings, at_hand: CredentialsAtHand) -> HyperstackSettings:
    cloud = settings.providers.hyperstack
    return HyperstackSettings(
        api_key=at_hand.hyperstack_api_key,
        base_url=cloud.base_url,
        blocked_regions=cloud.blocked_regions,
        no_volume_regions=cloud.no_volume_regions,
        keypair=cloud.keypair,
        environment=cloud.environment,
        image=cloud.image,
        requests_per_minute=cloud.requests_per_minute,
    )


def assembled(settings: Settings, outside: Clients, state: StateDirectory) -> Daemon:
    """The daemon over real clients."""
    at_hand = outside.at_hand
    return compose(
        settings,
        Outside(
            clock=outside.clock,
            random=outside.random,
            store=outside.store,
            hub=outside.hub,
            providers={"hyperstack": outside.hyperstack},
            owner=outside.owner,
            secrets=Secrets(at_hand.box_token, at_hand.run_secret, at_hand.run_secret_names),
            holder=state.holder,
            state=state,
            on_takeover={"hyperstack": outside.hyperstack.limiter.reset},
        ),
    )


async def run(settings: Settings, notifier: Notifier) -> None:
    """Serve until SIGTERM or SIGINT; machines stay and are adopted by the next start."""
    with StateDirectory(Path(settings.state_directory)) as state:
        async with clients(settings) as outside:
            await _serve(assembled(settings, outside, state), outside, settings, notifier)


async def _serve(daemon: Daemon, outside: Clients, settings: Settings, notifier: Notifier) -> None:
    health = Health(daemon)
    outside.metrics.watch(daemon, health)
    daemon.desk.alarms.on_raise = _alarm_raised
    daemon.desk.alarms.on_clear = _alarm_cleared
    admin = Admin(daemon, health, outside.metrics, settings.http.listen)
    async with anyio.create_task_group() as group:
        group.start_soon(_heed_signals, daemon)
        group.start_soon(admin.serve)
        group.start_soon(_tell_systemd, health, notifier)
        await daemon.serve()
        notifier.stopping("handed over")
        group.cancel_scope.cancel()


async def _heed_signals(daemon: Daemon) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("stopping", signal=signal.Signals(number).name, machines="stay")
            daemon.stop.set()
            await anyio.sleep(STOP_WITHIN_S)
            # What holds us up is an open create call; its intent is durable, the next leader settles it by name.
            log.warning("stopped_with_an_open_call")
            os._exit(0)


async def _tell_systemd(health: Health, notifier: Notifier) -> None:
    told_ready = False
    while True:
        if not told_ready and health.may_serve():
            notifier.ready(health.status_line())
            told_ready = True
        elif told_ready:
            notifier.status(health.status_line())
        if health.is_moving():
            notifier.ping()
        await anyio.sleep(HEALTH_INTERVAL_S)


def _alarm_raised(name: str, text: str) -> None:
    log.error("alarm_raised", alarm=name, detail=text)


def _alarm_cleared(name: str) -> None:
    log.info("alarm_cleared", alarm=name)
