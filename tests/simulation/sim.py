"""One simulated world: the whole real daemon as a process on virtual time, between a cloud, a Hub, Redis and boxes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flashd.adapters.store import over
from flashd.adapters.store_keys import Keys
from flashd.config import Settings, read_config, settings_of
from flashd.config_credentials import Credentials, Secret
from flashd.core.places import Offer
from flashd.daemon.composition import Outside, Secrets, compose
from flashd.daemon.supervisor import Daemon
from tests.simulation.cloud_truth import TrueMachine
from tests.simulation.loop import SimulatedClock, VirtualLoop
from tests.simulation.sim_logs import LogLine, logs_to
from tests.simulation.time_shim import virtual_time_in_libraries
from tests.simulation.wire import Wire
from tests.simulation.world_box import Stage
from tests.simulation.world_cloud import OFFERS, WorldCloud
from tests.simulation.world_hub import WorldHub
from tests.simulation.world_redis import RedisSide

NS = "sim"
REPO = "team/runs"
MAX_STEPS = 6_000_000
STOP_WITHIN_S = 10.0
Compose = Callable[[Settings, Outside], Daemon]


def real_settings() -> Settings:
    """Every policy constant is the real one."""
    file = read_config(f'namespace = "{NS}"\n', "simulation.toml", {})
    secret = Secret("a-token-of-the-simulation")
    return settings_of(
        file,
        Credentials(
            hf_token=secret,
            hf_box_token=secret,
            hyperstack_api_key=secret,
            redis_url=Secret("redis://simulated"),
        ),
    )


@dataclass(slots=True)
class Options:
    """What a world is built with. `restart_after_s`: how long a crashed daemon is away, None = for ever."""

    offers: tuple[Offer, ...] = OFFERS
    compose: Compose = compose
    restart_after_s: tuple[float, float] | None = (1.0, 60.0)
    owns_directory: bool = True
    max_steps: int = MAX_STEPS


@dataclass(slots=True)
class Life:
    """One daemon process."""

    process: str
    host: str
    daemon: Daemon
    task: asyncio.Task[None]
    ended: str = ""


@dataclass(slots=True)
class World:
    """A world and its controls. Made by `simulate`."""

    seed: int
    loop: VirtualLoop
    options: Options
    wire: Wire = field(init=False)
    cloud: WorldCloud = field(init=False)
    hub: WorldHub = field(init=False)
    redis: RedisSide = field(init=False)
    stage: Stage = field(init=False)
    chance: random.Random = field(init=False)
    keys: Keys = field(init=False)
    raw: Any = field(init=False)
    lives: list[Life] = field(default_factory=list)
    crashes: list[tuple[float, str]] = field(default_factory=list)
    logs: list[LogLine] = field(default_factory=list)
    leading: list[tuple[float, bool]] = field(default_factory=list)  # Unix time, whether a daemon leads from then on
    sent: dict[str, float] = field(default_factory=dict)  # run id -> when it was pushed
    foreign: set[str] = field(default_factory=set)  # names of machines that nobody may touch
    planted: set[str] = field(default_factory=set)  # ids of machines that no daemon of this world asked for
    over: bool = False

    def __post_init__(self) -> None:
        loop, seed = self.loop, self.seed
        self.wire = Wire(loop, seed)
        self.wire.on_crash = loop.on_crash = self.crash
        self.cloud = WorldCloud(loop, self.wire, seed, self.options.offers)
        self.hub = WorldHub(loop, self.wire, seed)
        self.redis = RedisSide(self.wire, seed)
        self.stage = Stage(loop, self.wire, self.hub, self.cloud.truth)
        self.cloud.truth.on_running = self.stage.start
        self.chance = random.Random(f"world {seed}")
        self.keys = Keys(NS)
        self.raw = self.redis.onlooker()

    @property
    def now(self) -> float:
        return self.loop.wall()

    # The daemon ------------------------------------------------------------------------------------------------------

    def living(self) -> list[Life]:
        """The processes that run now, oldest first."""
        return [life for life in self.lives if not life.ended]

    def start(self, host: str = "host-1") -> None:
        """Start a daemon, as a host's service manager does. A second host's daemon stands by."""
        process = f"daemon{len(self.lives)}"
        daemon = self._daemon(process, host)
        task = self.loop.spawn(process, daemon.serve())
        life = Life(process, host, daemon, task)
        self.lives.append(life)
        task.add_done_callback(lambda _task: self._ended(life))
        self.wire.note("started", process, host)

    def crash(self, process: str) -> None:
        """SIGKILL: no line of it runs any more. A new process starts on that host after a while."""
        life = next((life for life in self.living() if life.process == process), None)
        if life is None:
            return
        life.ended = "killed"
        self.loop.kill(process)
        self.crashes.append((self.now, process))
        self.leading.append((self.now, False))
        self.wire.note("crash", process)
        if self.options.restart_after_s is not None:
            pause_s = self.chance.uniform(*self.options.restart_after_s)
            self.loop.in_world(pause_s, lambda: self.start(life.host))

    async def stop(self) -> None:
        """SIGTERM to the one daemon: it hands over and exits within 10 s."""
        (life,) = self.living()
        life.daemon.stop.set()
        await asyncio.wait_for(asyncio.shield(life.task), STOP_WITHIN_S)

    def _daemon(self, process: str, host: str) -> Daemon:
        chance = random.Random(f"{process} {self.seed}")
        owner = chance.randbytes(16).hex()
        client = self.redis.client()
        outside = Outside(
            clock=SimulatedClock(self.loop),
            random=chance,
            store=over(client, self.redis.client(), NS, owner),
            hub=self.hub,
            providers={"hyperstack": self.cloud},
            owner=owner,
            secrets=Secrets(lambda: "hf_box", lambda _name: None, frozenset),
            holder=host,
        )
        daemon = self.options.compose(real_settings(), outside)
        # The simulated host has no disk to lock; whether the lease is this host's own is told instead.
        return replace(daemon, owns_directory=self.options.owns_directory)

    def _ended(self, life: Life) -> None:
        if life.ended:
            return
        error = None if life.task.cancelled() else life.task.exception()
        life.ended = "exited" if error is None else f"died: {error!r}"
        self.leading.append((self.now, False))
        self.wire.note(life.process, life.ended)
        if error is not None and self.options.restart_after_s is not None:
            self.loop.in_world(self.options.restart_after_s[0], lambda: self.start(life.host))

    def take_log(self, line: LogLine) -> None:
        if self.over:
            return  # what the dead say while they are cleared away
        self.logs.append(line)
        if line.event in ("working", "not_leading_any_more"):
            self.leading.append((line.at, line.event == "working"))

    # Producers, operators and subscribers -----------------------------------------------------------------------------

    async def submit(self, run_id: str, **fields: Any) -> None:
        """A producer pushes a run, as plain XADD does."""
        request = {"run_id": run_id, "gpu": {"class": "L40"}, "hub": {"repo": REPO}} | fields
        self.sent.setdefault(run_id, self.now)
        await self.raw.xadd(self.keys.name("requests"), {"request": json.dumps(request)})

    async def cancel(self, run_id: str) -> None:
        command = {"command": "cancel", "run_id": run_id, "by": "ada", "reason": "not needed"}
        await self.raw.xadd(self.keys.name("control"), {"command": json.dumps(command)})

    async def entries(self, run_id: str = "") -> list[tuple[str, dict[str, Any]]]:
        """Every event so far under its stream id, of one run or of all, as a subscriber reads them."""
        key = self.keys.name("log", run_id) if run_id else self.keys.name("events")
        raw = await self.raw.xrange(key)
        return [(entry_id.decode(), json.loads(fields[b"event"])) for entry_id, fields in raw]

    async def events(self, run_id: str = "") -> list[dict[str, Any]]:
        return [event for _, event in await self.entries(run_id)]

    async def names(self, run_id: str) -> list[str]:
        """The run's events by name."""
        return [event["type"].split(".")[3] for event in await self.events(run_id)]

    async def fields(self, run_id: str) -> dict[str, str]:
        """The run hash."""
        raw: Mapping[bytes, bytes] = await self.raw.hgetall(self.keys.name("run", run_id))
        return {key.decode(): value.decode() for key, value in raw.items()}

    async def ledger(self) -> dict[str, dict[str, Any]]:
        """Machine name to row, as operators read it."""
        raw: Mapping[bytes, bytes] = await self.raw.hgetall(self.keys.name("machines"))
        return {name.decode(): json.loads(row) for name, row in sorted(raw.items())}

    async def until(self, fact: Callable[[], Awaitable[bool]], within_s: float, every_s: float = 5.0) -> None:
        """Let time pass until the fact holds. Fails the test when it does not within virtual `within_s`."""
        end = self.loop.time() + within_s
        while not await fact():
            assert self.loop.time() < end, f"not within {within_s} s of virtual time\n{self.last_words()}"
            await asyncio.sleep(every_s)

    async def until_state(self, run_id: str, *states: str, within_s: float = 7200.0, every_s: float = 5.0) -> None:
        async def there() -> bool:
            return (await self.fields(run_id)).get("state") in states

        await self.until(there, within_s, every_s)

    async def is_at_rest(self) -> bool:
        """Nothing alive that somebody pays for, and no row that waits for anything."""
        alive = [machine for machine in self.cloud.truth.alive() if machine.name not in self.foreign]
        return not alive and all(row["state"] == "abandoned" for row in (await self.ledger()).values())

    def plant(self, name: str, why: str) -> TrueMachine:
        """A machine in the account that is none of this daemon's; nobody may touch it."""
        self.foreign.add(name)
        return self.plant_orphan(name, why)

    def plant_orphan(self, name: str, why: str = "an orphan") -> TrueMachine:
        """A machine of a name of ours that this daemon never asked for, or does not remember."""
        machine = self.cloud.truth.make(name, self.options.offers[0].place)
        self.planted.add(machine.id)
        self.wire.note("planted", name, why)
        return machine

    async def until_released(self, *run_ids: str, within_s: float = 7200.0, every_s: float = 5.0) -> None:
        async def there() -> bool:
            return all([(await self.fields(run_id)).get("released") == "1" for run_id in run_ids])

        await self.until(there, within_s, every_s)

    def last_words(self) -> str:
        return "\n".join(str(line) for line in self.logs[-25:])


def simulate(
    seed: int, scenario: Callable[[World], Coroutine[Any, Any, None]], options: Options | None = None
) -> World:
    """Build a world, live the scenario in it, and clear it away. The world is returned with its truth and logs."""
    options = options or Options()
    loop = VirtualLoop(seed, options.max_steps)
    with virtual_time_in_libraries(loop), contextlib.ExitStack() as stack:
        # The collector would close what the dead left behind at moments of its own choosing.
        gc.disable()
        stack.callback(gc.enable)
        state = random.getstate()
        stack.callback(random.setstate, state)
        random.seed(seed)  # fakeredis and redis-py draw from the module's own generator
        world = World(seed, loop, options)
        stack.enter_context(logs_to(loop, world.take_log))
        try:
            loop.run_until_complete(scenario(world))
        finally:
            world.wire.note("took", loop.steps)
            world.over = True
            loop.bury()
            loop.close()
    return world
