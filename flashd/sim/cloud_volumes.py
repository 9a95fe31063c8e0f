"""Block volumes of the simulated cloud: single-attach, bound to a region, attached only while ACTIVE or SHUTOFF."""

from __future__ import annotations

from flashd.sim.cloud_accounts import Accounts
from flashd.sim.cloud_billing import volume_usd
from flashd.sim.cloud_catalogue import SSD_USD_PER_GB_HOUR
from flashd.sim.cloud_clockwork import Clockwork
from flashd.sim.cloud_payload import flag, integer, integers, name_of, optional_text, text
from flashd.sim.cloud_types import (
    Account,
    ApiError,
    Attachment,
    Json,
    Knobs,
    Machine,
    Status,
    Volume,
    bad_request,
    not_found,
)

SIZE_MAX_GB = 1_048_576
VOLUME_TYPES = ("Cloud-SSD",)
_ATTACHABLE = frozenset({Status.ACTIVE, Status.SHUTOFF})


class Volumes:
    def __init__(self, accounts: Accounts, clockwork: Clockwork, knobs: Knobs) -> None:
        self._accounts = accounts
        self._clockwork = clockwork
        self._knobs = knobs
        self._next_id = 30_000
        self.all: dict[int, Volume] = {}

    def create(self, account: Account, body: Json) -> Volume:
        name, size = name_of(body), integer(body, "size", 1, SIZE_MAX_GB)
        environment = self._accounts.environment_named(account, text(body, "environment_name"))
        if text(body, "volume_type") not in VOLUME_TYPES:
            raise bad_request(f"volume_type: one of {', '.join(VOLUME_TYPES)}")
        if environment.region in self._knobs.no_volume_regions:
            raise bad_request("Volume operations are not supported in this region")
        if not self.name_available(account, name):
            raise bad_request("This name is not available")
        self._next_id += 1
        now = self._clockwork.now()
        volume = Volume(
            id=self._next_id,
            name=name,
            account=account.name,
            environment=environment,
            size=size,
            volume_type="Cloud-SSD",
            description=optional_text(body, "description") or "",
            usd_per_hour=size * SSD_USD_PER_GB_HOUR,
            created_at=now,
        )
        self.all[volume.id] = volume
        self._later(volume, self._knobs.volume_s, "available")
        return volume

    def name_available(self, account: Account, name: str) -> bool:
        return not any(volume.name == name for volume in self.listed(account))

    def listed(self, account: Account) -> list[Volume]:
        return [volume for volume in self.all.values() if volume.account == account.name and volume.gone_at is None]

    def find(self, account: Account, volume_id: int) -> Volume:
        volume = self.all.get(volume_id)
        if volume is None or volume.account != account.name or volume.gone_at is not None:
            raise not_found(f"Volume {volume_id} does not exist")
        return volume

    def attach(self, account: Account, machine: Machine, body: Json) -> list[Volume]:
        """Attach all or none. Raises 400 unless the machine is ACTIVE or SHUTOFF, each volume free, in its region."""
        protected = flag(body, "protected", False)
        chosen = [self.find(account, volume_id) for volume_id in integers(body, "volume_ids")]
        if machine.status not in _ATTACHABLE:
            raise bad_request(f"Volumes cannot be attached to a virtual machine in status {machine.status}")
        for volume in chosen:
            if volume.environment.region != machine.region:
                raise bad_request(f"Volume {volume.id} is in another region than the virtual machine")
            if volume.status != "available" or volume.attachment is not None:
                raise bad_request(f"Volume {volume.id} is {volume.status}, it must be available")
        for volume in chosen:
            volume.attachment = Attachment(
                id=volume.id + 50_000,
                machine_id=machine.id,
                device=self._free_device(machine),
                protected=protected,
                attached_at=self._clockwork.now(),
            )
            self._later(volume, self._knobs.attach_s, "in-use", "attaching")
        return chosen

    def detach(self, account: Account, machine: Machine, body: Json) -> list[Volume]:
        chosen = [self.find(account, volume_id) for volume_id in integers(body, "volume_ids")]
        if machine.status not in _ATTACHABLE:
            raise bad_request(f"Volumes cannot be detached from a virtual machine in status {machine.status}")
        for volume in chosen:
            held = volume.attachment
            if held is None or held.machine_id != machine.id:
                raise bad_request(f"Volume {volume.id} is not attached to virtual machine {machine.id}")
            if held.protected:
                raise ApiError(405, "not_allowed", f"Volume {volume.id} has a protected attachment")
        for volume in chosen:
            self._release(volume)
        return chosen

    def protect(self, account: Account, attachment_id: int, body: Json) -> Volume:
        for volume in self.listed(account):
            if volume.attachment is not None and volume.attachment.id == attachment_id:
                volume.attachment.protected = flag(body, "protected", False)
                return volume
        raise not_found(f"Volume attachment {attachment_id} does not exist")

    def delete(self, volume: Volume) -> None:
        if volume.attachment is not None:
            raise bad_request(f"Volume {volume.id} is attached to a virtual machine and cannot be deleted")
        self._later(volume, self._knobs.delete_s, "deleted", "deleting")

    def machine_gone(self, machine: Machine, at: float) -> None:
        for volume in self.all.values():
            if volume.attachment is not None and volume.attachment.machine_id == machine.id:
                self._clockwork.replan(volume)
                volume.attachment, volume.status = None, "available"

    def bill(self, account: str) -> float:
        now = self._clockwork.now()
        return sum(volume_usd(volume, now) for volume in self.all.values() if volume.account == account)

    def attached_to(self, machine: Machine) -> list[Volume]:
        return [
            volume
            for volume in self.all.values()
            if volume.attachment is not None and volume.attachment.machine_id == machine.id
        ]

    def _free_device(self, machine: Machine) -> str:
        taken = {volume.attachment.device for volume in self.attached_to(machine) if volume.attachment is not None}
        return next(f"/dev/vd{letter}" for letter in "bcdefghijklmnopqrstuvwxyz" if f"/dev/vd{letter}" not in taken)

    def _release(self, volume: Volume) -> None:
        now = self._clockwork.now()
        self._clockwork.replan(volume)
        volume.status = "detaching"

        def free(at: float) -> None:
            volume.attachment, volume.status = None, "available"

        self._clockwork.plan(now + self._knobs.attach_s, volume, free)

    def _later(self, volume: Volume, after_s: float, status: str, meanwhile: str | None = None) -> None:
        self._clockwork.replan(volume)
        volume.status = meanwhile or volume.status

        def arrive(at: float) -> None:
            volume.status = status
            if status == "deleted":
                volume.gone_at = at

        self._clockwork.plan(self._clockwork.now() + after_s, volume, arrive)
