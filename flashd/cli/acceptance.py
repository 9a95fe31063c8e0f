"""Waits until the daemon has taken a pushed request, and tells how: accepted, rejected, or a repeat of old times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import anyio

from flashd.adapters.store import Store
from flashd.adapters.store_types import StreamEntry
from flashd.cli.follow import data_of, event_of, name_of
from flashd.cli.output import say
from flashd.cli.session import OUTAGE_PAUSE_S
from flashd.errors import StoreUnavailableError
from flashd.wire.request_model import RunRequest

LOOK_MS = 500
PAGE = 100


@dataclass(frozen=True, slots=True)
class Accepted:
    """The run's hash as it was seen."""

    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Refused:
    """This very entry was rejected; one line a fault."""

    reason: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Remembered:
    """Taken without a run: a repeat of one that ended so long ago that its record has expired."""


async def taken(store: Store, request: RunRequest, entry_id: str, after: str) -> Accepted | Refused | Remembered:
    """Waits for ever. `after`: an id of `events` from before the push. An outage of Redis is waited out."""
    told = False
    while True:
        try:
            # Whether the entry is gone is read first: what made it go is then in the events and in the hash.
            gone = not await store.events_range(start=entry_id, end=entry_id, stream="requests")
            fields = await store.fields(request.run_id)
            if fields.get("request_sha256") == request.sha256:
                return Accepted(fields)
            news = await store.events_after(after, count=PAGE, block_ms=None if gone else LOOK_MS)
        except StoreUnavailableError as error:
            if not told:
                say(f"{error}; still waiting")
            told = True
            await anyio.sleep(OUTAGE_PAUSE_S)
            continue
        for entry in news:
            after = entry.entry_id
            refused = _refusal(entry, entry_id)
            if refused is not None:
                return refused
        if gone and len(news) < PAGE:
            return Remembered()


def _refusal(entry: StreamEntry, entry_id: str) -> Refused | None:
    if entry.fields.get("type") != "dev.flashd.request.rejected.v1":
        return None
    event = event_of(entry)
    if event is None or name_of(event) != "rejected" or data_of(event).get("entry_id") != entry_id:
        return None
    data = data_of(event)
    return Refused(str(data.get("reason")), tuple(str(data.get("detail") or "").splitlines()))
