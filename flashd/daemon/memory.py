"""The state directory: who this host is, and what Redis must still know. Its files are small, so they are read and
written in place, without a thread."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import structlog

from flashd.adapters.store_types import ServerInfo
from flashd.core.names import parse_machine_name
from flashd.daemon.desk import Desk
from flashd.errors import ProviderError, StateDirectoryError, StoreError

log = structlog.get_logger(__name__)

LOCK_FILE = "lock"
HOLDER_FILE = "holder"
MEMORY_FILE = "memory.json"
ACCEPT_FILE = "accept-ledger"  # made by `flashd doctor --accept-ledger`
HOLDER_BYTES = 16
ACCEPT_POLL_S = 2.0
CHECK_INTERVAL_S = 10.0
CONFIRMED_MAX = 3  # machines asked for one by one before a list that shows some is believed


@dataclass(frozen=True, slots=True)
class Memory:
    """What was true when it was written. `accepted`: an operator knows that machines are alive that Redis forgot."""

    last_event_id: str = ""
    ledger_size: int = 0
    replid: str = ""
    accepted: bool = False
    safe_mode: str = ""


class StateDirectory:
    """Held by one process for its life. Raises StateDirectoryError when it is in use, or cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.holder = ""
        self.memory = Memory()
        self._lock: int | None = None

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _locked(self.path / LOCK_FILE)
            self.holder = self._read_holder()
            self.memory = self._read_memory()
        except OSError as error:
            self.__exit__(None, None, None)
            raise StateDirectoryError(f"{self.path} cannot be used: {error}; give its owner the rights") from error
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # What the daemon asks --------------------------------------------------------------------------------------------

    async def check(self, desk: Desk) -> str | None:
        """Why the daemon must be in safe mode, None = it need not. Raises StoreError when Redis does not answer.

        Once in safe mode, always, until an operator accepts what Redis holds.
        """
        if self.memory.safe_mode:
            return self.memory.safe_mode
        info = await desk.store.info()
        rows = await desk.store.ledger()
        reason = await self._forgotten_events(desk, info) or await self._forgotten_machines(desk, info, len(rows))
        if reason is not None:
            log.error("safe_mode_entered", why=reason)
            self._write(replace(self.memory, safe_mode=reason))
        return reason

    async def remember(self, desk: Desk) -> None:
        """Write down what Redis knows now. Only the leader's word counts, and none while in safe mode."""
        if self.memory.safe_mode or desk.store.link.token is None or not desk.ledger.loaded:
            return
        info = await desk.store.info()
        if await self._forgotten_events(desk, info) is not None:
            return  # the next check says so, and only while the older word is still there
        self._write(
            Memory(
                last_event_id=info.last_generated_id or "",
                ledger_size=len(desk.ledger.rows),
                replid=info.replid or "",
                accepted=self.memory.accepted and info.runs_empty,
            )
        )

    async def accept(self, desk: Desk) -> None:
        """An operator has looked: what Redis holds now is what is remembered from here on. Raises StoreError."""
        info = await desk.store.info()
        rows = await desk.store.ledger()
        log.warning("ledger_accepted", was=self.memory.safe_mode or None, rows=len(rows))
        self._write(Memory(info.last_generated_id or "", len(rows), info.replid or "", accepted=True))
        (self.path / ACCEPT_FILE).unlink(missing_ok=True)
        desk.safe_mode = ""
        desk.alarms.set("safe_mode", None)

    async def serve(self, desk: Desk) -> None:
        """Obey `doctor --accept-ledger` within seconds, and look at every Redis that answers anew; until cancelled."""
        since_check_s = 0.0
        while True:
            await anyio.sleep(ACCEPT_POLL_S)
            since_check_s += ACCEPT_POLL_S
            try:
                if (self.path / ACCEPT_FILE).exists():
                    await self.accept(desk)
                elif desk.ledger.loaded and not desk.ledger.rows and self.memory.ledger_size:
                    await self.remember(desk)  # the last machine has just gone: no reason for suspicion after a crash
                elif since_check_s >= CHECK_INTERVAL_S:
                    since_check_s = 0.0
                    desk.safe_mode = await self.check(desk) or ""
                    desk.alarms.set("safe_mode", desk.safe_mode or None)
            except StoreError as error:
                log.warning("memory_unchecked", error=str(error))

    # What may have been forgotten ------------------------------------------------------------------------------------

    async def _forgotten_events(self, desk: Desk, info: ServerInfo) -> str | None:
        known = self.memory.last_event_id
        if not known:
            return None
        if info.last_generated_id is None or _order(known) > _order(info.last_generated_id):
            last = info.last_generated_id or "no event at all"
            return f"Redis has lost events: {known} was the last one, now it is {last}"
        first = info.first_entry_id
        if first is not None and _order(known) >= _order(first) and not await desk.store.has_event(known):
            return f"Redis holds other events than before: {known} is not among them"
        return None

    async def _forgotten_machines(self, desk: Desk, info: ServerInfo, rows: int) -> str | None:
        """Only when the books are suspiciously empty are the clouds asked; an unreadable cloud proves nothing."""
        if self.memory.accepted and info.runs_empty:
            return None
        knew = len(desk.ledger.rows) if desk.ledger.rows else self.memory.ledger_size
        lost_ledger = rows == 0 and knew > 0
        if not (info.runs_empty or lost_ledger):
            return None
        alive = await _machines_alive(desk)
        if not alive:
            return None
        what = "no run at all" if info.runs_empty else f"no machine, where it knew {knew}"
        return f"Redis knows {what}, but {', '.join(alive)} alive"

    # Files -----------------------------------------------------------------------------------------------------------

    def _read_holder(self) -> str:
        """This directory's own id, made at its first use."""
        path = self.path / HOLDER_FILE
        try:
            known = path.read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            known = ""
        if len(known) == 2 * HOLDER_BYTES:
            return known
        # The kernel's own id: the injected chance belongs to one process, this id to the directory for ever.
        made = Path("/proc/sys/kernel/random/uuid").read_text(encoding="ascii").strip().replace("-", "")
        _replaced(path, made + "\n")
        return made

    def _read_memory(self) -> Memory:
        path = self.path / MEMORY_FILE
        try:
            return _memory_of(json.loads(path.read_bytes()))
        except FileNotFoundError:
            return Memory()
        except ValueError as error:
            text = f"{path} cannot be read: {error}; remove it if Redis is known to be whole"
            raise StateDirectoryError(text) from error

    def _write(self, memory: Memory) -> None:
        if memory != self.memory:
            _replaced(self.path / MEMORY_FILE, json.dumps(asdict(memory), indent=1) + "\n")
            self.memory = memory


