"""The simulated Hub as the daemon meets it, on the in-memory Hub of the fakes: lag, outages, answers that get lost."""

from __future__ import annotations

import random
from collections.abc import Mapping

from flashd.adapters.hub import CommitPage, ReadAnswer
from flashd.errors import HubAuthError, HubThrottledError, HubUnavailableError
from tests.fakes.memory_hub import MemoryHub
from tests.simulation.loop import SimulatedClock, VirtualLoop
from tests.simulation.wire import Fault, Faults, Wire

TIMEOUT_S = 15.0
RETRY_AFTER_S = 30.0


class WorldHub(MemoryHub):
    """Kinds of call for faults: commits, oids, read, resolve, ensure_repo, commit; `hub` is any of them."""

    def __init__(self, loop: VirtualLoop, wire: Wire, seed: int) -> None:
        super().__init__(SimulatedClock(loop))
        self.faults = Faults(random.Random(f"hub faults {seed}"))
        self.lag_s = 0.0  # readers do not see younger commits
        self.dark: list[tuple[float, float]] = []  # outages for everybody, boxes too: from, until
        self._loop = loop
        self._wire = wire
        self._kind = ""

    @property
    def is_dark(self) -> bool:
        now = self._loop.wall()
        return any(start <= now < end for start, end in self.dark)

    async def commits(self, repo: str, cursor: str | None = None) -> CommitPage:
        await self._reach("commits", repo)
        home = self.repos.get(repo)
        horizon = self._loop.wall() - self.lag_s
        self.hidden = sum(1 for commit in home.commits if commit.at > horizon) if home is not None else 0
        page = await super().commits(repo, cursor)
        await self._wire.come_back()
        return page

    async def oids(self, repo: str, sha: str, paths: tuple[str, ...]) -> Mapping[str, str]:
        await self._reach("oids", repo)
        found = await super().oids(repo, sha, paths)
        await self._wire.come_back()
        return found

    async def read(self, repo: str, sha: str, path: str, max_bytes: int) -> ReadAnswer:
        await self._reach("read", path)
        answer = await super().read(repo, sha, path, max_bytes)
        await self._wire.come_back()
        return answer

    async def resolve(self, repo: str, revision: str) -> str | None:
        await self._reach("resolve", repo)
        commit = await super().resolve(repo, revision)
        await self._wire.come_back()
        return commit

    async def ensure_repo(self, repo: str) -> None:
        fault = await self._reach("ensure_repo", repo)
        await super().ensure_repo(repo)
        await self._lose(fault)

    async def commit(self, repo: str, title: str, files: Mapping[str, bytes]) -> str:
        fault = await self._reach("commit", repo)
        head = await super().commit(repo, title, files)
        await self._lose(fault)
        return head

    # ----------------------------------------------------------------------------------------------------------------

    async def _reach(self, kind: str, what: str) -> Fault | None:
        await self._wire.leave(f"{kind} {what}")
        fault = Fault.BROKEN if self.is_dark else self.faults.draw(kind) or self.faults.draw("hub")
        if fault is None or (fault is Fault.LOST and kind in ("ensure_repo", "commit")):
            return fault
        await self._wire.come_back((1.0, TIMEOUT_S))
        match fault:
            case Fault.THROTTLED:
                raise HubThrottledError("too many requests", RETRY_AFTER_S, commit_quota=False)
            case Fault.UNAUTHORISED:
                raise HubAuthError("the token is not valid", 401)
            case _:
                raise HubUnavailableError("no usable answer", 503)

    async def _lose(self, fault: Fault | None) -> None:
        await self._wire.come_back()
        if fault is Fault.LOST:
            await self._wire.come_back((TIMEOUT_S, TIMEOUT_S))
            raise HubUnavailableError("no answer")

    async def _answer(self) -> None:
        """The latency and the faults are above."""
