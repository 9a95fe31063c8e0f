"""One run's coroutine: it waits on its mailbox or its next deadline, asks the core, saves, then acts."""

from __future__ import annotations

from collections import deque
from typing import Protocol

import anyio
import structlog

from flashd.adapters.backoff import Backoff
from flashd.adapters.store_types import EventOut
from flashd.core.actions import (
    Act,
    AskPlace,
    Decision,
    LookForLateSuccess,
    LookUp,
    Post,
    ReadArtifacts,
    ReadMachine,
    Save,
    SaveKind,
    StopAsking,
)
from flashd.core.ledger import Gone
from flashd.core.lifecycle import decide
from flashd.core.model import Attempt, AttemptPhase, Run
from flashd.core.observations import (
    CancelAsked,
    FleetSeen,
    Granted,
    HubUnreadable,
    IntentRefused,
    MachineRead,
    MachineUnreadable,
    Made,
    MustWait,
    NoLateSuccess,
    NoMoneyLeft,
    NowherePossible,
    Observation,
    ProvedGone,
    TakenOver,
    Tick,
    TimePassed,
)
from flashd.daemon.announce import Metrics, Moment
from flashd.daemon.artifacts import ArtifactReader, Reading, decision_files
from flashd.daemon.desk import Desk
from flashd.daemon.launcher import Found, Launcher
from flashd.daemon.mailbox import FleetChanged, Grant, Letter, Mailbox
from flashd.daemon.observer import FleetSubscription
from flashd.daemon.progress import ProgressTeller
from flashd.daemon.repo_news import RepoNews, RepoSubscription
from flashd.daemon.steps import Journal, LostMachine, persist
from flashd.errors import FencedError, HubError, NotFoundError, ProviderError, StaleError
from flashd.wire.request_model import RunRequest

log = structlog.get_logger(__name__)

STEPS_MAX = 100  # decisions from one letter; more is a circle
LEAST_WAIT_S = 0.05
LONGEST_WAIT_S = 300.0
FIRST_READ_AGAIN_S = 2.0  # after artifacts could not be read
LONGEST_READ_AGAIN_S = 60.0


class Admission(Protocol):
    """Who hands out places."""

    def ask(self, run: Run, mailbox: Mailbox, gone: dict[str, Gone]) -> None: ...
    def withdraw(self, run_id: str) -> None: ...


