"""What an attacker's test needs: a quick world with scripted machines, and the audit that must hold after an attack."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import aiohttp

from bootstrap.job import Job
from flashd.core.lifecycle import GRAPH
from flashd.core.model import State
from flashd.sim.cloud_types import Knobs, Machine
from flashd.sim.demo_daemon import Sections
from flashd.sim.harness import API_KEY, ENDS, HF_BOX_TOKEN, HF_TOKEN, REPO, Event, House, Stage, name_of, rehearsal
from flashd.sim.hub import SimHub
from tests.e2e.fleet import overlaps, plenty, quick_knobs
from tests.e2e.scripted_boxes import ScriptedBoxes

SECRETS = (HF_TOKEN, HF_BOX_TOKEN, API_KEY)
BOX_SAYS: Sections = {"policy": {"done_grace_s": 0.5, "metrics_wait_s": 1.0, "retry_backoff_s": 0.2, "cooldown_s": 0.5}}

Files = Mapping[str, bytes]
Trick = Callable[[Job], list[tuple[str, Files]]]


class HostileBoxes(ScriptedBoxes):
    """Scripted boxes whose user code commits what `tricks[spec["trick"]]` says, between first sign and end."""

    def __init__(self, hub: SimHub, directory: Path) -> None:
        super().__init__(hub, directory)
        self.hub = hub
        self.tricks: dict[str, Trick] = {}
        self.metrics: dict[str, bytes] = {}
        self.jobs: list[Job] = []
        self.ended: list[Job] = []

    def _end(self, job: Job, end: str) -> None:
        """The box's own end; `spec.metrics` names what it finds as the worker's metrics.json."""
        self.ended.append(job)
        super()._end(job, end)

    def _commit(self, job: Job, title: str, files: dict[str, bytes]) -> None:
        name = job.spec.get("metrics") if isinstance(job.spec, dict) else None
        if name is not None and "metrics.json" in files:
            files["metrics.json"] = self.metrics[name]
        super()._commit(job, title, files)

    def _beat(self, job: Job, step: int) -> None:
        self.jobs.append(job)
        trick = job.spec.get("trick") if isinstance(job.spec, dict) else None
        if trick is None:
            return super()._beat(job, step)
        for title, files in self.tricks[trick](job):
            self.hub.commit(job.repo, {job.path(name): body for name, body in files.items()}, title)
        return None


def request(run_id: str, **spec: Any) -> dict[str, Any]:
    """A run for scripted machines; `over` in spec is laid over the request."""
    over: dict[str, Any] = spec.pop("over", {})
    plain: dict[str, Any] = {
        "run_id": run_id,
        "gpu": {"class": "RTX A6000"},
        "hub": {"repo": REPO},
        "worker": {"command": ["python", "train.py"]},
        "spec": {"seconds": 0.1, "ends": ["ok"]} | spec,
    }
    return plain | over


@asynccontextmanager
async def siege(directory: Path, config: Sections | None = None, knobs: Knobs | None = None) -> AsyncIterator[House]:
    """The world with plenty of stock and a fast repository watcher; the daemon is started."""
    sections: dict[str, dict[str, Any]] = {name: dict(keys) for name, keys in BOX_SAYS.items()}
    for name, keys in (config or {}).items():
        sections.setdefault(name, {}).update(keys)
    stage = Stage(directory, config=sections, knobs=knobs or quick_knobs(), boxes=HostileBoxes)
    async with rehearsal(stage) as house:
        plenty(house.cloud)
        await house.daemon.start()
        yield house


async def until_ready(house: House, timeout_s: float = 20.0) -> None:
    async def ready() -> bool:
        return (await ask(house, "/readyz"))[0] == 200

    await until(ready, timeout_s)


async def ask(house: House, path: str) -> tuple[int, str]:
    """The health server's answer; status 0 when it does not answer."""
    try:
        async with aiohttp.ClientSession() as session, session.get(house.health + path) as answer:
            return answer.status, await answer.text()
    except (OSError, aiohttp.ClientError):
        return 0, ""


async def alarms(house: House) -> list[str]:
    _, text = await ask(house, "/statusz")
    return [
        alarm["alarm"] if isinstance(alarm, dict) else str(alarm)
        for alarm in json.loads(text or "{}").get("alarms", [])
    ]


async def until(true: Callable[[], Any], timeout_s: float = 15.0, what: str = "") -> None:
    """Poll what another process makes true; `true` may be a coroutine function."""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                found = true()
                if asyncio.iscoroutine(found):
                    found = await found
                if found:
                    return
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {timeout_s:.0f} s: {what or true}") from None


