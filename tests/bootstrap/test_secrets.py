"""Known secrets, planted wherever a worker can, must leave the machine in nothing but the worker's own uploads."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from flashd.wire.payload import PayloadHub, PayloadWorker
from tests.bootstrap.box_world import HF_TOKEN, PREFIX, REPO, BoxWorld
from tests.bootstrap.test_deaths import line
from tests.bootstrap.test_host import calls, host_env, stand_ins

KEY = "-----BEGIN KEY-----\nMIIBsecretLine1\nsecretLine2ofTheKey\n-----END KEY-----"
SECRETS = {
    "HF_TOKEN": HF_TOKEN,
    "WANDB_API_KEY": "wandb-0123456789",
    "MY_PEM": KEY,
    "ODD": 'with"quote\\and\u00e9',
    "INDEX": "user:p@ss/word?",
    "PIN": "2024",
}
NAMES = ("MY_PEM", "ODD", "INDEX", "PIN")
PIECES = [
    HF_TOKEN,
    "wandb-0123456789",
    "MIIBsecretLine1",
    "secretLine2ofTheKey",
    'with"quote',
    'with\\"quote',
    "p@ss/word",
    "p%40ss%2Fword",
]
WORKER = f"""
import json, os, sys, time, urllib.parse, flash_report
names = {tuple(SECRETS)!r}
for name in names: print(name, os.environ[name])
print(json.dumps({{name: os.environ[name] for name in names}}))
print(urllib.parse.quote(os.environ['INDEX'], safe=''))
print('x' * 70000 + os.environ['HF_TOKEN'] + 'y' * 63990)
print('no newline ' + 'z' * 9000 + os.environ['WANDB_API_KEY'], end='', flush=True)
flash_report.report('s' * 50 + os.environ['HF_TOKEN'], step=1, loss=0.2024, error='e' * 1990 + os.environ['HF_TOKEN'],
                    gpu={{os.environ['HF_TOKEN']: os.environ['ODD']}})
time.sleep(1.0)
flash_report.metrics({{'tokens': 120245, **{{name: os.environ[name] for name in names}}}})
"""
ENDS = {
    "it succeeds": "",
    "it raises": "\nraise RuntimeError(os.environ['WANDB_API_KEY'] + os.environ['MY_PEM'])\n",
    "it says why": "\nflash_report.failed('because of ' + os.environ['HF_TOKEN'])\nraise SystemExit(3)\n",
}


def leaks(texts: list[str]) -> list[str]:
    return [piece for piece in PIECES for text in texts if piece in text]


def everything_on_the_hub(world: BoxWorld) -> list[str]:
    """Every version of every file below the prefix, and every title."""
    commits = world.hub.repo(REPO).commits
    bodies = {entry.blob.data for commit in commits for path, entry in commit.files.items() if path.startswith(PREFIX)}
    return [*(body.decode() for body in bodies if body is not None), *(one.title for one in commits)]


@pytest.mark.parametrize("ending", ENDS.values(), ids=ENDS)
async def test_no_secret_leaves_a_machine_from_boot_to_end(world: BoxWorld, ending: str) -> None:
    world.worker(WORKER + ending)
    worker = PayloadWorker("image", (sys.executable, "worker.py"))
    hub = PayloadHub(world.endpoint, REPO, PREFIX, 0.1, 0.3)
    world.boot(world.payload(env=SECRETS, secret_names=NAMES, worker=worker, hub=hub))
    stubs = stand_ins(world)
    await world.start("host", "run", env=host_env(stubs) | {"FLASH_BOX_PACE": "0.05"})
    await world.until("event=end")
    assert world.titles("heartbeat")
    logs = [(stubs / "container.log").read_text(), *calls(stubs)]
    assert leaks([*everything_on_the_hub(world), *logs]) == []
    console = world.text("console_sft_attempt0.txt") or ""
    assert "***" in console
    assert len(console.encode()) <= 64_000
    beat = json.loads(world.text("heartbeat.json") or "")
    assert len(beat["stage"]) <= 64
    assert not any(start in json.dumps(beat) for start in ("hf_Box", "wandb-0"))
    if not ending:
        metrics = world.json("metrics.json")
        assert isinstance(metrics, dict)
        assert (metrics["tokens"], metrics["HF_TOKEN"], metrics["PIN"]) == (120245, "***", "***")


async def test_no_secret_is_on_a_command_line(world: BoxWorld) -> None:
    world.worker("import time\nprint('started', flush=True)\ntime.sleep(600)")
    world.boot(world.payload(env=SECRETS, secret_names=NAMES))
    process = await world.start()
    await line(process, "started")
    listed = await asyncio.create_subprocess_exec("ps", "-ewwo", "args", stdout=asyncio.subprocess.PIPE)
    output, _ = await listed.communicate()
    assert b"box.zip" in output
    assert leaks([output.decode(errors="replace")]) == []


async def test_a_pip_index_with_a_password_is_no_argument_and_not_in_the_log(world: BoxWorld, tmp_path: Path) -> None:
    world.worker("")
    pip = ("--index-url=http://user:p%40ss%2Fword%3F@127.0.0.1:9/simple", "--retries=0", "nothing-of-this-name")
    worker = PayloadWorker("image", (sys.executable, "worker.py"), pip)
    world.boot(world.payload(env=SECRETS | {"INDEX": "p@ss/word?"}, secret_names=NAMES, worker=worker))
    process = await world.start(env={"FLASH_BOX_PACE": "0.0005"})
    end = await world.end_of(process)
    assert "pip install failed" in world.marker()["error"]
    assert leaks([end.output, *everything_on_the_hub(world)]) == []


async def test_a_crash_of_the_box_itself_shows_no_secret(world: BoxWorld) -> None:
    """Whatever an exception quotes, its traceback is masked like all output."""
    world.worker("import flash_report\nflash_report.metrics({})")
    world.boot(world.payload(env=SECRETS, secret_names=NAMES))
    broken = world.root / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import urllib.request\n"
        "def build_opener(*handlers):\n"
        f"    raise RuntimeError({HF_TOKEN!r})\n"
        "urllib.request.build_opener = build_opener\n"
    )
    end = await world.end_of(await world.start(env={"PYTHONPATH": str(broken)}))
    assert (end.code, "RuntimeError: ***" in end.output) == (1, True), end.output
    assert leaks([end.output]) == []
