"""Whose a machine is and what the sweep deletes: tables of the contract's rules, and what can never be touched."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashd.core.ledger import LedgerRow, RowState
from flashd.core.machines import Machine, MachinePhase
from flashd.core.names import machine_name, parse_machine_name, run_hash
from flashd.core.orphans import Books, Ownership, Sighting, SweepPlan, SweepRules, classify, hashes_of, plan
from tests.core.kit import T0

NS = "t"
NAME = machine_name(NS, "r1", 0)
RULES = SweepRules(grace_s=120.0, max_deletes=20)


def row(name: str = NAME, state: RowState = RowState.LIVE, machine_id: str | None = "1") -> LedgerRow:
    return LedgerRow(name, "r1", 0, "hyperstack", "acc", "NORWAY-1", "L40", machine_id, state, 1.0, T0)


def machine(name: str = NAME, machine_id: str = "1", created_at: float | None = T0) -> Machine:
    return Machine(machine_id, name, MachinePhase.RUNNING, "ACTIVE", created_at)


def books(*rows: LedgerRow, runs: tuple[str, ...] = ("r1",), ns: str = NS) -> Books:
    return Books(ns, {one.name: one for one in rows}, {run_hash(ns, run_id): run_id for run_id in runs})


@pytest.mark.parametrize(
    ("what", "seen", "known", "whose"),
    [
        ("its row has its id", machine(), books(row()), Ownership.OWNED),
        ("its row has no id yet", machine(), books(row(state=RowState.REQUESTED, machine_id=None)), Ownership.OWNED),
        ("its row is being deleted", machine(), books(row(state=RowState.DELETING)), Ownership.OWNED),
        ("its row is of another machine", machine(machine_id="2"), books(row()), Ownership.ORPHAN),
        ("no row, a remembered run", machine(), books(), Ownership.ORPHAN),
        ("any number of that run", machine(machine_name(NS, "r1", 99_999)), books(), Ownership.ORPHAN),
        (
            "its name was given up",
            machine(),
            books(row(state=RowState.ABANDONED, machine_id=None)),
            Ownership.ABANDONED,
        ),
        ("no run is remembered", machine(), books(runs=()), Ownership.UNKNOWN),
        ("the slug is another's", machine(f"flash-t-r2-{run_hash(NS, 'r1')}-a0"), books(), Ownership.UNKNOWN),
        ("the slug is missing", machine(f"flash-t-{run_hash(NS, 'r1')}-a0"), books(), Ownership.UNKNOWN),
        ("the number has a zero in front", machine(NAME[:-1] + "00"), books(), Ownership.UNKNOWN),
        ("made by hand", machine("flash-t-debug"), books(), Ownership.UNKNOWN),
        ("the row's name in capitals", machine(NAME.upper()), books(row()), Ownership.FOREIGN),
        ("a person's", machine("flash-x"), books(), Ownership.FOREIGN),
        ("f11: another deployment's", machine(machine_name("prod", "r1", 0)), books(), Ownership.FOREIGN),
        ("a namespace that begins like ours", machine(machine_name("t2", "r1", 0)), books(), Ownership.FOREIGN),
        ("nothing of ours", machine("web-1"), books(row(name="web-1")), Ownership.FOREIGN),
    ],
)
def test_a_machine_is_owned_orphan_unknown_or_foreign(what: str, seen: Machine, known: Books, whose: Ownership) -> None:
    assert classify(seen, known) is whose, what


def test_f48_runs_whose_ids_are_parts_of_each_other_own_only_their_own_machines() -> None:
    ids = ("a", "a-s1", "flash-a", "A")
    for owner in ids:
        name = machine_name(NS, owner, 0)
        others = tuple(run_id for run_id in ids if run_id != owner)
        assert classify(machine(name), books(runs=others)) is Ownership.UNKNOWN
        assert classify(machine(name), books(runs=(owner,))) is Ownership.ORPHAN


def sweep(
    *machines: Machine, before: SweepPlan | None = None, at: float = T0 + 1000, rules: SweepRules = RULES, known: Books
) -> SweepPlan:
    return plan(machines, known, before.sightings if before is not None else {}, rules, at)


def test_51_an_orphan_is_deleted_at_its_second_sighting() -> None:
    first = sweep(machine(), known=books())
    assert first.deletes == ()
    assert first.sightings == {"1": Sighting(T0 + 1000, 1)}
    assert sweep(machine(), known=books(), before=first, at=T0 + 1030).deletes == (machine(),)


def test_a_pass_without_the_orphan_starts_the_count_again() -> None:
    first = sweep(machine(), known=books())
    second = sweep(known=books(), before=first)
    assert second.sightings == {}
    assert sweep(machine(), known=books(), before=second).deletes == ()


@pytest.mark.parametrize(("age_s", "deleted"), [(119.0, False), (120.0, False), (120.5, True)])
def test_f12_a_machine_younger_than_the_grace_is_left_alone(age_s: float, deleted: bool) -> None:
    young = machine(created_at=T0 + 1000 - age_s)
    first = sweep(young, known=books(), at=T0 + 990)
    assert bool(sweep(young, known=books(), before=first, at=T0 + 1000).deletes) is deleted


def test_without_a_time_of_creation_the_grace_counts_from_the_first_sight() -> None:
    seen = machine(created_at=None)
    found = sweep(seen, known=books(), at=T0)
    for later in (30.0, 60.0, 90.0, 120.0):
        found = sweep(seen, known=books(), before=found, at=T0 + later)
        assert found.deletes == ()
    assert sweep(seen, known=books(), before=found, at=T0 + 121).deletes == (seen,)


def test_above_max_deletes_nothing_is_deleted_and_the_plan_says_so() -> None:
    orphans = tuple(machine(machine_name(NS, "r1", number), str(number)) for number in range(21))
    first = sweep(*orphans, known=books())
    assert not first.too_many, "nothing is due yet"
    second = sweep(*orphans, known=books(), before=first)
    assert (second.too_many, second.deletes, len(second.due)) == (True, (), 21)
    third = sweep(*orphans[1:], known=books(), before=second)
    assert (third.too_many, len(third.deletes)) == (False, 20)


def test_the_report_lists_all_but_foreign_machines() -> None:
    found = sweep(machine(), machine("flash-t-debug", "2"), machine("web-1", "3"), known=books(row()))
    assert [whose for _, whose in found.report] == [Ownership.OWNED, Ownership.UNKNOWN]
    assert found.found(Ownership.UNKNOWN) == (machine("flash-t-debug", "2"),)


def test_a_row_that_appears_between_two_passes_protects_its_machine() -> None:
    first = sweep(machine(), known=books())
    assert sweep(machine(), known=books(row()), before=first).deletes == ()


def test_only_names_of_our_pattern_are_asked_for() -> None:
    assert hashes_of(NS, (machine(), machine("flash-t-debug"), machine("web-1"), machine())) == (run_hash(NS, "r1"),)


run_ids = st.sampled_from(["r1", "r2", "A.b_c", "---", "x" * 128])
names = st.one_of(
    st.builds(machine_name, st.sampled_from(["t", "t2", "prod"]), run_ids, st.integers(0, 99_999)),
    st.sampled_from(["flash-t-", "flash-t-debug", "flash-t-r1-aaaaaaaaaa-a0", "web", "flash-t-r1"]),
)
states = st.sampled_from(list(RowState))


@given(
    st.lists(st.tuples(names, st.integers(1, 5)), max_size=8),
    st.lists(st.tuples(names, states, st.one_of(st.none(), st.integers(1, 5))), max_size=8),
    st.sets(run_ids),
    st.floats(0, 10_000),
)
def test_what_is_deleted_is_always_an_orphan_of_ours(
    listed: list[tuple[str, int]],
    rows: list[tuple[str, RowState, int | None]],
    runs: set[str],
    age_s: float,
) -> None:
    ledger = {name: replace(row(name, state), machine_id=str(id_) if id_ else None) for name, state, id_ in rows}
    known = Books(NS, ledger, {run_hash(NS, run_id): run_id for run_id in sorted(runs)})
    machines = tuple(machine(name, str(id_)) for name, id_ in listed)
    first = plan(machines, known, {}, RULES, T0 + age_s)
    second = plan(machines, known, first.sightings, RULES, T0 + age_s)
    assert first.deletes == ()
    for one in second.deletes:
        assert age_s > RULES.grace_s
        parsed = parse_machine_name(NS, one.name)
        assert parsed is not None
        assert one.name in {machine_name(NS, run_id, parsed.number) for run_id in runs}
        known_row = ledger.get(one.name)
        assert known_row is None or (
            known_row.state is not RowState.ABANDONED and known_row.machine_id not in (None, one.id)
        )
