"""What the daemon concludes of one attempt, by the rules of the core alone, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass

from flashd.core.actions import Decision, ReadArtifacts, ReadMachine
from flashd.core.lifecycle import decide
from flashd.core.machines import Machine, MachinePhase
from flashd.core.model import Attempt, Claim, Reason, Run, State
from flashd.core.observations import (
    ArtifactsRead,
    Beat,
    FleetSeen,
    HubUnreadable,
    MachineRead,
    Observation,
    TimePassed,
)
from tests.core.kit import T0, tick

LIST_INTERVAL_S = 15.0
MAX_STEPS = 20_000
MISSING = None


@dataclass(frozen=True)
class Story:
    """What there is to see of a machine, in seconds after its create call. `claim`: what the artifacts say from
    `claimed_s` on. `lost`: from then on the provider shows it so, MISSING = not at all."""

    active_s: float | None = 120.0
    beats: tuple[Beat, ...] = ()
    claimed_s: float = 0.0
    claim: Claim | None = None
    lost: tuple[float, MachinePhase | None] | None = None
    hub_away: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Verdict:
    """`reason` None = succeeded; `again`: another attempt follows; `billed_s`: create call to release."""

    state: State
    reason: Reason | None
    again: bool
    billed_s: float
    detail: str


def beat(at_s: float, stage: str = "", step: int | None = None, *, liveness: bool = False) -> Beat:
    return Beat(stage, step, liveness, T0 + at_s)


def conclusion(story: Story, run: Run) -> Verdict:
    """Live through the story until the rules end the attempt of `run`, whose machine was made at T0."""
    return _Daemon(story, run).verdict()


class _Daemon:
    """Looks at the story as often as the daemon does, and answers what the core asks for."""

    def __init__(self, story: Story, run: Run) -> None:
        assert run.attempt is not None
        self._story = story
        self._now = T0
        self._name = run.attempt.name
        self._attempt: Attempt = run.attempt
        self._decision = Decision(run)
        self._released_at: float | None = None
        self._told_beats = 0
        self._happenings = _happenings(story)

    def verdict(self) -> Verdict:
        for _ in range(MAX_STEPS):
            for look in (self._fleet, self._news, TimePassed):
                self._decide(look())
            run = self._decision.run
            if run.attempt is None or run.is_over:
                return self._told(run)
            wakes = [at for at in (self._decision.wake_at, *self._happenings) if at is not None]
            self._now = min([at for at in wakes if at > self._now], default=self._now + LIST_INTERVAL_S)
        raise AssertionError("the attempt never ends")

    def _told(self, run: Run) -> Verdict:
        assert self._released_at is not None, "the machine was not handed to the releaser"
        billed_s = self._released_at - T0
        if run.end is not None:
            reason = run.end.reason if run.state is not State.SUCCEEDED else None
            return Verdict(run.state, reason, False, billed_s, run.end.detail)
        return Verdict(run.state, run.history[-1].reason, True, billed_s, run.history[-1].detail)

    def _decide(self, seen: Observation) -> None:
        """One observation, and the answers to what the decision asks for."""
        for _ in range(10):
            run = self._decision.run
            if run.attempt is None or run.is_over:
                return
            self._attempt = run.attempt
            self._decision = decide(run, seen, tick(self._now, hub_blind=self._blind_s))
            save = self._decision.save
            if save is not None and self._name in save.release and self._released_at is None:
                self._released_at = self._now
            answers = {ReadArtifacts: self._fresh, ReadMachine: self._machine}
            asked = [answers[type(act)] for act in self._decision.acts if type(act) in answers]
            if not asked:
                return
            seen = asked[0]()
        raise AssertionError("the core asks without end")

    # What there is to see ---------------------------------------------------------------------------------------------

    @property
    def _passed_s(self) -> float:
        return self._now - T0

    @property
    def _blind_s(self) -> float:
        away, back = self._story.hub_away
        return max(0.0, min(self._passed_s, back) - away)

    def _shown(self) -> Machine | None:
        story, phase = self._story, MachinePhase.PENDING
        if story.active_s is not None and self._passed_s >= story.active_s:
            phase = MachinePhase.RUNNING
        if story.lost is not None and self._passed_s >= story.lost[0]:
            if story.lost[1] is MISSING:
                return None
            phase = story.lost[1]
        return Machine("77", self._name, phase, phase.value.upper(), T0)

    def _fleet(self) -> Observation:
        return FleetSeen(self._shown(), self._now)

    def _machine(self) -> Observation:
        return MachineRead(self._shown())

    def _news(self) -> Observation:
        return self._read(fresh=False)

    def _fresh(self) -> Observation:
        return self._read(fresh=True)

    def _read(self, *, fresh: bool) -> Observation:
        away, back = self._story.hub_away
        if away <= self._passed_s < back:
            return HubUnreadable()
        claim = self._story.claim if self._passed_s >= self._story.claimed_s else None
        seen = sum(one.at <= self._now for one in self._story.beats)
        beats = self._story.beats[0 if fresh else self._told_beats : seen]
        self._told_beats = seen
        return ArtifactsRead(self._attempt.number, "e" * 40, self._now, claim, beats, fresh)


def _happenings(story: Story) -> tuple[float, ...]:
    """When something changes, in order, and the first looks at the machine list after it was lost."""
    lost = [] if story.lost is None else [story.lost[0] + LIST_INTERVAL_S * n for n in range(5)]
    moments = [story.active_s or 0.0, story.claimed_s, *story.hub_away, *lost]
    return tuple(sorted({*(T0 + moment for moment in moments), *(one.at for one in story.beats)}))
