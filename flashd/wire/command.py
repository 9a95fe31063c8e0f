"""Control commands, from bytes to a value.

parse_command(raw) -> CancelCommand | Rejection     never raises
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, TypeAdapter

from flashd.wire.faults import Fault, Rejection, RejectReason, did_you_mean, rejection
from flashd.wire.fields import RunId, Text
from flashd.wire.shape import shape_faults
from flashd.wire.strict_json import Reading, Unreadable, cut_text, read_json
from flashd.wire.token_shapes import masked, may_hold_secret, token_kind

MAX_COMMAND_BYTES = 16 * 1024
MAX_BY_BYTES = 128
MAX_REASON_BYTES = 2 * 1024
_NAMES = ("command", "run_id", "by", "reason")


def _cut_to(limit: int) -> AfterValidator:
    """Cut and masked, not refused: a cancel that is refused for its wording leaves a machine on the bill."""
    return AfterValidator(lambda text: cut_text(masked(text), limit))


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelCommand:
    """End a run. `by` and `reason` are carried into its `cancelled` event; None when they were not said."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    command: Literal["cancel"]
    run_id: RunId
    by: Annotated[Text, _cut_to(MAX_BY_BYTES)] | None = None
    reason: Annotated[Text, _cut_to(MAX_REASON_BYTES)] | None = None


_COMMAND: TypeAdapter[CancelCommand] = TypeAdapter(CancelCommand)


def parse_command(raw: bytes | str) -> CancelCommand | Rejection:
    """Check everything; a malformed command is a `Rejection` with all its faults."""
    size = len(raw) if isinstance(raw, bytes) else len(raw.encode("utf-8", "surrogatepass"))
    if size > MAX_COMMAND_BYTES:
        fault = Fault(RejectReason.TOO_LARGE, (), f"the command has {size} bytes; at most {MAX_COMMAND_BYTES}")
        return rejection([fault], None, may_hold_secret=True)
    text = raw if isinstance(raw, str) else raw.decode("utf-8", "replace")
    parsed = read_json(raw, Reading.STRICT)
    if isinstance(parsed, Unreadable) or not isinstance(parsed.value, dict):
        what = parsed.text if isinstance(parsed, Unreadable) else "must be an object"
        fault = Fault(RejectReason.BAD_JSON, (), what)
        return rejection([fault], None, may_hold_secret=may_hold_secret(text))
    document = parsed.value
    faults = [_in_own_words(fault) for fault in shape_faults(_COMMAND, document)]
    if not faults:
        return _COMMAND.validate_python(document)
    named = not any(fault.path == ("run_id",) for fault in faults) and token_kind(str(document["run_id"])) is None
    return rejection(faults, str(document["run_id"]) if named else None, may_hold_secret=may_hold_secret(text))


def _in_own_words(fault: Fault) -> Fault:
    if fault.reason is RejectReason.UNKNOWN_FIELD and len(fault.path) == 1:
        return Fault(fault.reason, fault.path, f"unknown field{did_you_mean(str(fault.path[0]), _NAMES)}")
    return fault
