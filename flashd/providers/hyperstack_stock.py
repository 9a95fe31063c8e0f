"""What Hyperstack rents out now, where and for how much: flavors, depth of stock and price list as offers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from flashd.adapters.clock import Clock
from flashd.adapters.http import Call
from flashd.adapters.limiter import Lane
from flashd.core.places import Offer, Place, PlaceRefusal, RefusalKind
from flashd.errors import AuthError, ProviderError, RateLimitedError, RejectedError, UnavailableError
from flashd.providers.base import Stock
from flashd.providers.cached import Cached
from flashd.providers.catalog import GpuClass, by_hyperstack, folded, resolve
from flashd.providers.hyperstack_api import HyperstackApi
from flashd.providers.hyperstack_images import Need
from flashd.providers.hyperstack_sites import Sites
from flashd.providers.hyperstack_wire import Envelope, Parsed

PROVIDER = "hyperstack"
FLAVORS_TTL_S = 45.0
PRICES_TTL_S = 300.0
PUBLIC_IP_USD_PER_HOUR = 0.00672  # the list price, where the live list has no row
SPOT_SUFFIX = "-spot"
CLUSTER_SUFFIX = "k8s"  # flavors for managed clusters, not for single machines


class ImageLink(msgspec.Struct):
    image_name: str | None = None


class ImageRestrictions(msgspec.Struct):
    has_image_restrictions: bool | None = None
    restriction_type: str | None = None
    compatible_images: list[ImageLink] | None = None


class Flavor(msgspec.Struct):
    name: str | None = None
    region_name: str | None = None
    gpu: str | None = None
    gpu_count: int | None = None
    ram: float | None = None
    disk: float | None = None
    stock_available: bool | None = None
    image_restrictions: ImageRestrictions | None = None


class FlavorGroup(msgspec.Struct):
    gpu: str | None = None
    region_name: str | None = None
    flavors: list[Flavor] | None = None


class FlavorsAnswer(Envelope):
    data: list[FlavorGroup] = msgspec.field(default_factory=list)


class StockModel(msgspec.Struct):
    model: str | None = None
    available: str | int | None = None
    configurations: dict[str, int | None] | None = None


class StockRegion(msgspec.Struct):
    region: str | None = None
    models: list[StockModel] | None = None


class StocksAnswer(Envelope):
    stocks: list[StockRegion] = msgspec.field(default_factory=list)


class PriceRow(msgspec.Struct):
    name: str | None = None
    value: float | str | None = None


_flavors = Parsed(FlavorsAnswer)
_stocks = Parsed(StocksAnswer)
_prices = Parsed(list[PriceRow])
Prices = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Shelf:
    """A single-GPU flavor of the catalogue in one region."""

    region: str
    gpu: GpuClass
    model: str
    sku: str
    available: bool
    ram_gb: float
    disk_gb: float
    allowed_images: frozenset[str] | None

    @property
    def is_spot(self) -> bool:
        return self.sku.endswith(SPOT_SUFFIX)


class StockReader:
    """Offers and refusals of one account. `blocked_regions` are never offered, `cuda_floor` is what the images need."""

    def __init__(
        self,
        api: HyperstackApi,
        sites: Sites,
        clock: Clock,
        blocked_regions: Sequence[str],
        cuda_floor: tuple[int, int],
    ) -> None:
        self._api = api
        self._sites = sites
        self._clock = clock
        self._blocked = frozenset(blocked_regions)
        self._cuda_floor = cuda_floor
        self._shelves: Cached[tuple[Shelf, ...]] = Cached(clock, FLAVORS_TTL_S)
        self._prices: Cached[Prices] = Cached(clock, PRICES_TTL_S)

    async def read(self, account: str, *, fresh: bool) -> Stock:
        """Everything on the shelves with live prices, the public address included."""
        read_at = self._clock.now()
        shelves = await self.shelves(fresh=fresh)
        prices = await self._current_prices()
        depths = await self._depths()
        offers: list[Offer] = []
        refusals: list[PlaceRefusal] = []
        for shelf in shelves:
            why_not = await self._unusable(shelf)
            if why_not is None:
                offers.append(_offer(shelf, account, prices, depths))
            else:
                refusals.append(PlaceRefusal(PROVIDER, shelf.region, shelf.gpu.name, RefusalKind.UNUSABLE, why_not))
        return Stock(tuple(offers), tuple(refusals), read_at)

    async def shelves(self, *, fresh: bool = False, lane: Lane = Lane.REST) -> tuple[Shelf, ...]:
        async def read() -> tuple[Shelf, ...]:
            answer = await self._api.read(Call(lane, "GET", "/core/flavors"), _flavors)
            return tuple(sorted(_shelves(answer), key=lambda shelf: (shelf.region, shelf.sku)))

        return await self._shelves.get(read, fresh=fresh)

    async def is_sold_out(self, place: Place) -> bool:
        """Whether a read that begins now says that this place has no stock."""
        shelves = await self.shelves(fresh=True, lane=Lane.CONFIRM)
        return not any(shelf.available for shelf in shelves if (shelf.region, shelf.sku) == (place.region, place.sku))

    async def need(self, place: Place) -> Need:
        """What a machine at this place asks of its region. Raises RejectedError for a blocked or unknown place."""
        gpu = resolve(place.gpu)
        if gpu is None or place.region in self._blocked:
            raise RejectedError(f"{place.key}: not in the catalogue, or a blocked region")
        for shelf in await self.shelves(lane=Lane.LAUNCH):
            if (shelf.region, shelf.sku) == (place.region, place.sku):
                return self._need(shelf)
        raise RejectedError(f"{place.key}: the provider does not sell this flavor there any more")

    async def _unusable(self, shelf: Shelf) -> str | None:
        """Why no machine can be made there, None if one can. A region that cannot be read does not hide the others."""
        if shelf.region in self._blocked:
            return "the region is blocked by the configuration"
        try:
            await self._sites.check(self._need(shelf), Lane.REST)
        except (AuthError, RateLimitedError):
            raise
        except ProviderError as error:
            return error.text
        return None

    def _need(self, shelf: Shelf) -> Need:
        return Need(shelf.region, shelf.sku, max(self._cuda_floor, shelf.gpu.min_cuda), shelf.allowed_images)

    async def _current_prices(self) -> Prices:
        """The live list; in an outage the last one read, and before the first none, so the catalogue's own prices."""

        async def read() -> Prices:
            rows = await self._api.read(Call(Lane.REST, "GET", "/pricebook"), _prices)
            return {folded(row.name): value for row in rows if row.name and (value := _dollars(row.value)) is not None}

        last = self._prices.last
        try:
            return await self._prices.get(read)
        except UnavailableError:
            return last if last is not None else {}

    async def _depths(self) -> Mapping[tuple[str, str], int]:
        """Machines left by region and GPU model. It is a hint: without it offers just have no depth."""
        try:
            answer = await self._api.read(Call(Lane.REST, "GET", "/core/stocks"), _stocks)
        except UnavailableError:
            return {}
        found: dict[tuple[str, str], int] = {}
        for region in answer.stocks:
            for model in region.models or ():
                depth = _depth(model)
                if region.region and model.model and depth is not None:
                    key = (region.region, folded(model.model))
                    found[key] = max(depth, found.get(key, 0))
        return found


