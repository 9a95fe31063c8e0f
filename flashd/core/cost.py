"""What attempts cost: price x (proof of absence - intent), rounded up to whole minutes; an upper bound of the bill."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from flashd.core.ledger import Gone
from flashd.core.model import Attempt, PastAttempt, Run


@dataclass(frozen=True, slots=True)
class AttemptCost:
    """One attempt's dollars; `final` when its machine is proved gone or never existed."""

    usd: float
    final: bool


def billed_usd(usd_per_hour: float, seconds: float) -> float:
    """Dollars for `seconds`, in whole minutes, rounded up; six decimals."""
    return round(usd_per_hour * math.ceil(max(0.0, seconds) / 60.0) / 60.0, 6)


def attempt_cost(attempt: Attempt | PastAttempt, gone: Mapping[str, Gone], now: float) -> AttemptCost:
    """The cost of one attempt so far. A name under which no machine was ever seen costs nothing."""
    proof = gone.get(attempt.name)
    if proof is not None:
        if proof.machine_id is None:
            return AttemptCost(0.0, True)
        return AttemptCost(billed_usd(attempt.place.usd_per_hour, proof.gone_at - attempt.requested_at), True)
    if isinstance(attempt, PastAttempt) and attempt.machine_id is None:
        return AttemptCost(0.0, True)
    return AttemptCost(billed_usd(attempt.place.usd_per_hour, now - attempt.requested_at), False)


def run_cost(run: Run, gone: Mapping[str, Gone], now: float) -> AttemptCost:
    """The sum over all attempts, each at its own price."""
    parts = [attempt_cost(attempt, gone, now) for attempt in run.attempts]
    return AttemptCost(round(sum(part.usd for part in parts), 6), all(part.final for part in parts))


LAUNCH_WORTH_S = 900.0


def money_left(run: Run, gone: Mapping[str, Gone], now: float) -> float | None:
    """Dollars of `max_usd` not yet spent; None without a limit."""
    if run.terms.max_usd is None:
        return None
    return run.terms.max_usd - run_cost(run, gone, now).usd


def seconds_for(usd: float, usd_per_hour: float) -> float:
    """How long `usd` buys at that price, counting that the last minute is billed whole."""
    if usd_per_hour <= 0:
        return math.inf
    return max(0.0, math.floor(usd / usd_per_hour * 60.0) * 60.0)


def worth_launching(money_usd: float | None, usd_per_hour: float) -> bool:
    """Whether the money (None = no limit) buys enough time to be worth a launch."""
    return money_usd is None or seconds_for(money_usd, usd_per_hour) >= LAUNCH_WORTH_S
