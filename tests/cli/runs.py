"""Runs in every condition an operator meets, told and stored by the daemon's own code."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from flashd.adapters.store import Store
from flashd.adapters.store_types import Accept, EventOut, Write
from flashd.cli.follow import Event
from flashd.core.actions import EventKind
from flashd.core.ledger import Gone
from flashd.core.model import Attempt, AttemptPhase, CancelRequest, End, PastAttempt, Reason, Run, State, Waiting
from flashd.core.names import machine_name, run_hash
from flashd.core.places import Place, PlaceRefusal, RefusalKind
from flashd.core.terms import accepted
from flashd.daemon.announce import Moment, event_of, metrics_of, out
from flashd.daemon.records import encode_run, first_record, record
from flashd.providers.catalog import class_names
from flashd.wire.events import Stamp
from flashd.wire.request import parse_request
from flashd.wire.request_model import RunRequest

NS = "t"
T0 = 1_796_000_000.0
SHA = "0123456789abcdef0123456789abcdef01234567"
L40 = Place("hyperstack", "org-1", "NORWAY-1", "L40", "n3-L40x1", 1.0)
STOCKLESS = "the provider shows no stock"
TRACE = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\nKeyError: 'learning_rate'"


def request_json(run_id: str, **more: object) -> str:
    return json.dumps({"run_id": run_id, "gpu": {"class": "L40"}, "hub": {"repo": "team/runs"}, **more})


def a_request(run_id: str) -> RunRequest:
    parsed = parse_request(request_json(run_id), catalogue=class_names(), secrets=(), default_image="worker:1")
    assert isinstance(parsed, RunRequest), parsed
    return parsed


@dataclass(frozen=True, slots=True)
class Story:
    """A run's steps after acceptance, each with its event and its moment."""

    request: RunRequest
    steps: tuple[tuple[EventKind, Run, Moment], ...]

    @property
    def run_id(self) -> str:
        return self.request.run_id

    @property
    def fields(self) -> dict[str, str]:
        """The run hash at the end of the story."""
        first = accepted(self.request, T0)
        found = first_record(first, self.request, T0)
        for _, run, moment in self.steps:
            found |= record(run, moment)
        return found

    @property
    def events(self) -> list[Event]:
        first = (EventKind.ACCEPTED, accepted(self.request, T0), Moment(T0, {}))
        return [json.loads(self._event(*step).envelope) for step in (first, *self.steps)]

    async def put(self, store: Store, entry_id: str = "") -> None:
        """Into Redis, step by step."""
        first = accepted(self.request, T0)
        await store.accept(
            Accept(
                op_id=f"{self.run_id}-1",
                entry_id=entry_id,
                run_id=self.run_id,
                hash10=run_hash(NS, self.run_id),
                sha=self.request.sha256,
                accepted_at=T0,
                core=encode_run(first),
                fields=first_record(first, self.request, T0),
                event=self._event(EventKind.ACCEPTED, first, Moment(T0, {})),
            )
        )
        for version, (kind, run, moment) in enumerate(self.steps, start=1):
            write = Write(
                run_id=self.run_id,
                expect=version,
                op_id=f"{self.run_id}-{version + 1}",
                core=encode_run(run),
                fields=record(run, moment),
                events=(self._event(kind, run, moment),),
            )
            await (store.finish(write, (), moment.now) if run.is_over else store.transition(write))

    def _event(self, kind: EventKind, run: Run, moment: Moment) -> EventOut:
        stamp = Stamp(id=f"{run.terms.run_id}.{run.sequence}", ns=NS, time=moment.now, sequence=run.sequence)
        return out(event_of(kind, run, self.request, moment), stamp)


def an_attempt(run_id: str, number: int = 0, at: float = T0 + 10) -> Attempt:
    return Attempt(
        number=number,
        name=machine_name(NS, run_id, number),
        token=f"token-{number}",
        place=L40,
        head=SHA,
        requested_at=at,
        deadline_at=at + 90_000,
        deadline_reason=Reason.DEADLINE,
    )


