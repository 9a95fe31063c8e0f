"""The repository watcher: one request a tick for all runs, who is told what, and honest about what it cannot know."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import anyio
import pytest

from flashd.adapters.hub import Quota
from flashd.core.blindness import Sight
from flashd.daemon.repo_news import RepoNews, RepoSubscription
from flashd.daemon.watcher import HubProblem, RepoSnapshot, RepoWatcher, Watchers
from flashd.errors import (
    HubAuthError,
    HubError,
    HubForbiddenError,
    HubRepoMissingError,
    HubThrottledError,
    HubUnavailableError,
)
from tests.fakes.memory_hub import MemoryHub
from tests.fakes.virtual import LoopClock, run_virtual

REPO = "acme/runs"
T_S = 15.0


def title(run_id: str, event: str = "heartbeat") -> str:
    return f"flashd run={run_id} seed=0 attempt=0 event={event}"


class Bench:
    def __init__(self) -> None:
        self.clock = LoopClock()
        self.hub = MemoryHub(self.clock, latency_s=0.2)
        self.hub.push(REPO, "initial commit")
        self.watcher = RepoWatcher(self.hub, REPO, self.clock, Random(1), T_S, commits_per_hour=128)
        self.news: dict[str, list[RepoNews]] = {}

    @property
    def head(self) -> str:
        return self.hub.repos[REPO].commits[-1].id

    def subscribe(self, run_id: str, *paths: str, since: str | None = None, active: bool = True) -> RepoSubscription:
        told = self.news.setdefault(run_id, [])
        subscription = self.watcher.subscribe(run_id, paths, since or self.head, told.append)
        subscription.active = active
        return subscription

    def told(self, run_id: str) -> list[RepoNews]:
        """What came since the last call."""
        told, self.news[run_id][:] = list(self.news[run_id]), []
        return told

    async def settle(self) -> None:
        await self.watcher.fresh_head(self.clock.now())


Scenario = Callable[[Bench], Awaitable[None]]


def with_watcher(scenario: Scenario) -> None:
    """Run a scenario beside a running watcher, in virtual time."""

    async def main() -> None:
        bench = Bench()
        async with anyio.create_task_group() as group:
            group.start_soon(bench.watcher.run)
            await scenario(bench)
            group.cancel_scope.cancel()

    run_virtual(main())


# Requests ------------------------------------------------------------------------------------------------------------


def test_fourteen_runs_cost_one_request_a_tick() -> None:
    async def scenario(bench: Bench) -> None:
        for number in range(14):
            bench.subscribe(f"r{number}", f"sft/r{number}/seed0/DONE")
        await anyio.sleep(300)
        bench.hub.requests.clear()
        for _ in range(12):  # an hour; every run has a heartbeat every ten minutes
            for number in range(7):
                bench.hub.push(REPO, title(f"r{number}"))
            await anyio.sleep(300)
        assert bench.hub.requests.total() / 60 / 14 <= 0.3
        assert set(bench.hub.requests) == {"commits"}, "titles say it all"

    with_watcher(scenario)


def test_polling_is_slow_while_no_machine_can_commit_and_fast_at_once_when_one_can() -> None:
    async def scenario(bench: Bench) -> None:
        subscription = bench.subscribe("r1", active=False)
        await anyio.sleep(100)
        bench.hub.requests.clear()
        await anyio.sleep(600)
        assert 8 <= bench.hub.requests["commits"] <= 13
        bench.hub.requests.clear()
        subscription.active = True
        await anyio.sleep(T_S * 1.2 + 0.2)
        assert bench.hub.requests["commits"] >= 1
        await anyio.sleep(600)
        assert 35 <= bench.hub.requests["commits"] <= 50

    with_watcher(scenario)


def test_ticks_stretch_when_the_request_window_is_nearly_used_up() -> None:
    async def scenario(bench: Bench) -> None:
        bench.subscribe("r1")
        bench.hub.window = Quota(2_500, 499, 200)
        await anyio.sleep(60)
        bench.hub.requests.clear()
        await anyio.sleep(600)
        assert 8 <= bench.hub.requests["commits"] <= 13
        bench.hub.window = Quota(2_500, 500, 200)
        await anyio.sleep(120)
        bench.hub.requests.clear()
        await anyio.sleep(600)
        assert bench.hub.requests["commits"] >= 35

    with_watcher(scenario)


# News ----------------------------------------------------------------------------------------------------------------


def test_exactly_the_runs_that_a_title_names_are_told_in_order() -> None:
    async def scenario(bench: Bench) -> None:
        bench.subscribe("r1")
        bench.subscribe("r2")
        await anyio.sleep(30)
        one, two = bench.hub.push(REPO, title("r1", "boot")), bench.hub.push(REPO, title("r1", "end"))
        bench.hub.push(REPO, title("r3"))
        await anyio.sleep(30)
        [news] = bench.told("r1")
        assert news == RepoNews(bench.head, (one, two), (), resync=False)
        assert bench.told("r2") == []

    with_watcher(scenario)


def test_a_commit_is_told_within_one_tick() -> None:
    async def scenario(bench: Bench) -> None:
        bench.subscribe("r1")
        for wait_s in (31.0, 37.0, 41.5, 53.0):
            await anyio.sleep(wait_s)
            bench.told("r1")
            bench.hub.push(REPO, title("r1", "end"))
            await anyio.sleep(T_S * 1.2 + 1)
            assert len(bench.told("r1")) == 1

    with_watcher(scenario)


def test_what_came_between_a_runs_base_and_the_first_look_is_told() -> None:
    async def scenario(bench: Bench) -> None:
        base = bench.head
        mine = bench.hub.push(REPO, title("r1", "end"))
        bench.hub.push(REPO, title("r2"))
        bench.subscribe("r1", "sft/r1/seed0/DONE", since=base)
        await bench.settle()
        assert bench.told("r1") == [RepoNews(bench.head, (mine,), (), resync=False)]

    with_watcher(scenario)


def test_a_late_subscriber_is_told_at_the_next_tick_even_if_nothing_is_new() -> None:
    async def scenario(bench: Bench) -> None:
        base = bench.head
        mine = bench.hub.push(REPO, title("r1", "boot"))
        await bench.settle()
        bench.subscribe("r1", since=base)
        await bench.settle()
        assert [news.commits for news in bench.told("r1")] == [(mine,)]

    with_watcher(scenario)


def test_a_base_that_is_not_in_the_history_is_a_resync() -> None:
    async def scenario(bench: Bench) -> None:
        bench.subscribe("r1", since="f" * 40)
        await bench.settle()
        assert bench.told("r1") == [RepoNews(bench.head, (), (), resync=True)]

    with_watcher(scenario)


def test_squashing_the_history_is_a_resync_for_everybody_once() -> None:
    async def scenario(bench: Bench) -> None:
        bench.subscribe("r1")
        bench.subscribe("r2")
        await bench.settle()
        bench.hub.squash(REPO)
        await anyio.sleep(60)
        assert [news.resync for news in bench.told("r1")] == [True]
        assert [news.resync for news in bench.told("r2")] == [True]

    with_watcher(scenario)


def test_more_news_than_is_paged_through_is_a_resync_and_several_pages_are_not() -> None:
    async def scenario(bench: Bench) -> None:
        bench.subscribe("r1")
        await bench.settle()
        for _ in range(170):
            bench.hub.push(REPO, title("r1"))
        await bench.settle()
        [news] = bench.told("r1")
        assert (len(news.commits), news.resync) == (170, False)
        for _ in range(400):
            bench.hub.push(REPO, title("r1"))
        await bench.settle()
        assert [news.resync for news in bench.told("r1")] == [True]

    with_watcher(scenario)


def test_a_commit_of_unknown_title_wakes_those_whose_files_it_changed() -> None:
    async def scenario(bench: Bench) -> None:
        for run_id in ("r1", "r2"):
            bench.subscribe(run_id, f"sft/{run_id}/seed0/DONE", f"sft/{run_id}/seed0/heartbeat.json")
        await bench.settle()
        bench.hub.requests.clear()
        bench.hub.push(REPO, "Upload folder", {"sft/r1/seed0/heartbeat.json": b"{}", "other": b"x"})
        await bench.settle()
        assert bench.told("r1") == [RepoNews(bench.head, (), ("sft/r1/seed0/heartbeat.json",), resync=False)]
        assert bench.told("r2") == []
        assert bench.hub.requests["paths-info"] == 2, "the old blobs were not known yet"
        bench.hub.push(REPO, "Upload folder", {"sft/r2/seed0/DONE": b"1.0"})
        await bench.settle()
        assert bench.told("r1") == []
        assert [news.changed for news in bench.told("r2")] == [("sft/r2/seed0/DONE",)]
        assert bench.hub.requests["paths-info"] == 3

    with_watcher(scenario)


def test_a_titled_commit_between_two_unknown_ones_hides_no_change() -> None:
    async def scenario(bench: Bench) -> None:
        path = "sft/r1/seed0/heartbeat.json"
        bench.subscribe("r1", path)
        await bench.settle()
        bench.hub.push(REPO, "Upload", {path: b"1"})
        await bench.settle()
        bench.hub.push(REPO, title("r1"), {path: b"2"})
        await bench.settle()
        bench.told("r1")
        bench.hub.push(REPO, "Upload", {path: b"1"})
        await bench.settle()
        assert [news.changed for news in bench.told("r1")] == [(path,)]

    with_watcher(scenario)


def test_a_run_that_subscribes_during_a_look_at_unknown_commits_misses_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        bench.subscribe("r1", "sft/r1/seed0/DONE")
        await bench.settle()
        base = bench.head
        bench.hub.push(REPO, "Upload", {"sft/r2/seed0/DONE": b"1"})
        async with anyio.create_task_group() as group:
            group.start_soon(bench.settle)
            await anyio.sleep(0.3)  # the head is read, the blobs are being asked for
            bench.subscribe("r2", "sft/r2/seed0/DONE", since=base)
        assert [news.resync for news in bench.told("r2")] == [True]

    with_watcher(scenario)


def test_a_replica_that_lags_is_not_a_new_history() -> None:
    async def scenario(bench: Bench) -> None:
        bench.subscribe("r1")
        last = bench.hub.push(REPO, title("r1"))
        await bench.settle()
        bench.told("r1")
        bench.hub.hidden = 1
        await anyio.sleep(60)
        bench.hub.hidden = 0
        await anyio.sleep(60)
        assert bench.told("r1") == []
        assert bench.watcher.snapshot is not None
        assert bench.watcher.snapshot.head == last.id

    with_watcher(scenario)


def test_a_closed_subscription_is_told_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        subscription = bench.subscribe("r1")
        await bench.settle()
        subscription.close()
        subscription.close()
        bench.hub.push(REPO, title("r1"))
        await bench.settle()
        assert bench.told("r1") == []

    with_watcher(scenario)


# Forced reads --------------------------------------------------------------------------------------------------------


def test_one_forced_read_serves_all_who_asked_before_it_began() -> None:
    async def scenario(bench: Bench) -> None:
        bench.subscribe("r1")
        await bench.settle()
        await anyio.sleep(1)
        bench.hub.requests.clear()
        answers: list[RepoSnapshot] = []

        async def ask() -> None:
            answers.append(await bench.watcher.fresh_head(bench.clock.now()))

        async with anyio.create_task_group() as group:
            for _ in range(14):
                group.start_soon(ask)
        assert bench.hub.requests["commits"] <= 2, "the second one for those who came while the first was on its way"
        assert len(answers) == 14

    with_watcher(scenario)


def test_a_forced_read_began_after_it_was_asked_for_and_sees_what_was_there_then() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.settle()
        bench.hub.latency_s = 2.0
        await anyio.sleep(59)
        for _ in range(30):
            pushed = bench.hub.push(REPO, title("r1"))
            asked = bench.clock.now()
            snapshot = await bench.watcher.fresh_head(asked)
            assert snapshot.asked_at >= asked
            assert snapshot.head == pushed.id
            await anyio.sleep(7.3)

    with_watcher(scenario)


@pytest.mark.parametrize(
    ("error", "problem", "pause_s"),
    [
        (HubAuthError("no", 401), HubProblem.AUTH, 60.0),
        (HubForbiddenError("no", 403), HubProblem.FORBIDDEN, 60.0),
        (HubRepoMissingError("no", 404), HubProblem.REPO_MISSING, 60.0),
        (HubThrottledError("no", 120.0, commit_quota=False), HubProblem.THROTTLED, 120.0),
        (HubThrottledError("no", 1e9, commit_quota=False), HubProblem.THROTTLED, 300.0),
        (HubUnavailableError("no", 503), HubProblem.UNREACHABLE, 5.0),
        (HubError("no", 400), HubProblem.UNREACHABLE, 5.0),
    ],
)
def test_a_failed_read_says_so_and_is_not_repeated_before_its_pause_is_over(
    error: HubError, problem: HubProblem, pause_s: float
) -> None:
    async def scenario(bench: Bench) -> None:
        bench.subscribe("r1")
        await bench.settle()
        bench.hub.error = error
        with pytest.raises(type(error)):
            await bench.settle()
        failed_at = bench.clock.now()
        bench.hub.asked_at.clear()
        for _ in range(20):
            with pytest.raises(type(error)):
                await bench.settle()
        assert bench.hub.asked_at == []
        assert bench.watcher.problem is problem
        assert not bench.watcher.silence_is_evidence(bench.clock.now())
        await anyio.sleep(pause_s + T_S * 1.2 + 1)
        assert bench.hub.asked_at[0] - failed_at >= pause_s
        bench.hub.error = None
        bench.watcher.retry_now()
        await anyio.sleep(0.5)
        assert bench.watcher.problem is None

    with_watcher(scenario)


def test_a_black_holed_hub_stops_no_tick_for_longer_than_the_read_deadline() -> None:
    async def scenario(bench: Bench) -> None:
        bench.subscribe("r1")
        await bench.settle()
        bench.hub.latency_s = 1e6
        with pytest.raises(HubUnavailableError):
            await bench.settle()
        bench.hub.latency_s = 0.1
        bench.hub.push(REPO, title("r1", "end"))
        await anyio.sleep(2 * T_S)
        assert len(bench.told("r1")) == 1

    with_watcher(scenario)


def test_a_cancelled_forced_read_leaves_no_trace() -> None:
    async def scenario(bench: Bench) -> None:
        bench.subscribe("r1")
        await bench.settle()
        bench.hub.push(REPO, title("r1", "end"))
        with anyio.move_on_after(0.1):
            await bench.settle()
        assert bench.told("r1") == []
        await anyio.sleep(2 * T_S)
        assert len(bench.told("r1")) == 1

    with_watcher(scenario)


# Blindness and the commit budget -------------------------------------------------------------------------------------


def test_an_outage_of_the_hub_is_blind_time() -> None:
    async def scenario(bench: Bench) -> None:
        bench.subscribe("r1")
        await anyio.sleep(300)
        assert bench.watcher.blind_at(bench.clock.now()) == 0.0
        bench.hub.error = HubUnavailableError("down")
        await anyio.sleep(10_000)
        assert 9_880 <= bench.watcher.blind_at(bench.clock.now()) <= 10_000
        bench.hub.error = None
        await anyio.sleep(300)
        assert 9_880 <= bench.watcher.blind_at(bench.clock.now()) <= 10_000

    with_watcher(scenario)


def test_slow_polling_is_not_blind_time() -> None:
    async def scenario(bench: Bench) -> None:
        bench.subscribe("r1", active=False)
        await anyio.sleep(36_000)
        assert bench.watcher.blind_at(bench.clock.now()) == 0.0

    with_watcher(scenario)


def test_at_four_fifths_of_the_commit_quota_silence_stops_being_evidence_until_the_hour_has_passed() -> None:
    async def scenario(bench: Bench) -> None:
        bench.subscribe("r1")
        await bench.settle()
        await anyio.sleep(10)
        for _ in range(101):
            bench.hub.push(REPO, title("r2"))
        await bench.settle()
        assert bench.watcher.silence_is_evidence(bench.clock.now())
        bench.hub.push(REPO, title("r2"))
        await bench.settle()
        assert bench.watcher.commits_last_hour(bench.clock.now()) == 103, "the initial commit is one of them"
        assert not bench.watcher.has_commit_budget(bench.clock.now())
        assert not bench.watcher.silence_is_evidence(bench.clock.now())
        await anyio.sleep(3_700)
        assert bench.watcher.silence_is_evidence(bench.clock.now())
        blind = bench.watcher.blind_at(bench.clock.now())
        assert 3_500 <= blind <= 3_620, "the boxes could not speak, so their silence meant nothing"

    with_watcher(scenario)


def test_the_commits_of_the_last_hour_are_counted_from_the_first_look_on() -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(120):
            bench.hub.push(REPO, title("r2"))
        await bench.settle()
        assert bench.watcher.commits_last_hour(bench.clock.now()) == 121

    with_watcher(scenario)


# Order ---------------------------------------------------------------------------------------------------------------


def test_the_log_since_a_base_is_paged_for_when_it_is_not_in_memory() -> None:
    async def scenario(bench: Bench) -> None:
        base = bench.head
        for _ in range(700):
            bench.hub.push(REPO, title("r1"))
        await bench.settle()
        assert bench.watcher.history.after(base) is None
        since = await bench.watcher.log_since(base)
        assert since is not None
        assert [commit.id for commit in since] == [one.id for one in bench.hub.repos[REPO].commits[:0:-1]]
        everything = await bench.watcher.log_since(None)
        assert everything is not None
        assert len(everything) == 701
        for _ in range(400):
            bench.hub.push(REPO, title("r1"))
        assert await bench.watcher.log_since(base) is None, "too far back to tell"

    with_watcher(scenario)


def test_files_that_changed_after_a_base_are_told_from_those_that_were_there_before() -> None:
    async def scenario(bench: Bench) -> None:
        bench.hub.push(REPO, "Upload", {"DONE": b"1.0", "metrics.json": b"{}"})
        base = bench.head
        bench.hub.push(REPO, "Upload", {"DONE": b"2.0", "heartbeat.json": b"{}"})
        paths = ("DONE", "metrics.json", "heartbeat.json", "absent")
        changed = await bench.watcher.changed_since(base, bench.head, paths)
        assert changed == {"DONE": True, "metrics.json": False, "heartbeat.json": True}
        assert await bench.watcher.changed_since(None, bench.head, ("DONE",)) == {"DONE": True}
        bench.hub.squash(REPO)
        with pytest.raises(HubUnavailableError):
            await bench.watcher.changed_since(base, bench.head, paths)

    with_watcher(scenario)


def test_the_commit_that_last_changed_a_file_is_found_with_few_requests() -> None:
    async def scenario(bench: Bench) -> None:
        bench.hub.push(REPO, title("r1", "end"), {"DONE": b"1.0"})
        base = bench.head
        commits = [
            bench.hub.push(REPO, title("r1"), {"DONE": b"2.0"} if number == 11 else {f"x{number}": b""})
            for number in range(40)
        ]
        await bench.settle()
        bench.hub.requests.clear()
        found = await bench.watcher.last_change(base, commits[-1].id, "DONE")
        assert found == commits[11]
        assert bench.hub.requests["paths-info"] <= 9
        assert await bench.watcher.last_change(commits[11].id, commits[-1].id, "DONE") is None, "unchanged since"
        assert await bench.watcher.last_change(base, commits[10].id, "DONE") is None, "not yet at that head"
        assert await bench.watcher.last_change(base, commits[-1].id, "absent") is None

    with_watcher(scenario)


# All repositories ----------------------------------------------------------------------------------------------------


def test_watchers_poll_each_repository_once_for_all_its_users_and_stop_with_the_last() -> None:
    async def main() -> None:
        clock = LoopClock()
        hub = MemoryHub(clock)
        hub.push("a/a", "initial commit")
        hub.push("b/b", "initial commit")
        watchers = Watchers(hub, clock, Random(1), T_S)
        watchers.restore({"a/a": Sight(clock.now() - 1_000, 5.0)})
        first = watchers.acquire("a/a")
        async with anyio.create_task_group() as group:
            group.start_soon(watchers.run)
            await anyio.sleep(10)
            assert watchers.acquire("a/a") is first
            other = watchers.acquire("b/b")
            other.subscribe("r", (), None, lambda _: None).active = True
            await anyio.sleep(3_600)
            assert 50 <= hub.requests.total() - 240 <= 75
            assert set(watchers.sights()) == set(watchers.watchers()) == {"a/a", "b/b"}
            assert watchers.sights()["a/a"].blind_total >= 900
            watchers.release("a/a")
            watchers.release("b/b")
            await anyio.sleep(1)
            hub.requests.clear()
            await anyio.sleep(600)
            assert 9 <= hub.requests.total() <= 13, "a/a has one user left"
            watchers.release("a/a")
            hub.requests.clear()
            await anyio.sleep(600)
            assert hub.requests.total() == 0
            group.cancel_scope.cancel()

    run_virtual(main())
