"""GPU classes: names people write, names providers write."""

from __future__ import annotations

import pytest

from flashd.providers.catalog import GPU_CLASSES, by_hyperstack, known_names, resolve

REQUIRED = ("RTX A6000", "L40", "A100 PCIe", "H100", "H100 SXM", "H200 SXM", "RTX Pro 6000")


def test_the_classes_of_the_contract_are_known() -> None:
    assert set(REQUIRED) <= set(known_names())


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("rtx a6000", "RTX A6000"),
        ("A6000", "RTX A6000"),
        ("l40", "L40"),
        ("a100-pcie", "A100 PCIe"),
        ("H100 PCIe", "H100"),
        ("h100_sxm5", "H100 SXM"),
        (" H200 ", "H200 SXM"),
        ("RTX PRO 6000", "RTX Pro 6000"),
    ],
)
def test_names_are_found_however_they_are_written(written: str, name: str) -> None:
    found = resolve(written)
    assert found is not None and found.name == name


@pytest.mark.parametrize("written", ["", "L4", "L40S", "H100 NVL", "H10", "B200"])
def test_another_gpu_is_not_taken_for_a_similar_one(written: str) -> None:
    assert resolve(written) is None


def test_every_class_resolves_to_itself_by_all_its_names() -> None:
    for gpu in GPU_CLASSES:
        assert all(resolve(name) is gpu for name in (gpu.name, *gpu.aliases))
        assert all(by_hyperstack("", sku) is gpu for sku in gpu.hyperstack_skus)
        assert all(by_hyperstack(model, "n9-newx1") is gpu for model in gpu.hyperstack_models)
        assert gpu.fallback_usd > 0
