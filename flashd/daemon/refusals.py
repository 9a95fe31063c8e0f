"""What is written about an entry that is not taken: the reasons found outside parsing, and the rejected record."""

from __future__ import annotations

from flashd.adapters import store_types
from flashd.adapters.store_types import Entry, Source
from flashd.daemon.announce import out
from flashd.wire import events as wire
from flashd.wire.faults import Fault, Rejection, RejectReason, rejection
from flashd.wire.request_model import RunRequest
from flashd.wire.token_shapes import may_hold_secret

KEPT_REQUEST_BYTES = 4 * 1024


def conflicting(request: RunRequest) -> Rejection:
    """The run id is known with other content."""
    text = f"{request.run_id} was accepted earlier with other content; a changed request needs a run id of its own"
    return _of_request(request, Fault(RejectReason.CONFLICT, ("run_id",), text))


def hash_taken(request: RunRequest, other_run_id: str) -> Rejection:
    """Another remembered run has the same ten characters in its machines' names."""
    text = f"the machine names of {other_run_id} would be taken for this run's; choose another run id"
    return _of_request(request, Fault(RejectReason.BAD_RUN_ID, ("run_id",), text))


def missing_payload(entry: Entry) -> Rejection:
    """The entry lacks the one field it must have."""
    field = "request" if entry.source is Source.REQUESTS else "command"
    fault = Fault(RejectReason.MISSING_FIELD, (), f"the stream entry has no field `{field}`")
    return rejection([fault], None, may_hold_secret=False)


def poison(entry: Entry) -> Rejection:
    """The entry was delivered too often: whatever it does to the daemon, it does no more."""
    text = f"delivered {entry.deliveries} times and never settled; the daemon's log says what happened to it"
    payload = (entry.payload or b"").decode("utf-8", "replace")
    return rejection([Fault(RejectReason.POISON, (), text)], None, may_hold_secret=may_hold_secret(payload))


def rejection_of(entry: Entry, refusal: Rejection, ns: str, owner: str, now: float) -> store_types.Rejection:
    """The record for `rejected`; a request's refusal is an event too, a command's is not."""
    event = None
    if entry.source is Source.REQUESTS:
        said = wire.RequestRejected(
            entry_id=entry.entry_id, run_id=refusal.run_id, reason=refusal.reason.value, detail=refusal.detail
        )
        event = out(said, wire.Stamp(id=f"rejected:{entry.entry_id}:{owner[:8]}", ns=ns, time=now))
    kept = None
    if entry.payload is not None and not refusal.may_hold_secret:
        kept = entry.payload[:KEPT_REQUEST_BYTES].decode("utf-8", "ignore")
    return store_types.Rejection(
        source=entry.source,
        entry_id=entry.entry_id,
        reason=refusal.reason.value,
        detail=refusal.detail,
        time=now,
        run_id=refusal.run_id,
        request=kept,
        event=event,
    )


def _of_request(request: RunRequest, fault: Fault) -> Rejection:
    return rejection([fault], request.run_id, may_hold_secret=may_hold_secret(request.canonical_json))
