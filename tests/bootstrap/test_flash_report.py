"""What a worker imports: everything it writes appears whole, and the box can read it."""

from __future__ import annotations

import importlib
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from flashd.wire.artifacts import Heartbeat, parse_heartbeat


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setenv("FLASH_OUT", str(tmp_path / "out"))
    monkeypatch.setenv("FLASH_RESUME", str(tmp_path / "resume"))
    module = importlib.reload(importlib.import_module("bootstrap.flash_report"))
    (tmp_path / "out").mkdir()
    yield module


def heartbeat() -> Heartbeat:
    parsed = parse_heartbeat((Path(os.environ["FLASH_OUT"]) / "heartbeat.json").read_bytes())
    assert isinstance(parsed, Heartbeat), parsed
    return parsed


def test_a_report_is_a_heartbeat_with_its_history(report: ModuleType) -> None:
    for step in (1, 2, 3):
        report.report("train", step=step, loss=1 / step, learning_rate=1e-4, epoch=0.5)
    seen = heartbeat()
    assert (seen.stage, seen.step, seen.loss, seen.epoch) == ("train", 3, 1 / 3, 0.5)
    assert [row[1:] for row in seen.history] == [(1, 1.0, 1e-4), (2, 0.5, 1e-4), (3, 1 / 3, 1e-4)]


def test_the_history_of_a_long_run_stays_bounded_and_keeps_its_beginning(report: ModuleType) -> None:
    for step in range(1, 1_001):
        report.report("train", step=step, loss=0.1)
    steps = [row[1] or 0.0 for row in heartbeat().history]
    assert 60 <= len(steps) <= 120
    assert (steps[0], steps[-1]) == (1, 1_000)
    gaps = [later - earlier for earlier, later in itertools.pairwise(steps)]
    assert min(gaps[:-1]) == max(gaps[:-1]) >= gaps[-1] > 0


def test_an_end_is_told_as_done_or_as_an_error(report: ModuleType) -> None:
    report.metrics({"loss": 0.5})
    report.done()
    assert (report.out() / "metrics.json").read_text() == '{"loss": 0.5}'
    assert heartbeat().stage == "done"
    report.failed("gateway lost", retriable=True)
    assert (heartbeat().error, heartbeat().retriable) == ("gateway lost", True)


def test_a_checkpoint_appears_only_when_it_is_whole_and_two_are_kept(report: ModuleType) -> None:
    for step in (10, 20, 30):
        with report.checkpoint(step) as folder:
            (folder / "state").write_text(str(step))
            assert not (report.out() / f"checkpoint/{step}").exists()
    assert sorted(path.name for path in (report.out() / "checkpoint").iterdir()) == ["20", "30"]
    with pytest.raises(RuntimeError), report.checkpoint(40) as folder:
        (folder / "state").write_text("half")
        raise RuntimeError
    assert not (report.out() / "checkpoint/40").exists()


def test_nothing_but_whole_files_lies_about(report: ModuleType) -> None:
    report.report("train", step=1)
    report.metrics({})
    assert sorted(path.name for path in report.out().iterdir()) == ["heartbeat.json", "metrics.json"]


def test_resume_and_spec_are_found(report: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert report.resume() is None
    (tmp_path / "resume").mkdir()
    assert report.resume() is None
    (tmp_path / "resume/state").touch()
    assert report.resume() == tmp_path / "resume"
    (tmp_path / "spec").write_text(json.dumps({"a": "\u00e9"}))
    monkeypatch.setenv("FLASH_JOB_SPEC_PATH", str(tmp_path / "spec"))
    assert report.spec() == {"a": "\u00e9"}
