"""What the simulated cloud sells: regions, flavors, images, prices and stock.

Prices are dollars for one GPU and hour, as the provider published them in August 2026.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flashd.sim.cloud_types import Json, bad_request

PUBLIC_IP_USD_PER_HOUR = 0.00672
SSD_USD_PER_GB_HOUR = 0.000096774
SPOT_FACTOR = 0.8
DEFAULT_STOCK = 8


@dataclass(frozen=True, slots=True)
class Region:
    id: int
    name: str
    country: str
    green_status: str


@dataclass(frozen=True, slots=True)
class Flavor:
    """A machine size in one region; `ram`, `disk`, `ephemeral` in GB."""

    id: int
    name: str
    region: str
    gpu: str
    gpu_count: int
    cpu: int
    ram: float
    disk: int
    ephemeral: int
    labels: tuple[str, ...] = ()

    @property
    def spot(self) -> bool:
        return self.name.endswith("-spot")

    @property
    def for_clusters(self) -> bool:
        return self.name.endswith("k8s")


@dataclass(frozen=True, slots=True)
class Image:
    """`only_flavors` is a hard restriction: other flavors are refused at create."""

    id: int
    name: str
    region: str
    type: str
    version: str
    size: int
    only_flavors: tuple[str, ...] = ()


@dataclass(slots=True)
class Shelf:
    """Stock of one flavor in one region. `shown` None shows the truth; else the catalogue claims that instead."""

    free: int = DEFAULT_STOCK
    shown: bool | None = None

    def visible(self) -> bool:
        return self.free > 0 if self.shown is None else self.shown


REGIONS = (
    Region(1, "NORWAY-1", "Norway", "GREEN"),
    Region(2, "CANADA-1", "Canada", "GREEN"),
    Region(3, "US-1", "United States", "NOT_GREEN"),
    Region(4, "CANADA-2", "Canada", "PARTIALLY_GREEN"),
)
PRICES = {
    "RTX-A6000": 0.50,
    "L40": 1.00,
    "A100-80G-PCIe": 1.35,
    "H100-80G-PCIe": 2.50,
    "H100-80G-SXM5": 3.20,
    "H200-141G-SXM5": 3.99,
    "RTX-PRO6000-SE": 1.85,
}
# stem, GPU, cores, GB of memory and of fast local disk for each GPU, counts sold
_SIZES = (
    ("n3-RTX-A6000", "RTX-A6000", 28, 58.0, 425, (1, 2, 4, 8)),
    ("n3-L40", "L40", 28, 58.0, 725, (1, 2, 4, 8)),
    ("n3-A100", "A100-80G-PCIe", 28, 120.0, 750, (1, 2, 4, 8)),
    ("n3-H100", "H100-80G-PCIe", 28, 180.0, 750, (1, 2, 4, 8)),
    ("n3-H100-SXM5", "H100-80G-SXM5", 24, 220.0, 3500, (1, 8)),
    ("n3-H200-SXM5", "H200-141G-SXM5", 22, 220.0, 4000, (1, 8)),
    ("n3-RTX-PRO6000", "RTX-PRO6000-SE", 28, 180.0, 1400, (1, 2, 4, 8)),
)
_SOLD_IN = {
    "NORWAY-1": {"RTX-A6000", "L40", "A100-80G-PCIe", "H100-80G-PCIe", "H200-141G-SXM5"},
    "CANADA-1": {"RTX-A6000", "L40", "A100-80G-PCIe", "H100-80G-PCIe"},
    "CANADA-2": {"L40", "H100-80G-PCIe", "H200-141G-SXM5", "RTX-PRO6000-SE"},
    "US-1": {"RTX-A6000", "A100-80G-PCIe", "H100-80G-PCIe", "H100-80G-SXM5", "RTX-PRO6000-SE"},
}
_ALSO = ("n3-RTX-A6000x1-spot", "n3-L40x1-spot", "n3-H100x1-spot", "n3-A100x1-k8s", "n3-H100x8-k8s")
_IMAGES = (
    ("Ubuntu Server 20.04 LTS (Focal Fossa)", "Ubuntu", "20.04", ()),
    ("Ubuntu Server 22.04 LTS (Jammy Jellyfish)", "Ubuntu", "22.04", ()),
    ("Ubuntu Server 22.04 LTS R535 CUDA 12.2", "Ubuntu", "22.04 R535 CUDA 12.2", ()),
    ("Ubuntu Server 22.04 LTS R535 CUDA 12.2 with Docker", "Ubuntu", "22.04 R535 CUDA 12.2 with Docker", ()),
    ("Ubuntu Server 22.04 LTS R550 CUDA 12.4 with Docker", "Ubuntu", "22.04 R550 CUDA 12.4 with Docker", ()),
    ("Ubuntu Server 24.04 LTS R570 CUDA 12.8", "Ubuntu", "24.04 R570 CUDA 12.8", ()),
    ("Ubuntu Server 24.04 LTS R570 CUDA 12.8 with Docker", "Ubuntu", "24.04 R570 CUDA 12.8 with Docker", ()),
    (
        "Ubuntu Server 24.04 LTS R580 CUDA 13.0 with Docker for SXM",
        "Ubuntu",
        "24.04 R580 CUDA 13.0 with Docker",
        ("n3-H100-SXM5x8", "n3-H200-SXM5x8"),
    ),
    ("Windows Server 2022", "Windows", "2022", ()),
)


def _flavors() -> list[Flavor]:
    made: list[Flavor] = []
    for region in REGIONS:
        for stem, gpu, cpu, ram, ephemeral, counts in _SIZES:
            if gpu not in _SOLD_IN[region.name]:
                continue
            for count in counts:
                plain = f"{stem}x{count}"
                labels = ("no-hibernation", "no-snapshot", "no-bfv") if "SXM5" in stem and region.name == "US-1" else ()
                for name in (plain, *(other for other in _ALSO if other.rsplit("-", 1)[0] == plain)):
                    size = (cpu * count, ram * count, 100, ephemeral * count)
                    made.append(Flavor(len(made) + 40, name, region.name, gpu, count, *size, labels=labels))
        made.append(Flavor(len(made) + 40, "n1-cpu-small", region.name, "", 0, 4, 4.0, 100, 0))
    return made


def _images() -> list[Image]:
    made: list[Image] = []
    for region in REGIONS:
        for name, kind, version, only in _IMAGES:
            # One region lags behind with its drivers, as real fleets do.
            if region.name == "CANADA-1" and ("R570" in name or "R580" in name):
                continue
            made.append(Image(len(made) + 200, name, region.name, kind, version, 20 << 30, only))
    return made


@dataclass(slots=True)
class Catalogue:
    regions: list[Region] = field(default_factory=lambda: list(REGIONS))
    flavors: list[Flavor] = field(default_factory=_flavors)
    images: list[Image] = field(default_factory=_images)
    prices: dict[str, float] = field(default_factory=lambda: dict(PRICES))
    shelves: dict[tuple[str, str], Shelf] = field(default_factory=dict)
    priced_from: float = 0.0

    def __post_init__(self) -> None:
        for flavor in self.flavors:
            self.shelves.setdefault((flavor.region, flavor.name), Shelf())

    def has_region(self, name: str) -> bool:
        return any(region.name == name for region in self.regions)

    def flavor(self, region: str, name: str) -> Flavor | None:
        return next((found for found in self.flavors if (found.region, found.name) == (region, name)), None)

    def image(self, region: str, name: str) -> Image | None:
        return next((found for found in self.images if (found.region, found.name) == (region, name)), None)

    def shelf(self, region: str, flavor: str) -> Shelf:
        found = self.shelves.get((region, flavor))
        if found is None:
            raise bad_request(f"{flavor} is not sold in {region}")
        return found

    def set_stock(self, region: str | None, flavor: str | None, free: int, shown: bool | None = None) -> int:
        """Set the stock of every shelf that fits (None = all); returns how many did."""
        chosen = [
            shelf for (place, name), shelf in self.shelves.items() if region in (None, place) and flavor in (None, name)
        ]
        for shelf in chosen:
            shelf.free, shelf.shown = free, shown
        return len(chosen)

    def usd_per_hour(self, flavor: Flavor) -> float:
        """Dollars an hour for the whole machine, without public IP."""
        if not flavor.gpu:
            return 0.0
        price = self.prices.get(flavor.gpu, 0.0)
        if flavor.spot:
            price = self.prices.get(f"{flavor.gpu}-spot", price * SPOT_FACTOR)
        return price * flavor.gpu_count

    def price_list(self) -> dict[str, float]:
        extras = {
            "Cloud-SSD": SSD_USD_PER_GB_HOUR,
            "PublicIP": PUBLIC_IP_USD_PER_HOUR,
            "vCPU (cpu-only-flavors)": 0.0,
            "RAM (cpu-only-flavors)": 0.0,
        }
        return {**self.prices, **extras}

    def stock_rows(self) -> list[Json]:
        """Body of `/core/stocks`: GPUs free by region and model, with the depth of each machine size."""
        rows: list[Json] = []
        for region in self.regions:
            gpus = sorted({flavor.gpu for flavor in self.flavors if flavor.region == region.name and flavor.gpu})
            models = [self._model(region, gpu) for gpu in gpus]
            rows.append({"region": region.name, "stock-type": "GPU", "models": models})
        return rows

    def _model(self, region: Region, gpu: str) -> Json:
        depth = {"1x": 0, "2x": 0, "4x": 0, "8x": 0, "10x": 0}
        total = 0
        for flavor in self.flavors:
            if (flavor.region, flavor.gpu) == (region.name, gpu) and not flavor.spot and not flavor.for_clusters:
                shelf = self.shelf(region.name, flavor.name)
                free = shelf.free if shelf.shown is None else (max(shelf.free, 1) if shelf.shown else 0)
                depth[f"{flavor.gpu_count}x"] = free
                total = max(total, free * flavor.gpu_count)
        planned = dict.fromkeys(("planned_7_days", "planned_30_days", "planned_100_days"), "0")
        return {"model": gpu, "available": _bucket(total), "configurations": depth, **planned}


def _bucket(count: int) -> str:
    for floor in (200, 100, 25, 10):
        if count >= floor:
            return f"{floor}+"
    return str(max(count, 0))
