"""A run request as a value: the fields, defaults and limits of the contract's section 3. Parsing is in `request`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from flashd.wire import fields as f

_CLOSED = ConfigDict(extra="forbid")


class Mode(StrEnum):
    """What a run is for. PRELOAD warms the weight cache of one region and exits."""

    TRAIN = "train"
    PRELOAD = "preload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What machine. `classes` is the field `class`, in the catalogue's own spelling and in the order sent."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    classes: Annotated[f.GpuClasses, Field(alias="class")] = ()
    min_vram_gb: f.Size | None = None
    min_disk_gb: f.Size | None = None
    min_ram_gb: f.Size | None = None
    max_usd_per_hour: f.Size | None = None
    providers: f.PlaceNames = ()
    regions: f.PlaceNames = ()
    exclude_regions: f.PlaceNames = ()
    spot: f.Flag = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Where the worker's code is. `repo` None while parsing only: then it is the run's own repository."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    repo: f.RepoId | None = None
    revision: f.Revision = "main"
    path: f.RelativePath = "code"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """The run's dataset repository and its code."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    repo: f.RepoId
    code: Code = field(default_factory=Code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """The container. `image` may hold `{gpu}` and `{sm}`; empty while parsing only: then the configured one."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    image: f.Image = ""
    command: Annotated[tuple[f.Argument, ...], Field(min_length=1)] = ("python", "-m", "flash.engine.worker")
    pip: tuple[f.Requirement, ...] = ()
    env: dict[f.EnvName, f.Argument] = field(default_factory=dict)
    secrets: tuple[f.SecretName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """The weight cache's volume."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    volume: f.VolumeName
    size_gb: Annotated[f.Whole, Field(ge=1, le=100_000)] = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds and dollars that a run may take."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    max_wall_s: Annotated[f.Number, Field(ge=60, le=2_592_000)] = 86_400.0
    max_attempts: Annotated[f.Whole, Field(ge=1, le=20)] = 3
    max_usd: f.Dollars | None = None
    deadline_s: f.Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBody:
    """Everything a producer can say."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    run_id: f.RunId
    hub: Hub
    gpu: Gpu
    schema: Annotated[f.Whole, Field(ge=1, le=1)] = 1
    mode: Mode = Mode.TRAIN
    phase: f.Phase = "sft"
    seed: Annotated[f.Whole, Field(ge=0, le=2_147_483_647)] = 0
    worker: Worker = field(default_factory=Worker)
    models: tuple[f.ModelId, ...] = ()
    spec: f.AnyJson = field(default_factory=dict)
    cache: Cache | None = None
    limits: Limits = field(default_factory=Limits)
    priority: Annotated[f.Whole, Field(ge=-100, le=100)] = 0
    group: f.Group | None = None
    labels: f.Labels = None
    traceparent: f.Traceparent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest(RequestBody):
    """A request that was taken: defaults filled in, names resolved.

    `canonical_json` is the request as sent, keys sorted; `sha256` is the content hash (without `traceparent`).
    """

    canonical_json: str
    sha256: str


SECTIONS: dict[str, type] = {
    "gpu": Gpu,
    "hub": Hub,
    "hub.code": Code,
    "worker": Worker,
    "cache": Cache,
    "limits": Limits,
}


def names_of(model: type) -> tuple[str, ...]:
    """Field names as they are sent."""
    assert is_dataclass(model)
    return tuple("class" if item.name == "classes" else item.name for item in fields(model))


def all_names() -> Iterator[str]:
    """Every field of a request as a dotted path, `gpu.class` and the like, the outer ones first."""
    yield from names_of(RequestBody)
    for prefix, model in SECTIONS.items():
        yield from (f"{prefix}.{name}" for name in names_of(model))
