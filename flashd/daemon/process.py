"""`flashd run`: the daemon as a process with real time, real clients, signals, health and systemd."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import structlog

from flashd.adapters.clock import SystemClock, system_random
from flashd.adapters.hub_http import HttpHub
from flashd.adapters.notify import Notifier
from flashd.adapters.store import connect
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


@asynccontextmanager
async def assembled(settings: Settings) -> AsyncIterator[tuple[Daemon, Metrics, CredentialsAtHand]]:
    """The daemon over real clients; everything is closed on the way out."""
    clock, random = SystemClock(), system_random()
    at_hand, metrics = CredentialsAtHand(settings), Metrics()
    owner = random.randbytes(16).hex()
    async with AsyncExitStack() as stack:
        state = stack.enter_context(StateDirectory(Path(settings.state_directory)))
        store = connect(settings.credentials.redis_url.reveal(), settings.namespace, owner)
        stack.push_async_callback(store.link.close)
        hub = await stack.enter_async_context(
            HttpHub(settings.hub.endpoint, at_hand.hf_token, clock, metrics.hub_request)
        )
        cloud = settings.providers.hyperstack
        hyperstack = Hyperstack(
            HyperstackSettings(
                api_key=at_hand.hyperstack_api_key,
                base_url=cloud.base_url,
                blocked_regions=cloud.blocked_regions,
                no_volume_regions=cloud.no_volume_regions,
                keypair=cloud.keypair,
                environment=cloud.environment,
                image=cloud.image,
                requests_per_minute=cloud.requests_per_minute,
            ),
            clock,
            random,
            lambda lane, code: metrics.provider_request("hyperstack", lane.label, code),
        )
        stack.push_async_callback(hyperstack.aclose)
        outside = Outside(
            clock=clock,
            random=random,
            store=store,
            hub=hub,
            providers={"hyperstack": hyperstack},
            owner=owner,
            secrets=Secrets(at_hand.box_token, at_hand.run_secret, at_hand.run_secret_names),
            holder=state.holder,
            state=state,
            on_takeover={"hyperstack": hyperstack.limiter.reset},
        )
        yield compose(settings, outside), metrics, at_hand


async def run(settings: Settings, notifier: Notifier) -> None:
    """Serve until SIGTERM or SIGINT; machines stay and are adopted by the next start."""
    async with assembled(settings) as (daemon, metrics, at_hand):
        health = Health(daemon)
        metrics.watch(daemon, health)
        daemon.desk.alarms.on_raise = _alarm_raised
        daemon.desk.alarms.on_clear = _alarm_cleared
        admin = Admin(daemon, health, metrics, settings.http.listen)
        async with anyio.create_task_group() as group:
            group.start_soon(_heed_signals, daemon, at_hand)
            group.start_soon(admin.serve)
            group.start_soon(_tell_systemd, health, notifier)
            await daemon.serve()
            group.cancel_scope.cancel()


async def _heed_signals(daemon: Daemon, at_hand: CredentialsAtHand) -> None:
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
