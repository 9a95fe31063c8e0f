"""The container part: fetch the code, run the worker, tell the Hub how it ended. `python3 box.zip box`.

Standard library here; `huggingface_hub` only in the child process `hub_files`, so that no library can hang the end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from bootstrap.attempt import CODE, DEADLINE_EXIT, OUT, PAYLOAD, STATE, AttemptEnd, Outcome, Transfers
from bootstrap.children import Child, Console, Ended
from bootstrap.ending import Ending, metrics_fault, says_done
from bootstrap.hub_channel import HubChannel, publish_end
from bootstrap.job import PACE, Job, load_job, write_atomically
from bootstrap.preload import Preload
from bootstrap.preparation import Preparation, Stopped
from bootstrap.uploader import Uploader

END = STATE / "end.json"
PUBLISHED = STATE / "end.published"
END_RESERVE_S = 120.0  # before deadline_at, so that the end is committed while the machine still lives
END_MIN_S = 300.0  # the end is tried this long even past the deadline
HANG_PATIENCE_S = 120.0  # past the deadline
TICK_S = 0.5
EXIT_PATIENCE_S = 120.0  # a worker that has said it is done and does not exit
UPLOADER_PATIENCE_S = 15.0


class Box:
    """One attempt, from the payload to the end commit."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._channel = HubChannel(job.endpoint, job.repo, job.env.get("HF_TOKEN", ""))
        self._console = Console(job)
        self._uploader = Uploader(job, self._channel, OUT, self._console, Transfers(job, self._console).push)
        self._preparation = Preparation(job, self._channel, self._console, self._watch)
        self._ending = Ending(job, self._channel, self._console)
        self._signalled = 0
        self._ended = threading.Event()
        self._done_since: float | None = None
        self._started = time.monotonic()
        self._reserve_s = min(END_RESERVE_S, 0.1 * job.max_wall_s, max(0.0, 0.1 * (job.deadline_at - time.time())))

    def run(self) -> int:
        """The process's exit status: 0 only if the attempt's end is ok and committed."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        threading.Thread(target=self._end_anyhow, daemon=True).start()
        end = self._kept_end() or self._attempt()
        self._ended.set()
        if not PUBLISHED.exists():
            until = max(self._job.deadline_at, self._channel.now() + END_MIN_S * PACE)
            if not publish_end(self._channel, end, until):
                return 1
            self._keep(PUBLISHED, "")
        return 0 if end["ok"] else 1

    def _end_anyhow(self) -> None:
        """Whatever hangs for good, a disk that is gone for instance, the attempt ends and says so."""
        while not self._ended.wait(TICK_S):
            if self._channel.now() > self._job.deadline_at + HANG_PATIENCE_S * PACE:
                hung = Outcome(False, "deadline: the attempt's time is over and the box hangs", exit_code=DEADLINE_EXIT)
                publish_end(self._channel, self._ending.bare(hung), self._channel.now() + HANG_PATIENCE_S * PACE)
                os._exit(1)

    def _kept_end(self) -> dict[str, Any] | None:
        """A container that was restarted after its attempt ended publishes that end again and trains nothing."""
        try:
            end: dict[str, Any] = json.loads(END.read_text())
        except (OSError, ValueError):
            return None
        return end if end.get("token") == self._job.token else None

    def _attempt(self) -> dict[str, Any]:
        try:
            outcome = self._train()
        except AttemptEnd as ended:
            outcome = ended.outcome
        except Stopped as stopped:
            outcome = self._stopped(stopped.reason)
        except BaseException as error:  # whatever happened, the marker says it
            outcome = Outcome(False, f"box: {type(error).__name__}: {error}", retriable=True, exit_code=1)
        try:
            if not outcome.ok:  # else heartbeats go on while artifacts travel
                self._uploader.stop(UPLOADER_PATIENCE_S * PACE)
            outcome = self._ending.save_results(outcome, self._uploader, self._preparation)
            self._uploader.stop(UPLOADER_PATIENCE_S * PACE)
            self._console.say(f"attempt ended: ok={outcome.ok} {outcome.error}")
            end = self._ending.prepare(outcome)
        except Exception as error:  # results that cannot be saved must not hide the end
            lost = Outcome(False, f"box: {type(error).__name__}: {error}", retriable=True, exit_code=1)
            end = self._ending.bare(lost if outcome.ok else outcome)
        self._keep(END, json.dumps(end))
        return end

    def _train(self) -> Outcome:
        if self._job.mode not in ("train", "preload"):
            return Outcome(False, f"mode {self._job.mode!r} is not known to this box", exit_code=1)
        prepare = self._preparation
        prepare.clean()
        self._uploader.start()
        if self._job.mode == "preload":
            self._stage("preload")
            return Preload(self._job, prepare, self._console, self._watch).run()
        before = prepare.results_there()
        spec = prepare.spec()
        self._stage("code")
        prepare.code()
        self._stage("pip")
        prepare.install(self._job.pip)
        self._stage("resume")
        prepare.checkpoint()
        env = prepare.worker_env(spec)
        self._stage("running")
        try:
            worker = Child(self._job.command, env, self._console, cwd=str(CODE))
        except (OSError, ValueError) as error:
            return Outcome(False, f"worker cannot be started: {error}", exit_code=127)
        return self._judge(worker.wait(self._watch_worker), before)

    def _judge(self, ended: Ended, before: dict[str, str]) -> Outcome:
        claimed = ended.returncode == 0 or (ended.stopped in ("hang", "deadline") and says_done(self._job))
        fault = metrics_fault() if claimed else ""
        if (claimed and not fault) or self._ending.proved_remotely(before):
            return Outcome(True)
        if ended.stopped in ("signal", "deadline"):
            return self._stopped(ended.stopped)
        if claimed:
            return Outcome(False, f"worker ended well, but {fault}", exit_code=ended.returncode or 0)
        return self._ending.worker_failed(ended.returncode, self._uploader)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signalled = number

    def _watch(self) -> str:
        if self._signalled:
            return "signal"
        walled = time.monotonic() - self._started >= self._job.max_wall_s
        return "deadline" if walled or self._channel.now() >= self._job.deadline_at - self._reserve_s else ""

    def _watch_worker(self) -> str:
        reason = self._watch()
        if reason or not says_done(self._job):
            self._done_since = None
            return reason
        self._done_since = self._done_since or time.monotonic()
        return "hang" if time.monotonic() - self._done_since > EXIT_PATIENCE_S * PACE else ""

    def _stopped(self, reason: str) -> Outcome:
        if reason == "deadline":
            return Outcome(False, "deadline: the attempt's time is over", exit_code=DEADLINE_EXIT)
        name = signal.Signals(self._signalled).name
        return Outcome(False, f"the box was told to stop ({name})", retriable=True, exit_code=128 + self._signalled)

    def _stage(self, stage: str) -> None:
        self._uploader.stage = stage
        self._console.say(f"stage {stage}")

    def _keep(self, path: Path, text: str) -> None:
        try:
            write_atomically(path, text)
        except OSError as error:  # a full disk must not keep the end from the Hub
            self._console.say(f"{path.name} cannot be kept: {error}")


def main() -> NoReturn:
    code, job = 1, None
    try:
        job = load_job(PAYLOAD)
        code = Box(job).run()
    except Exception:
        text = traceback.format_exc()
        print(job.mask(text) if job else text)
    finally:
        sys.stdout.flush()
        os._exit(code)  # whatever thread or library hangs, the container ends


if __name__ == "__main__":
    main()
