"""`flashd machines` and `flashd sweep --dry-run`: what is paid for, whose it is, and what the sweep would delete."""

from __future__ import annotations

import argparse

from flashd.cli.exits import Exit
from flashd.cli.fleet import lines_of, total_text, usd_per_hour
from flashd.cli.output import fail, say, show, show_json
from flashd.cli.session import run_async, settings_for
from flashd.cli.statusz import statusz
from flashd.config import Settings
from flashd.config_credentials import HYPERSTACK_API_KEY, REDIS_URL
from flashd.core.machines import Machine
from flashd.core.orphans import Books, Ownership, SweepPlan, SweepRules, plan
from flashd.daemon.process import Clients, clients
from flashd.daemon.sweeper import read_books

NEED = frozenset({REDIS_URL.name, HYPERSTACK_API_KEY.name})
PROVIDER = "hyperstack"


def machines(options: argparse.Namespace) -> int:
    """Ledger and list side by side."""
    settings = settings_for(options, NEED)
    return run_async(lambda: _machines(settings, options))


def sweep(options: argparse.Namespace) -> int:
    """The sweeper's own plan on two complete lists; nothing is deleted."""
    if not options.dry_run:
        text = "the running daemon sweeps by itself every sweep.interval_s; this command only lists: add --dry-run"
        return fail(options, Exit.USAGE, text)
    settings = settings_for(options, NEED)
    return run_async(lambda: _sweep(settings, options))


async def _machines(settings: Settings, options: argparse.Namespace) -> Exit:
    async with clients(settings) as outside:
        listed = await outside.hyperstack.list()
        books = await read_books(outside.store, settings.namespace, listed)
        lines = lines_of(PROVIDER, listed, books, {})
        if any(line.usd_per_hour is None for line in lines):
            lines = lines_of(PROVIDER, listed, books, await _prices(outside))
        now = outside.clock.now()
    if options.json:
        documents = [line.document(now) for line in lines]
        show_json({"machines": documents, "count": len(lines), "usd_per_hour": usd_per_hour(lines)})
        return Exit.OK
    for line in lines:
        show(line.text(now))
    show(total_text(lines))
    return Exit.OK


async def _prices(outside: Clients) -> dict[tuple[str, str], float]:
    """Of what the books do not know: by region and flavor."""
    stock = await outside.hyperstack.stock(fresh=True)
    return {(offer.place.region, offer.place.sku): offer.place.usd_per_hour for offer in stock.offers}


async def _sweep(settings: Settings, options: argparse.Namespace) -> Exit:
    rules = SweepRules(settings.sweep.grace_s, settings.sweep.max_deletes)
    async with clients(settings) as outside:
        listed, books = await _look(settings, outside)
        first = plan(listed, books, {}, rules, outside.clock.now())
        # An orphan is one that two complete lists show; the daemon's are a pass apart, these follow each other.
        listed, books = await _look(settings, outside)
        found = plan(listed, books, first.sightings, rules, outside.clock.now())
    daemon = statusz(settings)
    safe_mode = daemon.get("safe_mode") if daemon is not None else None
    if safe_mode:
        say(f"the daemon is in safe mode and deletes nothing: {safe_mode}")
    if options.json:
        show_json(_document(found, settings) | {"safe_mode": safe_mode})
        return Exit.OK
    show(_text(found, settings))
    return Exit.OK


async def _look(settings: Settings, outside: Clients) -> tuple[tuple[Machine, ...], Books]:
    listed = await outside.hyperstack.list()
    return listed, await read_books(outside.store, settings.namespace, listed)


def _document(found: SweepPlan, settings: Settings) -> dict[str, object]:
    def shown(machines: tuple[Machine, ...]) -> list[dict[str, str]]:
        return [{"name": machine.name, "machine_id": machine.id, "status": machine.raw_status} for machine in machines]

    return {
        "dry_run": True,
        "deletes": shown(found.deletes),
        "orphans": shown(found.found(Ownership.ORPHAN)),
        "abandoned": shown(found.found(Ownership.ABANDONED)),
        "unknown": shown(found.found(Ownership.UNKNOWN)),
        "too_many": found.too_many,
        "max_deletes": settings.sweep.max_deletes,
    }


def _text(found: SweepPlan, settings: Settings) -> str:
    due = {machine.id for machine in found.due}
    lines = [f"would delete  {_named(machine)}" for machine in found.deletes]
    if found.too_many:
        limit = f"{len(found.due)} orphans are more than sweep.max_deletes = {settings.sweep.max_deletes}"
        lines = [f"{limit}: nothing would be deleted", *(f"too many      {_named(machine)}" for machine in found.due)]
    young = [machine for machine in found.found(Ownership.ORPHAN) if machine.id not in due]
    lines += [f"too young     {_named(machine)}" for machine in young]
    lines += [f"at sight      {_named(machine)}" for machine in found.found(Ownership.ABANDONED)]
    lines += [f"unknown, kept {_named(machine)}" for machine in found.found(Ownership.UNKNOWN)]
    return "\n".join(lines) or "nothing to sweep"


def _named(machine: Machine) -> str:
    return f"{machine.name} (id {machine.id}, {machine.raw_status})"
