"""Files that boxes and workers leave in the Hub, from bytes to values. User code can write all of them: nothing raises.

What it says goes on into events, hashes and logs: tokens in it are masked, or it is left out.

parse_marker(raw) -> Marker | Invalid           `<provider>_attempt<N>.json`
parse_heartbeat(raw) -> Heartbeat | Invalid     `heartbeat.json`, numbers finite or None
parse_metrics(raw) -> Metrics | Invalid         `metrics.json`, any object
parse_done(raw) -> Done                         `DONE`: that it exists counts, its time only when it is one
parse_preload(raw) -> PreloadResult | Invalid   `preload_result.json`
error_text(raw) -> str                          the end of `error_<phase>.txt`
parse_commit_title(title) -> CommitTitle | None (from `commit_title`)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pydantic import JsonValue

from flashd.wire.commit_title import CommitEvent, CommitTitle, parse_commit_title
from flashd.wire.strict_json import Reading, Unreadable, clean_text, compact, cut_text, read_json, sanitised
from flashd.wire.token_shapes import masked, token_kind

__all__ = [
    "CommitEvent",
    "CommitTitle",
    "Done",
    "Heartbeat",
    "Invalid",
    "Marker",
    "Metrics",
    "PreloadResult",
    "Wrong",
    "error_text",
    "parse_commit_title",
    "parse_done",
    "parse_heartbeat",
    "parse_marker",
    "parse_metrics",
    "parse_preload",
]

MAX_MARKER_BYTES = 64 * 1024
MAX_HEARTBEAT_BYTES = 64 * 1024
MAX_METRICS_BYTES = 1024 * 1024
MAX_ERROR_BYTES = 16 * 1024  # what the run hash keeps; events take less
MAX_HEARTBEAT_ERROR_BYTES = 2 * 1024
MAX_ERROR_FILE_BYTES = 256 * 1024
ERROR_TEXT_CHARS = 1500  # leaves room in an event's detail for what stands above it
MAX_NAME_BYTES = 128
MAX_GPU_BYTES = 4 * 1024
MAX_HISTORY = 120
_LARGEST_WHOLE = 2**53  # beyond it JSON readers disagree about the number


class Wrong(StrEnum):
    """Why a file does not count."""

    TOO_LARGE = "too_large"
    NO_JSON = "no_json"
    NO_OBJECT = "no_object"
    BAD_FIELD = "bad_field"


@dataclass(frozen=True, slots=True)
class Invalid:
    """A file that is there and says nothing. `text` holds nothing of the file but field names and positions."""

    wrong: Wrong
    text: str

    @property
    def reason(self) -> str:
        """For logs and details: `too_large: 70000 bytes; at most 65536`."""
        return f"{self.wrong}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The authority on an attempt's end, if attempt and token are this attempt's; the caller compares them."""

    ok: bool
    attempt: int
    token: str
    ts: float | None = None
    retriable: bool = False
    error: str | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A sign of life. `attempt` None: absent or empty. What a worker wrote wrongly is None, never a made-up number."""

    stage: str | None = None
    step: int | None = None
    ts: float | None = None
    run_id: str | None = None
    seed: int | None = None
    attempt: int | None = None
    token: str | None = None
    epoch: float | None = None
    loss: float | None = None
    reward: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    setup_seconds: float | None = None
    train_wall: float | None = None
    gpu: Mapping[str, JsonValue] | None = None
    error: str | None = None
    retriable: bool = False
    liveness: bool = False
    history: tuple[tuple[float | None, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Metrics:
    """A metrics file. `value` is strict JSON (not finite = null); `size` is the file's, in bytes."""

    value: Mapping[str, JsonValue]
    size: int


@dataclass(frozen=True, slots=True)
class Done:
    """A `DONE` file. `at` (Unix seconds) only refines the end; None when the content is no time."""

    at: float | None


@dataclass(frozen=True, slots=True)
class PreloadResult:
    """What a preload run left. `failed` maps a model to its error."""

    preloaded: tuple[str, ...]
    already_cached: tuple[str, ...]
    failed: Mapping[str, str]
    error: str | None


def parse_marker(raw: bytes) -> Marker | Invalid:
    """`ok`, `attempt` and `token` decide and must have their exact types; the rest is taken where it is right."""
    body = _object(raw, MAX_MARKER_BYTES)
    if isinstance(body, Invalid):
        return body
    ok, attempt, token = body.get("ok"), _whole(body.get("attempt")), body.get("token")
    if not isinstance(ok, bool):
        return Invalid(Wrong.BAD_FIELD, "ok must be true or false")
    if attempt is None or attempt < 0:
        return Invalid(Wrong.BAD_FIELD, "attempt must be a whole number")
    if not isinstance(token, str) or not token:
        return Invalid(Wrong.BAD_FIELD, "token must be a text")
    return Marker(
        ok=ok,
        attempt=attempt,
        token=token,
        ts=_finite(body.get("ts")),
        retriable=body.get("retriable") is True,
        error=_text(body.get("error"), MAX_ERROR_BYTES),
        exit_code=_whole(body.get("exit_code")),
    )


