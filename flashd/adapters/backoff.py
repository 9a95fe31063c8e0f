"""Growing pauses between tries of something that fails for a while. Nobody sleeps in here."""

from __future__ import annotations

from dataclasses import dataclass, field

from flashd.adapters.clock import Random


@dataclass(slots=True)
class Backoff:
    """Pauses of `first_s`, doubling up to `most_s` seconds; each is scaled by a factor drawn from `spread`."""

    chance: Random
    first_s: float
    most_s: float
    spread: tuple[float, float] = (0.5, 1.0)
    _pause_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._pause_s = self.first_s

    def next_s(self) -> float:
        """How long to wait now; the next one is longer."""
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, self.most_s)
        return pause_s * self.chance.uniform(*self.spread)

    def reset(self) -> None:
        """It worked: start short again."""
        self._pause_s = self.first_s