def _shelves(answer: FlavorsAnswer) -> list[Shelf]:
    found = []
    for group in answer.data:
        for flavor in group.flavors or ():
            region = flavor.region_name or group.region_name
            model = flavor.gpu or group.gpu or ""
            sku = flavor.name or ""
            gpu = by_hyperstack(model, sku.removesuffix(SPOT_SUFFIX))
            if not sku or gpu is None or region is None or flavor.gpu_count != 1 or sku.endswith(CLUSTER_SUFFIX):
                continue
            found.append(
                Shelf(
                    region=region,
                    gpu=gpu,
                    model=model,
                    sku=sku,
                    available=flavor.stock_available is True,
                    ram_gb=flavor.ram or 0.0,
                    disk_gb=flavor.disk or 0.0,
                    allowed_images=_allowed_images(flavor.image_restrictions),
                )
            )
    return found


def _allowed_images(rule: ImageRestrictions | None) -> frozenset[str] | None:
    if rule is None or not rule.has_image_restrictions or (rule.restriction_type or "").lower() != "hard":
        return None
    return frozenset(link.image_name for link in rule.compatible_images or () if link.image_name)


def _offer(shelf: Shelf, account: str, prices: Prices, depths: Mapping[tuple[str, str], int]) -> Offer:
    usd = _price(shelf, prices) + prices.get(folded("PublicIP"), PUBLIC_IP_USD_PER_HOUR)
    return Offer(
        place=Place(PROVIDER, account, shelf.region, shelf.gpu.name, shelf.sku, round(usd, 6)),
        available=shelf.available,
        vram_gb=shelf.gpu.vram_gb,
        disk_gb=shelf.disk_gb,
        ram_gb=shelf.ram_gb,
        spot=shelf.is_spot,
        depth=depths.get((shelf.region, folded(shelf.model))),
    )


def _price(shelf: Shelf, prices: Prices) -> float:
    """Dollars an hour of the GPU. Without a spot row the full price: a stamped cost must be an upper bound."""
    names = [shelf.model, *shelf.gpu.hyperstack_models]
    if shelf.is_spot:
        names = [name + SPOT_SUFFIX for name in names] + names
    return next((prices[key] for name in names if (key := folded(name)) in prices), shelf.gpu.fallback_usd)


def _dollars(value: float | str | None) -> float | None:
    """A price, which comes as a number or as text; None for what cannot be one."""
    try:
        read = float(value) if value is not None else math.nan
    except ValueError:
        return None
    return read if math.isfinite(read) and read > 0 else None


def _depth(model: StockModel) -> int | None:
    """Single-GPU machines left; `available` is text like "9" or "25+"."""
    single = (model.configurations or {}).get("1x")
    if single is not None:
        return max(single, 0)
    text = str(model.available or "").strip().removesuffix("+")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else None
