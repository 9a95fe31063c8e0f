"""Hands out places: one pass over the waiting runs in order, against limits, budgets and the market."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import anyio
import structlog

from flashd.core.admission import RepoRoom, Room, held_back, order, repo_held_back
from flashd.core.cost import money_left
from flashd.core.ledger import Gone, LedgerRow, RowState
from flashd.core.model import Reason, Run
from flashd.core.observations import MustWait, NoMoneyLeft, NowherePossible
from flashd.core.placement import Chosen, Market, place
from flashd.core.places import Offer, Place
from flashd.daemon.desk import Desk
from flashd.daemon.mailbox import Grant, Mailbox
from flashd.daemon.market import MarketDesk

log = structlog.get_logger(__name__)

PASS_INTERVAL_S = 5.0
RETELL_S = 60.0  # an unchanged reason is told again, so that `status` shows fresh places
BUSY_PATIENCE_S = 30.0  # how long a run waits, in silence, for launches of others at the best place for it


@dataclass(slots=True)
class _Asker:
    run: Run
    mailbox: Mailbox
    gone: Mapping[str, Gone]
    since: float
    told: Reason | None = None
    told_at: float = float("-inf")


@dataclass(frozen=True, slots=True, eq=False)
class _Reservation:
    run_id: str
    repo: str
    place_key: str
    usd_per_hour: float


@dataclass(slots=True)
class _Taken:
    """What one pass counts with: rows that are not abandoned, and places granted and not yet in the ledger.

    `flying`: of the latter, by place. `asked`: create calls without an answer, by provider, region and GPU.
    """

    machines: int = 0
    usd_per_hour: float = 0.0
    runs_of_repo: Counter[str] = field(default_factory=Counter)
    flying: Counter[str] = field(default_factory=Counter)
    asked: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def under_way(self, place: Place) -> int:
        """Launches at the place that have no answer yet, as far as a row tells it from its neighbours."""
        return self.flying[place.key] + self.asked[place.provider, place.region, place.gpu]

    def add(self, item: _Reservation) -> None:
        self.machines += 1
        self.usd_per_hour += item.usd_per_hour
        self.runs_of_repo[item.repo] += 1
        self.flying[item.place_key] += 1


class AdmissionDesk:
    """The waiting runs and the places granted but not yet in the ledger."""

    def __init__(self, desk: Desk, runs_per_repo: int) -> None:
        self._desk = desk
        self._runs_per_repo = runs_per_repo
        self._market = MarketDesk(desk)
        self._askers: dict[str, _Asker] = {}
        self._reserved: dict[_Reservation, None] = {}  # in the order of granting
        self._kick = anyio.Event()
        self._repo_of: dict[str, str] = {}
        desk.ledger.on_change.append(self._on_row)

    @property
    def waiting(self) -> int:
        return len(self._askers)

    @property
    def market(self) -> MarketDesk:
        return self._market

    def ask(self, run: Run, mailbox: Mailbox, gone: Mapping[str, Gone]) -> None:
        """Put the run into the queue; asking again only updates it."""
        run_id = run.terms.run_id
        known = self._askers.get(run_id)
        if known is None:
            self._askers[run_id] = _Asker(run, mailbox, gone, self._desk.clock.now())
        else:
            known.run, known.mailbox, known.gone = run, mailbox, gone
        self._repo_of[run_id] = run.terms.repo
        if known is None:
            self._kick.set()

    def withdraw(self, run_id: str) -> None:
        self._askers.pop(run_id, None)

    def forget(self, run_id: str) -> None:
        """The run is over and released."""
        self._repo_of.pop(run_id, None)

    def know(self, run: Run) -> None:
        """A run that was not asking since this daemon leads: its machine counts for its repository."""
        self._repo_of[run.terms.run_id] = run.terms.repo

    async def serve(self) -> None:
        """Pass after pass, at every change and every few seconds, until cancelled."""
        while True:
            self._kick = anyio.Event()
            if self._askers:
                await self._pass()
            with anyio.move_on_after(PASS_INTERVAL_S):
                await self._kick.wait()

    async def _pass(self) -> None:
        held = self._held()
        market = Market() if held is not None else await self._market.look()
        taken = self._taken()
        for asker in sorted(self._askers.values(), key=lambda asker: order(asker.run)):
            if asker.run.terms.run_id not in self._askers:
                continue  # it withdrew while the market was being read
            if held is not None:
                self._tell(asker, held)
            else:
                self._serve_one(asker, market, taken)

    def _held(self) -> MustWait | None:
        if self._desk.safe_mode:
            return MustWait(Reason.LEDGER, detail=self._desk.safe_mode)
        if self._desk.draining:
            return MustWait(Reason.DRAINING, detail="the daemon is draining")
        return None

    def _serve_one(self, asker: _Asker, market: Market, taken: _Taken) -> None:
        run, now = asker.run, self._desk.clock.now()
        repo = self._repo_room(run.terms.repo, taken)
        if (why := repo_held_back(repo)) is not None:
            text = f"{run.terms.repo}: {repo.live_runs} of {repo.runs_max} live runs, commit budget "
            self._tell(asker, MustWait(why, detail=text + ("left" if repo.has_commit_budget else "nearly spent")))
            return
        seen = self._with_full_places(market, taken, patient=now < asker.since + BUSY_PATIENCE_S)
        answer = place(run, seen, money_left(run, asker.gone, now), now)
        match answer:
            case Chosen(busy=True):
                return  # an answered launch starts the next pass
            case Chosen(offer, last_choice):
                room = self._room(taken)
                if (why := held_back(room, offer.place.usd_per_hour)) is not None:
                    self._tell(asker, MustWait(why, detail=_room_text(room)))
                    return
                reservation = _Reservation(run.terms.run_id, run.terms.repo, offer.place.key, offer.place.usd_per_hour)
                self._reserved[reservation] = None
                taken.add(reservation)
                self.withdraw(run.terms.run_id)
                asker.mailbox.put(Grant(offer, last_choice, lambda: self._give_back(reservation)))
            case MustWait():
                self._tell(asker, answer)
            case NoMoneyLeft() | NowherePossible():
                self.withdraw(run.terms.run_id)
                asker.mailbox.put(answer)

    def _tell(self, asker: _Asker, must: MustWait) -> None:
        now = self._desk.clock.now()
        if asker.told is must.reason and now < asker.told_at + RETELL_S:
            return
        asker.told, asker.told_at = must.reason, now
        asker.mailbox.put(must)

    def _give_back(self, reservation: _Reservation) -> None:
        self._reserved.pop(reservation, None)
        self._kick.set()

    def _on_row(self, _name: str, row: LedgerRow | None) -> None:
        """A machine's end makes room, and every answered create call lets the next ones at its place go."""
        if row is None or row.state in (RowState.ABANDONED, RowState.LIVE):
            self._kick.set()

    def _taken(self) -> _Taken:
        """What is taken at the beginning of a pass; the pass itself adds its grants."""
        taken, now = _Taken(), self._desk.clock.now()
        live: set[str] = set()
        for row in self._desk.ledger.counted():
            taken.machines += 1
            taken.usd_per_hour += row.usd_per_hour
            live.add(row.run_id)
            if row.state is RowState.REQUESTED and now < row.called_at + self._desk.policy.launch_timeout_s:
                taken.asked[row.provider, row.region, row.gpu] += 1
        taken.runs_of_repo = Counter(self._repo_of.get(run_id, "") for run_id in live)
        for item in self._reserved:
            taken.add(item)
        return taken

    def _room(self, taken: _Taken) -> Room:
        limits = self._desk.limits
        return Room(taken.machines, taken.usd_per_hour, limits.max_machines, limits.max_usd_per_hour)

    def _repo_room(self, repo: str, taken: _Taken) -> RepoRoom:
        watcher = self._desk.watchers.watchers().get(repo)
        has_budget = watcher is None or watcher.has_commit_budget(self._desk.clock.now())
        return RepoRoom(taken.runs_of_repo[repo], self._runs_per_repo, has_budget)

    def _width(self, offer: Offer) -> int:
        """Launches that may be under way at a place: what it proved to take, and no more than it shows."""
        width = self._desk.places.of(offer.place.key).width
        return max(1, min(width, offer.depth if offer.depth is not None else width))

    def _with_full_places(self, market: Market, taken: _Taken, *, patient: bool) -> Market:
        """Places with as many launches under way as they may have are busy; to an impatient run they cool."""
        if not taken.flying and not taken.asked:
            return market
        until = self._desk.clock.now() + PASS_INTERVAL_S
        full = {offer.place.key: until for offer in market.offers if taken.under_way(offer.place) >= self._width(offer)}
        if patient or not full:
            return replace(market, busy=frozenset(full))
        return replace(market, cooling={**market.cooling, **full})


def _room_text(room: Room) -> str:
    return (
        f"{room.machines} of {room.max_machines} machines, "
        f"${room.usd_per_hour:.2f}/h of ${room.max_usd_per_hour:.2f}/h are taken"
    )
