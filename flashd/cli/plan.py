"""What a submission would do: the walk over places with live prices, and worst-case dollars. Nothing is written."""

from __future__ import annotations

from dataclasses import dataclass

from flashd.cli.output import GAP, cut
from flashd.config import Settings
from flashd.core.cost import billed_usd
from flashd.core.model import Run
from flashd.core.observations import MustWait, NoMoneyLeft, NowherePossible
from flashd.core.placement import Chosen, Market, Placed, fits, place, preference, refuse
from flashd.core.places import Offer, PlaceRefusal
from flashd.core.terms import accepted
from flashd.wire.request_model import RunRequest


@dataclass(frozen=True, slots=True)
class Plan:
    """`walk` in the order of trying, each with what holds it back now; `answer` is what would happen at once."""

    run: Run
    walk: tuple[tuple[Offer, PlaceRefusal | None], ...]
    unusable: tuple[PlaceRefusal, ...]
    answer: Placed
    worst_case_usd: float | None


async def planned(settings: Settings, request: RunRequest) -> Plan:
    """Asks the provider for stock and prices. Raises ProviderError."""
    from flashd.daemon.process import clients

    async with clients(settings) as outside:
        stock = await outside.hyperstack.stock(fresh=True)
        now = outside.clock.now()
    run = accepted(request, now)
    market = Market(stock.offers, stock.refusals)
    offers = sorted((offer for offer in stock.offers if fits(run.terms, offer)), key=lambda o: preference(run, o))
    return Plan(
        run,
        tuple((offer, refuse(run, offer, market, now)) for offer in offers),
        stock.refusals,
        place(run, market, run.terms.max_usd, now),
        worst_case_usd(run, offers, settings.policy.provision_grace_s),
    )


def worst_case_usd(run: Run, offers: list[Offer], provision_grace_s: float) -> float | None:
    """Every attempt at the dearest place to its very deadline; None when no place fits."""
    terms = run.terms
    if not offers:
        return None
    seconds = (terms.max_wall_s + provision_grace_s) * terms.max_attempts
    if terms.deadline_s is not None:
        seconds = min(seconds, terms.deadline_s)
    usd = billed_usd(max(offer.place.usd_per_hour for offer in offers), seconds)
    return round(usd if terms.max_usd is None else min(usd, terms.max_usd), 2)


def plan_document(plan: Plan) -> dict[str, object]:
    """For JSON."""
    terms = plan.run.terms
    return {
        "run_id": terms.run_id,
        "now": answer_text(plan.answer),
        "places": [_place(offer, refusal) for offer, refusal in plan.walk],
        "unusable": [{"provider": r.provider, "region": r.region, "gpu": r.gpu, "text": r.text} for r in plan.unusable],
        "max_attempts": terms.max_attempts,
        "max_wall_s": terms.max_wall_s,
        "worst_case_usd": plan.worst_case_usd,
    }


def _place(offer: Offer, refusal: PlaceRefusal | None) -> dict[str, object]:
    return {
        "provider": offer.place.provider,
        "region": offer.place.region,
        "gpu": offer.place.gpu,
        "usd_per_hour": offer.place.usd_per_hour,
        "refusal": refusal.kind.value if refusal else None,
        "text": refusal.text if refusal else None,
    }


def answer_text(answer: Placed) -> str:
    """What the daemon would do with the run now, limits of the fleet aside."""
    match answer:
        case Chosen(offer):
            return f"launch at {offer.place.provider} {offer.place.region} {offer.place.gpu}"
        case MustWait(reason, _, _, detail):
            return f"wait with {reason.value}" + (f": {detail}" if detail else "")
        case NoMoneyLeft(detail):
            return f"fail with budget: {detail}"
        case NowherePossible(detail):
            return f"fail with launch_refused: {detail}"


def plan_text(plan: Plan) -> str:
    """For people."""
    terms = plan.run.terms
    lines = [f"{terms.run_id}: the request is right; nothing was written", f"now: {answer_text(plan.answer)}"]
    lines.append("places, in the order of the walk:" if plan.walk else "no place fits this request")
    for offer, refusal in plan.walk:
        where = f"{offer.place.provider} {offer.place.region} {offer.place.gpu} ${offer.place.usd_per_hour:.2f}/h"
        lines.append(cut(GAP + where + (f"  not now: {refusal.text}" if refusal else "")))
    worst = f"${plan.worst_case_usd:.2f}" if plan.worst_case_usd is not None else "unknown"
    lines.append(f"worst case: {worst}, {terms.max_attempts} attempts to their deadlines at the dearest place")
    return "\n".join(lines)
