"""Keeps an event's data within its sizes. What was shortened or left out is named in `cut`: nobody is misled."""

from __future__ import annotations

import re
from collections.abc import Callable

from pydantic import JsonValue

from flashd.wire.strict_json import compact, cut_text

MAX_EVENT_BYTES = 16 * 1024
MAX_INLINE_METRICS_BYTES = 6 * 1024
MAX_ERROR_BYTES = 2 * 1024
MAX_PROVIDER_TEXT_BYTES = 200
MAX_PLACES = 32
MAX_HISTORY = 120
_MAX_ROUNDS = 64
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
Data = dict[str, JsonValue]


def fitted(data: Data, head_bytes: int) -> Data:
    """The data within the limit of each part and, with a head of `head_bytes`, within that of an event."""
    room = MAX_EVENT_BYTES - head_bytes - 256  # for `"data":` and the list of what was cut
    cut: dict[str, None] = {}
    within = _parts_cut(data, cut, MAX_INLINE_METRICS_BYTES)
    if data.get("metrics_ref") is not None and len(compact(within).encode()) > room:
        within = _parts_cut(data, cut, 0)
    for _ in range(_MAX_ROUNDS):
        if len(compact(within).encode()) <= room:
            break
        step = next((cutter for cutter in _LAST_RESORTS if cutter(within, cut)), None)
        if step is None:
            break
    return {**within, "cut": list(cut)} if cut else within


def _parts_cut(data: Data, cut: dict[str, None], inline_bytes: int) -> Data:
    within = dict(data)
    for name in ("detail", "error", "by", "reason"):
        value = within.get(name)
        if isinstance(value, str):
            within[name] = _cut(value, MAX_ERROR_BYTES, name, cut)
    places = within.get("places")
    if isinstance(places, list):
        within["places"] = [_place_cut(place, cut) for place in places[:MAX_PLACES]]
        if len(places) > MAX_PLACES:
            cut["places"] = None
    if "metrics" in within:
        _settle_metrics(within, cut, inline_bytes)
    history = within.get("history")
    if isinstance(history, list) and len(history) > MAX_HISTORY:
        within["history"] = history[-MAX_HISTORY:]
        cut["history"] = None
    return within


def _place_cut(place: JsonValue, cut: dict[str, None]) -> JsonValue:
    if not isinstance(place, dict) or not isinstance(place.get("text"), str):
        return place
    return {**place, "text": _cut(str(place["text"]), MAX_PROVIDER_TEXT_BYTES, "places.text", cut)}


def _settle_metrics(within: Data, cut: dict[str, None], inline_bytes: int) -> None:
    """Metrics that fit are inlined and the reference goes; others are referred to. That is the contract, no cut."""
    if within["metrics"] is None:
        return
    if len(compact(within["metrics"]).encode()) <= inline_bytes:
        within["metrics_ref"] = None
        return
    within["metrics"] = None
    if within.get("metrics_ref") is None:
        cut["metrics"] = None


def _cut(text: str, limit: int, name: str, cut: dict[str, None]) -> str:
    tidy = _CONTROL.sub(" ", text)  # six bytes each in JSON, and no good to a terminal
    short = cut_text(tidy, limit)
    if short != tidy:
        cut[name] = None
    return short


def _halve_list(name: str, floor: int, *, newest: bool) -> Callable[[Data, dict[str, None]], bool]:
    def cutter(data: Data, cut: dict[str, None]) -> bool:
        items = data.get(name)
        if not isinstance(items, list) or len(items) <= floor:
            return False
        keep = max(floor, len(items) // 2)
        data[name] = items[len(items) - keep :] if newest else items[:keep]
        cut[name] = None
        return True

    return cutter


def _halve_text(name: str) -> Callable[[Data, dict[str, None]], bool]:
    def cutter(data: Data, cut: dict[str, None]) -> bool:
        text = data.get(name)
        if not isinstance(text, str) or len(text) <= 200:
            return False
        data[name] = cut_text(text, len(text.encode()) // 2)
        cut[name] = None
        return True

    return cutter


def _drop_object(name: str) -> Callable[[Data, dict[str, None]], bool]:
    def cutter(data: Data, cut: dict[str, None]) -> bool:
        if not isinstance(data.get(name), dict):
            return False
        data[name] = None
        cut[name] = None
        return True

    return cutter


# In this order until the event fits: what can be read elsewhere goes first, who and what it is about never goes.
_LAST_RESORTS: tuple[Callable[[Data, dict[str, None]], bool], ...] = (
    _halve_list("history", 8, newest=True),
    _drop_object("gpu"),
    _halve_list("places", 4, newest=False),
    _halve_text("detail"),
    _halve_list("machines", 4, newest=True),
    _halve_list("attempts", 2, newest=True),
    _drop_object("metrics"),
    _drop_object("labels"),
    _halve_list("history", 0, newest=True),
    _halve_list("places", 0, newest=False),
    _halve_text("reason"),
)
