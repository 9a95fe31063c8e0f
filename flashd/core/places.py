"""Where a machine can be rented: offers with live prices, places as they are recorded, and refusals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Place:
    """One GPU class in one region of one account, at the price of the launch (public address included)."""

    provider: str
    account: str
    region: str
    gpu: str  # the catalogue's class name, e.g. "L40"
    sku: str  # the provider's own flavor name
    usd_per_hour: float

    @property
    def key(self) -> str:
        """Identity of a place for cool-downs and refusals: price and account do not matter."""
        return f"{self.provider}/{self.region}/{self.gpu}/{self.sku}"

    @property
    def site(self) -> str:
        """Where a lost attempt is not repeated at once."""
        return f"{self.provider}/{self.region}"

    def refusal(self, kind: RefusalKind, text: str, next_try_at: float | None = None) -> PlaceRefusal:
        """That it was looked at and not taken."""
        return PlaceRefusal(self.provider, self.region, self.gpu, kind, text, next_try_at)


@dataclass(frozen=True, slots=True)
class Offer:
    """A place with what can be known of it before a launch."""

    place: Place
    available: bool
    vram_gb: float
    disk_gb: float
    ram_gb: float
    spot: bool = False
    depth: int | None = None  # machines left, None when the provider does not say


class RefusalKind(StrEnum):
    """Why a place cannot take a run now."""

    NO_STOCK = "no_stock"
    COOLDOWN = "cooldown"
    REFUSED = "refused"  # refused this very run earlier
    UNUSABLE = "unusable"  # no image, no key, blocked region
    PAUSED = "paused"  # the provider is paused: credential, credit, unreachable
    TOO_DEAR = "too_dear"


@dataclass(frozen=True, slots=True)
class PlaceRefusal:
    """A place that was looked at and not taken. `text` is the provider's own words, at most 200 bytes in events."""

    provider: str
    region: str
    gpu: str
    kind: RefusalKind
    text: str
    next_try_at: float | None = None
