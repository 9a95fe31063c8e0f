"""The ledger row and the proof of absence as JSON text. The scripts rely on there being no spaces between tokens."""

from __future__ import annotations

import json

from flashd.core.ledger import Gone, LedgerRow, RowState
from flashd.errors import StoreError

_CONTRACT = (
    "run_id", "attempt", "provider", "account", "region", "gpu", "machine_id", "state", "usd_per_hour",
    "requested_at", "live_at", "deleting_at",
)  # fmt: skip
_OURS = ("posted_at", "created_at", "until", "launch")


def row_to_json(row: LedgerRow) -> str:
    """The contract's fields first, ours after them; the name is the hash field and not repeated."""
    return json.dumps({key: getattr(row, key) for key in (*_CONTRACT, *_OURS)}, separators=(",", ":"))


def row_from_json(name: str, text: str | bytes) -> LedgerRow:
    """Unknown fields are ignored, missing ones of ours take their default.

    Raises StoreError naming the row when it cannot be read: the ledger counts as unreadable then, nothing is deleted.
    """
    try:
        raw = json.loads(text)
        return LedgerRow(
            name=name,
            run_id=_text(raw["run_id"]),
            attempt=int(raw["attempt"]),
            provider=_text(raw["provider"]),
            account=_text(raw["account"]),
            region=_text(raw["region"]),
            gpu=_text(raw["gpu"]),
            machine_id=None if raw["machine_id"] is None else str(raw["machine_id"]),
            state=RowState(raw["state"]),
            usd_per_hour=float(raw["usd_per_hour"]),
            requested_at=float(raw["requested_at"]),
            posted_at=_time(raw.get("posted_at")),
            live_at=_time(raw.get("live_at")),
            deleting_at=_time(raw.get("deleting_at")),
            created_at=_time(raw.get("created_at")),
            until=_time(raw.get("until")),
            launch=_text(raw.get("launch", "")),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise unreadable(name, repr(error)) from error


def unreadable(name: str, why: str) -> StoreError:
    """The error for a row that somebody else damaged."""
    return StoreError(
        f"the ledger row of {name} in `machines` cannot be read ({why}); something other than flashd wrote it: "
        "look at the machine at the provider, then correct or remove the row"
    )


def gone_to_json(gone: Gone) -> str:
    return json.dumps(
        {"machine_id": gone.machine_id, "requested_at": gone.requested_at, "gone_at": gone.gone_at},
        separators=(",", ":"),
    )


def gone_from_json(name: str, text: str | bytes) -> Gone:
    """Raises StoreError when the record cannot be read."""
    try:
        raw = json.loads(text)
        machine_id = None if raw["machine_id"] is None else str(raw["machine_id"])
        return Gone(name, machine_id, float(raw["requested_at"]), float(raw["gone_at"]))
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"the proof of absence of {name} cannot be read: {error!r}") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text expected, found {value!r}")
    return value


def _time(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"seconds expected, found {value!r}")
    return float(value)
