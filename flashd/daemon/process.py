"""`flashd run`: the daemon as a process with real time, real clients, signals, health and systemd."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
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
from flashd.daemon.admin import Admin, Told
from flashd.daemon.alarms import Alarms
from flashd.daemon.composition import Outside, Secrets, compose
from flashd.daemon.health import Health
from flashd.daemon.memory import StateDirectory
from flashd.daemon.metrics import Metrics
from flashd.daemon.reload import Means, Reloader
from flashd.daemon.supervisor import Daemon
from flashd.logs import Recent
from flashd.providers.hyperstack import Hyperstack
from flashd.providers.hyperstack import Settings as HyperstackSettings
from flashd.redaction import Redactor

log = structlog.get_logger(__name__)

STOP_WITHIN_S = 9.0  # after SIGTERM; systemd and the contract give ten seconds
HEALTH_INTERVAL_S = 2.0
START_EXTENSION_S = 30.0
RUN_SECRET_MAX_BYTES = 8 * 1024


@dataclass(frozen=True, slots=True)
class Host:
    """What the command line lends the daemon. `read_settings` reads them anew and raises ConfigError."""

    notifier: Notifier
    redactor: Redactor
    recent: Recent
    read_settings: Callable[[], Settings]
    set_log_level: Callable[[str], None]


class CredentialsAtHand:
    """The credentials in use, all known to `redactor`; a reload replaces them for every request that follows."""

    def __init__(self, settings: Settings, redactor: Redactor) -> None:
        self._redactor = redactor
        self.renew(settings)

    def renew(self, settings: Settings) -> None:
        """Use these from now on."""
        self.settings = settings
        for secret in settings.credentials.at_hand():
            self._redactor.add(secret.reveal())
        for name in sorted(self.run_secret_names()):
            self.run_secret(name)

    def hf_token(self) -> str:
        return self.settings.credentials.hf_token.reveal()

    def box_token(self) -> str:
        if self.settings.hub.share_daemon_token:
            return self.hf_token()
        return self.settings.credentials.hf_box_token.reveal()

    def hyperstack_api_key(self) -> str:
        return self.settings.credentials.hyperstack_api_key.reveal()

    def run_secret(self, name: str) -> str | None:
        """A run secret from the secrets directory, None when it is not there. Nobody logs it after this."""
        path = Path(self.settings.secrets.directory) / name
        try:
            if path.stat().st_size > RUN_SECRET_MAX_BYTES:
                return None
            secret = path.read_text().rstrip("\n")
        except (OSError, UnicodeError):
            return None
        self._redactor.add(secret)
        return secret

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
async def clients(settings: Settings, redactor: Redactor | None = None) -> AsyncIterator[Clients]:
    """Clients that have not asked anything yet; closed on the way out."""
    clock, random = SystemClock(), system_random()
    at_hand, metrics = CredentialsAtHand(settings, redactor or Redactor()), Metrics()
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


async def run(settings: Settings, host: Host) -> None:
    """Serve until SIGTERM or SIGINT; machines stay and are adopted by the next start. SIGHUP reloads."""
    with StateDirectory(Path(settings.state_directory)) as state:
        async with clients(settings, host.redactor) as outside:
            await _serve(assembled(settings, outside, state), outside, settings, host)


async def _serve(daemon: Daemon, outside: Clients, settings: Settings, host: Host) -> None:
    health = Health(daemon)
    outside.metrics.watch(daemon, health)
    log_alarms(daemon.desk.alarms)
    means = Means(host.read_settings, outside.at_hand.renew, outside.store.link.readdress, host.set_log_level)
    reloader = Reloader(daemon.desk, settings, means)
    told = Told(health, outside.metrics, reloader, host.redactor, host.recent)
    admin = Admin(daemon, told, settings.http.listen)
    async with anyio.create_task_group() as group:
        group.start_soon(_heed_stop, daemon, health, host.notifier)
        group.start_soon(_heed_reload, reloader, health, host.notifier)
        group.start_soon(admin.serve)
        group.start_soon(_tell_systemd, daemon, health, host.notifier)
        await daemon.serve()
        log.info("handed_over", machines="stay")
        group.cancel_scope.cancel()


async def _heed_stop(daemon: Daemon, health: Health, notifier: Notifier) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("stopping", signal=signal.Signals(number).name, machines="stay")
            notifier.stopping(f"handing over; {health.status_line()}; machines stay")
            daemon.stop.set()
            await anyio.sleep(STOP_WITHIN_S)
            # What holds us up is an open create call; its intent is durable, the next leader settles it by name.
            log.warning("stopped_with_an_open_call")
            os._exit(0)


async def _heed_reload(reloader: Reloader, health: Health, notifier: Notifier) -> None:
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            notifier.reloading()
            await reloader.reload()
            notifier.ready(health.status_line())


async def _tell_systemd(daemon: Daemon, health: Health, notifier: Notifier) -> None:
    told_ready = False
    while not daemon.stop.is_set():
        moving = health.is_moving()
        if not told_ready and health.may_serve():
            notifier.ready(health.status_line())
            told_ready = True
        else:
            notifier.status(health.status_line())
        if not told_ready and moving:
            # A Redis that is away must not turn into a restart loop.
            notifier.extend_timeout(START_EXTENSION_S)
        if moving:
            notifier.ping()
        await anyio.sleep(HEALTH_INTERVAL_S)


def log_alarms(alarms: Alarms) -> None:
    """Every alarm that goes up is a line at `err`."""

    def raised(name: str, text: str) -> None:
        log.error("alarm_raised", alarm=name, detail=text)

    alarms.on_raise = raised
    alarms.on_clear = lambda name: log.info("alarm_cleared", alarm=name)
