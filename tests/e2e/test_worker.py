"""The demo's worker as a program: it learns, it resumes where a checkpoint left it, it fails when told to."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WORKER = ROOT / "flashd" / "sim" / "worker" / "train.py"


@dataclass(frozen=True)
class Trained:
    code: int
    output: str
    out: Path

    def json(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / name).read_text())
        return found


def train(folder: Path, resume: Path | None = None, **spec: object) -> Trained:
    out = folder / "out"
    out.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps({"seconds_per_step": 0, **spec}))
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "bootstrap"),
        "FLASH_OUT": str(out),
        "FLASH_JOB_SPEC_PATH": str(folder / "spec.json"),
        "FLASH_RESUME": str(resume or ""),
        "FLASH_RUN_ID": "r1",
        "FLASH_ATTEMPT": "0",
        "FLASH_SEED": "3",
    }
    done = subprocess.run([sys.executable, str(WORKER)], env=env, capture_output=True, text=True, timeout=60)
    return Trained(done.returncode, done.stdout + done.stderr, out)


def test_it_learns(tmp_path: Path) -> None:
    trained = train(tmp_path, steps=60)
    assert trained.code == 0, trained.output
    losses = [entry[2] for entry in trained.json("heartbeat.json").get("history", [])]
    metrics = trained.json("metrics.json")
    assert metrics["accuracy"] > 0.8
    assert losses[0] > 0.6 > 0.4 > metrics["loss"]
    assert set(trained.json("artifacts/adapter.json")) == {"rank", "base", "down", "up", "head"}


def test_a_resumed_training_ends_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", steps=30)
    half = train(tmp_path / "half", steps=15)
    checkpoint = tmp_path / "resume"
    shutil.copytree(half.out / "checkpoint" / "15", checkpoint)
    rest = train(tmp_path / "rest", checkpoint, steps=30)
    assert "resumed from step 15" in rest.output
    assert rest.json("metrics.json")["resumed_from"] == 15
    assert rest.json("metrics.json")["loss"] == whole.json("metrics.json")["loss"]


def test_an_error_of_its_own_is_reported_and_leaves_no_metrics(tmp_path: Path) -> None:
    failed = train(tmp_path, steps=30, fail_at_step=4)
    assert failed.code == 1
    assert "ValueError" in failed.json("heartbeat.json")["error"]
    assert not (failed.out / "metrics.json").exists()
