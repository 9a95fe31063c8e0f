"""Random steps against a model of one run, on fakeredis: the sequence has no gap, one end, hash and events agree."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from fakeredis import FakeServer
from fakeredis.aioredis import FakeRedis
from hypothesis import given, settings
from hypothesis import strategies as st

from flashd.adapters.store import Store, over
from flashd.adapters.store_types import Write, Written
from flashd.errors import FencedError, StaleError
from tests.store.makers import T0, a_row, a_step, accepted, lead, live

RUNNING = ("queued", "backoff", "setup", "training")
ENDS = ("succeeded", "failed", "cancelled")

actions = st.one_of(
    st.tuples(st.just("step"), st.sampled_from(RUNNING), st.integers(-1, 0)),
    st.tuples(st.just("finish"), st.sampled_from(ENDS), st.integers(-1, 0)),
    st.tuples(st.just("launch"), st.just("launching"), st.integers(-1, 0)),
    st.tuples(st.just("confirm"), st.just("booting"), st.integers(-1, 0)),
    st.tuples(st.just("released"), st.just(""), st.integers(-1, 0)),
    st.tuples(st.sampled_from(["repeat", "takeover", "cancel"]), st.just(""), st.just(0)),
)


@dataclass
class Model:
    """What must be true of the run, kept beside the store."""

    version: int = 1
    states: list[str] = field(default_factory=lambda: ["queued"])
    ended: bool = False
    released: bool = False
    attempt: int = 0
    intent: str = ""
    cancelled: bool = False


async def play(script: list[tuple[str, str, int]]) -> None:
    server = FakeServer()
    client = FakeRedis(server=server)
    old, now = over(client, client, "t", "p0"), over(client, client, "t", "p0")
    await lead(now, "p0")
    await accepted(now)
    model, owner = Model(), 0
    last: Write | None = None
    for kind, state, lag in script:
        match kind:
            case "takeover":
                owner += 1
                old, now = now, over(client, client, "t", f"p{owner}")
                await lead(now, f"p{owner}", own=True)
                last = None
            case "cancel":
                await now.cancel(f"{owner}-1", "r1", "ann", "", T0)
                model.cancelled = True
            case "repeat" if last is not None:
                before = await now.events_range(run_id="r1")
                await now.transition(last)
                assert await now.events_range(run_id="r1") == before
            case "repeat":
                pass
            case _:
                before_version = model.version
                write = await act(now, old, model, kind, state, lag)
                # Only the newest step can be repeated: the next one takes its operation's place.
                last = write if model.version != before_version else last
        await check(now, model)
    await client.aclose()


async def act(now: Store, old: Store, model: Model, kind: str, state: str, lag: int) -> Write | None:
    """One step on the present version, or on an older one. Returns it if it was a plain step that was written."""
    step = a_step(state or model.states[-1], model.version + lag, len(model.states) + 1, name=kind)
    name = f"m{model.attempt}"
    right = lag == 0 and not model.ended
    if old.link.token is not now.link.token:
        try:
            await old.transition(step)
            raise AssertionError("a fenced leader wrote")
        except FencedError:
            pass
    try:
        match kind:
            case "step":
                await now.transition(step)
            case "finish":
                await now.finish(step, (), T0)
            case "launch":
                answer = await now.intent(step, a_row(name), 100, 1000.0)
                assert isinstance(answer, Written) == (right and not model.cancelled)
                if not isinstance(answer, Written):
                    return None
                model.attempt, model.intent = model.attempt + 1, name
            case "confirm":
                row = a_row(model.intent or "none")
                confirmed = await now.confirm(step, live(row))
                if not isinstance(confirmed, Written):
                    return None
                assert right and model.intent
                model.intent = ""
            case "released":
                right = lag == 0 and model.ended and not model.released
                if not model.ended:
                    return None
                await now.released(step, (), T0, 60.0, 90.0)
                model.released = True
    except StaleError:
        assert not right
        return None
    assert right
    model.version += 1
    model.states.append(step.fields["state"])
    model.ended = model.ended or kind == "finish"
    return step if kind == "step" else None


async def check(store: Store, model: Model) -> None:
    run = await store.load("r1")
    entries = await store.events_range(run_id="r1")
    assert run is not None
    assert run.version == model.version
    assert [entry.fields["sequence"] for entry in entries] == [str(n + 1) for n in range(len(model.states))]
    assert [entry.fields["state"] for entry in entries] == model.states
    assert (run.fields["state"], run.fields["sequence"]) == (model.states[-1], str(len(model.states)))
    assert run.fields["last_event_id"] == entries[-1].entry_id
    assert sum(entry.fields["type"] == "dev.flashd.run.finish.v1" for entry in entries) == int(model.ended)
    rows = await store.ledger()
    assert (await store.totals()).machines == len(rows) == model.attempt
    assert (await store.active() == ("r1",)) == (not model.ended)
    assert (await store.unreleased() == ("r1",)) == (model.ended and not model.released)


@settings(max_examples=60)
@given(st.lists(actions, max_size=14))
def test_any_order_of_steps_keeps_the_run_s_story_straight(script: list[tuple[str, str, int]]) -> None:
    asyncio.run(play(script))
