"""Reading an attempt's artifacts, all pinned to one head. It reads and sorts; what it means is the core's."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flashd.adapters.clock import Clock
from flashd.adapters.hub import Absent, Commit, Hub, Present, ReadAnswer, TooLarge
from flashd.core import artifacts as rules
from flashd.core.model import Attempt, Claim, Evidence, MetricsState, PastAttempt, Terms
from flashd.core.names import marker_path
from flashd.core.observations import ArtifactsRead, Beat
from flashd.daemon.announce import Metrics, metrics_of
from flashd.daemon.repo_news import RepoNews
from flashd.daemon.watcher import RepoSnapshot, RepoWatcher
from flashd.errors import HubError, HubUnavailableError
from flashd.wire import artifacts as wire
from flashd.wire.commit_title import CommitEvent, CommitTitle, parse_commit_title

REVISION_GONE = 404


@dataclass(frozen=True, slots=True)
class Reading:
    """One read: what the core is told, and the contents that only the events need."""

    read: ArtifactsRead
    metrics: Metrics | None = None
    heartbeat: wire.Heartbeat | None = None
    notes: tuple[str, ...] = ()  # files that are there and say nothing, and why


def decision_files(terms: Terms, attempt: Attempt) -> tuple[str, ...]:
    """The files whose change matters to an attempt, for commits of unknown title."""
    return (
        marker_path(terms.prefix, attempt.place.provider, attempt.number),
        f"{terms.prefix}/DONE",
        f"{terms.prefix}/heartbeat.json",
        f"{terms.prefix}/metrics.json",
    )


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which files a read is after."""

    end: bool
    heartbeat: bool


