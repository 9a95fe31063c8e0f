"""The ways to die inside the container, as data: what the marker must say and what the daemon must conclude."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from flashd.core.model import Reason
from flashd.sim.hub_faults import Effect, Fault
from flashd.wire.payload import PayloadCode, PayloadWorker
from tests.bootstrap.box_world import OK_WORKER, PREFIX, REPO, BoxWorld

QUOTA_BODY = {"error": "You have exceeded the rate limit for repository commits (128 per hour)."}
SLEEPS = "import time\nprint('started', flush=True)\ntime.sleep(600)"
METRICS = "import flash_report\n(flash_report.out() / 'metrics.json').write_bytes({})"
HASTE = 0.001  # a pace at which half an hour of patience is two seconds


class Then(Enum):
    """What happens to the box once its worker has printed `started`."""

    NOTHING = "nothing"
    SIGTERM = "SIGTERM"
    SIGINT = "SIGINT"


def nothing_else(_: BoxWorld) -> dict[str, Any]:
    return {}


def no_faults() -> tuple[Fault, ...]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Death:
    """`error` must be in the marker's error text; `reason` None = the daemon calls it a success."""

    worker: str = OK_WORKER
    then: Then = Then.NOTHING
    told: Callable[[BoxWorld], dict[str, Any]] = nothing_else
    faults: Callable[[], tuple[Fault, ...]] = no_faults
    pace: float = 0.05
    tmp_bytes: int = 0  # the size of a file system of its own for /tmp
    ok: bool = False
    retriable: bool = False
    exit_code: int = 0
    error: str = ""
    reason: Reason | None = None


def lives(worker: str = OK_WORKER, **more: Any) -> Death:
    return Death(worker=worker, ok=True, **more)


def users(worker: str, exit_code: int, error: str, **more: Any) -> Death:
    return Death(worker=worker, exit_code=exit_code, error=error, reason=Reason.JOB_FAILED, **more)


def lost(worker: str, exit_code: int, error: str, **more: Any) -> Death:
    return Death(worker=worker, retriable=True, exit_code=exit_code, error=error, reason=Reason.JOB_PREEMPTED, **more)


def hub(*faults: tuple[Effect, dict[str, Any]], **more: Any) -> Death:
    return lives(faults=lambda: tuple(Fault(effect, kind="commit", **how) for effect, how in faults), **more)


def command(*words: str) -> Callable[[BoxWorld], dict[str, Any]]:
    return lambda _: {"worker": PayloadWorker("image", words)}


def code(revision: str, path: str, repo: str = REPO) -> Callable[[BoxWorld], dict[str, Any]]:
    return lambda world: {"code": PayloadCode(repo, revision or world.hub.repo(REPO).head.id, path)}


def pip(_: BoxWorld) -> dict[str, Any]:
    return {"worker": PayloadWorker("image", ("python3", "worker.py"), ("./no-such-package",))}


def spec_in_hub(_: BoxWorld) -> dict[str, Any]:
    return {"spec": None, "spec_in_hub": True}


def broken_spec(world: BoxWorld) -> dict[str, Any]:
    world.hub.commit(REPO, {f"{PREFIX}/job_spec.json": "{oops"}, "spec")
    return spec_in_hub(world)


def always(kind: str, status: int) -> Callable[[], tuple[Fault, ...]]:
    return lambda: (Fault(Effect.STATUS, kind=kind, status=status, times=None),)


def after_a_retriable_heartbeat(world: BoxWorld) -> dict[str, Any]:
    """An earlier attempt's last word lies in the repository; it says nothing about this one."""
    old = '{"stage": "error", "retriable": true, "attempt": 0, "token": "launch-token-of-before"}'
    world.hub.commit(REPO, {f"{PREFIX}/heartbeat.json": old}, "an earlier attempt's")
    return {}


def signalled(number: str) -> str:
    return f"import os, signal\nos.kill(os.getpid(), signal.{number})"


