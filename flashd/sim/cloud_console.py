"""The console log's two-step reading: ask, then fetch by the handle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flashd.sim.cloud_types import Knobs, Machine, not_found


@dataclass(frozen=True, slots=True)
class _Asked:
    machine_id: int
    ready_at: float
    text: str


class Consoles:
    def __init__(self, now: Callable[[], float], knobs: Knobs) -> None:
        self._now = now
        self._knobs = knobs
        self._asked: dict[int, _Asked] = {}

    def request(self, machine: Machine, lines: int) -> int:
        """A handle for the last `lines` lines as they are now."""
        number = 7_000 + len(self._asked)
        text = "\n".join("".join(machine.console).splitlines()[-lines:])
        self._asked[number] = _Asked(machine.id, self._now() + self._knobs.console_s, text)
        return number

    def read(self, machine: Machine, number: int) -> str | None:
        """The text; None while it is being collected. Raises 404 for a handle of another machine."""
        asked = self._asked.get(number)
        if asked is None or asked.machine_id != machine.id:
            raise not_found(f"Log request {number} does not exist")
        return asked.text if asked.ready_at <= self._now() else None
