"""Types of single fields of what others send. Strict: no number from a string, no truth value as a number."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, SkipValidation, Strict, WithJsonSchema
from pydantic_core import PydanticCustomError

RUN_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
PHASE_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,31}$"
NAMESPACE_PATTERN = r"^[a-z0-9]{1,12}$"
SECRET_NAME_PATTERN = r"^[A-Z_][A-Z0-9_]{0,63}$"
MAX_PLACE_NAMES = 64
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_REPO_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95}$"
_MODEL_PATTERN = r"^(?:[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/)?[A-Za-z0-9_][A-Za-z0-9._-]{0,95}$"
_IMAGE_PATTERN = r"^[A-Za-z0-9{][A-Za-z0-9._/:@{}+-]{0,511}$"
_REVISION_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._/+-]{0,254}$"
_ENV_NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"
_VOLUME_PATTERN = r"^[a-z0-9-]{1,30}$"
_TRACEPARENT_PATTERN = r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"

PATTERN_WORDS = {
    RUN_ID_PATTERN: "1 to 128 letters, digits, '.', '_' and '-', the first a letter or digit",
    PHASE_PATTERN: "1 to 32 lower-case letters, digits, '_' and '-', the first a letter or digit",
    NAMESPACE_PATTERN: "1 to 12 lower-case letters and digits",
    SECRET_NAME_PATTERN: "1 to 64 upper-case letters, digits and '_', the first no digit",
    _REPO_PATTERN: 'a Hub repository as "owner/name"',
    _MODEL_PATTERN: 'a Hub model as "owner/name" or "name"',
    _IMAGE_PATTERN: "a container image, registry/name:tag or name@digest",
    _TRACEPARENT_PATTERN: "a W3C traceparent",
    _REVISION_PATTERN: "a branch, tag or commit",
    _ENV_NAME_PATTERN: "a name of letters, digits and '_', the first no digit",
    _VOLUME_PATTERN: "1 to 30 lower-case letters, digits and '-'",
}

# What the box puts into the worker's environment, or its own programs read from theirs.
RESERVED_ENV = frozenset(
    {
        "ATTEMPT",
        "FLASH_ARM",
        "FLASH_ATTEMPT",
        "FLASH_BOX_PACE",
        "FLASH_BOX_ROOT",
        "FLASH_HUB_FILES",
        "FLASH_JOB_SPEC_JSON",
        "FLASH_JOB_SPEC_PATH",
        "FLASH_OUT",
        "FLASH_PHASE",
        "FLASH_PROVIDER",
        "FLASH_RESUME",
        "FLASH_RUN_ID",
        "FLASH_SEED",
        "HF_ENDPOINT",
        "HF_REPO",
        "HF_TOKEN",
        "PHASE",
        "PYTHONPATH",
        "RUN_ID",
        "RUN_MODE",
        "SEED",
        "TRACEPARENT",
    }
)


def bad_value(text: str) -> PydanticCustomError:
    """A fault of meaning that a type cannot say; `text` must hold nothing of the input."""
    return PydanticCustomError("bad_value", "{text}", {"text": text})


def too_large(text: str) -> PydanticCustomError:
    """A fault of size; `text` must hold nothing of the input."""
    return PydanticCustomError("too_large", "{text}", {"text": text})


def _at_most(limit: int) -> AfterValidator:
    def check(text: str) -> str:
        size = len(text.encode())
        if size > limit:
            raise too_large(f"{size} bytes; at most {limit}")
        return text

    return AfterValidator(check)


def _printable(text: str) -> str:
    if _CONTROL.search(text):
        raise bad_value("holds control characters")
    return text


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise bad_value("holds a NUL character")
    return text


def _one_line(text: str) -> str:
    if "\n" in text or "\r" in text:
        raise bad_value("holds a line break")
    return _no_nul(text)


def _hub_id(text: str) -> str:
    if "--" in text or ".." in text or text.endswith((".git", "-", ".")):
        raise bad_value('no Hub id: "--", "..", and a name that ends in "-", "." or ".git" are not allowed')
    return text


def _relative_path(text: str) -> str:
    if text.startswith("/") or "\\" in text or any(part in ("", "..") for part in text.rstrip("/").split("/")):
        raise bad_value("must be a relative path without empty and .. parts")
    return text.rstrip("/")


def _image(text: str) -> str:
    rest = text.replace("{gpu}", "").replace("{sm}", "")
    if "{" in rest or "}" in rest:
        raise bad_value("only {gpu} and {sm} may stand in braces")
    return text


def _not_reserved(name: str) -> str:
    if name in RESERVED_ENV:
        raise bad_value("flashd sets this name itself")
    return name


def _traceparent(text: str) -> str:
    version, trace, span, _ = text.split("-")
    if version == "ff" or not trace.strip("0") or not span.strip("0"):
        raise bad_value("no W3C traceparent: version ff and all-zero ids are invalid")
    return text


def _null_is_empty(value: Any) -> Any:
    return () if value is None else value


def _one_or_many(value: Any) -> Any:
    return (value,) if isinstance(value, str) else _null_is_empty(value)


Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Text = Annotated[str, Strict()]
Flag = Annotated[bool, Strict()]
Size = Annotated[Number, Field(gt=0, le=1_000_000)]
Dollars = Annotated[Number, Field(ge=0, le=1_000_000_000)]
Seconds = Annotated[Number, Field(gt=0, le=1_000_000_000)]
RunId = Annotated[Text, Field(pattern=RUN_ID_PATTERN)]
Phase = Annotated[Text, Field(pattern=PHASE_PATTERN)]
Label = Annotated[Text, Field(min_length=1), AfterValidator(_printable), _at_most(63)]
LabelValue = Annotated[Text, AfterValidator(_printable), _at_most(128)]
Group = Annotated[Text, Field(min_length=1), AfterValidator(_printable), _at_most(128)]
PlaceName = Annotated[Text, Field(min_length=1, max_length=64), AfterValidator(_printable)]
RepoId = Annotated[Text, Field(pattern=_REPO_PATTERN), AfterValidator(_hub_id)]
ModelId = Annotated[Text, Field(pattern=_MODEL_PATTERN), AfterValidator(_hub_id)]
Revision = Annotated[Text, Field(pattern=_REVISION_PATTERN)]
RelativePath = Annotated[
    Text, Field(min_length=1, max_length=255), AfterValidator(_relative_path), AfterValidator(_printable)
]
Image = Annotated[Text, Field(pattern=_IMAGE_PATTERN), AfterValidator(_image)]
Argument = Annotated[Text, AfterValidator(_no_nul)]
Requirement = Annotated[Text, Field(min_length=1), AfterValidator(_one_line)]
EnvName = Annotated[Text, Field(pattern=_ENV_NAME_PATTERN), AfterValidator(_not_reserved)]
SecretName = Annotated[Text, Field(pattern=SECRET_NAME_PATTERN), AfterValidator(_not_reserved)]
VolumeName = Annotated[Text, Field(pattern=_VOLUME_PATTERN)]
Traceparent = Annotated[Text, Field(pattern=_TRACEPARENT_PATTERN), AfterValidator(_traceparent)]
PlaceNames = Annotated[
    tuple[PlaceName, ...],
    Field(max_length=MAX_PLACE_NAMES),
    BeforeValidator(_null_is_empty),
    WithJsonSchema(
        {"type": ["array", "null"], "items": {"type": "string", "minLength": 1, "maxLength": 64}, "maxItems": 64}
    ),
]
GpuClasses = Annotated[
    tuple[PlaceName, ...],
    Field(max_length=MAX_PLACE_NAMES),
    BeforeValidator(_one_or_many),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1, "maxLength": 64},
                {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 64}, "maxItems": 64},
                {"type": "null"},
            ]
        }
    ),
]
Labels = Annotated[dict[Label, LabelValue] | None, Field(max_length=16)]
AnyJson = Annotated[JsonValue, SkipValidation(), WithJsonSchema({})]