def waiting(run_id: str = "waits") -> Story:
    request = a_request(run_id)
    places = tuple(
        PlaceRefusal("hyperstack", region, "L40", RefusalKind.NO_STOCK, STOCKLESS, T0 + 60)
        for region in ("NORWAY-1", "CANADA-1")
    )
    run = replace(
        accepted(request, T0), sequence=2, waiting=Waiting(Reason.NO_CAPACITY, places, T0 + 60, "no stock in 2 places")
    )
    return Story(request, ((EventKind.WAITING, run, Moment(T0 + 5, {})),))


def training(run_id: str = "trains") -> Story:
    request = a_request(run_id)
    first = accepted(request, T0)
    asked = an_attempt(run_id)
    launching = replace(first, state=State.LAUNCHING, sequence=2, next_number=1, attempts_used=1, attempt=asked)
    live = replace(asked, phase=AttemptPhase.LIVE, machine_id="4711", live_at=T0 + 20)
    booting = replace(launching, state=State.BOOTING, sequence=3, attempt=live)
    steps = replace(live, stage="train", step=350, heartbeat_at=T0 + 1170, first_sign_at=T0 + 60)
    trains = replace(booting, state=State.TRAINING, sequence=4, attempt=steps)
    return Story(
        request,
        (
            (EventKind.LAUNCHING, launching, Moment(T0 + 10, {})),
            (EventKind.BOOTING, booting, Moment(T0 + 20, {})),
            (EventKind.TRAINING, trains, Moment(T0 + 1180, {})),
        ),
    )


def retrying(run_id: str = "retries") -> Story:
    before = training(run_id)
    _, run, _ = before.steps[-1]
    lost = PastAttempt(
        0, machine_name(NS, run_id, 0), "token-0", L40, SHA, T0 + 10, T0 + 1200, Reason.JOB_PREEMPTED,
        "the provider shows the machine as ERROR", "4711",
    )  # fmt: skip
    waits = replace(run, state=State.BACKOFF, sequence=5, attempt=None, history=(lost,), retry_at=T0 + 1230)
    return Story(before.request, (*before.steps, (EventKind.ATTEMPT_FAILED, waits, Moment(T0 + 1200, {}))))


def failed(run_id: str = "fails") -> Story:
    before = training(run_id)
    _, run, _ = before.steps[-1]
    end = End(State.FAILED, Reason.JOB_FAILED, TRACE, T0 + 1200, "marker", SHA, 0)
    over = replace(run, state=State.FAILED, sequence=5, end=end)
    return Story(before.request, (*before.steps, (EventKind.FAILED, over, Moment(T0 + 1200, {}))))


def cancelled(run_id: str = "stops") -> Story:
    before = training(run_id)
    _, run, _ = before.steps[-1]
    end = End(State.CANCELLED, Reason.CANCELLED, "too slow", T0 + 1200, attempt=0)
    wish = CancelRequest("ann", "too slow", T0 + 1190)
    over = replace(run, state=State.CANCELLED, sequence=5, end=end, cancel=wish)
    return Story(before.request, (*before.steps, (EventKind.CANCELLED, over, Moment(T0 + 1200, {}))))


def succeeded(run_id: str = "succeeds") -> Story:
    before = training(run_id)
    _, run, _ = before.steps[-1]
    prefix = run.terms.prefix
    metrics = metrics_of({"loss": 0.25, "steps": 400}, f"{prefix}/metrics.json", SHA, 28)
    end = End(State.SUCCEEDED, None, "", T0 + 1200, "marker", SHA, 0)
    over = replace(run, state=State.SUCCEEDED, sequence=5, end=end)
    gone = {run.attempt.name: Gone(run.attempt.name, "4711", T0 + 10, T0 + 1300)} if run.attempt else {}
    return Story(before.request, (*before.steps, (EventKind.SUCCEEDED, over, Moment(T0 + 1200, gone, metrics))))
