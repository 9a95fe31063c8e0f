"""GPU classes as data: the names a request may use, what images they need, and what clouds call them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class GpuClass:
    """One kind of GPU. `hyperstack_models` are the provider's GPU names, `fallback_usd` its list price per GPU and hour
    in August 2026, used only where the live price list has no row. Source: Hyperstack API guide, Prices."""

    name: str
    aliases: tuple[str, ...]
    vram_gb: float
    sm: str
    min_cuda: tuple[int, int]
    hyperstack_models: tuple[str, ...]
    hyperstack_skus: tuple[str, ...]
    lambda_skus: tuple[str, ...]
    fallback_usd: float


GPU_CLASSES: tuple[GpuClass, ...] = (
    GpuClass(
        name="RTX A6000",
        aliases=("A6000", "NVIDIA RTX A6000"),
        vram_gb=48,
        sm="sm_86",
        min_cuda=(11, 1),
        hyperstack_models=("RTX-A6000",),
        hyperstack_skus=("n3-RTX-A6000x1",),
        lambda_skus=("gpu_1x_a6000",),
        fallback_usd=0.50,
    ),
    GpuClass(
        name="L40",
        aliases=("NVIDIA L40",),
        vram_gb=48,
        sm="sm_89",
        min_cuda=(11, 8),
        hyperstack_models=("L40",),
        hyperstack_skus=("n3-L40x1",),
        lambda_skus=(),
        fallback_usd=1.00,
    ),
    GpuClass(
        name="A100 PCIe",
        aliases=("A100", "A100 80GB", "A100 80GB PCIe", "NVIDIA A100 80GB PCIe"),
        vram_gb=80,
        sm="sm_80",
        min_cuda=(11, 0),
        hyperstack_models=("A100-80G-PCIe",),
        hyperstack_skus=("n3-A100x1",),
        lambda_skus=(),
        fallback_usd=1.35,
    ),
    GpuClass(
        name="H100",
        aliases=("H100 PCIe", "H100 80GB PCIe", "NVIDIA H100 PCIe"),
        vram_gb=80,
        sm="sm_90",
        min_cuda=(11, 8),
        hyperstack_models=("H100-80G-PCIe",),
        hyperstack_skus=("n3-H100x1",),
        lambda_skus=("gpu_1x_h100_pcie",),
        fallback_usd=2.50,
    ),
    GpuClass(
        name="H100 SXM",
        aliases=("H100 SXM5", "H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
        vram_gb=80,
        sm="sm_90",
        min_cuda=(11, 8),
        hyperstack_models=("H100-80G-SXM5",),
        hyperstack_skus=("n3-H100-SXM5x1",),
        lambda_skus=("gpu_1x_h100_sxm5",),
        fallback_usd=3.20,
    ),
    GpuClass(
        name="H200 SXM",
        aliases=("H200", "H200 SXM5", "NVIDIA H200"),
        vram_gb=141,
        sm="sm_90",
        min_cuda=(11, 8),
        hyperstack_models=("H200-141G-SXM5",),
        hyperstack_skus=("n3-H200-SXM5x1",),
        lambda_skus=(),
        fallback_usd=3.99,
    ),
    GpuClass(
        name="RTX Pro 6000",
        aliases=("RTX PRO 6000 SE", "RTX PRO 6000 Blackwell", "RTX Pro 6000 Blackwell Server Edition"),
        vram_gb=96,
        sm="sm_120",
        min_cuda=(12, 8),  # the first CUDA that knows Blackwell
        hyperstack_models=("RTX-PRO6000-SE", "RTX-PRO-6000-SE"),
        hyperstack_skus=("n3-RTX-PRO6000-SEx1", "n3-RTX-PRO6000x1"),
        lambda_skus=(),
        fallback_usd=1.85,
    ),
)


def resolve(name: str) -> GpuClass | None:
    """The class of a name or alias; case, spaces, dashes and underscores do not matter. None = unknown."""
    return _BY_NAME.get(folded(name))


def known_names() -> tuple[str, ...]:
    """The canonical names, in the catalogue's order."""
    return tuple(gpu.name for gpu in GPU_CLASSES)


def class_names() -> Mapping[str, str]:
    """Every name and alias -> the class's own name."""
    return {name: gpu.name for gpu in GPU_CLASSES for name in (gpu.name, *gpu.aliases)}


def by_hyperstack(model: str, sku: str) -> GpuClass | None:
    """The class of a Hyperstack flavor, by its own name or else by its GPU's. None = not in the catalogue."""
    return _BY_SKU.get(folded(sku)) or _BY_MODEL.get(folded(model))


def by_lambda(sku: str) -> GpuClass | None:
    """The class of a Lambda instance type."""
    return _BY_LAMBDA_SKU.get(folded(sku))


def folded(name: str) -> str:
    """A name without what people and providers spell differently."""
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def _index(pairs: Iterable[tuple[str, GpuClass]]) -> Mapping[str, GpuClass]:
    found: dict[str, GpuClass] = {}
    for name, gpu in pairs:
        if found.setdefault(folded(name), gpu) is not gpu:
            raise ValueError(f"two GPU classes are called {name!r}")
    return MappingProxyType(found)


_BY_NAME = _index((name, gpu) for gpu in GPU_CLASSES for name in (gpu.name, *gpu.aliases))
_BY_SKU = _index((name, gpu) for gpu in GPU_CLASSES for name in gpu.hyperstack_skus)
_BY_MODEL = _index((name, gpu) for gpu in GPU_CLASSES for name in gpu.hyperstack_models)
_BY_LAMBDA_SKU = _index((name, gpu) for gpu in GPU_CLASSES for name in gpu.lambda_skus)
