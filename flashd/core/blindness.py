"""Time during which a source (a provider, a repository) could not be seen. Silence is only counted while looking."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sight:
    """What is known of one source: the last moment it answered, and all blind seconds up to then.

    Persisted by the daemon: time in which no daemon ran is an outage like any other.
    """

    known_until: float  # Unix seconds
    blind_total: float = 0.0

    def seen(self, at: float, slack_s: float) -> Sight:
        """The source answered at `at`. The part of the gap beyond `slack_s`, the usual pause, was blind."""
        return Sight(max(at, self.known_until), self.blind_at(at, slack_s))

    def unseen(self, at: float) -> Sight:
        """It answered at `at`, but its silence means nothing (no commit was possible): all the gap was blind."""
        return Sight(max(at, self.known_until), self.blind_total + max(0.0, at - self.known_until))

    def blind_at(self, now: float, slack_s: float) -> float:
        """All blind seconds up to `now`, the present outage included. Never decreases for a constant slack."""
        return self.blind_total + max(0.0, now - self.known_until - slack_s)

    def to_json(self) -> str:
        return json.dumps({"known_until": self.known_until, "blind_total": self.blind_total}, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Sight:
        """Raises ValueError for anything that `to_json` did not write."""
        data: object = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError("sight is not a JSON object")
        return Sight(_seconds(data.get("known_until")), _seconds(data.get("blind_total")))


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"not a number of seconds: {value!r}")
    return float(value)