class Runner:
    """Keeps one run until its terminal event."""

    def __init__(self, desk: Desk, admission: Admission, run: Run, journal: Journal, gone: dict[str, Gone]) -> None:
        self.run = run
        self.mailbox = Mailbox()
        self._desk = desk
        self._admission = admission
        self._journal = journal
        self._gone = gone
        self._wake_at: float | None = None
        self._metrics: Metrics | None = None
        self._progress: EventOut | None = None
        self._grant: Grant | None = None
        self._unread: RepoNews | None = None
        self._read_again = Backoff(desk.random, FIRST_READ_AGAIN_S, LONGEST_READ_AGAIN_S, spread=(0.7, 1.3))
        self._read_again_at = 0.0
        self._watcher = desk.watchers.acquire(run.terms.repo)
        self._reader = ArtifactReader(desk.hub, self._watcher, desk.clock, run.terms)
        self._launcher = Launcher(desk, journal.request, self._watcher, self._reader)
        self._teller = ProgressTeller(desk, journal.request)
        self._fleet: FleetSubscription | None = None
        self._repo: RepoSubscription | None = None
        self._log = log.bind(run_id=run.terms.run_id)

    @property
    def request(self) -> RunRequest:
        return self._journal.request

    async def keep(self, first: Observation) -> None:
        """Until the run is over. Raises FencedError when another daemon leads."""
        try:
            await self._feed(first)
            while not self.run.is_over:
                letter = await self.mailbox.take(self._wait_s())
                for seen in await self._open(letter):
                    await self._feed(seen)
        except StaleError as error:
            self._log.error("run_changed_underneath", error=str(error))
            raise
        finally:
            self._leave()

    def _leave(self) -> None:
        self._admission.withdraw(self.run.terms.run_id)
        self._give_back()
        for letter in self.mailbox.drain():
            if isinstance(letter, Grant):
                letter.done()
        self._unsubscribe()
        self._desk.watchers.release(self.run.terms.repo)

    def _wait_s(self) -> float:
        ends = [self._wake_at, self._read_again_at if self._unread is not None else None]
        wake_at = min((end for end in ends if end is not None), default=None)
        if wake_at is None:
            return LONGEST_WAIT_S
        return min(max(wake_at - self._desk.clock.now(), LEAST_WAIT_S), LONGEST_WAIT_S)

    # From letters to observations -----------------------------------------------------------------------------------

    async def _open(self, letter: Letter | None) -> tuple[Observation, ...]:
        match letter:
            case None:
                return (*await self._overdue_news(), TimePassed())
            case Grant():
                return (await self._granted(letter),)
            case FleetChanged():
                return self._fleet_seen()
            case RepoNews():
                return await self._news(letter)
            case ProvedGone(name):
                self._gone = dict(await persist(self._desk, lambda: self._desk.store.gone(self.run.terms.run_id)))
                return (ProvedGone(name),)
            case CancelAsked() | MustWait() | NoMoneyLeft() | NowherePossible():
                return (letter,)

    async def _granted(self, grant: Grant) -> Observation:
        self._give_back()
        self._grant = grant
        if self.run.attempt is not None or self.run.cancel is not None:
            self._give_back()
            return TimePassed()
        ready = await self._launcher.get_ready(self.run, grant, self._tick())
        match ready:
            case Granted():
                return ready
            case Found(success, metrics):
                self._metrics = metrics
                self._give_back()
                return success
            case MustWait():
                self._give_back()
                return ready

    def _fleet_seen(self) -> tuple[Observation, ...]:
        attempt = self.run.attempt
        if attempt is None or attempt.phase is AttemptPhase.REQUESTED:
            return ()
        snapshot = self._desk.clouds[attempt.place.provider].observer.snapshot
        if snapshot is None or attempt.phase is AttemptPhase.UNKNOWN:
            return (TimePassed(),)
        machine = snapshot.by_id.get(attempt.machine_id or "")
        return (FleetSeen(machine, snapshot.started_at),)

    async def _news(self, news: RepoNews) -> tuple[Observation, ...]:
        attempt, snapshot = self.run.attempt, self._watcher.snapshot
        if attempt is None or attempt.phase is not AttemptPhase.LIVE or snapshot is None:
            return ()
        try:
            reading = await self._reader.news(attempt, news, snapshot)
        except HubError as error:
            return (self._put_off(news, error),)
        self._unread = None
        self._read_again.reset()
        return (self._take_in(reading),)

    def _put_off(self, news: RepoNews, error: HubError) -> Observation:
        """News whose files could not be read: nothing of it may be lost, and the Hub is not asked at every turn."""
        if self._unread is None:
            self._log.warning("artifacts_unread", error=str(error))
        self._unread = RepoNews(news.head, (), (), resync=True)
        self._read_again_at = self._desk.clock.now() + self._read_again.next_s()
        return HubUnreadable(detail=str(error))

    async def _overdue_news(self) -> tuple[Observation, ...]:
        if self._unread is None or self._desk.clock.now() < self._read_again_at:
            return ()
        return await self._news(self._unread)

    def _take_in(self, reading: Reading) -> Observation:
        if reading.metrics is not None:
            self._metrics = reading.metrics
        for note in reading.notes:
            self._log.warning("artifact_ignored", attempt=reading.read.attempt, detail=note)
        if reading.heartbeat is not None:
            self._progress = self._teller.event(self.run, reading.heartbeat) or self._progress
        return reading.read

    # From observations to what is durable, then to effects -----------------------------------------------------------

    async def _feed(self, first: Observation) -> None:
        queue: deque[Observation] = deque([first])
        for _ in range(STEPS_MAX):
            if not queue:
                return
            queue.extend(await self._step(queue.popleft()))
        raise AssertionError(f"run {self.run.terms.run_id} goes in circles")

    async def _step(self, seen: Observation) -> list[Observation]:
        decision = decide(self.run, seen, self._tick())
        refused = await self._keep(decision)
        if refused is not None:
            return [refused]
        answers: list[Observation] = []
        for act in decision.acts:
            answer = await self._perform(act)
            if answer is not None:
                answers.append(answer)
        return answers

    async def _keep(self, decision: Decision) -> Observation | None:
        """Make the decision durable and current; an IntentRefused means that it did not happen."""
        save = decision.save or (Save(SaveKind.TRANSITION) if self._progress is not None else None)
        if save is not None:
            moment = Moment(self._desk.clock.now(), self._gone, self._metrics)
            progress, self._progress = self._progress, None
            kept = await self._journal.keep(decision.run, save, moment, progress)
            if isinstance(kept, IntentRefused):
                self._give_back()
                return kept
            if isinstance(kept, LostMachine):
                await self._lost(decision.run.attempt, kept)
        self.run = decision.run
        self._wake_at = decision.wake_at
        self._follow()
        if self.run.attempt is not None:
            self._give_back()
        return None

    async def _lost(self, attempt: Attempt | None, lost: LostMachine) -> None:
        """The machine that was just made is not this run's: delete it if nobody else will, and stop."""
        if lost.mine_to_delete and attempt is not None and attempt.machine_id is not None:
            with anyio.CancelScope(shield=True), anyio.move_on_after(self._desk.policy.launch_timeout_s):
                try:
                    await self._desk.clouds[attempt.place.provider].provider.delete(attempt.machine_id)
                except ProviderError as error:
                    self._log.error("machine_delete_failed", machine_id=attempt.machine_id, error=str(error))
        text = f"machine of run {self.run.terms.run_id} is not ours: {lost.why}"
        if lost.fenced:
            raise FencedError(text)
        if attempt is not None:
            row = await persist(self._desk, lambda: self._desk.store.row(attempt.name))
            self._desk.ledger.apply({attempt.name: row})  # the refusal may have turned it into `deleting`
        raise StaleError(text)

    async def _perform(self, act: Act) -> Observation | None:
        match act:
            case AskPlace():
                self._admission.ask(self.run, self.mailbox, self._gone)
                return None
            case StopAsking():
                self._admission.withdraw(self.run.terms.run_id)
                return None
            case Post():
                return await self._post()
            case LookUp():
                return await self._launcher.look_up(self._attempt())
            case ReadMachine():
                return await self._read_machine(self._attempt())
            case ReadArtifacts():
                return await self._read_artifacts(self._attempt())
            case LookForLateSuccess():
                return await self._late_success()

    async def _post(self) -> Observation | None:
        """The create call and the confirm of what it made, as one piece that no cancellation cuts in two."""
        with anyio.CancelScope(shield=True):
            outcome = await self._launcher.post(self.run, self._attempt())
            if not isinstance(outcome, Made):
                return outcome
            await self._keep(decide(self.run, outcome, self._tick()))
        return TimePassed()

    async def _read_machine(self, attempt: Attempt) -> Observation:
        cloud = self._desk.clouds[attempt.place.provider]
        try:
            if not await cloud.is_of(attempt.place.account):
                return MachineUnreadable()
            return MachineRead(await cloud.provider.get(attempt.machine_id or ""))
        except NotFoundError:
            return MachineRead(None)
        except ProviderError as error:
            self._log.warning("machine_unreadable", machine_id=attempt.machine_id, error=str(error))
            return MachineUnreadable()

    async def _read_artifacts(self, attempt: Attempt) -> Observation:
        try:
            reading = await self._reader.fresh(attempt)
        except HubError as error:
            return HubUnreadable(detail=str(error))
        return self._take_in(reading)

    async def _late_success(self) -> Observation:
        found = await self._launcher.late_success(self.run)
        match found:
            case None:
                return NoLateSuccess()
            case HubUnreadable():
                return found
            case Found(success, metrics):
                self._metrics = metrics
                return success

    # What the run listens to -----------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Subscribe to what the present attempt can be heard of, once per attempt."""
        attempt = self.run.attempt
        if attempt is None or self.run.is_over:
            self._unsubscribe()
            return
        if self._fleet is None or self._fleet.name != attempt.name:
            self._unsubscribe()
            observer = self._desk.clouds[attempt.place.provider].observer
            self._fleet = observer.subscribe(attempt.name, lambda: self.mailbox.put(FleetChanged()))
        if self._repo is None and attempt.phase is AttemptPhase.LIVE:
            # Not before: news of a launch that is not confirmed yet cannot be read, and is told only once.
            paths = decision_files(self.run.terms, attempt)
            self._repo = self._watcher.subscribe(self.run.terms.run_id, paths, attempt.head or None, self.mailbox.put)
        if self._repo is not None:
            self._repo.active = attempt.active_at is not None

    def _unsubscribe(self) -> None:
        if self._fleet is not None:
            self._fleet.close()
            self._fleet = None
        if self._repo is not None:
            self._repo.close()
            self._repo = None

    def _give_back(self) -> None:
        if self._grant is not None:
            self._grant.done()
            self._grant = None

    def _attempt(self) -> Attempt:
        if self.run.attempt is None:
            raise AssertionError(f"run {self.run.terms.run_id} has no attempt")
        return self.run.attempt

    def _tick(self) -> Tick:
        now, attempt = self._desk.clock.now(), self.run.attempt
        # A launch that begins records how blind its provider has been so far, or it would be forgiven all of it.
        place = attempt.place if attempt is not None else self._grant.offer.place if self._grant is not None else None
        cloud = self._desk.clouds.get(place.provider) if place is not None else None
        return Tick(
            now=now,
            policy=self._desk.policy,
            hub_blind=self._watcher.blind_at(now),
            cloud_blind=cloud.observer.blind_at(now) if cloud is not None else 0.0,
            silence_counts=self._watcher.silence_is_evidence(now),
            gone=self._gone,
            made_at=cloud.made_at if cloud is not None else None,
            chance=self._desk.random.random(),
        )


FIRST_SIGHT = TimePassed()
AFTER_TAKEOVER = TakenOver()
