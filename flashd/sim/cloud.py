"""The simulated cloud as one object: state, truth and knobs. `cloud_http.serve_cloud` puts it on a port."""

from __future__ import annotations

import time
from collections.abc import Callable

from flashd.sim.cloud_accounts import Accounts
from flashd.sim.cloud_billing import billed_minutes, billed_usd, volume_minutes, volume_usd
from flashd.sim.cloud_catalogue import Catalogue
from flashd.sim.cloud_clockwork import Clockwork
from flashd.sim.cloud_console import Consoles
from flashd.sim.cloud_faults import FaultBook
from flashd.sim.cloud_machines import Machines
from flashd.sim.cloud_meter import Meter, RateLimit
from flashd.sim.cloud_types import Account, BoxHost, Json, Knobs, Machine, Planting, Status, Volume, bad_request
from flashd.sim.cloud_volumes import Volumes


class Cloud:
    """One provider with any number of accounts.

    Starts without accounts: call `add_account`. Times are Unix seconds of `now`. Transitions happen at their due times,
    but are carried out when somebody looks (a request, a reading of the truth) or by the server's ticker.
    """

    def __init__(
        self,
        *,
        now: Callable[[], float] = time.time,
        knobs: Knobs | None = None,
        box: BoxHost | None = None,
        catalogue: Catalogue | None = None,
    ) -> None:
        self.now = now
        self.knobs = knobs or Knobs()
        self.box = box
        self.catalogue = catalogue or Catalogue()
        self.catalogue.priced_from = now()
        self.clockwork = Clockwork(now)
        self.accounts = Accounts(self.catalogue, now)
        self.machines = Machines(self.accounts, self.catalogue, self.clockwork, self.knobs)
        self.volumes = Volumes(self.accounts, self.clockwork, self.knobs)
        self.machines.on_gone.append(self.volumes.machine_gone)
        self.consoles = Consoles(now, self.knobs)
        self.meter = Meter(now)
        self.rate_limit = RateLimit(now)
        self.faults = FaultBook()

    def advance(self) -> None:
        """Let everything that is due by now happen."""
        self.clockwork.advance()

    def add_account(self, name: str, *keys: str, credit: float = 1000.0) -> Account:
        account = self.accounts.add(name, credit)
        for key in keys:
            self.accounts.add_key(key, name)
        return account

    def account(self, name: str | None = None) -> Account:
        """The account of that name; None = the first one."""
        known = self.accounts.by_name
        if not known:
            raise bad_request("this cloud has no account yet")
        if name is None:
            return next(iter(known.values()))
        if name not in known:
            raise bad_request(f"no account is called {name!r}")
        return known[name]

    def balance(self, account: Account) -> float:
        return account.credit - self.machines.bill(account.name) - self.volumes.bill(account.name)

    def plant(self, planting: Planting) -> Machine:
        """A machine that did not come through the API: an orphan or somebody else's. Names may repeat."""
        self.advance()
        return self.machines.plant(self.account(planting.account), planting)

    def machine(self, machine_id: int) -> Machine:
        found = self.machines.all.get(machine_id)
        if found is None:
            raise bad_request(f"no machine has id {machine_id}")
        return found

    def living(self) -> list[Machine]:
        """Every machine that the API would not answer with 404, whoever made it."""
        self.advance()
        return [machine for machine in self.machines.all.values() if machine.status is not Status.GONE]

    def truth(self) -> list[Json]:
        """Every machine ever made, oldest first."""
        self.advance()
        return [self.truth_of(machine) for machine in self.machines.all.values()]

    def truth_of(self, machine: Machine) -> Json:
        now = self.now()
        return {
            "id": machine.id,
            "name": machine.name,
            "account": machine.account,
            "labels": list(machine.labels),
            "region": machine.region,
            "flavor": machine.flavor,
            "image": machine.image,
            "usd_per_hour": machine.usd_per_hour,
            "status": str(machine.status),
            "alive": machine.status is not Status.GONE,
            "planted": machine.planted,
            "created_at": machine.created_at,
            "active_at": machine.active_at,
            "deleting_at": machine.deleting_at,
            "gone_at": machine.gone_at,
            "ended_by": machine.ended_by,
            "billed_minutes": billed_minutes(machine, now),
            "billed_usd": billed_usd(machine, now),
            "spans": [[str(span.status), span.start, span.end] for span in machine.spans],
            "has_user_data": bool(machine.user_data),
        }

    def truth_of_volume(self, volume: Volume) -> Json:
        now = self.now()
        return {
            "id": volume.id,
            "name": volume.name,
            "account": volume.account,
            "region": volume.environment.region,
            "size_gb": volume.size,
            "status": volume.status,
            "machine_id": volume.attachment.machine_id if volume.attachment else None,
            "created_at": volume.created_at,
            "gone_at": volume.gone_at,
            "billed_minutes": volume_minutes(volume, now),
            "billed_usd": volume_usd(volume, now),
        }

    def summary(self) -> Json:
        """The world's ledger in one line; planted machines are not counted as launched."""
        living = self.living()
        made = [machine for machine in self.machines.all.values() if not machine.planted]
        now = self.now()
        return {
            "launched": len(made),
            "deleted": sum(1 for machine in made if machine.status is Status.GONE),
            "alive": sum(1 for machine in living if not machine.planted),
            "planted_alive": sum(1 for machine in living if machine.planted),
            "billed_usd": sum(billed_usd(machine, now) for machine in made)
            + sum(volume_usd(volume, now) for volume in self.volumes.all.values()),
        }
