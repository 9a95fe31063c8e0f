"""Hyperstack's boot images: what the list looks like, and which of them a machine gets. Pure.

Source: Hyperstack API guide, images; the CUDA version is only in the free text of the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from flashd.errors import RejectedError
from flashd.providers.hyperstack_wire import Envelope

PREFERRED_RELEASE = "24.04"
_CUDA = re.compile(r"\bCUDA[ _-]?(\d{1,3})\.(\d{1,3})", re.IGNORECASE)


class Label(msgspec.Struct):
    label: str | None = None


class Link(msgspec.Struct):
    flavor_name: str | None = None
    image_name: str | None = None
    link_type: str | None = None


class FlavorRestrictions(msgspec.Struct):
    has_flavor_restrictions: bool | None = None
    restriction_type: str | None = None
    compatible_flavors: list[Link] | None = None


class Image(msgspec.Struct):
    id: int | str | None = None
    name: str | None = None
    region_name: str | None = None
    version: str | None = None
    labels: list[Label] | None = None
    flavor_restrictions: FlavorRestrictions | None = None


class ImageGroup(msgspec.Struct):
    images: list[Image] | None = None
    region_name: str | None = None


class ImagesAnswer(Envelope):
    images: list[ImageGroup] = msgspec.field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Need:
    """What a machine asks of its region. `allowed_images` None = the flavor is not restricted."""

    region: str
    sku: str
    min_cuda: tuple[int, int]
    allowed_images: frozenset[str] | None = None


def choose_image(rows: Iterable[Image], need: Need, wanted: str = "") -> str:
    """The image to boot: with Docker, the lowest CUDA that is enough, Ubuntu 24.04 first; or the configured one.

    Images and flavors may restrict each other; a hard restriction is checked here, before the provider refuses it.
    Raises RejectedError, saying what was missing.
    """
    able = [row for row in rows if row.name and _fits(row, need)]
    if wanted:
        if any(row.name == wanted for row in able):
            return wanted
        raise RejectedError(f"the configured image {wanted!r} is not offered in {need.region} for {need.sku}")
    ranked: list[tuple[tuple[int, int], bool, str]] = []
    for row in able:
        cuda = cuda_version(row.name or "")
        if cuda is not None and cuda >= need.min_cuda and _has_docker(row):
            other = PREFERRED_RELEASE not in f"{row.name} {row.version or ''}"
            ranked.append((cuda, other, row.name or ""))
    if not ranked:
        floor = ".".join(map(str, need.min_cuda))
        raise RejectedError(f"no image with Docker and CUDA {floor} or newer in {need.region} for {need.sku}")
    return min(ranked)[2]


def cuda_version(name: str) -> tuple[int, int] | None:
    """The CUDA version in an image's name, which is the only place that tells it."""
    found = _CUDA.search(name)
    return (int(found[1]), int(found[2])) if found else None


def _fits(row: Image, need: Need) -> bool:
    if need.allowed_images is not None and row.name not in need.allowed_images:
        return False
    rule = row.flavor_restrictions
    if rule is None or not rule.has_flavor_restrictions or (rule.restriction_type or "").lower() != "hard":
        return True
    return any(link.flavor_name == need.sku for link in rule.compatible_flavors or ())


def _has_docker(row: Image) -> bool:
    labels = " ".join(label.label or "" for label in row.labels or ())
    return "docker" in f"{row.name} {row.version or ''} {labels}".lower()


def flattened(answer: ImagesAnswer, region: str) -> list[Image]:
    """The images of one region out of the two levels of the answer."""
    return [
        row
        for group in answer.images
        for row in group.images or ()
        if (row.region_name or group.region_name or region) == region
    ]
