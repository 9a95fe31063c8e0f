"""The boot payload: what one box is told. Written to `/opt/flash/payload.json` on the machine, mode 0600.

It holds secrets (`env`): it is never logged, never stored and never part of an error text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"


@dataclass(frozen=True, slots=True)
class PayloadHub:
    """Where the box reports to. `first_commit_after_s` and `commit_interval_s` bound its heartbeat commits."""

    endpoint: str
    repo: str
    prefix: str
    first_commit_after_s: float = 240
    commit_interval_s: float = 600


@dataclass(frozen=True, slots=True)
class PayloadCode:
    """The worker's code: the folder `path` of dataset repository `repo` at the commit `revision`."""

    repo: str
    revision: str
    path: str = "code"


@dataclass(frozen=True, slots=True)
class PayloadWorker:
    image: str
    command: tuple[str, ...]
    pip: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PayloadCache:
    """The weight cache's disk. `label` is its filesystem label, `device_hint` a `/dev` path or empty."""

    mount: str
    marker: str
    label: str
    size_gb: int
    device_hint: str = ""


@dataclass(frozen=True, slots=True)
class Payload:
    """Everything a box needs. `deadline_at` is Unix seconds; `env` carries `HF_TOKEN`, the box's own token.

    `secret_names` names the members of `env` that the box masks in whatever it prints or uploads; `HF_TOKEN` and names
    that look like a credential are masked in any case. With `spec_in_hub` the spec is read from `job_spec.json`.
    """

    run_id: str
    ns: str
    phase: str
    seed: int
    attempt: int
    token: str
    provider: str
    hub: PayloadHub
    code: PayloadCode
    worker: PayloadWorker
    max_wall_s: float
    deadline_at: float
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    spec: JsonValue = None
    spec_in_hub: bool = False
    mode: Literal["train", "preload"] = "train"
    models: tuple[str, ...] = ()
    cache: PayloadCache | None = None
    secret_names: tuple[str, ...] = ()

    def as_json(self) -> dict[str, JsonValue]:
        """The object as the box reads it; a spilled spec is left out."""
        document: dict[str, JsonValue] = {
            "run_id": self.run_id,
            "ns": self.ns,
            "phase": self.phase,
            "seed": self.seed,
            "attempt": self.attempt,
            "token": self.token,
            "provider": self.provider,
            "hub": {
                "endpoint": self.hub.endpoint,
                "repo": self.hub.repo,
                "prefix": self.hub.prefix,
                "first_commit_after_s": self.hub.first_commit_after_s,
                "commit_interval_s": self.hub.commit_interval_s,
            },
            "code": {"repo": self.code.repo, "revision": self.code.revision, "path": self.code.path},
            "worker": {
                "image": self.worker.image,
                "command": list(self.worker.command),
                "pip": list(self.worker.pip),
            },
            "env": dict(self.env),
            "mode": self.mode,
            "models": list(self.models),
            "max_wall_s": self.max_wall_s,
            "deadline_at": self.deadline_at,
            "cache": _cache_json(self.cache),
            "secret_names": list(self.secret_names),
        }
        if self.spec_in_hub:
            return document | {"spec_in_hub": True}
        return document | {"spec": self.spec}

    def encode(self) -> bytes:
        """`payload.json`: ASCII, so that any JSON text survives whatever locale the box has."""
        return json.dumps(self.as_json(), sort_keys=True, separators=(",", ":")).encode("ascii")


def encode_spec(spec: JsonValue) -> bytes:
    """A spec as it is kept in `job_spec.json` and handed to the worker: the same JSON value, ASCII."""
    return json.dumps(spec, sort_keys=True, separators=(",", ":")).encode("ascii")


def cache_label(volume: str) -> str:
    """The filesystem label by which a box knows the disk of this cache volume; ext4 takes 16 bytes."""
    return "fl-" + base64.b32encode(hashlib.sha256(volume.encode()).digest()).decode("ascii").lower()[:10]


def _cache_json(cache: PayloadCache | None) -> JsonValue:
    if cache is None:
        return None
    return {
        "mount": cache.mount,
        "marker": cache.marker,
        "label": cache.label,
        "size_gb": cache.size_gb,
        "device_hint": cache.device_hint,
    }