async def _machines_alive(desk: Desk) -> tuple[str, ...]:
    """Machines of our pattern that a GET of their own shows alive; listings lag behind deletions."""
    alive: list[str] = []
    for _, cloud in sorted(desk.clouds.items()):
        try:
            snapshot = cloud.observer.snapshot
            listed = await cloud.provider.list() if snapshot is None else tuple(snapshot.by_id.values())
            ours = [machine for machine in listed if parse_machine_name(desk.ns, machine.name) is not None]
            for machine in ours[:CONFIRMED_MAX]:
                if await cloud.provider.get(machine.id) is not None:
                    alive.append(machine.name)
        except ProviderError as error:
            log.warning("machines_unread", provider=cloud.provider.name, error=str(error))
    return tuple(alive)


def _memory_of(raw: object) -> Memory:
    if not isinstance(raw, Mapping):
        raise ValueError("not a JSON object")
    known = Memory()
    values: dict[str, object] = {key: raw.get(key, value) for key, value in asdict(known).items()}
    for key, value in asdict(known).items():
        if type(values[key]) is not type(value):
            raise ValueError(f"{key} is {values[key]!r}")
    return replace(known, **values)  # type: ignore[arg-type]


def _order(stream_id: str) -> tuple[int, int]:
    """A stream id's place among others."""
    milliseconds, _, counter = stream_id.partition("-")
    return int(milliseconds), int(counter or 0)


def _locked(path: Path) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        text = f"{path.parent} is in use by another flashd; each needs a state_directory of its own"
        raise StateDirectoryError(text) from error
    return lock


def _replaced(path: Path, text: str) -> None:
    """Write a file so that a crash leaves either the old or the new one."""
    fresh = path.with_suffix(".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
