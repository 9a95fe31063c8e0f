"""Scripted misbehaviour of the simulated Hub: which requests, from which one on, how often, with what effect."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random


class Effect(StrEnum):
    """What the client meets. Those that act "after" have done what was asked before the answer goes wrong."""

    STATUS = "status"  # answer `status`, nothing done
    STATUS_AFTER = "status_after"  # done, but answered with `status`: "applied but answered 504"
    HANG = "hang"  # never answer (or for `seconds`, then reset), nothing done
    HANG_AFTER = "hang_after"  # done, the answer never comes (or reset after `seconds`)
    RESET = "reset"  # connection reset, nothing done
    RESET_AFTER = "reset_after"  # done, the reply is lost
    DELAY = "delay"  # wait `seconds`, then serve as usual
    TRUNCATE = "truncate"  # done, half of the body, then the connection ends


@dataclass(slots=True)
class Fault:
    """One rule. `method` and `kind` are exact, `path` and `body` regular expressions to search for; empty = all.

    It acts on the `nth` matching request and those after it, at most `times` times (None: for ever), each with
    `probability`, and no later than `until` (Unix seconds; None: no end).
    """

    effect: Effect
    method: str = ""
    kind: str = ""
    path: str = ""
    body: str = ""
    nth: int = 1
    times: int | None = 1
    probability: float = 1.0
    until: float | None = None
    seconds: float | None = None
    status: int = 504
    json: Mapping[str, object] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    seen: int = 0
    fired: int = 0

    def __post_init__(self) -> None:
        re.compile(self.path)
        re.compile(self.body)
        if self.effect is Effect.DELAY and self.seconds is None:
            raise ValueError("a delay needs `seconds`")
        if self.nth < 1 or not 0 <= self.probability <= 1:
            raise ValueError("`nth` begins at 1 and `probability` lies between 0 and 1")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a rule can look at."""

    method: str
    kind: str
    path: str
    body: str


class Faults:
    """The rules in force, by number; the first that fires wins."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._rules: dict[int, Fault] = {}
        self._last = 0

    def add(self, fault: Fault) -> int:
        self._last += 1
        self._rules[self._last] = fault
        return self._last

    def remove(self, number: int) -> None:
        self._rules.pop(number, None)

    def clear(self) -> None:
        self._rules.clear()

    def rules(self) -> dict[int, Fault]:
        return dict(self._rules)

    def wants_body(self) -> bool:
        return any(rule.body for rule in self._rules.values())

    def pick(self, asked: Asked, now: float) -> Fault | None:
        for rule in self._rules.values():
            if not _matches(rule, asked) or (rule.until is not None and now >= rule.until):
                continue
            rule.seen += 1
            if rule.seen < rule.nth or (rule.times is not None and rule.fired >= rule.times):
                continue
            if rule.probability < 1 and self._random.random() >= rule.probability:
                continue
            rule.fired += 1
            return rule
        return None


def _matches(rule: Fault, asked: Asked) -> bool:
    return (
        rule.method in ("", asked.method)
        and rule.kind in ("", asked.kind)
        and re.search(rule.path, asked.path) is not None
        and re.search(rule.body, asked.body) is not None
    )
