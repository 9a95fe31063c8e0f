"""The Hub's 128 commits an hour, shared by fourteen runs of a day in one repository."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashd.core import artifacts as rules
from flashd.core.model import Claim, Evidence, MetricsState, State
from flashd.wire.commit_title import parse_commit_title
from tests.bootstrap.daemon_view import Story, conclusion
from tests.bootstrap.fleet_of_boxes import REPO, START, Box, Fleet
from tests.core.kit import T0, booting

RUNS = 14
DAY_S = 86_400.0
QUOTA = 128
SILENCE_COUNTS_BELOW = int(0.8 * QUOTA)  # beyond it the daemon takes silence for no evidence any more


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """In memory where there is such a place: twenty thousand heartbeats are written."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as directory:
        yield Fleet(Path(directory))


def boxes(fleet: Fleet, spread_s: float, lasts_s: float) -> list[Box]:
    return [fleet.box(number, START + spread_s * number, lasts_s) for number in range(RUNS)]


def verdict_of(fleet: Fleet, box: Box) -> State:
    """What the daemon, seeing these commits and nothing else of the box, makes of the run."""
    commits = [one for one in fleet.hub.repo(REPO).commits if f"run={box.job.run_id} " in one.title]
    beats = []
    for one in commits:
        title = parse_commit_title(one.title)
        assert title is not None, one.title
        beats.append(rules.beat_of_title(title, T0 + one.time - box.starts_at))
    assert box.ended_at is not None
    claim = Claim(Evidence.MARKER, True, commits[-1].id, 0.0, metrics=MetricsState.PRESENT)
    story = Story(
        active_s=0.0,
        beats=tuple(beat for beat in beats if beat is not None),
        claimed_s=box.ended_at - box.starts_at,
        claim=claim,
    )
    return conclusion(story, booting(max_wall_s=DAY_S)).state


@pytest.mark.parametrize(
    ("spread_s", "lasts_s"), [(0.0, DAY_S), (60.0, DAY_S / 4)], ids=["a day, all at once", "a shift, one by one"]
)
def test_fourteen_runs_stay_within_the_quota_and_none_seems_stalled(
    fleet: Fleet, spread_s: float, lasts_s: float
) -> None:
    fourteen = boxes(fleet, spread_s, lasts_s)
    fleet.run()
    assert fleet.refused == 0
    assert fleet.most_commits_in_an_hour() <= QUOTA
    assert all(box.ended_at is not None and box.ended_at - box.ends_at < 100 for box in fourteen)
    assert {verdict_of(fleet, box) for box in fourteen} == {State.SUCCEEDED}
    for box in fourteen:
        titles = [title for title in fleet.hub.titles(REPO) if f"run={box.job.run_id} " in title]
        assert sum("event=checkpoint" in title for title in titles) >= 40 * lasts_s / DAY_S
        assert sum("event=heartbeat" in title for title in titles) >= 70 * lasts_s / DAY_S


def test_a_repository_that_others_fill_up_still_gets_every_end(fleet: Fleet) -> None:
    """Somebody else commits 70 times an hour: heartbeats give way, no end is lost, and none is made twice."""
    fourteen = boxes(fleet, 20.0, DAY_S / 3)

    def somebody() -> float | None:
        fleet.hub.commit_quota.note(REPO, fleet.now)
        return 51.0 if fleet.now < START + 0.4 * DAY_S else None

    fleet.at(START, somebody)
    fleet.run()
    assert fleet.refused > 0
    assert all(box.ended_at is not None and box.ended_at - box.ends_at < 1_800 for box in fourteen)
    ends = [title for title in fleet.hub.titles(REPO) if "event=end" in title]
    assert len(ends) == len(set(ends)) == RUNS


def test_twenty_short_runs_an_hour_fit_and_sixty_end_late_but_all_of_them(fleet: Fleet) -> None:
    """The daemon holds launches back long before sixty; the boxes do not rely on it."""
    few = [fleet.box(number, START + 180 * number, 480.0) for number in range(40)]
    fleet.run()
    assert fleet.refused == 0
    assert all(box.ended_at is not None and box.ended_at - box.ends_at < 100 for box in few)
    later = fleet.now + 7_200
    many = [fleet.box(100 + number, later + 60 * number, 480.0) for number in range(60)]
    fleet.run()
    assert fleet.refused > 0
    assert all(box.ended_at is not None and box.ended_at - box.ends_at < 3_700 for box in many)


def test_the_first_training_step_is_told_at_once_and_life_goes_on_without_progress(fleet: Fleet) -> None:
    box = fleet.box(0, START, 3_600.0)
    fleet.run()
    beats = [one for one in fleet.hub.repo(REPO).commits if "event=heartbeat" in one.title]
    assert beats[0].time - box.starts_at <= box.job.first_commit_after_s + 90 + 60
    assert "stage=train step=" in beats[0].title
    gaps = [later.time - earlier.time for earlier, later in itertools.pairwise(beats)]
    assert min(gaps) >= box.job.commit_interval_s
