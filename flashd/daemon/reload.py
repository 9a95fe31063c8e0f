"""SIGHUP: the configuration is read and checked anew, then applied as far as a running daemon can, or kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import structlog

from flashd.config import ConfigFile, Settings
from flashd.config_credentials import Secret
from flashd.config_keys import KEYS
from flashd.config_keys import Path as Key
from flashd.core.model import Reason
from flashd.core.policy import Policy
from flashd.daemon.desk import Desk, FleetLimits
from flashd.errors import ConfigError

log = structlog.get_logger(__name__)

# These two depend on each other and on what is under way; sweep.grace_s is checked against the latter.
_FIXED_POLICY = frozenset({("policy", "lease_ttl_s"), ("policy", "launch_timeout_s")})
_LIVE = frozenset(
    {
        ("hub", "token_file"),
        ("hub", "box_token_file"),
        ("hub", "share_daemon_token"),
        ("providers", "hyperstack", "api_key_file"),
        ("secrets", "directory"),
        ("log", "level"),
    }
)
_LIVE_CREDENTIALS = ("hf_token", "hf_box_token", "hyperstack_api_key")


@dataclass(frozen=True, slots=True)
class Means:
    """What a reload works with. `read` raises ConfigError; `renew` hands the new credentials to the clients of clouds
    and Hub, `readdress` a new URL of the same server to those of Redis."""

    read: Callable[[], Settings]
    renew: Callable[[Settings], None]
    readdress: Callable[[str], Awaitable[None]]
    set_log_level: Callable[[str], None]


class Reloader:
    """Keeps what is in force, key by key; what needs a restart is pending until there is one."""

    def __init__(self, desk: Desk, settings: Settings, means: Means) -> None:
        self.generation = 1
        self.pending: tuple[str, ...] = ()
        self.loaded_at = desk.clock.now()
        self._desk = desk
        self._means = means
        self._credentials = settings.credentials
        self._in_force = _values(settings.file)

    async def reload(self) -> bool:
        """Apply what is on disk now, or nothing of it. Either way every refused credential is tried again at once."""
        fresh = self._read()
        if fresh is not None:
            await self._apply(fresh)
        self._retry()
        return fresh is not None

    def _read(self) -> Settings | None:
        try:
            fresh = self._means.read()
        except ConfigError as error:
            log.error("configuration_refused", faults=list(error.lines), kept=f"generation {self.generation}")
            text = f"{error.lines[0]}; {len(error.lines)} faults; the running one is kept, a restart would fail"
            self._desk.alarms.set("configuration_refused", text)
            return None
        self._desk.alarms.set("configuration_refused", None)
        return fresh

    async def _apply(self, fresh: Settings) -> None:
        values = _values(fresh.file)
        differing = [key for key in KEYS if values[key] != self._in_force[key]]
        changed = [key for key in differing if is_live(key)]
        self._in_force |= {key: values[key] for key in changed}
        renewed = self._renewed(fresh)
        self.pending = tuple(".".join(key) for key in differing if not is_live(key) and key[0] != "redis")
        self._means.renew(fresh)
        renewed += await self._redis(fresh.credentials.redis_url)
        self._desk.policy = self._policy(fresh)
        self._desk.limits = FleetLimits(fresh.limits.max_machines, fresh.limits.max_usd_per_hour)
        self._means.set_log_level(fresh.log.level)
        self.generation += 1
        self.loaded_at = self._desk.clock.now()
        log.info(
            "configuration_reloaded",
            generation=self.generation,
            changed=[".".join(key) for key in changed],
            renewed=renewed,
        )
        if self.pending:
            log.warning("configuration_needs_a_restart", keys=list(self.pending))

    def _renewed(self, fresh: Settings) -> list[str]:
        """Names of credentials that are others than before."""
        old, new = self._credentials, fresh.credentials
        names = [name for name in _LIVE_CREDENTIALS if getattr(old, name) != getattr(new, name)]
        self._credentials = replace(new, redis_url=old.redis_url)
        return names

    async def _redis(self, url: Secret) -> list[str]:
        """A new user or password of the same server is used at once; another server is another fleet's books."""
        old = self._credentials.redis_url
        if url == old:
            return []
        if _server(url.reveal()) != _server(old.reveal()):
            self.pending = (*self.pending, "redis.url")
            return []
        self._credentials = replace(self._credentials, redis_url=url)
        await self._means.readdress(url.reveal())
        return ["redis_url"]

    def _policy(self, fresh: Settings) -> Policy:
        kept = {key[-1]: getattr(self._desk.policy, key[-1]) for key in _FIXED_POLICY}
        return replace(fresh.policy, **kept)

    def _retry(self) -> None:
        now = self._desk.clock.now()
        for cloud in self._desk.clouds.values():
            if cloud.pause is not None and cloud.pause.reason in (Reason.AUTH, Reason.NO_CREDIT):
                cloud.pause = replace(cloud.pause, next_try_at=now)
            cloud.observer.retry_now()
        for watcher in self._desk.watchers.watchers().values():
            watcher.retry_now()


def is_live(key: Key) -> bool:
    """Whether a change of this key takes effect without a restart."""
    return key in _LIVE or (key[0] in ("policy", "limits") and key not in _FIXED_POLICY)


def _server(url: str) -> tuple[str, str, str, str]:
    """The address without user and password."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query


def _values(file: ConfigFile) -> dict[Key, object]:
    found: dict[Key, object] = {}
    for key in KEYS:
        value: object = file
        for part in key:
            value = getattr(value, part)
        found[key] = value
    return found