class ArtifactReader:
    """Reads one run's artifacts through its repository's watcher."""

    def __init__(self, hub: Hub, watcher: RepoWatcher, clock: Clock, terms: Terms) -> None:
        self._hub = hub
        self._watcher = watcher
        self._clock = clock
        self._terms = terms

    async def fresh(self, attempt: Attempt) -> Reading:
        """Everything of the attempt, at a head asked for from now on. Raises HubError when it cannot know."""
        snapshot = await self._watcher.fresh_head(self._clock.now())
        beats = self._beats_since(attempt)
        return await self._read(
            attempt, snapshot, _Wanted(end=True, heartbeat=attempt.progress_at is None), beats, True
        )

    async def news(self, attempt: Attempt, news: RepoNews, snapshot: RepoSnapshot) -> Reading:
        """What the commits in `news` call for. Raises HubError when it cannot know."""
        if news.resync:
            return await self._read(
                attempt, snapshot, _Wanted(end=True, heartbeat=True), self._beats_since(attempt), False
            )
        now = self._clock.now()
        titles = [title for commit in news.commits if (title := self._title(commit, attempt)) is not None]
        beats = tuple(beat for title in titles if (beat := rules.beat_of_title(title, now)) is not None)
        ended = any(title.event is CommitEvent.END for title in titles)
        heart = any(title.event is CommitEvent.HEARTBEAT for title in titles)
        changed = {path.rpartition("/")[2] for path in news.changed}
        wanted = _Wanted(
            end=ended or bool(changed - {"heartbeat.json"}), heartbeat=heart or "heartbeat.json" in changed
        )
        return await self._read(attempt, snapshot, wanted, beats, False)

    async def late_success(
        self, past: PastAttempt, snapshot: RepoSnapshot, next_head: str | None
    ) -> tuple[Claim, Metrics] | None:
        """An earlier attempt's own success, with readable metrics. Raises HubError when it cannot know.

        `next_head`: the head recorded with the attempt after it, None = there was none. A DONE without a marker, or
        metrics beside it, that came later may be that attempt's.
        """
        head = snapshot.head
        claim = await self._claim(past, head, []) if head is not None else None
        if head is None or claim is None or not claim.ok:
            return None
        if claim.evidence is Evidence.DONE and next_head is not None:
            paths = (f"{self._terms.prefix}/DONE", f"{self._terms.prefix}/metrics.json")
            if any([await self._changed(next_head or None, head, path) for path in paths]):
                return None
        state, metrics = await self._claimed_metrics(past, claim, head)
        if rules.worth_waiting_for(past, state, self._clock.now()):
            raise HubUnavailableError(f"metrics of attempt {past.number}, which says that it succeeded")
        return (replace(claim, metrics=state), metrics) if metrics is not None else None

    # ----------------------------------------------------------------------------------------------------------------

    def _title(self, commit: Commit, attempt: Attempt) -> CommitTitle | None:
        title = parse_commit_title(commit.title)
        mine = title is not None and title.run_id == self._terms.run_id and title.attempt == attempt.number
        return title if mine else None

    def _beats_since(self, attempt: Attempt) -> tuple[Beat, ...]:
        """Signs of life in the repository's own order and at its own times, since the intent."""
        commits = self._watcher.history.after(attempt.head or None)
        if commits is None:
            commits = self._watcher.history.commits
        found = ((commit, self._title(commit, attempt)) for commit in reversed(commits))
        beats = (rules.beat_of_title(title, commit.at) for commit, title in found if title is not None)
        return tuple(beat for beat in beats if beat is not None)

    async def _read(
        self, attempt: Attempt, snapshot: RepoSnapshot, wanted: _Wanted, beats: tuple[Beat, ...], fresh: bool
    ) -> Reading:
        head = snapshot.head
        if head is None:
            return Reading(ArtifactsRead(attempt.number, "", snapshot.asked_at, None, beats, fresh))
        notes: list[str] = []
        claim, metrics, heartbeat, told = None, None, None, ""
        if wanted.end:
            claim = await self._claim(attempt, head, notes)
            if claim is not None and claim.ok:
                state, metrics = await self._claimed_metrics(attempt, claim, head)
                claim = replace(claim, metrics=state)
        # The worker's last heartbeat may say that a failure is the infrastructure's, so it is read beside one.
        failed = claim is not None and not claim.ok
        if (claim is not None and not claim.ok and not claim.retriable) or (wanted.heartbeat and claim is None):
            heartbeat = await self._heartbeat(attempt, head, notes)
            if heartbeat is not None:
                at = self._clock.now() if not fresh else min(heartbeat.ts or attempt.requested_at, self._clock.now())
                beats = (*beats, rules.beat_of_heartbeat(heartbeat, at))
        if failed or (fresh and claim is None and attempt.suspicion is not None):
            told = await self._told(attempt, head, notes)
        if failed and claim is not None:
            claim = replace(claim, error=rules.with_told(claim.error, told))
        read = ArtifactsRead(attempt.number, head, snapshot.asked_at, claim, beats, fresh, told)
        return Reading(read, metrics, heartbeat, tuple(notes))

    async def _told(self, attempt: Attempt, head: str, notes: list[str]) -> str:
        """What a worker that uploads for itself wrote about its failure. Words only: not worth waiting for."""
        path = f"{self._terms.prefix}/error_{self._terms.phase}.txt"
        try:
            answer = await self._hub.read(self._terms.repo, head, path, wire.MAX_ERROR_FILE_BYTES)
            if isinstance(answer, Present) and await self._changed(attempt.head or None, head, path):
                return wire.error_text(answer.body)
        except HubError as error:
            notes.append(f"error file: {error}")
        return ""

    async def _changed(self, base_head: str | None, head: str, path: str) -> bool:
        """Whether the file is there and came after `base_head`. Not so when the history up to that was rewritten."""
        try:
            return (await self._watcher.changed_since(base_head, head, (path,))).get(path, False)
        except HubUnavailableError as error:
            if error.code == REVISION_GONE:
                return False
            raise

    async def _claim(self, attempt: Attempt | PastAttempt, head: str, notes: list[str]) -> Claim | None:
        marker = await self._marker(attempt, head)
        if isinstance(marker, wire.Invalid):
            notes.append(f"marker: {marker.reason}")
        elif marker is not None and rules.marker_is_of(marker, attempt):
            return rules.marker_claim(marker, head, self._clock.now())
        return await self._done(attempt, head)

    async def _marker(self, attempt: Attempt | PastAttempt, head: str) -> wire.Marker | wire.Invalid | None:
        path = marker_path(self._terms.prefix, attempt.place.provider, attempt.number)
        match await self._hub.read(self._terms.repo, head, path, wire.MAX_MARKER_BYTES):
            case Present(body):
                return wire.parse_marker(body)
            case TooLarge(size):
                return wire.Invalid(wire.Wrong.TOO_LARGE, f"{size} bytes; at most {wire.MAX_MARKER_BYTES}")
            case Absent():
                return None

    async def _done(self, attempt: Attempt | PastAttempt, head: str) -> Claim | None:
        path = f"{self._terms.prefix}/DONE"
        answer: ReadAnswer = await self._hub.read(self._terms.repo, head, path, 1024)
        if isinstance(answer, Absent):
            return None
        if not await self._changed(attempt.head or None, head, path):
            return None
        commit = await self._watcher.last_change(attempt.head or None, head, path)
        if commit is not None and not rules.done_counts(parse_commit_title(commit.title), attempt):
            return None
        return Claim(evidence=Evidence.DONE, ok=True, commit=head, seen_at=self._clock.now())

    async def _claimed_metrics(
        self, attempt: Attempt | PastAttempt, claim: Claim, head: str
    ) -> tuple[MetricsState, Metrics | None]:
        path = f"{self._terms.prefix}/metrics.json"
        if claim.evidence is Evidence.DONE and not await self._changed(attempt.head or None, head, path):
            return MetricsState.ABSENT, None
        return await self._metrics(head)

    async def _metrics(self, head: str) -> tuple[MetricsState, Metrics | None]:
        path = f"{self._terms.prefix}/metrics.json"
        try:
            answer = await self._hub.read(self._terms.repo, head, path, wire.MAX_METRICS_BYTES)
        except HubError:
            return MetricsState.UNREADABLE, None
        if not isinstance(answer, Present):
            return MetricsState.ABSENT, None
        parsed = wire.parse_metrics(answer.body)
        if isinstance(parsed, wire.Invalid):
            return MetricsState.ABSENT, None
        return MetricsState.PRESENT, metrics_of(parsed.value, path, head, parsed.size)

    async def _heartbeat(self, attempt: Attempt, head: str, notes: list[str]) -> wire.Heartbeat | None:
        path = f"{self._terms.prefix}/heartbeat.json"
        answer = await self._hub.read(self._terms.repo, head, path, wire.MAX_HEARTBEAT_BYTES)
        if not isinstance(answer, Present):
            return None
        beat = wire.parse_heartbeat(answer.body)
        if isinstance(beat, wire.Invalid):
            notes.append(f"heartbeat: {beat.reason}")
            return None
        after = bool(beat.token) or await self._changed(attempt.head or None, head, path)
        return beat if rules.heartbeat_is_of(beat, attempt, after_intent=after) else None
