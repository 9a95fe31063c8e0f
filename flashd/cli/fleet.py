"""The books beside the provider's list: every machine of ours with its owner, age and price."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from flashd.cli.output import age, cut
from flashd.core.ledger import LedgerRow, RowState
from flashd.core.machines import Machine
from flashd.core.orphans import Books, Ownership, classify

MISSING = "not listed"


@dataclass(frozen=True, slots=True)
class Line:
    """A machine that is listed, in the books, or both. `usd_per_hour` None: nobody here knows its price."""

    name: str
    ownership: Ownership
    machine: Machine | None
    row: LedgerRow | None
    usd_per_hour: float | None
    provider: str

    @property
    def since(self) -> float | None:
        """Unix seconds: the provider's word, else the intent."""
        if self.machine is not None and self.machine.created_at is not None:
            return self.machine.created_at
        return self.row.requested_at if self.row is not None else None

    def document(self, now: float) -> dict[str, object]:
        """For JSON."""
        machine, row = self.machine, self.row
        return {
            "name": self.name,
            "ownership": self.ownership.value,
            "provider": self.provider,
            "region": machine.region if machine else row.region if row else None,
            "machine_id": machine.id if machine else row.machine_id if row else None,
            "listed": machine is not None,
            "status": machine.raw_status if machine else None,
            "ledger": row.state.value if row else None,
            "run_id": row.run_id if row else None,
            "age_s": round(now - self.since, 1) if self.since is not None else None,
            "usd_per_hour": self.usd_per_hour,
        }

    def text(self, now: float) -> str:
        """Two lines for people."""
        machine, row = self.machine, self.row
        where = machine.region if machine else row.region if row else ""
        machine_id = machine.id if machine else row.machine_id if row else None
        facts = [f"{self.provider} {where}".strip(), f"id {machine_id or '-'}"]
        facts.append(f"{row.state.value if row else 'not in the books'}, {machine.raw_status if machine else MISSING}")
        facts.append(age(now - self.since) if self.since is not None else "age unknown")
        facts.append(f"${self.usd_per_hour:.2f}/h" if self.usd_per_hour is not None else "price unknown")
        if row is not None:
            facts.append(row.run_id)
        return f"{self.name}  {self.ownership.value}\n{cut('  ' + '  '.join(facts))}"


def lines_of(
    provider: str, machines: tuple[Machine, ...], books: Books, prices: Mapping[tuple[str, str], float]
) -> list[Line]:
    """Everything of our prefix that is listed or booked at this provider, by name. `prices` by region and sku."""
    found: list[Line] = []
    for machine in machines:
        whose = classify(machine, books)
        if whose is Ownership.FOREIGN:
            continue
        row = books.rows.get(machine.name)
        booked = row if whose in (Ownership.OWNED, Ownership.ABANDONED) else None
        price = booked.usd_per_hour if booked is not None else prices.get((machine.region, machine.sku))
        found.append(Line(machine.name, whose, machine, booked, price, provider))
    listed = {line.name for line in found if line.row is not None}
    for name, row in books.rows.items():
        if name not in listed and row.state is not RowState.ABANDONED:
            found.append(Line(name, Ownership.OWNED, None, row, row.usd_per_hour, row.provider))
    return sorted(found, key=lambda line: (line.name, line.ownership.value))


def total_text(lines: list[Line]) -> str:
    """`3 machines: 2 owned, 1 unknown; $2.70/h`."""
    counts = Counter(line.ownership for line in lines)
    kinds = ", ".join(f"{counts[whose]} {whose.value}" for whose in Ownership if counts[whose])
    unknown = sum(1 for line in lines if line.usd_per_hour is None)
    more = f" and {unknown} of unknown price" if unknown else ""
    return f"{len(lines)} machines{': ' if kinds else ''}{kinds}; ${usd_per_hour(lines):.2f}/h{more}"


def usd_per_hour(lines: list[Line]) -> float:
    """What is known to be paid for."""
    return round(sum(line.usd_per_hour or 0.0 for line in lines), 6)