def parse_heartbeat(raw: bytes) -> Heartbeat | Invalid:
    """Only an attempt that is no number at all makes a heartbeat worthless: it might be another attempt's."""
    body = _object(raw, MAX_HEARTBEAT_BYTES)
    if isinstance(body, Invalid):
        return body
    attempt = body.get("attempt")
    number = _attempt(attempt)
    if number is None and attempt not in (None, ""):
        return Invalid(Wrong.BAD_FIELD, "attempt must be a whole number, empty or absent")
    step = _whole(body.get("step"))
    return Heartbeat(
        stage=_text(body.get("stage"), MAX_NAME_BYTES),
        step=step if step is not None and step >= 0 else None,
        ts=_finite(body.get("ts")),
        run_id=_text(body.get("run_id"), MAX_NAME_BYTES),
        seed=_whole(body.get("seed")),
        attempt=number,
        token=_text(body.get("token"), MAX_NAME_BYTES),
        epoch=_finite(body.get("epoch")),
        loss=_finite(body.get("loss")),
        reward=_finite(body.get("reward")),
        grad_norm=_finite(body.get("grad_norm")),
        learning_rate=_finite(body.get("learning_rate")),
        setup_seconds=_finite(body.get("setup_seconds")),
        train_wall=_finite(body.get("train_wall")),
        gpu=_small_object(body.get("gpu")),
        error=_text(body.get("error"), MAX_HEARTBEAT_ERROR_BYTES),
        retriable=body.get("retriable") is True,
        liveness=body.get("liveness") is True,
        history=_history(body.get("history")),
    )


def parse_metrics(raw: bytes) -> Metrics | Invalid:
    """Any JSON object of at most 1 MiB."""
    body = _object(raw, MAX_METRICS_BYTES)
    return body if isinstance(body, Invalid) else Metrics(body, len(raw))


def parse_done(raw: bytes) -> Done:
    """The text of a float, Unix seconds."""
    try:
        at = float(raw[:64].decode("ascii")) if len(raw) <= 64 else math.nan
    except ValueError:  # UnicodeDecodeError is one
        at = math.nan
    return Done(at if math.isfinite(at) and at > 0 else None)


def parse_preload(raw: bytes) -> PreloadResult | Invalid:
    """Names that are no text are left out; so is an error of a model that is none."""
    body = _object(raw, MAX_MARKER_BYTES)
    if isinstance(body, Invalid):
        return body
    failed = body.get("failed")
    pairs = failed.items() if isinstance(failed, dict) else ()
    return PreloadResult(
        preloaded=_names(body.get("preloaded")),
        already_cached=_names(body.get("already_cached")),
        failed={masked(name): _text(why, MAX_HEARTBEAT_ERROR_BYTES) or "" for name, why in pairs},
        error=_text(body.get("error"), MAX_ERROR_BYTES),
    )


def error_text(raw: bytes) -> str:
    """The end of a worker's error file, where a traceback says what happened."""
    return masked(clean_text(raw.decode(errors="replace"))).strip()[-ERROR_TEXT_CHARS:]


def _object(raw: bytes, limit: int) -> dict[str, JsonValue] | Invalid:
    if len(raw) > limit:
        return Invalid(Wrong.TOO_LARGE, f"{len(raw)} bytes; at most {limit}")
    parsed = read_json(raw, Reading.LENIENT)
    if isinstance(parsed, Unreadable):
        return Invalid(Wrong.NO_JSON, parsed.text)
    if not isinstance(parsed.value, dict):
        return Invalid(Wrong.NO_OBJECT, "not a JSON object")
    return {clean_text(key): sanitised(value) for key, value in parsed.value.items()}


def _finite(value: JsonValue) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _whole(value: JsonValue) -> int | None:
    """A number without a fraction; `12.0`, as some workers write a step, is one."""
    number = _finite(value)
    if number is None or not number.is_integer() or abs(number) > _LARGEST_WHOLE:
        return None
    return int(number)


def _attempt(value: JsonValue) -> int | None:
    """Also as decimal text, which the workers of old write."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 6:
        return int(value)
    number = _whole(value)
    return number if number is not None and number >= 0 else None


def _text(value: JsonValue, limit: int) -> str | None:
    return cut_text(masked(value), limit) if isinstance(value, str) else None


def _names(value: JsonValue) -> tuple[str, ...]:
    items = value if isinstance(value, list) else []
    return tuple(cut_text(masked(item), 256) for item in items if isinstance(item, str))


def _small_object(value: JsonValue) -> Mapping[str, JsonValue] | None:
    if not isinstance(value, dict):
        return None
    text = compact(value)
    return value if len(text.encode()) <= MAX_GPU_BYTES and token_kind(text) is None else None


def _history(value: JsonValue) -> tuple[tuple[float | None, ...], ...]:
    """The newest rows of `[ts, step, loss, learning_rate]`; a row of another length is left out."""
    rows = value if isinstance(value, list) else []
    kept = [row for row in rows if isinstance(row, list) and len(row) == 4]
    return tuple(tuple(_finite(cell) for cell in row) for row in kept[-MAX_HISTORY:])
