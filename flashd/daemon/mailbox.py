"""A run's mailbox: what others tell its coroutine. Bounded by merging; whoever puts never waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import anyio

from flashd.core.observations import CancelAsked, MustWait, NoMoneyLeft, NowherePossible, ProvedGone
from flashd.core.places import Offer
from flashd.daemon.repo_news import RepoNews


@dataclass(frozen=True, slots=True)
class Grant:
    """Admission lets the run launch at `offer`; `done` gives the reservation back (calling it twice is harmless)."""

    offer: Offer
    last_choice: bool
    done: Callable[[], None]


@dataclass(frozen=True, slots=True)
class FleetChanged:
    """A newer complete listing says something about the run's machine."""


Letter = Grant | MustWait | NoMoneyLeft | NowherePossible | CancelAsked | ProvedGone | RepoNews | FleetChanged

LETTERS_MAX = 64


class Mailbox:
    """Letters in order; news of one kind are merged, so a sleeping run cannot pile them up."""

    def __init__(self) -> None:
        self._letters: deque[Letter] = deque()
        self._filled = anyio.Event()

    def put(self, letter: Letter) -> None:
        if not self._merged(letter):
            self._letters.append(letter)
        self._filled.set()

    async def take(self, wait_s: float | None) -> Letter | None:
        """The next letter, or None when `wait_s` seconds pass without one (None = wait for ever)."""
        if not self._letters:
            self._filled = anyio.Event()
            with anyio.move_on_after(wait_s):
                await self._filled.wait()
        return self._letters.popleft() if self._letters else None

    def drain(self) -> tuple[Letter, ...]:
        """All letters, when the run ends; grants must be given back."""
        letters = tuple(self._letters)
        self._letters.clear()
        return letters

    def _merged(self, letter: Letter) -> bool:
        for place, known in enumerate(self._letters):
            if isinstance(letter, RepoNews) and isinstance(known, RepoNews):
                self._letters[place] = _merge(known, letter)
                return True
            if isinstance(letter, FleetChanged | MustWait) and type(known) is type(letter):
                self._letters[place] = letter
                return True
        if len(self._letters) >= LETTERS_MAX:
            raise AssertionError(f"a mailbox holds {len(self._letters)} letters: {letter!r}")
        return False


def _merge(older: RepoNews, newer: RepoNews) -> RepoNews:
    return replace(
        newer,
        commits=(*older.commits, *newer.commits),
        changed=tuple(dict.fromkeys((*older.changed, *newer.changed))),
        resync=older.resync or newer.resync,
    )
