"""Life of the simulated machines: create, build, run, power, delete, and the accidents the control surface orders."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from flashd.sim.cloud_accounts import Accounts
from flashd.sim.cloud_billing import billed_usd, enter
from flashd.sim.cloud_catalogue import PUBLIC_IP_USD_PER_HOUR, Catalogue, Flavor
from flashd.sim.cloud_clockwork import Clockwork
from flashd.sim.cloud_orders import Order, read_order
from flashd.sim.cloud_types import (
    Account,
    ApiError,
    Environment,
    Fate,
    Json,
    Knobs,
    Machine,
    Planting,
    SimMachine,
    Status,
    already_exists,
    bad_request,
    not_found,
)

STRIKES = ("die", "shutoff", "vanish")
# verb of the API -> statuses it is allowed from, status on the way, status at the end
POWER_VERBS: dict[str, tuple[frozenset[Status], Status, Status]] = {
    "start": (frozenset({Status.SHUTOFF}), Status.STARTING, Status.ACTIVE),
    "stop": (frozenset({Status.ACTIVE, Status.ERROR}), Status.STOPPING, Status.SHUTOFF),
    "hard-reboot": (frozenset({Status.ACTIVE}), Status.REBOOTING, Status.ACTIVE),
    "hibernate": (frozenset({Status.ACTIVE}), Status.HIBERNATING, Status.HIBERNATED),
    "hibernate-restore": (frozenset({Status.HIBERNATED}), Status.RESTORING, Status.ACTIVE),
}


@dataclass(frozen=True, slots=True)
class LogLine:
    time: float
    what: str
    machine_id: int
    name: str
    account: str
    detail: str


@dataclass(frozen=True, slots=True)
class BoxJob:
    """To be passed to the box host, in order. `start` None = stop."""

    machine_id: int
    start: SimMachine | None


class Machines:
    def __init__(self, accounts: Accounts, catalogue: Catalogue, clockwork: Clockwork, knobs: Knobs) -> None:
        self._accounts = accounts
        self._catalogue = catalogue
        self._clockwork = clockwork
        self._knobs = knobs
        self._next_id = 100_000
        self.all: dict[int, Machine] = {}
        self.log: list[LogLine] = []
        self.box_jobs: deque[BoxJob] = deque()
        self.on_gone: list[Callable[[Machine, float], None]] = []
        self._box_running: set[int] = set()

    # What the API does.

    def create(self, account: Account, body: Json, balance: float) -> list[Machine]:
        """POST of machines: every check first, then the records. Raises ApiError; then nothing was made."""
        order = read_order(body, self._knobs.user_data_max_base64)
        environment = self._accounts.environment_named(account, order.environment)
        flavor = self._flavor(environment, order.flavor)
        self._check_image(environment, flavor, order.image)
        if self._accounts.find_keypair(account, environment, order.keypair) is None:
            raise not_found(f"Keypair {order.keypair} does not exist in environment {environment.name}")
        for name in order.names:
            if not self.name_available(account, name):
                raise already_exists(f"Virtual machine with name {name} already exists")
        self._check_room(environment, flavor, len(order.names), balance > account.threshold)
        self._catalogue.shelf(environment.region, flavor.name).free -= len(order.names)
        made = [self._record(account, environment, flavor, name) for name in order.names]
        for machine in made:
            _fill(machine, order)
            self.build(machine, self._knobs.boot_s)
        return made

    def name_available(self, account: Account, name: str) -> bool:
        return not any(
            machine.name == name and machine.account == account.name and self._holds_name(machine)
            for machine in self.all.values()
        )

    def find(self, account: Account, machine_id: int) -> Machine:
        """The machine, if it exists for this account. Raises the API's 404 otherwise."""
        machine = self.all.get(machine_id)
        if machine is None or machine.account != account.name or machine.status is Status.GONE:
            raise not_found(f"Virtual machine {machine_id} does not exist")
        return machine

    def listed(self, account: Account) -> list[Machine]:
        """What a listing shows now, oldest first."""
        now = self._clockwork.now()
        return [
            machine
            for machine in self.all.values()
            if machine.account == account.name and machine.status is not Status.GONE and machine.listed_from <= now
        ]

    def delete(self, machine: Machine) -> None:
        """Accept a delete. Raises 409 while one is under way, or while building when that knob is set."""
        if machine.status is Status.DELETING:
            if self._knobs.delete_conflict:
                raise ApiError(409, "conflict", "A delete operation is already in progress for this virtual machine")
            return
        building = machine.status in (Status.CREATING, Status.BUILD)
        if building and self._knobs.delete_refused_while_building:
            raise ApiError(409, "conflict", "The virtual machine is being built and cannot be deleted now")
        now = self._clockwork.now()
        machine.ended_by = machine.ended_by or "api"
        machine.deleting_at = now
        self._replan(machine, Status.DELETING, now)
        if not self._knobs.box_runs_while_deleting:
            self._stop_box(machine)
        self._note(now, "delete", machine)
        self._clockwork.plan(now + self._knobs.delete_s, machine, lambda at: self._go(machine, at))

    def power(self, machine: Machine, verb: str) -> None:
        """Start, stop, reboot, hibernate, restore. Raises 400 from a status that does not allow it."""
        allowed, passing, final = POWER_VERBS[verb]
        if machine.status not in allowed:
            raise bad_request(f"Cannot {verb} a virtual machine in status {machine.status}")
        now = self._clockwork.now()
        self._replan(machine, passing, now)
        self._stop_box(machine)
        self._note(now, verb, machine)

        def arrive(at: float) -> None:
            if final is Status.ACTIVE:
                self._activate(machine, at)
            else:
                enter(machine, final, at)

        self._clockwork.plan(now + self._knobs.power_s, machine, arrive)

    # What happens without the API.

    def plant(self, account: Account, planting: Planting) -> Machine:
        """A machine that some other program or person made: no payload, no stock taken."""
        environment = self._accounts.environment_named(account, f"default-{planting.region}")
        machine = self._record(account, environment, self._flavor(environment, planting.flavor), planting.name)
        machine.planted, machine.holds_stock, machine.labels = True, False, list(planting.labels)
        machine.created_at -= planting.age_s
        machine.listed_from -= planting.age_s
        machine.spans[0].start = machine.created_at
        if planting.status is Status.ACTIVE:
            self._activate(machine, machine.created_at)
        elif planting.status in (Status.CREATING, Status.BUILD):
            self.build(machine, self._knobs.boot_s)
        else:
            enter(machine, planting.status, machine.created_at)
        return machine

    def build(self, machine: Machine, boot_s: float | None, end: Status = Status.ACTIVE) -> None:
        """(Re)plan the build from the create time: BUILD, then `end` after `boot_s`; None never ends."""
        self._clockwork.replan(machine)
        start = machine.created_at

        def begin(at: float) -> None:
            if machine.status is Status.CREATING:
                enter(machine, Status.BUILD, at)

        def finish(at: float) -> None:
            if end is Status.ACTIVE:
                self._activate(machine, at)
            else:
                enter(machine, end, at)
                self._note(at, "build_failed", machine)

        first = self._knobs.create_s if boot_s is None else min(self._knobs.create_s, boot_s)
        self._clockwork.plan(start + first, machine, begin)
        if boot_s is not None:
            self._clockwork.plan(start + boot_s, machine, finish)

    def strike(self, machine: Machine, how: str, at: float | None = None) -> None:
        """An accident: `die` (ERROR), `shutoff` (stops, still billed), `vanish` (404 without a delete of ours)."""
        if machine.status is Status.GONE:
            raise bad_request(f"machine {machine.id} is gone already")
        now = self._clockwork.now() if at is None else at
        match how:
            case "die":
                self._replan(machine, Status.ERROR, now)
            case "shutoff":
                self._replan(machine, Status.SHUTOFF, now)
            case "vanish":
                machine.ended_by = machine.ended_by or "vanished"
                self._clockwork.replan(machine)
            case _:
                raise bad_request(f"action {how!r}: one of {', '.join(STRIKES)}")
        self._stop_box(machine)
        self._note(now, how, machine)
        if how == "vanish":
            self._go(machine, now)

    def bill(self, account: str) -> float:
        now = self._clockwork.now()
        return sum(billed_usd(machine, now) for machine in self.all.values() if machine.account == account)

    def note_box_failure(self, machine_id: int, error: Exception) -> None:
        self._note(self._clockwork.now(), "box_failed", self.all[machine_id], f"{type(error).__name__}: {error}")

    # Steps.

    def _record(self, account: Account, environment: Environment, flavor: Flavor, name: str) -> Machine:
        now = self._clockwork.now()
        self._next_id += 1
        price = self._catalogue.usd_per_hour(flavor)
        machine = Machine(
            id=self._next_id,
            name=name,
            account=account.name,
            environment=environment,
            flavor=flavor.name,
            image="",
            keypair="",
            labels=[],
            user_data="",
            public_ip=False,
            usd_per_hour=price,
            created_at=now,
            status=Status.CREATING,
            spans=[],
            listed_from=now + self._knobs.list_lag_s,
        )
        enter(machine, Status.CREATING, now)
        self.all[machine.id] = machine
        self._note(now, "create", machine)
        return machine

    def _flavor(self, environment: Environment, name: str) -> Flavor:
        found = self._catalogue.flavor(environment.region, name)
        if found is None:
            raise not_found(f"Flavor {name} does not exist in region {environment.region}")
        return found

    def _check_image(self, environment: Environment, flavor: Flavor, name: str) -> None:
        found = self._catalogue.image(environment.region, name)
        if found is None:
            raise not_found(f"Image {name} does not exist in region {environment.region}")
        if found.only_flavors and flavor.name not in found.only_flavors:
            raise bad_request(f"Image {name} is not compatible with flavor {flavor.name}")

    def _check_room(self, environment: Environment, flavor: Flavor, count: int, solvent: bool) -> None:
        if not solvent:
            raise bad_request("Insufficient balance to create the resource")
        here = [machine for machine in self.all.values() if machine.environment is environment]
        if sum(1 for machine in here if self._holds_name(machine)) + count > self._knobs.machines_per_environment:
            raise bad_request(f"No free addresses left in environment {environment.name}")
        if self._catalogue.shelf(environment.region, flavor.name).free < count:
            raise bad_request(f"Flavor {flavor.name} is currently out of stock in {environment.region}")

    def _holds_name(self, machine: Machine) -> bool:
        return machine.status is not Status.GONE or not self._knobs.name_free_after_delete

    def _replan(self, machine: Machine, status: Status, at: float) -> None:
        self._clockwork.replan(machine)
        enter(machine, status, at)

    def _activate(self, machine: Machine, at: float) -> None:
        enter(machine, Status.ACTIVE, at)
        if machine.active_at is None:
            machine.active_at = at
            fate = machine.fate
            if fate is not None:
                self.doom(machine, fate)
        self._note(at, "active", machine)
        if machine.user_data:
            self._box_running.add(machine.id)
            self.box_jobs.append(BoxJob(machine.id, self._as_seen_by_box(machine, at)))

    def doom(self, machine: Machine, fate: Fate) -> None:
        """Let `fate` strike after the machine became ACTIVE, unless it is being deleted by then."""
        machine.fate = fate
        if machine.active_at is not None:
            due = machine.active_at + fate.after_s
            self._clockwork.plan(due, machine, lambda at: self.strike(machine, fate.how, at))

    def _go(self, machine: Machine, at: float) -> None:
        enter(machine, Status.GONE, at)
        machine.gone_at = at
        self._stop_box(machine)
        if machine.holds_stock:
            self._catalogue.shelf(machine.region, machine.flavor).free += 1
        for hook in self.on_gone:
            hook(machine, at)
        self._note(at, "gone", machine)

    def _stop_box(self, machine: Machine) -> None:
        if machine.id in self._box_running:
            self._box_running.discard(machine.id)
            self.box_jobs.append(BoxJob(machine.id, None))

    def _power_off(self, machine: Machine) -> None:
        if machine.status is Status.ACTIVE:
            self.strike(machine, "shutoff")

    def _as_seen_by_box(self, machine: Machine, at: float) -> SimMachine:
        flavor = self._catalogue.flavor(machine.region, machine.flavor)
        return SimMachine(
            id=machine.id,
            name=machine.name,
            user_data=machine.user_data,
            region=machine.region,
            flavor=machine.flavor,
            gpu=flavor.gpu if flavor else "",
            gpu_count=flavor.gpu_count if flavor else 0,
            image=machine.image,
            labels=tuple(machine.labels),
            account=machine.account,
            created_at=machine.created_at,
            active_at=at,
            console=machine.console.append,
            power_off=lambda: self._power_off(machine),
        )

    def _note(self, at: float, what: str, machine: Machine, detail: str = "") -> None:
        machine.events.append((at, what, str(machine.status)))
        self.log.append(LogLine(at, what, machine.id, machine.name, machine.account, detail or str(machine.status)))


def _fill(machine: Machine, order: Order) -> None:
    machine.image, machine.keypair, machine.user_data = order.image, order.keypair, order.user_data
    machine.labels = list(order.labels)
    machine.public_ip = order.public_ip
    machine.port_randomization = order.port_randomization
    machine.security_rules = [dict(rule) for rule in order.security_rules]
    if order.public_ip:
        machine.usd_per_hour += PUBLIC_IP_USD_PER_HOUR
