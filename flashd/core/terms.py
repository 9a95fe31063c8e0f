"""From a request to the terms that decisions need, and the run as it is at acceptance."""

from __future__ import annotations

from flashd.core.model import Run, State, Terms
from flashd.core.names import artifact_prefix
from flashd.wire.request_model import RunRequest


def terms_of(request: RunRequest) -> Terms:
    """The request's terms; class names are already the catalogue's own."""
    gpu, limits = request.gpu, request.limits
    return Terms(
        run_id=request.run_id,
        phase=request.phase,
        seed=request.seed,
        mode=request.mode.value,
        repo=request.hub.repo,
        prefix=artifact_prefix(request.phase, request.run_id, request.seed),
        max_wall_s=float(limits.max_wall_s),
        max_attempts=limits.max_attempts,
        priority=request.priority,
        max_usd=limits.max_usd,
        deadline_s=limits.deadline_s,
        gpu_classes=gpu.classes,
        min_vram_gb=gpu.min_vram_gb,
        min_disk_gb=gpu.min_disk_gb,
        min_ram_gb=gpu.min_ram_gb,
        max_usd_per_hour=gpu.max_usd_per_hour,
        providers=gpu.providers,
        regions=gpu.regions,
        exclude_regions=gpu.exclude_regions,
        spot=gpu.spot,
    )


def accepted(request: RunRequest, now: float) -> Run:
    """The run as its `accepted` event (sequence 1) leaves it."""
    return Run(terms=terms_of(request), accepted_at=now, state=State.QUEUED, sequence=1)
