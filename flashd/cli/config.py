"""`flashd check-config` and `print-default-config`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Awaitable
from dataclasses import dataclass

import anyio

from flashd.cli.exits import Exit
from flashd.cli.session import say, show, show_json
from flashd.config import Settings, fleet_ceiling, load_settings, print_default_config, warnings
from flashd.errors import AuthError, ConfigError, FlashdError, HubAuthError, HubRepoMissingError, StoreAuthError

CHECK_TIMEOUT_S = 40.0
PROBE_REPO = "flashd/configuration-check"  # need not exist: that it is missing is an answer too


@dataclass(frozen=True, slots=True)
class Check:
    """One question to the outside and its answer; `status` OK, or the exit status that the failure asks for."""

    name: str
    status: Exit
    detail: str


def print_default(options: argparse.Namespace) -> int:
    """Every key with its default."""
    text = print_default_config()
    if options.json:
        show_json({"config": text})
    else:
        show(text.rstrip("\n"))
    return Exit.OK


def check_config(options: argparse.Namespace) -> int:
    """Syntax, keys, contradictions, credentials; without --offline also Redis, the Hub and the cloud."""
    try:
        settings = load_settings(options.config, os.environ)
    except ConfigError as error:
        if options.json:
            show_json({"ok": False, "errors": list(error.lines)})
        else:
            say(str(error))
        return Exit.CONFIG
    checks = () if options.offline else anyio.run(ask_outside, settings)
    status = max((check.status for check in checks), default=Exit.OK)
    if options.json:
        shown = [{"check": check.name, "ok": check.status == Exit.OK, "detail": check.detail} for check in checks]
        ceiling = fleet_ceiling(settings).text
        show_json({"ok": status == Exit.OK, "warnings": list(warnings(settings)), "ceiling": ceiling, "checks": shown})
        return status
    for line in warnings(settings):
        say(f"warning: {line}")
    for check in checks:
        show(f"{'OK' if check.status == Exit.OK else 'FAIL':<5} {check.name}: {check.detail}")
    show(fleet_ceiling(settings).text)
    if status == Exit.OK:
        show("the configuration is right")
    return status


async def ask_outside(settings: Settings) -> tuple[Check, ...]:
    """Ask Redis, the Hub and the cloud whether they take our credentials."""
    from flashd.daemon.process import Clients, clients

    async def redis(outside: Clients) -> str:
        info = await outside.store.info()
        version = ".".join(map(str, info.version)) if info.version else "of unknown version"
        durable = {True: "append-only file on", False: "WITHOUT append-only file: a restart of Redis loses runs"}
        return f"Redis {version}, {durable.get(info.aof or False, '')}"

    async def hub(outside: Clients) -> str:
        try:
            await outside.hub.commits(PROBE_REPO)
        except HubRepoMissingError:
            return f"{settings.hub.endpoint} answers"
        return f"{settings.hub.endpoint} answers"

    async def hyperstack(outside: Clients) -> str:
        account = await outside.hyperstack.account()
        stock = await outside.hyperstack.stock(fresh=True)
        free = [offer.place for offer in stock.offers if offer.available]
        cheapest = min(free, key=lambda place: place.usd_per_hour, default=None)
        price = (
            f"cheapest now: {cheapest.gpu} in {cheapest.region} at ${cheapest.usd_per_hour:.2f}/h" if cheapest else ""
        )
        return f"account {account}; {len(free)} of {len(stock.offers)} places have stock; {price or 'nothing is free'}"

    async with clients(settings) as outside:
        return (
            await _check("redis", redis(outside)),
            await _check("hub", hub(outside)),
            await _check("hyperstack", hyperstack(outside)),
        )


async def _check(name: str, question: Awaitable[str]) -> Check:
    try:
        with anyio.fail_after(CHECK_TIMEOUT_S):
            return Check(name, Exit.OK, await question)
    except (AuthError, HubAuthError, StoreAuthError) as error:
        return Check(name, Exit.REFUSED, f"the credential was refused: {error}")
    except FlashdError as error:
        return Check(name, Exit.UNREACHABLE, str(error))
    except TimeoutError:
        return Check(name, Exit.UNREACHABLE, f"no answer within {CHECK_TIMEOUT_S:.0f} s")
