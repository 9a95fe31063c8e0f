"""The way in: requests and commands from their streams, each accepted or rejected for good before the next is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import anyio
import anyio.lowlevel
import structlog

from flashd.adapters.backoff import Backoff
from flashd.adapters.store_types import Accept, AcceptWord, CancelWord, Entry, Source
from flashd.core.actions import EventKind
from flashd.core.model import Run
from flashd.core.names import run_hash
from flashd.core.observations import CancelAsked
from flashd.core.terms import accepted
from flashd.daemon.announce import Moment, announced
from flashd.daemon.desk import Desk
from flashd.daemon.kept import with_cancel
from flashd.daemon.records import encode_run, first_record
from flashd.daemon.refusals import conflicting, hash_taken, missing_payload, poison, rejection_of
from flashd.errors import FencedError, StoreAuthError, StoreError, StoreFullError, StoreUnavailableError
from flashd.wire.command import parse_command
from flashd.wire.faults import Rejection
from flashd.wire.request import parse_request
from flashd.wire.request_model import RunRequest

log = structlog.get_logger(__name__)

T = TypeVar("T")
BATCH = 100
BLOCK_MS = 2000  # also how long a stop has to wait for the read in flight
READ_TIMEOUT_S = 7.0  # below the ten seconds that a stop may take
CLAIM_INTERVAL_S = 15.0
CLAIM_JITTER = 0.2
STALE_AFTER_MS = 30_000
POISON_DELIVERIES = 5
FIRST_BACKOFF_S = 0.2
MAX_BACKOFF_S = 5.0

FULL_ALARM = "redis_full"
_OUTAGES = (StoreUnavailableError, StoreFullError, StoreAuthError)


@dataclass(frozen=True, slots=True)
class Queue:
    """Requests that wait in the stream, as last looked at. `oldest_at` is Unix seconds by the server's clock."""

    length: int = 0
    oldest_at: float | None = None


