"""What a submission would do: the walk over places with live prices, and worst-case dollars. Nothing is written."""

from __future__ import annotations

from flashd.config import Settings
from flashd.core.cost import billed_usd
from flashd.core.placement import Market, fits, preference, refuse
from flashd.core.terms import accepted
from flashd.wire.request_model import RunRequest

Plan = dict[str, object]


async def planned(settings: Settings, request: RunRequest) -> Plan:
    """The places that fit, in the order they would be tried. Raises ProviderError."""
    from flashd.daemon.process import clients

    async with clients(settings) as outside:
        stock = await outside.hyperstack.stock(fresh=True)
        now = outside.clock.now()
    run = accepted(request, now)
    market = Market(stock.offers, stock.refusals)
    offers = sorted((offer for offer in stock.offers if fits(run.terms, offer)), key=lambda o: preference(run, o))
    places = []
    for offer in offers:
        refusal = refuse(run, offer, market, now)
        places.append(
            {
                "provider": offer.place.provider,
                "region": offer.place.region,
                "gpu": offer.place.gpu,
                "usd_per_hour": offer.place.usd_per_hour,
                "refusal": refusal.kind.value if refusal else None,
                "text": refusal.text if refusal else None,
            }
        )
    wall_s = run.terms.max_wall_s + settings.policy.provision_grace_s
    dearest = max((offer.place.usd_per_hour for offer in offers), default=None)
    worst = billed_usd(dearest, wall_s) * run.terms.max_attempts if dearest is not None else None
    if worst is not None and run.terms.max_usd is not None:
        worst = min(worst, run.terms.max_usd)
    unusable = [{"region": r.region, "gpu": r.gpu, "text": r.text} for r in stock.refusals]
    return {
        "run_id": request.run_id,
        "places": places,
        "unusable": unusable,
        "max_attempts": run.terms.max_attempts,
        "max_wall_s": run.terms.max_wall_s,
        "worst_case_usd": round(worst, 2) if worst is not None else None,
    }


def plan_text(plan: Plan) -> str:
    """For people."""
    places = plan["places"]
    assert isinstance(places, list)
    lines = [f"{plan['run_id']}: the request is right; nothing was written. Places in the order of the walk:"]
    for place in places:
        why = f"  not now: {place['refusal']}: {place['text']}" if place["refusal"] else ""
        lines.append(f"  {place['provider']} {place['region']} {place['gpu']} ${place['usd_per_hour']:.2f}/h{why}")
    if not places:
        lines.append("  none fits this request")
    worst = plan["worst_case_usd"]
    lines.append(
        f"worst case: {plan['max_attempts']} attempts to the deadline = "
        + (f"${worst:.2f}" if isinstance(worst, float) else "unknown")
    )
    return "\n".join(lines)
