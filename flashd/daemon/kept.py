"""A run with all that its next write needs, as it is handed from room to room and read back from Redis."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flashd.adapters.store_types import StoredRun
from flashd.core.model import CancelRequest, Run
from flashd.daemon.desk import Desk
from flashd.daemon.records import decode_run
from flashd.wire.request import restore_request
from flashd.wire.request_model import RunRequest


@dataclass(frozen=True, slots=True)
class KeptRun:
    """`version` is that of the last durable step."""

    run: Run
    request: RunRequest
    version: int


def read_back(desk: Desk, stored: StoredRun) -> KeptRun:
    """The run as Redis has it. Raises StoreError or RequestError when that cannot be read."""
    run = decode_run(stored.core)
    request = restore_request(stored.request, catalogue=desk.gpu_names, default_image=desk.default_image)
    return KeptRun(with_cancel(run, stored), request, stored.version)


def with_cancel(run: Run, stored: StoredRun) -> Run:
    """The run with the cancel that its hash carries: it is written there without a step of the run."""
    at = stored.fields.get("cancel_requested_at", "")
    if not at or run.is_over or run.cancel is not None:
        return run
    by, reason = stored.fields.get("cancel_by", ""), stored.fields.get("cancel_reason", "")
    return replace(run, cancel=CancelRequest(by, reason, float(at)))
