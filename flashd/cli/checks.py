"""Questions to Redis, the Hub and the cloud, each answered on one line with what mends it."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

import anyio

from flashd.adapters.store_types import ServerInfo
from flashd.cli.exits import Exit, exit_of
from flashd.cli.output import show
from flashd.config import Settings
from flashd.daemon.process import Clients, clients
from flashd.errors import FlashdError, HubForbiddenError, HubRepoMissingError

CHECK_TIMEOUT_S = 40.0
PROBE_REPO = "flashd/configuration-check"  # need not exist: that it is missing is an answer too
OLDEST_REDIS = (7, 0)
SKEW_WARN_S = 2.0
SKEW_FAIL_S = 30.0  # half of the minute that separates an older machine of the same name from our own


class Level(StrEnum):
    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Check:
    """One question and its answer; `fix` says what to do, `status` is the exit status that a failure asks for."""

    name: str
    level: Level
    detail: str
    fix: str = ""
    status: Exit = Exit.OK

    @property
    def line(self) -> str:
        return f"{self.level:<5} {self.name}: {self.detail}" + (f"; {self.fix}" if self.fix else "")

    @property
    def document(self) -> dict[str, object]:
        return {"check": self.name, "status": self.level.value, "detail": self.detail, "fix": self.fix or None}


def ok(name: str, detail: str) -> Check:
    return Check(name, Level.OK, detail)


def warn(name: str, detail: str, fix: str) -> Check:
    return Check(name, Level.WARN, detail, fix)


def failed(name: str, detail: str, fix: str, status: Exit = Exit.FAILED) -> Check:
    return Check(name, Level.FAIL, detail, fix, status)


def worst(checks: Iterable[Check]) -> Exit:
    """The exit status of them all: a warning alone is 0."""
    return max((check.status for check in checks), default=Exit.OK)


def show_checks(checks: Iterable[Check]) -> None:
    for check in checks:
        show(check.line)


async def ask_outside(settings: Settings) -> tuple[Check, ...]:
    """Ask Redis, the Hub and the cloud; whatever they answer is a check."""
    async with clients(settings) as outside:
        return (
            *await _asked("redis", lambda: _redis(outside)),
            *await _asked("hub", lambda: _hub(settings, outside)),
            *await _asked("hyperstack", lambda: _hyperstack(outside)),
        )


async def _asked(name: str, question: Callable[[], Awaitable[tuple[Check, ...]]]) -> tuple[Check, ...]:
    try:
        with anyio.fail_after(CHECK_TIMEOUT_S):
            return await question()
    except FlashdError as error:
        status, text = exit_of(error)
        return (failed(name, text, "", status),)
    except TimeoutError:
        return (failed(name, f"no answer within {CHECK_TIMEOUT_S:.0f} s", "is the address right?", Exit.UNREACHABLE),)


async def _redis(outside: Clients) -> tuple[Check, ...]:
    before = outside.clock.now()
    info = await outside.store.info()
    after = outside.clock.now()
    return (*redis_checks(info), clock_check((before + after) / 2 - info.time))


def redis_checks(info: ServerInfo) -> tuple[Check, ...]:
    """Whether this Redis can be trusted with paid machines."""
    version = ".".join(map(str, info.version)) if info.version else "of unknown version"
    if info.version is not None and info.version < OLDEST_REDIS:
        return (failed("redis", f"version {version}", "Redis 7.0 or Valkey 7.2 is the oldest that works"),)
    found = [ok("redis", f"answers, version {version}")]
    if info.role not in (None, "master"):
        found.append(failed("redis role", f"{info.role}: nothing can be written", "point redis.url at the primary"))
    if info.aof is False:
        lost = "no append-only file: a restart of Redis forgets runs"
        found.append(warn("redis durability", lost, "CONFIG SET appendonly yes, and in redis.conf"))
    elif info.appendfsync not in (None, "always"):
        lost = f"appendfsync {info.appendfsync}: a crash of its host loses about the last second"
        found.append(warn("redis durability", lost, "CONFIG SET appendfsync always, and in redis.conf"))
    elif info.aof:
        found.append(ok("redis durability", "append-only file, appendfsync always"))
    if info.maxmemory_policy not in (None, "noeviction"):
        lost = f"maxmemory-policy {info.maxmemory_policy}: it may evict the ledger"
        found.append(failed("redis memory", lost, "CONFIG SET maxmemory-policy noeviction, and in redis.conf"))
    elif info.maxmemory_policy:
        found.append(ok("redis memory", "maxmemory-policy noeviction"))
    return tuple(found)


def clock_check(offset_s: float) -> Check:
    """`offset_s`: this host's clock less that of Redis."""
    detail = f"{offset_s:+.1f} s against Redis"
    fix = "synchronise both clocks (timedatectl)"
    if abs(offset_s) > SKEW_FAIL_S:
        return failed("clock", detail, fix)
    return warn("clock", detail, fix) if abs(offset_s) > SKEW_WARN_S else ok("clock", detail)


async def _hub(settings: Settings, outside: Clients) -> tuple[Check, ...]:
    # Both mean that it knows who asks, and that there is nothing to see.
    with contextlib.suppress(HubRepoMissingError, HubForbiddenError):
        await outside.hub.commits(PROBE_REPO)
    return (ok("hub", f"{settings.hub.endpoint} takes the token"),)


async def _hyperstack(outside: Clients) -> tuple[Check, ...]:
    account = await outside.hyperstack.account()
    stock = await outside.hyperstack.stock(fresh=True)
    free = [offer.place for offer in stock.offers if offer.available]
    detail = f"account {account}; {len(free)} of {len(stock.offers)} places have stock"
    if not free:
        return (warn("hyperstack", detail, "runs will wait with no_capacity"),)
    cheapest = min(free, key=lambda place: place.usd_per_hour)
    price = f"cheapest now {cheapest.gpu} in {cheapest.region} at ${cheapest.usd_per_hour:.2f}/h"
    return (ok("hyperstack", f"{detail}; {price}"),)