DEATHS = {
    # The worker ends badly by itself.
    "an exception": users("raise ValueError('bad rate')", 1, "worker exited with code 1: ValueError: bad rate"),
    "an exit code of its own": users("raise SystemExit(3)", 3, "worker exited with code 3"),
    "a silent exit": users("import os\nos._exit(2)", 2, "it printed nothing"),
    "a shell's command not found": users("raise SystemExit(127)", 127, "worker exited with code 127"),
    "a command that does not exist": users("", 127, "cannot be started", told=command("no-such-program")),
    "a command that may not be run": users("", 127, "cannot be started", told=command("/etc/passwd")),
    "no metrics": users("print('nothing to show')", 0, "left no metrics.json"),
    "metrics that are a list": users(METRICS.format("b'[1]'"), 0, "no JSON object"),
    "metrics that are no JSON": users(METRICS.format("b'{oops'"), 0, "no JSON object"),
    "metrics that are no text": users(METRICS.format(r"b'\xff\xfe{}'"), 0, "no JSON object"),
    "metrics nested without end": users(METRICS.format("b'[' * 200_000"), 0, "no JSON object"),
    "metrics of more than a megabyte": users(METRICS.format("b'x' * 1_100_000"), 0, "1048576 are possible"),
    "code that is not there": users("", 1, "no files under 'elsewhere'", told=code("", "elsewhere")),
    "a full disk": users(
        "import flash_report\nopen(flash_report.out() / 'big', 'wb').write(b'x' * 2_000_000)",
        1,
        "(the disk is full)",
        tmp_bytes=1_000_000,
    ),
    "artifacts that the Hub will never take": users(
        "import flash_report\n(flash_report.artifacts() / 'a.txt').write_text('a')\nflash_report.metrics({})",
        1,
        "artifacts could not be committed",
        faults=lambda: (Fault(Effect.STATUS, kind="commit", status=422, body="event=artifacts", times=None),),
    ),
    "its own error after a retriable one of an earlier attempt": users(
        "raise SystemExit(4)", 4, "worker exited with code 4", told=after_a_retriable_heartbeat
    ),
    # Something outside it ends it, or it says that another machine may do better.
    "killed for memory": lost(signalled("SIGKILL"), 137, "out of memory"),
    "killed for memory inside a shell": lost("raise SystemExit(137)", 137, "killed by signal 9"),
    "a segmentation fault": lost(signalled("SIGSEGV"), 139, "killed by signal 11"),
    "an abort": lost(signalled("SIGABRT"), 134, "killed by signal 6"),
    "a bus error of the GPU driver": lost(signalled("SIGBUS"), 135, "killed by signal 7"),
    "an error that it calls retriable": lost(
        "import flash_report\nflash_report.failed('gateway lost', True)\nraise SystemExit(1)", 1, "gateway lost"
    ),
    "a machine that stops": lost(SLEEPS, 143, "told to stop (SIGTERM)", then=Then.SIGTERM),
    "an interrupt": lost(SLEEPS, 130, "told to stop (SIGINT)", then=Then.SIGINT),
    "a stop that the worker ignores": lost(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPS,
        143,
        "told to stop (SIGTERM)",
        then=Then.SIGTERM,
        pace=0.01,
    ),
    "a disk that is full before the worker starts": lost(
        "", 1, "box: OSError: [Errno 28] No space left", tmp_bytes=4096, told=lambda _: {"spec": "x" * 5000}
    ),
    # The box cannot get what the worker needs.
    "pip that fails": lost("", 1, "pip install failed 4 times", told=pip, pace=HASTE),
    "code that cannot be fetched": lost("", 1, "code could not be fetched", faults=always("tree", 403), pace=HASTE),
    "a code repository that is hidden": lost(
        "", 1, "RepositoryNotFound", told=code("main", "code", "acme/hidden"), pace=HASTE
    ),
    "a spec that is not there": lost("", 1, "cannot read job_spec.json", told=spec_in_hub, pace=HASTE),
    "a spec that is no JSON": lost("", 1, "job_spec.json is no JSON", told=broken_spec),
    "a Hub that cannot be asked": lost("", 1, "cannot look at the repo", faults=always("paths-info", 503), pace=HASTE),
    # Time is over.
    "the wall limit": Death(
        worker=SLEEPS,
        told=lambda _: {"max_wall_s": 2.0},
        exit_code=124,
        error="deadline",
        reason=Reason.DEADLINE,
    ),
    "the wall limit, with results written": lives(
        "import flash_report\nflash_report.metrics({'a': 1})\nflash_report.done()\n" + SLEEPS,
        told=lambda _: {"max_wall_s": 2.5},
    ),
    # It dies after its results.
    "a hang at exit": lives(
        "import time, flash_report\nflash_report.metrics({})\nflash_report.done()\ntime.sleep(600)", pace=0.01
    ),
    "children left behind": lives(
        "import subprocess, flash_report\nsubprocess.Popen(['sleep', '60'])\nflash_report.metrics({})"
    ),
    "a stop that it uses to end well": lives(
        "import signal, sys, flash_report\n"
        "signal.signal(signal.SIGTERM, lambda *_: (flash_report.metrics({'saved': 1}), sys.exit(0)))\n" + SLEEPS,
        then=Then.SIGTERM,
    ),
    "metrics that are not finite": lives("import flash_report\nflash_report.metrics({'loss': float('nan')})"),
    "a hostile heartbeat": lives(
        "import flash_report\n(flash_report.out() / 'heartbeat.json').write_text('[1, 2]')\nflash_report.metrics({})"
    ),
    # The Hub at the end.
    "a storm of 409": hub((Effect.STATUS, {"status": 409, "times": 3})),
    "a 412": hub((Effect.STATUS, {"status": 412})),
    "the commit quota": hub((Effect.STATUS, {"status": 429, "headers": {"Retry-After": "1"}, "json": QUOTA_BODY})),
    "a 500": hub((Effect.STATUS, {"status": 500, "times": 2})),
    "a 403 that passes": hub((Effect.STATUS, {"status": 403}), pace=0.01),
    "connections reset": hub((Effect.RESET, {"times": 2})),
    "half an answer": hub((Effect.TRUNCATE, {})),
    "a half-open connection": hub((Effect.HANG, {}), pace=0.02),
    "applied, but answered 504": hub((Effect.STATUS_AFTER, {"status": 504})),
    "applied, and the reply lost": hub((Effect.RESET_AFTER, {})),
    "applied, and no reply": hub((Effect.HANG_AFTER, {}), pace=0.02),
    "diagnostics that the Hub refuses": hub((Effect.STATUS, {"status": 422, "body": "console_sft", "times": None})),
}
