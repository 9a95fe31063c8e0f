"""For every reason a run waits or ended: whose fault it is and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flashd.core.model import Fault, Reason
from flashd.core.retry import RULES


@dataclass(frozen=True, slots=True)
class Advice:
    fault: Fault
    next_step: str


WAITS: Mapping[Reason, Advice] = {
    Reason.NO_CAPACITY: Advice(
        Fault.INFRASTRUCTURE, "flashd looks again by itself; more classes, regions or dollars help"
    ),
    Reason.COOLDOWN: Advice(Fault.INFRASTRUCTURE, "a place refused a moment ago; flashd tries it again by itself"),
    Reason.AUTH: Advice(Fault.OPERATOR, "renew the provider's key; flashd tries it every 60 s"),
    Reason.NO_CREDIT: Advice(Fault.OPERATOR, "top up the provider's account; flashd looks every 60 s"),
    Reason.PROVIDER_UNREACHABLE: Advice(Fault.INFRASTRUCTURE, "flashd goes on when the provider answers"),
    Reason.HUB_UNREACHABLE: Advice(Fault.INFRASTRUCTURE, "flashd goes on when the Hub answers"),
    Reason.HUB_FORBIDDEN: Advice(Fault.OPERATOR, "give flashd's Hub token write access to the repository"),
    Reason.HUB_BUDGET: Advice(Fault.OPERATOR, "the repository has its share of live runs or commits; use another one"),
    Reason.MAX_MACHINES: Advice(Fault.OPERATOR, "waits for a machine to end; limits.max_machines is reached"),
    Reason.MAX_USD_PER_HOUR: Advice(Fault.OPERATOR, "waits for a machine to end; limits.max_usd_per_hour is reached"),
    Reason.DRAINING: Advice(Fault.OPERATOR, "an operator drains this fleet; nothing is launched until that ends"),
    Reason.LEDGER: Advice(Fault.OPERATOR, "safe mode: nothing is launched until `flashd doctor --accept-ledger`"),
}
ENDS: Mapping[Reason, str] = {
    Reason.JOB_FAILED: "mend the job, submit it under a new id; the box's error file and console are on the Hub",
    Reason.DEADLINE: "raise limits.max_wall_s or limits.deadline_s, submit under a new id",
    Reason.BUDGET: "raise limits.max_usd, submit under a new id",
    Reason.LAUNCH_REFUSED: "every place refused this very request, in the words above; change it, new id",
    Reason.ARTIFACTS_UNREADABLE: "the job must leave a JSON object in metrics.json; submit under a new id",
}
AGAIN = "another machine, by itself"
LAST = "no attempts are left; submit it under a new id, with more limits.max_attempts if need be"


def fault_for(reason: str) -> str:
    """`user`, `infrastructure`, `operator`; "" for a cancel and for what is no reason."""
    if reason not in set(Reason):
        return ""
    known = Reason(reason)
    if known in WAITS:
        return WAITS[known].fault.value
    return RULES[known].fault.value if known in RULES else ""


def next_for(state: str, reason: str) -> str:
    """What happens or has to be done now; "" when nothing has to."""
    known = Reason(reason) if reason in set(Reason) else None
    match state:
        case "succeeded" | "cancelled":
            return ""
        case "failed":
            return ENDS.get(known, LAST) if known is not None else LAST
        case _ if known is not None and known in WAITS:
            return WAITS[known].next_step
        case "backoff":
            return AGAIN
        case _:
            return ""
