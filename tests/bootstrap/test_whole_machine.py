"""A rendered `user_data` on simulated machines, at its real pace: cloud-init's part, docker, container, Hub."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from flashd.adapters.userdata import render_user_data
from flashd.sim.box import LocalBoxHost
from flashd.sim.box_launch import BoxIsolationError, check_isolation
from flashd.sim.hub import SimHub, Token
from flashd.sim.hub_http import serve_hub
from flashd.wire.payload import Payload, PayloadCode, PayloadHub, PayloadWorker

REPO, PREFIX, TOKEN = "acme/results", "sft/r1/seed0", "hf_WholeMachineToken0123456789"
LIMIT_S = 60.0
WORKER = """
import os, time, flash_report
before = flash_report.resume()
start = int((before / "step.bin").read_bytes()) if before else 0
for step in range(start + 1, 41):
    flash_report.report("train", step=step, loss=1 / step)
    if step == 20:
        with flash_report.checkpoint(step) as folder:
            (folder / "step.bin").write_bytes(b"20")
        time.sleep(0 if before else 600)
(flash_report.artifacts() / "adapter.safetensors").write_bytes(os.urandom(2000))
flash_report.metrics({"started_at": start, "token_visible_elsewhere": os.path.exists("/opt/flash")})
"""


@dataclass
class AMachine:
    id: int
    user_data: str
    name: str = "flash-demo-r1-abc"
    gpu: str = "H100-80G-PCIe"
    gpu_count: int = 1
    off: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def console(self) -> Callable[[str], None]:
        return lambda _: None

    @property
    def power_off(self) -> Callable[[], None]:
        return self.off.set


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[LocalBoxHost]:
    try:
        await check_isolation()
    except BoxIsolationError as missing:
        pytest.skip(str(missing))
    host = LocalBoxHost(tmp_path, max_boxes=2)
    yield host
    await host.close()


async def test_a_machine_lost_in_training_is_followed_by_one_that_resumes_and_succeeds(host: LocalBoxHost) -> None:
    hub = SimHub()
    hub.add_token(TOKEN, Token("acme", repos=(REPO,)))
    hub.add_repo(REPO)
    code = hub.commit(REPO, {"code/worker.py": WORKER}, "code").id

    async with serve_hub(hub) as server:

        def payload(attempt: int) -> Payload:
            return Payload(
                run_id="r1",
                ns="demo",
                phase="sft",
                seed=0,
                attempt=attempt,
                token=f"token-{attempt}",
                provider="hyperstack",
                hub=PayloadHub(server.url, REPO, PREFIX, 1, 2),
                code=PayloadCode(REPO, code, "code"),
                worker=PayloadWorker("acme/worker:1", ("python3", "worker.py")),
                max_wall_s=600,
                deadline_at=time.time() + 900,
                env={"HF_TOKEN": TOKEN},
            )

        await host.start(AMachine(1, render_user_data(payload(0))))
        await _titles(hub, "attempt=0 event=checkpoint")
        await host.stop(1)
        await host.start(AMachine(2, render_user_data(payload(1))))
        await _titles(hub, "attempt=1 event=end")

    assert hub.titles(REPO)[2].startswith("flashd run=r1 seed=0 attempt=0 event=boot")
    assert json.loads(hub.read(REPO, f"{PREFIX}/hyperstack_attempt1.json") or b"")["ok"] is True
    assert json.loads(hub.read(REPO, f"{PREFIX}/metrics.json") or b"") == {
        "started_at": 20,
        "token_visible_elsewhere": False,
    }
    assert f"{PREFIX}/artifacts/adapter.safetensors" in hub.repo(REPO).head.files
    assert f"{PREFIX}/hyperstack_attempt0.json" not in hub.repo(REPO).head.files


async def _titles(hub: SimHub, part: str) -> None:
    try:
        async with asyncio.timeout(LIMIT_S):
            while not any(part in title for title in hub.titles(REPO)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    except TimeoutError:
        console = hub.read(REPO, f"{PREFIX}/console_sft_attempt0.txt")
        pytest.fail(f"no {part!r} among {hub.titles(REPO)}; console: {console!r}")
