"""The fenced lease: one leader, takeover, and what a former leader may still do."""

from __future__ import annotations

import asyncio

import pytest

from flashd.adapters.store import Store
from flashd.adapters.store_types import Held, Led, Notes
from flashd.errors import FencedError
from tests.store.conftest import Backend
from tests.store.makers import a_step, accepted, an_accept, lead


async def test_the_first_process_leads_under_fence_one(store: Store) -> None:
    assert await store.lead("host-a", "p1", 60_000, may_take_own=False) == Led(1, fresh=True)


async def test_renewing_keeps_the_fence(store: Store) -> None:
    await lead(store)
    assert await store.lead("host-a", "p1", 60_000, may_take_own=False) == Led(1, fresh=False)


async def test_a_second_process_is_told_who_leads_and_for_how_long(backend: Backend) -> None:
    await lead(backend.store("p1"))
    answer = await backend.store("p2").lead("host-b", "p2", 60_000, may_take_own=True)
    assert isinstance(answer, Held)
    assert answer.holder == "host-a"
    assert 50_000 < answer.remaining_ms <= 60_000


async def test_a_restart_takes_its_own_directory_s_lease_at_once(backend: Backend) -> None:
    await lead(backend.store("p1"))
    assert await lead(backend.store("p2"), "p2", own=True) == Led(2, fresh=True)


async def test_without_the_directory_s_lock_even_the_same_holder_waits(backend: Backend) -> None:
    await lead(backend.store("p1"))
    assert isinstance(await backend.store("p2").lead("host-a", "p2", 60_000, may_take_own=False), Held)


async def test_an_expired_lease_is_taken_and_the_former_leader_is_fenced(backend: Backend) -> None:
    first, second = backend.store("p1"), backend.store("p2")
    await first.lead("host-a", "p1", 1, may_take_own=False)
    await accepted(first)
    await asyncio.sleep(0.02)
    assert await lead(second, "p2", "host-b") == Led(2, fresh=True)
    with pytest.raises(FencedError):
        await first.transition(a_step("queued", 1, 2, name="waiting"))
    loaded = await second.load("r1")
    assert loaded is not None and loaded.version == 1


async def test_an_expired_lease_that_nobody_took_goes_on_under_its_fence(store: Store) -> None:
    await store.lead("host-a", "p1", 1, may_take_own=False)
    await asyncio.sleep(0.02)
    await accepted(store)
    assert await lead(store) == Led(1, fresh=False)


async def test_losing_the_lease_forgets_the_token(backend: Backend) -> None:
    first = backend.store("p1")
    await first.lead("host-a", "p1", 1, may_take_own=False)
    await asyncio.sleep(0.02)
    await lead(backend.store("p2"), "p2", "host-b")
    assert isinstance(await first.lead("host-a", "p1", 60_000, may_take_own=False), Held)
    with pytest.raises(FencedError):
        await first.note(Notes.BLIND, {"hub": "{}"})


async def test_resigning_lets_a_standby_in_at_once_and_stops_the_old_leader(backend: Backend) -> None:
    first = backend.store("p1")
    await lead(first)
    token = first.link.token
    await first.resign()
    first.link.token = token
    with pytest.raises(FencedError):
        await first.accept(an_accept())
    assert await lead(backend.store("p2"), "p2", "host-b") == Led(2, fresh=True)


async def test_resigning_without_leading_is_nothing(store: Store) -> None:
    await store.resign()


async def test_a_write_without_ever_leading_is_fenced(store: Store) -> None:
    with pytest.raises(FencedError):
        await store.accept(an_accept())


async def test_a_lost_fence_counter_never_gives_a_fence_out_again(backend: Backend) -> None:
    await lead(backend.store("p1"))
    await lead(backend.store("p2"), "p2", own=True)
    await backend.raw.delete(backend.key("fence"))
    assert await lead(backend.store("p3"), "p3", own=True) == Led(3, fresh=True)


async def test_the_same_fence_with_another_owner_is_fenced(backend: Backend) -> None:
    first = backend.store("p1")
    await lead(first)
    await backend.raw.hset(backend.key("lease"), "owner", "p9")  # as after a failover that lost the last writes
    with pytest.raises(FencedError):
        await first.accept(an_accept())


async def test_the_same_owner_with_another_fence_is_fenced(backend: Backend) -> None:
    first = backend.store("p1")
    await lead(first)
    await backend.raw.hset(backend.key("lease"), "fence", "2")
    with pytest.raises(FencedError):
        await first.accept(an_accept())


async def test_renewing_lengthens_the_lease(backend: Backend) -> None:
    first = backend.store("p1")
    await first.lead("host-a", "p1", 1, may_take_own=False)
    await lead(first)
    answer = await backend.store("p2").lead("host-b", "p2", 60_000, may_take_own=False)
    assert isinstance(answer, Held) and answer.remaining_ms > 50_000


async def test_of_many_that_want_to_lead_exactly_one_does(backend: Backend) -> None:
    names = [f"p{n}" for n in range(8)]
    answers = await asyncio.gather(
        *(backend.store(name).lead(f"host-{name}", name, 60_000, may_take_own=True) for name in names)
    )
    assert sum(isinstance(answer, Led) for answer in answers) == 1
