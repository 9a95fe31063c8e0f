"""Where a run may launch now: the walk over offers, cheapest first, and why each other place is not taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flashd.core.cost import worth_launching
from flashd.core.model import Reason, Run, Terms
from flashd.core.observations import MustWait, NoMoneyLeft, NowherePossible
from flashd.core.places import Offer, PlaceRefusal, RefusalKind

PLACES_SHOWN_MAX = 32


@dataclass(frozen=True, slots=True)
class Pause:
    """A provider whose launches are held: why, and in whose words."""

    reason: Reason
    text: str
    next_try_at: float | None = None


@dataclass(frozen=True, slots=True)
class Market:
    """All that is known of the places: offers of every provider, and what holds them back for everybody."""

    offers: tuple[Offer, ...] = ()
    unusable: tuple[PlaceRefusal, ...] = ()
    pauses: Mapping[str, Pause] = field(default_factory=dict)
    cooling: Mapping[str, float] = field(default_factory=dict)  # place key -> until, Unix seconds
    busy: frozenset[str] = frozenset()  # place keys with as many launches under way as they may have
    next_look_at: float | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The place to launch at; `last_choice` when no other place fits this run.

    `busy`: not yet, the launches that are under way there are answered first. A dearer place is no better choice.
    """

    offer: Offer
    last_choice: bool
    busy: bool = False


Placed = Chosen | MustWait | NoMoneyLeft | NowherePossible


def fits(terms: Terms, offer: Offer) -> bool:
    """Whether the place could ever take this run, stock aside."""
    place = offer.place
    return (
        (not terms.gpu_classes or place.gpu in terms.gpu_classes)
        and (not terms.providers or place.provider in terms.providers)
        and (not terms.regions or place.region in terms.regions)
        and place.region not in terms.exclude_regions
        and (terms.spot or not offer.spot)
        and offer.vram_gb >= (terms.min_vram_gb or 0)
        and offer.disk_gb >= (terms.min_disk_gb or 0)
        and offer.ram_gb >= (terms.min_ram_gb or 0)
    )


def preference(run: Run, offer: Offer) -> tuple[int, int, float, float, str]:
    """Sort key: away from the regions, then the providers, where attempts were lost; then price, then VRAM."""
    place = offer.place
    failed_region = run.avoid.index(place.site) + 1 if place.site in run.avoid else 0
    failed_provider = int(bool(run.avoid) and run.avoid[-1].startswith(f"{place.provider}/"))
    return failed_region, failed_provider, place.usd_per_hour, offer.vram_gb, place.key


def place(run: Run, market: Market, money_usd: float | None, now: float) -> Placed:
    """The best place for `run` now, or why there is none."""
    fitting = sorted(
        (offer for offer in market.offers if fits(run.terms, offer)), key=lambda offer: preference(run, offer)
    )
    open_to_run = [offer for offer in fitting if offer.place.key not in run.refusals.itself]
    payable = [offer for offer in open_to_run if worth_launching(money_usd, offer.place.usd_per_hour)]
    if fitting and not payable and not _unseen(run.terms, market):
        return _hopeless(fitting, open_to_run, money_usd)
    refusals = {offer.place.key: refuse(run, offer, market, now) for offer in payable}
    takers = [offer for offer in payable if refusals[offer.place.key] is None]
    if takers:
        best = takers[0]
        return Chosen(best, last_choice=len(takers) == 1, busy=best.place.key in market.busy)
    never = [_never(offer, run) for offer in fitting if offer not in payable]
    return _must_wait(run.terms, market, [item for item in (*refusals.values(), *never) if item is not None])


def _unseen(terms: Terms, market: Market) -> list[str]:
    """Paused providers whose offers are not known: nobody can say that no place fits."""
    seen = {offer.place.provider for offer in market.offers}
    return sorted(name for name in market.pauses if name not in seen and name in (terms.providers or (name,)))


def _hopeless(fitting: list[Offer], open_to_run: list[Offer], money_usd: float | None) -> NoMoneyLeft | NowherePossible:
    if not open_to_run:
        return NowherePossible(f"refused at every place that fits ({len(fitting)})")
    cheapest = min(offer.place.usd_per_hour for offer in open_to_run)
    return NoMoneyLeft(f"${money_usd:.2f} of max_usd are left: less than 900 s at ${cheapest:.2f}/h")


def _never(offer: Offer, run: Run) -> PlaceRefusal:
    """A fitting place that cannot take this run any more."""
    place = offer.place
    if place.key in run.refusals.itself:
        return place.refusal(RefusalKind.REFUSED, "refused this run earlier")
    return place.refusal(RefusalKind.TOO_DEAR, "the rest of max_usd does not buy 900 s")


def refuse(run: Run, offer: Offer, market: Market, now: float) -> PlaceRefusal | None:
    """Why this fitting place cannot take the run now, None when it can."""
    place = offer.place
    pause = market.pauses.get(place.provider)
    if pause is not None:
        return place.refusal(RefusalKind.PAUSED, pause.text, pause.next_try_at)
    limit = run.terms.max_usd_per_hour
    if limit is not None and place.usd_per_hour > limit:
        return place.refusal(
            RefusalKind.TOO_DEAR, f"${place.usd_per_hour:.2f}/h is above gpu.max_usd_per_hour ${limit:.2f}"
        )
    if not offer.available:
        return place.refusal(RefusalKind.NO_STOCK, "the provider shows no stock", market.next_look_at)
    own_until = dict(run.refusals.cooling).get(place.key, 0.0)
    until = max(own_until, market.cooling.get(place.key, 0.0))
    if until > now:
        return place.refusal(RefusalKind.COOLDOWN, "refused a launch a moment ago", until)
    return None


def _must_wait(terms: Terms, market: Market, refusals: list[PlaceRefusal]) -> MustWait:
    unusable = [
        item
        for item in market.unusable
        if (not terms.gpu_classes or not item.gpu or item.gpu in terms.gpu_classes)
        and (not terms.regions or item.region in terms.regions)
        and (not terms.providers or item.provider in terms.providers)
    ]
    places = tuple((refusals + unusable)[:PLACES_SHOWN_MAX])
    tries = [item.next_try_at for item in places if item.next_try_at is not None]
    if market.next_look_at is not None:
        tries.append(market.next_look_at)
    why = _why(terms, market, refusals)
    return MustWait(why, places, min(tries, default=None), "" if places else "no place fits this request now")


def _why(terms: Terms, market: Market, refusals: list[PlaceRefusal]) -> Reason:
    """The reason of all places that may still take the run; a pause only where nothing else is in the way."""
    open_to_run = [item for item in refusals if item.kind not in (RefusalKind.REFUSED, RefusalKind.TOO_DEAR)]
    kinds = {item.kind for item in open_to_run}
    paused = sorted({item.provider for item in open_to_run}) if kinds == {RefusalKind.PAUSED} else []
    if not kinds:
        paused = _unseen(terms, market)
    if paused:
        return market.pauses[paused[0]].reason
    return Reason.COOLDOWN if RefusalKind.COOLDOWN in kinds else Reason.NO_CAPACITY