@dataclass(frozen=True, slots=True)
class Pardon:
    """What an attack makes unavoidable."""

    doubled: frozenset[str] = frozenset()  # runs that may have had a second machine: an unknown launch until found
    planted: frozenset[int] = frozenset()  # machines that must be untouched


async def audit(house: House, run_ids: Collection[str], pardon: Pardon | None = None) -> None:
    """Everything that must be true once these runs are released, whatever happened before."""
    pardon = pardon or Pardon()
    events = [(at, json.loads(values["event"])) for at, values in await stream(house, "events")]
    for run_id in run_ids:
        own = [(at, event) for at, event in events if event.get("subject") == run_id and "sequence" in event]
        _check_path(run_id, [event for _, event in own])
        await _check_hash(house, run_id, own)
        if run_id not in pardon.doubled:
            assert overlaps(house.machines_of(run_id)) == [], f"{run_id} was on two machines at once"
        names = [machine.name for machine in house.machines_of(run_id)]
        assert len(set(names)) == len(names), f"a name was launched twice: {names}"
    alive = {machine.id for machine in house.cloud.living()}
    assert alive == pardon.planted, f"alive {sorted(alive)}, planted {sorted(pardon.planted)}"
    rows = {name: row for name, row in (await house.ledger()).items() if row["state"] != "abandoned"}
    assert rows == {}, f"ledger rows left: {rows}"
    assert await house.redis.xlen(house.key("requests")) == 0
    assert await house.redis.xlen(house.key("control")) == 0
    assert house.daemon.running, f"the daemon died: {house.daemon.log_tail()}"
    await check_no_secret(house)


def _check_path(run_id: str, events: list[Event]) -> None:
    names = [name_of(event) for event in events]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1)), f"{run_id}: {names}"
    ends = [name for name in names if name in ENDS]
    assert len(ends) == 1, f"{run_id}: {names}"
    assert names[-2:] == [ends[0], "released"], f"{run_id}: {names}"
    assert len({event["id"] for event in events}) == len(events)
    states = [State(event["data"]["state"]) for event in events]
    for before, after in itertools.pairwise(states):
        assert after in GRAPH[before] or after == before, f"{run_id}: {before} -> {after} in {names}"


async def _check_hash(house: House, run_id: str, own: list[tuple[str, Event]]) -> None:
    fields = await house.fields(run_id)
    entry_id, last = own[-1]
    assert fields["state"] == last["data"]["state"], run_id
    assert fields["sequence"] == str(last["sequence"]), run_id
    assert fields["last_event_id"] == entry_id, run_id
    assert fields["released"] == "1", run_id
    assert fields["pending"] == "", f"{run_id}: pending {fields['pending']!r}"
    of_run = await stream(house, f"events:{run_id}")
    assert [at for at, _ in of_run] == [at for at, _ in own], f"{run_id}: its own stream differs"


async def stream(house: House, short: str) -> list[tuple[str, dict[str, str]]]:
    """A stream's entries with their ids."""
    return cast("list[tuple[str, dict[str, str]]]", await house.redis.xrange(house.key(short)))


async def entries(house: House, short: str) -> list[dict[str, str]]:
    """What a stream holds, without ids."""
    return [values for _, values in await stream(house, short)]


async def check_no_secret(house: House, more: Collection[str] = ()) -> None:
    """No token and no payload in the log, in Redis or in what the daemon serves."""
    payloads = {machine.user_data[:200] for machine in house.cloud.machines.all.values() if machine.user_data}
    hidden = [*SECRETS, *more, *payloads]
    hidden += [base64.b64encode(secret.encode()).decode().rstrip("=") for secret in (*SECRETS, *more)]
    places = {"the log": house.daemon.log.read_text(errors="replace")}
    for path in ("/statusz", "/metrics", "/readyz", "/livez"):
        places[path] = (await ask(house, path))[1]
    places |= await _everything_in(house)
    for place, text in places.items():
        for secret in hidden:
            assert secret not in text, f"{secret[:40]!r} is in {place}"


async def _everything_in(house: House) -> dict[str, str]:
    """Every key with all it holds, as text."""
    redis, found = house.redis, {}
    readers: dict[str, Callable[[str], Any]] = {
        "hash": redis.hgetall,
        "stream": redis.xrange,
        "string": redis.get,
        "zset": lambda key: redis.zrange(key, 0, -1),
        "set": redis.smembers,
        "list": lambda key: redis.lrange(key, 0, -1),
    }
    for key in await redis.keys("*"):
        found[str(key)] = str(await readers[str(await redis.type(key))](str(key)))
    return found


def machines_named(house: House, part: str) -> list[Machine]:
    return [machine for machine in house.cloud.machines.all.values() if part in machine.name]
