"""What the daemon tells a box: image, cache, environment."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from typing import Any

import pytest

from flashd.adapters.userdata import MAX_USER_DATA_BYTES, render_user_data
from flashd.core.model import Attempt, Reason, Run
from flashd.core.places import Place
from flashd.daemon.boot import MissingSecretError, payload_of
from flashd.daemon.desk import BootSettings
from flashd.providers.catalog import GPU_CLASSES, class_names
from flashd.wire.payload import Payload, cache_label
from flashd.wire.request import Rejection, parse_request
from tests.core.kit import terms

SECRETS = {"WANDB_API_KEY": "wandb-secret"}
VOLUME = {"volume": "weights", "size_gb": 200}


def payload(
    gpu: str = "L40",
    regions: tuple[str, ...] = (),
    known_secrets: dict[str, str] | None = None,
    accepted_secrets: tuple[str, ...] = tuple(SECRETS),
    **changes: object,
) -> Payload:
    document = {
        "run_id": "r1",
        "gpu": {"class": gpu, "regions": list(regions)},
        "hub": {"repo": "me/runs"},
        "worker": {"image": "ghcr.io/x/y:{gpu}-{sm}", "secrets": ["WANDB_API_KEY"], "env": {"MINE": "1"}},
    }
    raw = json.dumps(document | changes).encode()
    request = parse_request(raw, catalogue=class_names(), secrets=accepted_secrets, default_image="flash:1")
    assert not isinstance(request, Rejection), request
    place = Place("hyperstack", "acc", "NORWAY-1", gpu, "sku", 1.0)
    attempt = Attempt(2, "flash-demo-r1-aaaaaaaaaa-a2", "token", place, "", 0.0, 1000.0, Reason.DEADLINE)
    found = SECRETS if known_secrets is None else known_secrets
    boot = BootSettings("demo", "https://hub.test", lambda: "hf_box", 240, 600, found.get)
    return payload_of(Run(terms(), 0.0), attempt, request, boot)


@pytest.mark.parametrize(
    ("gpu", "tag"),
    [
        ("RTX A6000", "rtx-a6000-sm86"),
        ("L40", "l40-sm89"),
        ("A100 PCIe", "a100-pcie-sm80"),
        ("H100", "h100-sm90"),
        ("H100 SXM", "h100-sxm-sm90"),
        ("H200 SXM", "h200-sxm-sm90"),
        ("RTX Pro 6000", "rtx-pro-6000-sm120"),
    ],
)
def test_the_image_is_that_of_the_offers_gpu(gpu: str, tag: str) -> None:
    assert payload(gpu).worker.image == f"ghcr.io/x/y:{tag}"


def test_every_gpu_class_has_a_capability_for_its_image() -> None:
    assert {payload(gpu.name).worker.image.rpartition("-")[2] for gpu in GPU_CLASSES} == {
        gpu.sm.replace("_", "") for gpu in GPU_CLASSES
    }


def test_the_secrets_are_resolved_and_named_for_masking() -> None:
    told = payload()
    assert told.env == {"MINE": "1", "WANDB_API_KEY": "wandb-secret", "HF_TOKEN": "hf_box"}
    assert told.secret_names == ("WANDB_API_KEY",)


def test_a_secret_that_is_gone_stops_the_launch() -> None:
    with pytest.raises(MissingSecretError, match="WANDB_API_KEY"):
        payload(known_secrets={})


def test_without_a_volume_there_is_no_cache() -> None:
    assert payload().cache is None
    assert payload().as_json()["cache"] is None


def test_the_cache_disk_is_known_by_the_label_of_the_contract() -> None:
    digest = base64.b32encode(hashlib.sha256(b"weights").digest()).decode().lower()
    assert cache_label("weights") == f"fl-{digest[:10]}"
    assert payload(cache=VOLUME).as_json()["cache"] == {
        "mount": "/weight-cache",
        "marker": ".flash-cache-mounted",
        "label": f"fl-{digest[:10]}",
        "size_gb": 200,
        "device_hint": "",
    }


def test_a_preload_keeps_its_mode_models_and_cache() -> None:
    told = payload(regions=("NORWAY-1",), mode="preload", cache=VOLUME, models=["acme/base", "acme/big"])
    assert (told.mode, told.models) == ("preload", ("acme/base", "acme/big"))
    assert told.cache is not None


def noise(seed: int, size: int) -> str:
    """Text that no compression makes smaller than 6 bits a character."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    return "".join(random.Random(seed).choices(alphabet, k=size))


def plain(seed: int, size: int) -> str:
    return noise(seed, size).replace("+", "0").replace("/", "1")


@pytest.mark.parametrize("spec_bytes", [0, 500, 4_000, 9_000, 16_000, 60_000, 128 * 1024 - 2])
@pytest.mark.parametrize("filled", ["env", "pip", "command", "models"])
def test_the_largest_request_that_is_accepted_fits_a_machine(filled: str, spec_bytes: int) -> None:
    """Whatever takes the 6 KiB, with 4 KiB of secrets, the longest names, and a spec that does not compress."""
    limit = 6 * 1024 - 900
    parts: dict[str, Any] = {
        "env": {"env": {f"VARIABLE_{n}": noise(n, 88) for n in range(limit // 108)}},
        "pip": {"pip": [f"package-{plain(n, 80)}" for n in range(limit // 92)]},
        "command": {"command": ["sh", "-c", noise(1, limit)]},
        "models": {},
    }
    models = [f"m{plain(n, 30)}/m{plain(-n, 60)}" for n in range(1, limit // 98)]
    names = [f"SECRET_{n}" for n in range(8)]
    told = payload(
        known_secrets={name: noise(n, 512 - len(name)) for n, name in enumerate(names)},
        accepted_secrets=tuple(names),
        run_id="r" + plain(3, 127),
        hub={"repo": f"{'o' * 40}/{'n' * 55}"},
        worker={"image": "ghcr.io/x/y:1", "secrets": names, **parts[filled]},
        spec=noise(4, spec_bytes),
        cache=VOLUME,
        models=models if filled == "models" else [],
    )
    assert len(render_user_data(told)) <= MAX_USER_DATA_BYTES
    assert told.spec_in_hub or told.spec == noise(4, spec_bytes)
    assert told.spec_in_hub == (spec_bytes > 9_000)
