"""Over any history of observations the decisions keep the promises that no single row of a table shows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from flashd.core.actions import (
    Act,
    AskPlace,
    Decision,
    EventKind,
    LookForLateSuccess,
    LookUp,
    Post,
    ReadArtifacts,
    ReadMachine,
    SaveKind,
    StopAsking,
)
from flashd.core.cost import money_left
from flashd.core.ledger import Gone
from flashd.core.lifecycle import GRAPH, decide
from flashd.core.machines import Machine, MachinePhase
from flashd.core.model import TERMINAL, AttemptPhase, Claim, Evidence, MetricsState, Run, State
from flashd.core.observations import (
    ArtifactsRead,
    CancelAsked,
    FleetSeen,
    Granted,
    HubUnreadable,
    IntentRefused,
    LateSuccess,
    LaunchUnknown,
    LookedUp,
    LookUpFailed,
    MachineRead,
    MachineUnreadable,
    Made,
    NoLateSuccess,
    NoMoneyLeft,
    NowherePossible,
    Observation,
    ProvedGone,
    TakenOver,
    TimePassed,
)
from flashd.core.placement import Chosen, Market, place
from tests.core import histories as drawn
from tests.core.kit import H100, L40, POLICY, T0, a_run, granted, offer, tick

SEEDS = st.integers(0, 2**32 - 1)
STEPS_FROM_ONE_LETTER = 12
_EVENT_OF_END = {
    State.SUCCEEDED: EventKind.SUCCEEDED,
    State.FAILED: EventKind.FAILED,
    State.CANCELLED: EventKind.CANCELLED,
}


@dataclass
class History:
    """A run with its clock and books; every decision is checked against the promises as it is taken."""

    chance: Random
    run: Run
    now: float = T0
    hub_blind: float = 0.0
    gone: dict[str, Gone] = field(default_factory=dict)
    proved: bool = False  # an observation said that an attempt of this run succeeded
    machines: set[str] = field(default_factory=set)  # names of attempts that had an id
    asked: bool = False  # admission has the run in its queue
    wake_at: float | None = None
    told: list[str] = field(default_factory=list)

    def feed(self, seen: Observation) -> Decision:
        before = self.run
        self.told = [*self.told[-15:], f"{self.now - T0:.0f} {seen}"]
        self._note(seen)
        decision = decide(
            before,
            seen,
            tick(
                self.now,
                hub_blind=self.hub_blind,
                gone=self.gone,
                silence_counts=self.chance.random() < 0.9,
                chance=self.chance.random(),
            ),
        )
        self._check(before, decision)
        self.run, self.wake_at = decision.run, decision.wake_at
        if self.run.attempt is not None and self.run.attempt.machine_id is not None:
            self.machines.add(self.run.attempt.name)
        for act in decision.acts:
            self.asked = isinstance(act, AskPlace) or (self.asked and not isinstance(act, StopAsking))
        return decision

    def _note(self, seen: Observation) -> None:
        attempt = self.run.attempt
        match seen:
            case LateSuccess():
                self.proved = True
            case ArtifactsRead(number, claim=Claim(ok=True, metrics=MetricsState.PRESENT)):
                self.proved |= attempt is not None and number == attempt.number

    def _check(self, before: Run, decision: Decision) -> None:
        after, save = decision.run, decision.save
        if before.state in TERMINAL:
            assert decision == Decision(before), "something followed the terminal event"
            return
        event = save.event if save else None
        assert after.sequence == before.sequence + (event is not None)
        if event is None:
            assert after.state is before.state
        else:
            assert after.state in GRAPH[before.state], f"{before.state} -> {after.state}"
        if after.state in TERMINAL:
            assert save is not None and save.kind is SaveKind.FINISH
            assert event is _EVENT_OF_END[after.state]
            assert after.end is not None and after.end.state is after.state
            assert set(save.release) >= self.machines, "a machine was not handed over"
            assert after.state is not State.SUCCEEDED or self.proved, "a success that nobody saw"
        assert 0 <= after.attempts_used <= after.terms.max_attempts
        assert before.next_number <= after.next_number <= before.next_number + 1
        if save is not None and save.kind is SaveKind.INTENT:
            self._check_intent(before, decision)
        if save is not None and save.kind is SaveKind.REQUEUE:
            assert set(save.release) >= self.machines
            assert after.attempt is None and after.retry_at is not None and after.retry_at > self.now

    def _check_intent(self, before: Run, decision: Decision) -> None:
        attempt = decision.run.attempt
        assert before.attempt is None and attempt is not None
        assert attempt.number == before.next_number == decision.run.next_number - 1
        assert decision.acts == (Post(),)
        assert attempt.deadline_at > self.now
        for past in before.history:
            away = past.name in self.gone or self.now >= past.ended_at + POLICY.release_wait_s
            assert past.machine_id is None or away, "the earlier machine may still write"

    def pass_time(self, seconds: float, *, blind: bool = False) -> None:
        self.now += seconds
        self.hub_blind += seconds if blind else 0.0

    def prove_gone(self) -> None:
        for past in self.run.history:
            if past.machine_id is not None and self.chance.random() < 0.5:
                self.gone[past.name] = Gone(past.name, past.machine_id, past.requested_at, self.now)


def some_run(chance: Random) -> Run:
    return a_run(
        max_attempts=chance.choice([1, 2, 3, 3]),
        max_usd=chance.choice([None, None, 3.0]),
        deadline_s=chance.choice([None, None, 20_000.0]),
    )


@settings(max_examples=300, deadline=None)
@given(SEEDS)
def test_any_observation_in_any_reachable_state_keeps_the_promises(seed: int) -> None:
    chance = Random(seed)
    history = History(chance, some_run(chance))
    for _ in range(60):
        history.pass_time(chance.choice([0, 0, 1, 5, 10, 25, 130, 700, 1600, 3100]), blind=chance.random() < 0.1)
        if chance.random() < 0.2:
            history.prove_gone()
        history.feed(drawn.an_observation(chance, history.run, history.now))


# A shell like the daemon's: acts are answered, letters come, time passes ----------------------------------------------


Answer = Callable[[History, Act], Observation | None]


def at_random(history: History, act: Act) -> Observation | None:
    """The world at its worst."""
    chance, run, now = history.chance, history.run, history.now
    match act:
        case Post():
            return drawn.a_post_outcome(chance, run)
        case LookUp():
            return drawn.a_look_up(chance, run, now)
        case ReadMachine():
            return drawn.a_machine_read(chance, run, now)
        case ReadArtifacts():
            return drawn.an_artifacts_read(chance, run, now, fresh=True) if chance.random() < 0.5 else HubUnreadable()
        case LookForLateSuccess():
            return drawn.a_last_look(chance, run, now)
        case AskPlace() | StopAsking():
            return None


def never_answered(history: History, act: Act) -> Observation | None:
    """Provider and Hub are both away."""
    match act:
        case Post():
            return LaunchUnknown("timeout")
        case LookUp():
            return LookUpFailed()
        case ReadMachine():
            return MachineUnreadable()
        case ReadArtifacts() | LookForLateSuccess():
            return HubUnreadable()
        case AskPlace() | StopAsking():
            return None


def stubborn() -> Answer:
    """Each question gets one answer at random, and then the same again."""
    said: dict[type[Act], Observation | None] = {}

    def answer(history: History, act: Act) -> Observation | None:
        if type(act) not in said:
            said[type(act)] = at_random(history, act)
        return said[type(act)]

    return answer


def in_bad_times(history: History) -> Answer:
    return history.chance.choice([at_random, at_random, never_answered, stubborn()])


def in_good_times(history: History, act: Act) -> Observation | None:
    """Every fault is over: machines are made, and a worker that is asked has finished."""
    run, now = history.run, history.now
    number = run.attempt.number if run.attempt else -1
    match act:
        case Post():
            return Made(f"m{number}")
        case LookUp():
            return LookedUp(())
        case ReadMachine():
            return MachineRead(running(run))
        case ReadArtifacts():
            claim = Claim(Evidence.MARKER, True, "e" * 40, now, metrics=MetricsState.PRESENT)
            return ArtifactsRead(number, "e" * 40, now, claim, (), True)
        case LookForLateSuccess():
            return NoLateSuccess()
        case AskPlace() | StopAsking():
            return None


def running(run: Run) -> Machine:
    attempt = run.attempt
    assert attempt is not None
    return Machine(attempt.machine_id or "m", attempt.name, MachinePhase.RUNNING, "ACTIVE", None)


def served(history: History) -> Observation:
    """What admission says with plenty of stock everywhere."""
    run, now = history.run, history.now
    places = [replace(place, region=region) for place in (L40, H100) for region in drawn.REGIONS]
    market = Market(tuple(offer(place) for place in places))
    answer = place(run, market, money_left(run, history.gone, now), now)
    if not isinstance(answer, Chosen):
        return answer
    token = f"{run.next_number:032x}"
    return granted(answer.offer.place, run.next_number, token=token, last_choice=answer.last_choice)


def deliver(history: History, letter: Observation, answer: Answer) -> None:
    """One letter and all that it leads to, which must come to an end by itself."""
    if isinstance(letter, Granted | NoMoneyLeft | NowherePossible | IntentRefused):
        history.asked = False  # admission forgets a run that it has served
    queue = [letter]
    for _ in range(STEPS_FROM_ONE_LETTER):
        if not queue:
            break
        decision = history.feed(queue.pop(0))
        for act in decision.acts:
            seen = answer(history, act)
            if isinstance(act, Post) and isinstance(seen, Made):
                history.feed(seen)
                seen = TimePassed()
            if seen is not None:
                queue.append(seen)
    assert not queue, "in circles:\n" + "\n".join(history.told)
    if not history.run.is_over:
        assert wakes_in_time(history), f"{history.wake_at}, stuck:\n" + "\n".join(history.told)


def wakes_in_time(history: History) -> bool:
    """A run that waits only for admission needs no alarm clock but its deadline; every other one needs it."""
    run, wake_at = history.run, history.wake_at
    ends_at = run.attempt.deadline_at if run.attempt else run.accepted_at + (run.terms.deadline_s or math.inf)
    if run.attempt is None and history.asked and ends_at == math.inf:
        return True
    if wake_at is None:
        return False
    # Beyond the deadline, and while a claim or a cancel is being settled, there is nothing to be early for.
    return wake_at <= max(ends_at, history.now + POLICY.hub_settle_s)


def a_letter(history: History) -> Observation:
    """What the mailbox of a run can hold in its present state."""
    chance, run, now = history.chance, history.run, history.now
    attempt = run.attempt
    if chance.random() < 0.05:
        return CancelAsked("me", "x", now)
    if chance.random() < 0.1:
        return TakenOver()
    if attempt is None and history.asked:
        return drawn.a_placing(chance, run, now)
    if attempt is not None and attempt.phase is AttemptPhase.LIVE:
        machine = drawn.a_machine(chance, run, now) if chance.random() < 0.8 else None
        news = drawn.an_artifacts_read(chance, run, now, fresh=False)
        return news if chance.random() < 0.5 else FleetSeen(machine, now)
    return ProvedGone("x")


def wait(history: History) -> None:
    wake_at = history.wake_at if history.wake_at is not None else history.now + 300
    history.pass_time(max(wake_at - history.now, 0.05))


def live_through(history: History, letters: int) -> None:
    deliver(history, TimePassed(), at_random)
    for _ in range(letters):
        answer = in_bad_times(history)
        if history.run.is_over:
            return
        if history.chance.random() < 0.5:
            history.pass_time(history.chance.choice([0, 1, 10, 60]), blind=history.chance.random() < 0.2)
            deliver(history, a_letter(history), answer)
        else:
            wait(history)
            deliver(history, TimePassed(), answer)
        history.prove_gone()


@settings(max_examples=300, deadline=None)
@given(SEEDS)
def test_no_answer_leads_in_circles_or_leaves_a_run_stuck(seed: int) -> None:
    chance = Random(seed)
    history = History(chance, some_run(chance))
    live_through(history, 40)


@settings(max_examples=300, deadline=None)
@given(SEEDS)
def test_every_run_ends_once_faults_stop(seed: int) -> None:
    chance = Random(seed)
    history = History(chance, some_run(chance))
    live_through(history, chance.randrange(30))
    stopped_at = history.now
    for _ in range(300):
        if history.run.is_over:
            return
        run = history.run
        if run.attempt is None and history.asked:
            deliver(history, served(history), in_good_times)
        elif run.attempt is not None and run.attempt.phase is AttemptPhase.LIVE:
            deliver(history, FleetSeen(running(run), history.now), in_good_times)
        history.prove_gone()
        wait(history)
        deliver(history, TimePassed(), in_good_times)
    raise AssertionError(f"{history.run.state} {history.now - stopped_at:.0f} s later:\n" + "\n".join(history.told))


@settings(max_examples=300, deadline=None)
@given(SEEDS)
def test_an_outage_alone_ends_no_attempt(seed: int) -> None:
    """Whatever a live run has been through: while neither provider nor Hub answers it neither fails nor succeeds."""
    chance = Random(seed)
    history = History(chance, a_run(max_attempts=3))
    live_through(history, chance.randrange(20))
    attempt, claim_known = history.run.attempt, history.run.attempt is not None and history.run.attempt.claim
    if attempt is None or attempt.phase is not AttemptPhase.LIVE or history.run.cancel is not None or claim_known:
        return
    if attempt.suspicion is not None and attempt.suspicion.reads >= 2:
        return  # the verdict was ripe before the outage
    for _ in range(150):
        wait(history)
        deliver(history, TimePassed(), never_answered)
        assert history.run.attempt is not None and history.run.attempt.number == attempt.number
        assert not history.run.is_over, "\n".join(history.told)


def test_the_graph_is_the_contracts() -> None:
    q, la, bo, se, tr, ba = State.QUEUED, State.LAUNCHING, State.BOOTING, State.SETUP, State.TRAINING, State.BACKOFF
    assert {state: set(to) - TERMINAL for state, to in GRAPH.items() if state not in TERMINAL} == {
        q: {q, la},
        la: {la, q, bo, ba},
        bo: {se, tr, ba},
        se: {tr, ba},
        tr: {ba},
        ba: {ba, la, q},
    }
    for state in TERMINAL:
        assert GRAPH[state] == {state}
    assert all(to >= TERMINAL for state, to in GRAPH.items() if state not in TERMINAL)
