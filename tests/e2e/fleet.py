"""Fleets for the end-to-end tests: pushed as a producer would, and judged by the world's own records."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from flashd.core.policy import Policy
from flashd.sim.cloud import Cloud
from flashd.sim.cloud_billing import billed_usd
from flashd.sim.cloud_types import Knobs, Machine
from flashd.sim.demo_daemon import QUICK, Value
from flashd.sim.harness import ENDS, REPO, Event, House, name_of

QUICK_MACHINES = {"create_s": 0.05, "boot_s": 0.3, "delete_s": 0.2}
PROOF_S = 10.0  # between a machine's end and the proof of it, at most, when the daemon is there
_LEADING = re.compile(r"^time=(\S+) \S+ event=leading ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FleetRun:
    run_id: str
    ends: tuple[str, ...] = ("ok",)
    seconds: float = 0.5
    real: bool = False
    max_attempts: int = 3

    @property
    def state(self) -> str:
        return "failed" if self.ends[-1] == "failed" else "succeeded"

    def request(self) -> dict[str, Any]:
        spec = {"seconds": self.seconds, "ends": list(self.ends), "real": self.real}
        if self.real:
            spec |= {"steps": 4, "seconds_per_step": 0.05, "checkpoint_every": 4}
        return {
            "run_id": self.run_id,
            "gpu": {"class": "RTX A6000"},
            "hub": {"repo": REPO},
            "worker": {"command": ["python", "train.py"]},
            "spec": spec,
            "limits": {"max_attempts": self.max_attempts},
        }


@dataclass(frozen=True, slots=True)
class Absences:
    """When no daemon led: from each SIGKILL to the next daemon's first word as leader."""

    spans: tuple[tuple[float, float], ...] = field(default=())

    def within(self, start: float, end: float) -> float:
        return sum(max(0.0, min(end, until) - max(start, since)) for since, until in self.spans)


def quick_knobs() -> Knobs:
    knobs = Knobs()
    for name, value in QUICK_MACHINES.items():
        knobs.change(name, value)
    return knobs


def policy_divided_by(divisor: float) -> dict[str, Value]:
    """Every key of `[policy]` that is in seconds, at its default over `divisor`."""
    defaults = dataclasses.asdict(Policy())
    return {name: value / divisor for name, value in defaults.items() if name.endswith("_s")}


def plenty(cloud: Cloud) -> None:
    """Stock is no matter here: every create finds room at its first place."""
    cloud.catalogue.set_stock(None, None, 1_000, None)


async def push(house: House, runs: Sequence[FleetRun]) -> None:
    """Every request by `redis-cli XADD`, as a shell script would."""
    for run in runs:
        command = [*shlex.split(house.server.cli), "XADD", house.key("requests"), "*", "request"]
        process = await asyncio.create_subprocess_exec(
            *command, json.dumps(run.request()), stdout=asyncio.subprocess.PIPE
        )
        answer, _ = await process.communicate()
        assert process.returncode == 0, answer


def absences(house: House) -> Absences:
    text = house.daemon.log.read_text(errors="replace")
    leading = [datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp() for stamp in _LEADING.findall(text)]
    killed = house.daemon.killed_at
    return Absences(tuple((at, next(since for since in leading if since > at - 0.001)) for at in killed))


async def check_fleet(house: House, runs: Sequence[FleetRun]) -> None:
    """Everything that must be true of a fleet whose runs have all been released."""
    events = await house.all_events()
    for run in runs:
        _check_events([event for event in events if event["subject"] == run.run_id], run)
    away = absences(house)
    for run in runs:
        fields = await house.fields(run.run_id)
        assert fields["state"] == run.state
        assert fields["released"] == "1"
        _check_cost(house.machines_of(run.run_id), float(fields["cost_usd"]), away, run.run_id)
    assert house.living() == []
    assert house.cloud.summary()["alive"] == 0
    assert await house.redis.xlen(house.key("requests")) == 0
    assert await house.redis.xlen(house.key("rejected")) == 0
    open_rows = {name: row for name, row in (await house.ledger()).items() if row["state"] != "abandoned"}
    assert open_rows == {}


def _check_events(events: list[Event], run: FleetRun) -> None:
    numbered = [event for event in events if "sequence" in event]
    names = [name_of(event) for event in numbered]
    assert [event["sequence"] for event in numbered] == list(range(1, len(numbered) + 1)), run.run_id
    assert Counter(name for name in names if name in ENDS) == {run.state: 1}, f"{run.run_id}: {names}"
    assert names[-2:] == [run.state, "released"], f"{run.run_id}: {names}"
    assert names.count("released") == 1
    last = numbered[-2]["data"]
    if run.state == "failed":
        assert (last["reason"], last["fault"]) == ("job_failed", "user")


def _check_cost(machines: list[Machine], cost_usd: float, away: Absences, run_id: str) -> None:
    """bill <= cost <= bill + price x (60 s + boot + deleting + 2 x check + poll + time without a leader)."""
    bill = sum(billed_usd(machine, 0.0) for machine in machines)
    check_s = float(QUICK["policy"]["release_check_s"])  # type: ignore[arg-type]
    poll_s = float(QUICK["providers.hyperstack"]["poll_interval_s"])  # type: ignore[arg-type]
    margin = 0.0
    for machine in machines:
        assert machine.gone_at is not None
        boot_s = (machine.active_at or machine.gone_at) - machine.created_at
        deleting_s = machine.gone_at - (machine.deleting_at or machine.gone_at)
        absent_s = away.within(machine.created_at, machine.gone_at + PROOF_S)
        seconds = 60.0 + boot_s + deleting_s + 2 * check_s + poll_s + absent_s
        margin += machine.usd_per_hour * seconds / 3600
    assert bill - 1e-6 <= cost_usd <= bill + margin + 1e-6, f"{run_id}: billed {bill}, cost {cost_usd}, margin {margin}"


def overlaps(machines: list[Machine]) -> list[tuple[str, str]]:
    """Pairs of machines of one run that lived at the same time without either being deleted."""
    spans = [(m.created_at, m.deleting_at or m.gone_at or float("inf"), m.name) for m in machines]
    return [
        (first[2], second[2])
        for at, first in enumerate(spans)
        for second in spans[at + 1 :]
        if first[0] < second[1] and second[0] < first[1]
    ]


def log_of(directory: Path) -> str:
    return (directory / "daemon.log").read_text(errors="replace")
