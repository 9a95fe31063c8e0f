"""Alarms: what an operator must hear of. Every name has its section in docs/operations/alarms.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

NAMED = 5  # an alarm names so many of what it is about
INCIDENT_KEEP_S = 600.0  # long enough to be scraped, and to be seen by whoever looks after the first complaint
# These are not the leader's: they say something about the process itself.
OF_THE_PROCESS = frozenset({"redis_down", "http_listen", "safe_mode", "configuration_refused"})


@dataclass(slots=True)
class Alarms:
    """Alarms that are up, each with its text; shown in /statusz, metrics and status."""

    up: dict[str, str] = field(default_factory=dict)
    on_raise: Callable[[str, str], None] = lambda _name, _text: None
    on_clear: Callable[[str], None] = lambda _name: None
    _lapse_at: dict[str, float] = field(default_factory=dict)

    def set(self, name: str, text: str | None) -> None:
        """Raise the alarm with a text, or clear it with None."""
        if text is None:
            self._lapse_at.pop(name, None)
            if self.up.pop(name, None) is not None:
                self.on_clear(name)
            return
        fresh = name not in self.up
        self.up[name] = text
        if fresh:
            self.on_raise(name, text)

    def incident(self, name: str, text: str, now: float) -> None:
        """Raise it for what happened and has no end of its own: it clears when it has not happened for a while."""
        self.set(name, text)
        self._lapse_at[name] = now + INCIDENT_KEEP_S

    def lapse(self, now: float) -> None:
        """Clear the incidents that are over."""
        for name in [name for name, at in self._lapse_at.items() if at <= now]:
            self.set(name, None)

    def end_term(self) -> None:
        """Clear what the leader said: who does not lead any more cannot know whether it still holds."""
        for name in [name for name in self.up if name not in OF_THE_PROCESS]:
            self.set(name, None)


def some(names: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
