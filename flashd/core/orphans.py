"""Whose a listed machine is, and which machines the sweep deletes. Dry run and real run share the one plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from flashd.core.ledger import LedgerRow, RowState
from flashd.core.machines import Machine
from flashd.core.names import fleet_prefix, machine_name, parse_machine_name


class Ownership(StrEnum):
    """OWNED: in the ledger. ORPHAN: a remembered run's name that the ledger lacks. UNKNOWN: our prefix, nobody's
    name. FOREIGN: everything else, never touched and never counted. ABANDONED: a given-up name, deleted at sight."""

    OWNED = "owned"
    ORPHAN = "orphan"
    UNKNOWN = "unknown"
    FOREIGN = "foreign"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True)
class Books:
    """What Redis says, read after the list was complete: the ledger, and the run behind each name hash."""

    ns: str
    rows: Mapping[str, LedgerRow]
    run_for_hash: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SweepRules:
    """`grace_s` counts from the provider's time of creation, or from the first sight where it tells none."""

    grace_s: float
    max_deletes: int


@dataclass(frozen=True, slots=True)
class Sighting:
    """Since when an orphan is seen, and in the how manieth complete pass in a row."""

    first_at: float
    passes: int


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What one pass found. `sightings` (by machine id) go into the next pass; `deletes` is empty when `too_many`."""

    deletes: tuple[Machine, ...]
    due: tuple[Machine, ...]
    sightings: Mapping[str, Sighting]
    report: tuple[tuple[Machine, Ownership], ...]
    too_many: bool

    def found(self, ownership: Ownership) -> tuple[Machine, ...]:
        return tuple(machine for machine, whose in self.report if whose is ownership)


def hashes_of(ns: str, machines: Iterable[Machine]) -> tuple[str, ...]:
    """The name hashes that have to be asked for before machines can be classified, sorted."""
    parsed = (parse_machine_name(ns, machine.name) for machine in machines)
    return tuple(sorted({name.hash for name in parsed if name is not None}))


def classify(machine: Machine, books: Books) -> Ownership:
    """Whose the machine is, by its exact name and id; a prefix alone proves nothing."""
    if not machine.name.startswith(fleet_prefix(books.ns)):
        return Ownership.FOREIGN
    row = books.rows.get(machine.name)
    if row is not None:
        if row.state is RowState.ABANDONED:
            return Ownership.ABANDONED
        if row.machine_id is None or row.machine_id == machine.id:
            return Ownership.OWNED
    return Ownership.ORPHAN if _is_a_runs_name(machine.name, books) else Ownership.UNKNOWN


def plan(
    machines: Iterable[Machine], books: Books, before: Mapping[str, Sighting], rules: SweepRules, now: float
) -> SweepPlan:
    """Which orphans to delete: older than the grace and in the second complete pass in a row, or none if too many.

    `before` are the sightings of the pass before this one.
    """
    report = tuple((machine, classify(machine, books)) for machine in machines)
    orphans = [machine for machine, whose in report if whose is Ownership.ORPHAN]
    sightings = {machine.id: _seen_again(before.get(machine.id), now) for machine in orphans}
    due = tuple(machine for machine in orphans if _is_due(machine, sightings[machine.id], rules, now))
    too_many = len(due) > rules.max_deletes
    return SweepPlan(
        deletes=() if too_many else due,
        due=due,
        sightings=sightings,
        report=tuple((machine, whose) for machine, whose in report if whose is not Ownership.FOREIGN),
        too_many=too_many,
    )


def _is_a_runs_name(name: str, books: Books) -> bool:
    """Whether the name equals the name recomputed for a remembered run and some number."""
    parsed = parse_machine_name(books.ns, name)
    run_id = books.run_for_hash.get(parsed.hash) if parsed is not None else None
    return parsed is not None and run_id is not None and machine_name(books.ns, run_id, parsed.number) == name


def _seen_again(before: Sighting | None, now: float) -> Sighting:
    return Sighting(now, 1) if before is None else Sighting(before.first_at, before.passes + 1)


def _is_due(machine: Machine, sighting: Sighting, rules: SweepRules, now: float) -> bool:
    since = machine.created_at if machine.created_at is not None else sighting.first_at
    return sighting.passes >= 2 and now - since > rules.grace_s
