"""The boot payload of one attempt: everything the box is told, secrets resolved again at every launch."""

from __future__ import annotations

from flashd.adapters.userdata import plan_spec
from flashd.core.model import Attempt, Run
from flashd.daemon.desk import BootSettings
from flashd.errors import FlashdError
from flashd.providers.catalog import resolve
from flashd.wire.payload import Payload, PayloadCache, PayloadCode, PayloadHub, PayloadWorker, cache_label
from flashd.wire.request_model import RunRequest

SPEC_FILE = "job_spec.json"
CACHE_MOUNT = "/weight-cache"
CACHE_MARKER = ".flash-cache-mounted"  # lies on the disk itself, so a directory without the disk is known


class MissingSecretError(FlashdError):
    """A run secret that was there at acceptance is not in the secrets directory any more."""


def payload_of(run: Run, attempt: Attempt, request: RunRequest, boot: BootSettings) -> Payload:
    """The payload, its spec spilled when it would not fit. Raises MissingSecretError."""
    env = dict(request.worker.env)
    secrets = request.worker.secrets
    for name in secrets:
        value = boot.secret(name)
        if value is None:
            raise MissingSecretError(f"secret {name} is not in the secrets directory")
        env[name] = value
    env["HF_TOKEN"] = boot.box_token()
    if request.traceparent is not None:
        env.setdefault("TRACEPARENT", request.traceparent)
    code = request.hub.code
    return plan_spec(
        Payload(
            run_id=run.terms.run_id,
            ns=boot.ns,
            phase=run.terms.phase,
            seed=run.terms.seed,
            attempt=attempt.number,
            token=attempt.token,
            provider=attempt.place.provider,
            hub=PayloadHub(
                endpoint=boot.hub_endpoint,
                repo=run.terms.repo,
                prefix=run.terms.prefix,
                first_commit_after_s=boot.first_commit_after_s,
                commit_interval_s=boot.commit_interval_s,
            ),
            code=PayloadCode(code.repo or run.terms.repo, run.code_revision, code.path),
            worker=PayloadWorker(_image(request, attempt), request.worker.command, request.worker.pip),
            max_wall_s=run.terms.max_wall_s,
            deadline_at=attempt.deadline_at,
            env=env,
            spec=request.spec,
            mode=request.mode.value,
            models=request.models,
            cache=_cache(request),
            secret_names=secrets,
        )
    )


def _cache(request: RunRequest) -> PayloadCache | None:
    cache = request.cache
    return None if cache is None else PayloadCache(CACHE_MOUNT, CACHE_MARKER, cache_label(cache.volume), cache.size_gb)


def _image(request: RunRequest, attempt: Attempt) -> str:
    """`{gpu}` becomes e.g. `rtx-a6000`, `{sm}` e.g. `sm86`: both may stand in an image's tag."""
    gpu = attempt.place.gpu
    known = resolve(gpu)
    image = request.worker.image.replace("{gpu}", gpu.lower().replace(" ", "-"))
    return image.replace("{sm}", known.sm.replace("_", "") if known else "unknown")
