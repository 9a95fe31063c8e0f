"""Bugs planted on purpose, each between the real daemon and its outside: the worlds must catch every one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from flashd.adapters.store import Store
from flashd.adapters.store_types import ConfirmRefused, EventOut, IntentRefused, Write, Written
from flashd.config import Settings
from flashd.core.ledger import LedgerRow
from flashd.daemon.composition import Outside, compose
from flashd.daemon.supervisor import Daemon
from flashd.errors import AmbiguousLaunchError, CapacityError
from flashd.providers.base import Capabilities, Credit, DeleteAnswer, Launched, LaunchOrder, Machine, Provider, Stock


class PassingOn:
    """A provider that hands every call on; the mutants change one."""

    def __init__(self, real: Provider) -> None:
        self.real = real

    @property
    def name(self) -> str:
        return self.real.name

    @property
    def capabilities(self) -> Capabilities:
        return self.real.capabilities

    async def account(self) -> str:
        return await self.real.account()

    async def stock(self, *, fresh: bool = False) -> Stock:
        return await self.real.stock(fresh=fresh)

    async def launch(self, order: LaunchOrder) -> Launched:
        return await self.real.launch(order)

    async def find(self, name: str) -> tuple[Machine, ...]:
        return await self.real.find(name)

    async def get(self, machine_id: str) -> Machine | None:
        return await self.real.get(machine_id)

    async def list(self) -> tuple[Machine, ...]:
        return await self.real.list()

    async def delete(self, machine_id: str) -> DeleteAnswer:
        return await self.real.delete(machine_id)

    async def console_log(self, machine_id: str) -> str:
        return await self.real.console_log(machine_id)

    async def credit(self) -> Credit:
        return await self.real.credit()


class BlindRepost(PassingOn):
    """A create without an answer counts as one that made nothing: the next place is asked at once."""

    async def launch(self, order: LaunchOrder) -> Launched:
        try:
            return await self.real.launch(order)
        except AmbiguousLaunchError as error:
            raise CapacityError(error.text, error.code) from error


class ForgottenDelete(PassingOn):
    """A delete is sent once and believed: whatever became of it, the machine counts as gone."""

    def __init__(self, real: Provider) -> None:
        super().__init__(real)
        self._sent: set[str] = set()

    async def get(self, machine_id: str) -> Machine | None:
        return None if machine_id in self._sent else await self.real.get(machine_id)

    async def list(self) -> tuple[Machine, ...]:
        return tuple(machine for machine in await self.real.list() if machine.id not in self._sent)

    async def delete(self, machine_id: str) -> DeleteAnswer:
        self._sent.add(machine_id)
        return await self.real.delete(machine_id)


class LateIntent(Store):
    """The intent is only written together with what the create call was answered."""

    def __init__(self, real: Store) -> None:
        super().__init__(real.link)
        self._held: dict[str, tuple[Write, LedgerRow, int, float]] = {}

    async def intent(
        self, write: Write, row: LedgerRow, max_machines: int, max_usd_per_hour: float
    ) -> Written | IntentRefused:
        self._held[write.run_id] = (write, row, max_machines, max_usd_per_hour)
        return Written(write.expect + 1, "", {row.name: row})

    async def confirm(self, write: Write, row: LedgerRow) -> Written | ConfirmRefused:
        await self._write_late(write.run_id)
        return await super().confirm(write, row)

    async def transition(self, write: Write) -> Written:
        await self._write_late(write.run_id)
        return await super().transition(write)

    async def requeue(self, write: Write, names: Sequence[str], now: float) -> Written:
        await self._write_late(write.run_id)
        return await super().requeue(write, names, now)

    async def finish(self, write: Write, names: Sequence[str], now: float) -> Written:
        await self._write_late(write.run_id)
        return await super().finish(write, names, now)

    async def _write_late(self, run_id: str) -> None:
        if (held := self._held.get(run_id)) is not None:
            await super().intent(*held)
            self._held.pop(run_id, None)


class EventApart(Store):
    """The last event is published first, in a step of its own, and the state follows."""

    def __init__(self, real: Store) -> None:
        super().__init__(real.link)

    async def finish(self, write: Write, names: Sequence[str], now: float) -> Written:
        ids = [await self._publish(write.run_id, event) for event in write.events]
        written = await super().finish(write, names, now)
        key = self.link.keys.name
        # The step's own copy goes, so that in a world without mishaps nothing is to be seen of the bug.
        for stream in (key("events"), key("log", write.run_id)):
            await self.link.command("XDEL", stream, written.last_event_id)
        await self.link.command("HSET", key("run", write.run_id), "last_event_id", ids[-1])
        return replace(written, last_event_id=ids[-1])

    async def _publish(self, run_id: str, event: EventOut) -> str:
        parts = [part for pair in {"event": event.envelope, **event.flat}.items() for part in pair]
        answer = await self.link.command("XADD", self.link.keys.name("events"), "*", *parts)
        entry_id = answer.decode() if isinstance(answer, bytes) else str(answer)
        await self.link.command("XADD", self.link.keys.name("log", run_id), entry_id, *parts)
        return entry_id


def _with_provider(wrap: Callable[[Provider], Provider]) -> Callable[[Settings, Outside], Daemon]:
    def composed(settings: Settings, outside: Outside) -> Daemon:
        return compose(settings, replace(outside, providers={n: wrap(p) for n, p in outside.providers.items()}))

    return composed


def _with_store(wrap: Callable[[Store], Store]) -> Callable[[Settings, Outside], Daemon]:
    def composed(settings: Settings, outside: Outside) -> Daemon:
        return compose(settings, replace(outside, store=wrap(outside.store)))

    return composed


MUTANTS: dict[str, Callable[[Settings, Outside], Daemon]] = {
    "blind re-POST": _with_provider(BlindRepost),
    "forgotten delete": _with_provider(ForgottenDelete),
    "launch without intent": _with_store(LateIntent),
    "event apart from state": _with_store(EventApart),
}