class Intake:
    """The leader's consumer of both streams. Raises FencedError when another daemon leads."""

    def __init__(
        self,
        desk: Desk,
        *,
        secret_names: Callable[[], Collection[str]],
        on_accepted: Callable[[Run, RunRequest, int], None],
        on_cancel: Callable[[str, CancelAsked], None],
    ) -> None:
        self.duplicates = 0
        self.rejected = 0
        self.last_pass_at: float | None = None  # Unix seconds; the last read that Redis answered, its entries settled
        self.last_turn_at: float | None = None  # Unix seconds; the last try, answered or not
        self.queue = Queue()
        self._desk = desk
        self._secret_names = secret_names
        self._on_accepted = on_accepted
        self._on_cancel = on_cancel
        self._stopping = False
        self._full = False
        self._trouble: str | None = None
        self._claim_at = 0.0

    @property
    def trouble(self) -> str | None:
        """Why Redis does not serve the intake at the moment; None = it does."""
        return self._trouble

    def stop(self) -> None:
        """Take no more work; the read in flight runs out by itself."""
        self._stopping = True

    async def serve(self) -> None:
        """Until `stop` or cancelled, but not in the middle of a read: a cancelled one may swallow an entry."""
        await self._make_groups()
        await self._take_over()
        backoff = self._backoff()
        while not self._stopping:
            try:
                await self._pass()
            except _OUTAGES as error:
                self._troubled(error)
                await anyio.sleep(backoff.next_s())
            else:
                backoff.reset()

    # Reading ---------------------------------------------------------------------------------------------------------

    async def _pass(self) -> None:
        self.last_turn_at = self._desk.clock.now()
        entries = await self._read()
        await anyio.lowlevel.checkpoint()  # a cancellation that came during the read takes effect here
        await self._take_all(entries)
        if self._desk.clock.monotonic() >= self._claim_at:
            await self._claim_stale()
        self._well()
        self.last_pass_at = self._desk.clock.now()

    async def _read(self) -> tuple[Entry, ...]:
        """A Redis without room takes no request, but cancels pass, and may make room."""
        sources = (Source.CONTROL,) if self._full else tuple(Source)
        with anyio.move_on_after(READ_TIMEOUT_S, shield=True):
            return await self._desk.store.read_new(BATCH, BLOCK_MS, sources)
        raise StoreUnavailableError(f"no answer to a read of {BLOCK_MS / 1000:.0f} s within {READ_TIMEOUT_S:.0f} s")

    async def _make_groups(self) -> None:
        try:
            await self._settled(self._desk.store.ensure_groups)
        except StoreFullError:
            self._full = True  # they are most likely there; a read makes them when they are not

    async def _take_over(self) -> None:
        """Everything that an earlier leader had read and not settled: it is dead, or fenced off.

        One by one: a claim counts as a delivery, and only the entry in hand may pay for a death, not those behind it.
        """
        store = self._desk.store
        for source in Source:
            while not self._stopping:
                await self._take_all(await self._settled(partial(store.claim_stale, source, 0, 1)))
                if store.claimed_all(source):
                    break
        self._plan_claim()

    async def _claim_stale(self) -> None:
        """Entries of ours whose reply was lost, or that could not be settled at their last delivery."""
        self._plan_claim()
        if not self._full:
            self._desk.alarms.set(FULL_ALARM, None)  # nothing was refused for want of room since the last time
        self._full = False
        for source in Source:
            await self._take_all(await self._desk.store.claim_stale(source, STALE_AFTER_MS))
        store = self._desk.store
        self.queue = Queue(await store.queue_length(), await store.oldest_request_at())

    def _plan_claim(self) -> None:
        interval_s = CLAIM_INTERVAL_S * self._desk.random.uniform(1 - CLAIM_JITTER, 1 + CLAIM_JITTER)
        self._claim_at = self._desk.clock.monotonic() + interval_s

    async def _take_all(self, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            try:
                await self._take(entry)
            except StoreFullError:
                self._full = True  # excused, and claimed again later
            except (FencedError, *_OUTAGES):
                raise
            except Exception:
                # One entry's fault must not stop the others; it is delivered again, and its fifth delivery is poison.
                log.exception("entry_not_settled", source=entry.source.value, entry_id=entry.entry_id)

    async def _take(self, entry: Entry) -> None:
        if entry.deliveries >= POISON_DELIVERIES:
            await self._reject(entry, poison(entry))
        elif entry.payload is None:
            await self._reject(entry, missing_payload(entry))
        elif entry.source is Source.REQUESTS:
            await self._take_request(entry, entry.payload)
        else:
            await self._take_command(entry, entry.payload)

    # Requests --------------------------------------------------------------------------------------------------------

    async def _take_request(self, entry: Entry, payload: bytes) -> None:
        request = parse_request(
            payload,
            catalogue=self._desk.gpu_names,
            secrets=self._secret_names(),
            default_image=self._desk.default_image,
        )
        if isinstance(request, Rejection):
            await self._reject(entry, request)
            return
        run = accepted(request, self._desk.clock.now())
        step = self._accept(entry, run, request)
        answer = await self._settled(lambda: self._desk.store.accept(step), entry)
        match answer.word:
            case AcceptWord.ACCEPTED:
                log.info("run_accepted", run_id=request.run_id, entry_id=entry.entry_id)
                if answer.cancelled:
                    run = await self._cancelled_before(run)
                self._on_accepted(run, request, 1)
            case AcceptWord.DUPLICATE:
                self.duplicates += 1
                log.info("request_repeated", run_id=request.run_id, entry_id=entry.entry_id)
            case AcceptWord.CONFLICT:
                await self._reject(entry, conflicting(request))
            case AcceptWord.HASH_TAKEN:
                await self._reject(entry, hash_taken(request, answer.other_run_id))

    def _accept(self, entry: Entry, run: Run, request: RunRequest) -> Accept:
        desk, now = self._desk, run.accepted_at
        return Accept(
            op_id=desk.draw_op_id(),
            entry_id=entry.entry_id,
            run_id=request.run_id,
            hash10=run_hash(desk.ns, request.run_id),
            sha=request.sha256,
            accepted_at=now,
            core=encode_run(run),
            fields=first_record(run, request, now),
            event=announced(desk, EventKind.ACCEPTED, run, request, Moment(now, {})),
        )

    async def _cancelled_before(self, run: Run) -> Run:
        """The run with the cancel that came before its request."""
        stored = await self._settled(lambda: self._desk.store.load(run.terms.run_id))
        return run if stored is None else with_cancel(run, stored)

    # Commands --------------------------------------------------------------------------------------------------------

    async def _take_command(self, entry: Entry, payload: bytes) -> None:
        command = parse_command(payload)
        if isinstance(command, Rejection):
            await self._reject(entry, command)
            return
        now, run_id = self._desk.clock.now(), command.run_id
        asked = CancelAsked(command.by or "", command.reason or "", now)
        word = await self._settled(
            lambda: self._desk.store.cancel(entry.entry_id, run_id, asked.by, asked.reason, now), entry
        )
        log.info("cancel_taken", run_id=run_id, by=asked.by, answer=word.value)
        if word is CancelWord.FLAGGED:
            self._on_cancel(run_id, asked)

    async def _reject(self, entry: Entry, refusal: Rejection) -> None:
        desk = self._desk
        rejection = rejection_of(entry, refusal, desk.ns, desk.owner, desk.clock.now())
        await self._settled(lambda: desk.store.reject(rejection), entry)
        self.rejected += 1
        log.warning(
            "entry_rejected",
            source=entry.source.value,
            entry_id=entry.entry_id,
            run_id=refusal.run_id,
            reason=refusal.reason.value,
        )

    # Redis's outages -------------------------------------------------------------------------------------------------

    async def _settled(self, call: Callable[[], Awaitable[T]], entry: Entry | None = None) -> T:
        """Repeat an idempotent call until Redis answers it; what Redis refused is not counted against the entry.

        Raises StoreFullError when Redis has no room: others may not have to wait for it. Raises any outage when a stop
        was asked for meanwhile: the entry stays for the next leader.
        """
        backoff = self._backoff()
        excused = entry is None
        while True:
            self.last_turn_at = self._desk.clock.now()
            try:
                answer = await call()
            except _OUTAGES as error:
                self._troubled(error)
                if not excused and entry is not None:
                    excused = await self._excuse(entry)
                if self._stopping or (excused and isinstance(error, StoreFullError)):
                    raise
            else:
                self._well()
                return answer
            await anyio.sleep(backoff.next_s())

    def _backoff(self) -> Backoff:
        return Backoff(self._desk.random, FIRST_BACKOFF_S, MAX_BACKOFF_S)

    async def _excuse(self, entry: Entry) -> bool:
        try:
            await self._desk.store.excuse(entry)
        except _OUTAGES:
            return False  # the outage itself: logged by the caller, tried again with its next repeat
        return True

    def _troubled(self, error: StoreError) -> None:
        if isinstance(error, StoreFullError):
            self._desk.alarms.set(FULL_ALARM, str(error))
        if self._trouble is None:
            log.warning("intake_interrupted", error=str(error))
        self._trouble = str(error)

    def _well(self) -> None:
        if self._trouble is not None:
            log.info("intake_resumed", after=self._trouble)
        self._trouble = None
