"""The effects of a launch: getting ready (repository, code, spec), the create call, the look-up by name.

Answers are typed; what they mean for the run is the core's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import structlog

from flashd.adapters.userdata import render_user_data
from flashd.core import cooling
from flashd.core.launching import new_attempt
from flashd.core.model import Attempt, Reason, Run
from flashd.core.names import launch_label, machine_name
from flashd.core.observations import (
    Granted,
    HubUnreadable,
    LateSuccess,
    LaunchUnknown,
    LookedUp,
    LookUpFailed,
    Made,
    MustWait,
    NameTaken,
    NotSent,
    PostOutcome,
    RefusedForSure,
    Throttled,
    Tick,
)
from flashd.core.placement import Pause
from flashd.core.places import RefusalKind
from flashd.daemon.announce import Metrics
from flashd.daemon.artifacts import ArtifactReader
from flashd.daemon.boot import SPEC_FILE, MissingSecretError, payload_of
from flashd.daemon.desk import Cloud, Desk
from flashd.daemon.mailbox import Grant
from flashd.daemon.watcher import RepoSnapshot, RepoWatcher
from flashd.errors import (
    AmbiguousLaunchError,
    AuthError,
    CapacityError,
    ForbiddenError,
    HubError,
    HubForbiddenError,
    HubRepoMissingError,
    NameTakenError,
    NoCreditError,
    NotSentError,
    PayloadTooLargeError,
    ProviderError,
    RateLimitedError,
    RejectedError,
)
from flashd.providers.base import LaunchOrder
from flashd.wire.payload import encode_spec
from flashd.wire.request_model import RunRequest

log = structlog.get_logger(__name__)

TOKEN_BYTES = 16
RESULTS: dict[type[PostOutcome], str] = {
    Made: "made",
    RefusedForSure: "refused",
    NotSent: "not_sent",
    Throttled: "throttled",
    NameTaken: "name_taken",
    LaunchUnknown: "unknown",
}
PAUSE_RETRY_S = 60.0  # a refused credential, and an account without credit, are looked at again every minute
HUB_RETRY_S = 15.0


@dataclass(frozen=True, slots=True)
class Found:
    """No launch is needed: an earlier attempt succeeded after all."""

    success: LateSuccess
    metrics: Metrics


class Launcher:
    """Launch effects of one run."""

    def __init__(self, desk: Desk, request: RunRequest, watcher: RepoWatcher, reader: ArtifactReader) -> None:
        self._desk = desk
        self._request = request
        self._watcher = watcher
        self._reader = reader

    async def get_ready(self, run: Run, grant: Grant, tick: Tick) -> Granted | Found | MustWait:
        """Read the head, look for a late success, pin the code, spill the spec; the Hub must answer for all of it."""
        try:
            snapshot = await self._head(run)
            if (found := await self.find_late_success(run, snapshot)) is not None:
                return found
            revision = run.code_revision or await self._pin_code(run)
            granted = self._granted(run, grant, snapshot, revision)
            await self._spill(run, granted, tick)
        except HubForbiddenError as error:
            return self._hub_wait(Reason.HUB_FORBIDDEN, error)
        except HubError as error:
            return self._hub_wait(Reason.HUB_UNREACHABLE, error)
        except (MissingSecretError, PayloadTooLargeError) as error:
            return MustWait(Reason.AUTH, next_try_at=self._desk.clock.now() + PAUSE_RETRY_S, detail=str(error))
        return granted

    async def find_late_success(self, run: Run, snapshot: RepoSnapshot) -> Found | None:
        """The newest earlier attempt that said itself that it succeeded, with readable metrics. Raises HubError."""
        next_head = None
        for past in reversed(run.history):
            if past.machine_id is None and past.name not in self._desk.ledger.rows:
                continue
            late = await self._reader.late_success(past, snapshot, next_head)
            next_head = past.head
            if late is not None:
                claim, metrics = late
                return Found(LateSuccess(past.number, claim), metrics)
        return None

    async def late_success(self, run: Run) -> Found | HubUnreadable | None:
        """As above, at a head asked for now."""
        try:
            return await self.find_late_success(run, await self._watcher.fresh_head(self._desk.clock.now()))
        except HubError as error:
            return HubUnreadable(detail=str(error))

    async def post(self, run: Run, attempt: Attempt) -> PostOutcome:
        """The create call, once. The lease and the drain are looked at right before it leaves."""
        desk = self._desk
        cloud = desk.clouds[attempt.place.provider]
        try:
            payload = payload_of(run, attempt, self._request, desk.boot)
            order = LaunchOrder(
                name=attempt.name,
                place=attempt.place,
                user_data=render_user_data(payload),
                labels=(f"launch={launch_label(attempt.token)}", f"until={int(attempt.deadline_at)}"),
                timeout_s=desk.policy.launch_timeout_s,
                guard=self._guard,
            )
            if not await cloud.is_of(attempt.place.account):
                return NotSent("the key was replaced by one of another account")
        except (MissingSecretError, PayloadTooLargeError, ProviderError) as error:
            return NotSent(str(error))
        outcome = await self._create(cloud, order)
        desk.tally.launched(cloud.provider.name, RESULTS[type(outcome)])
        self._learn(attempt, outcome)
        if isinstance(outcome, Made):
            cloud.made_at = desk.clock.now()
        if isinstance(outcome, RefusedForSure) and outcome.itself:
            others = cooling.took_others(desk.places.of(attempt.place.key), self._request.run_id)
            return replace(outcome, itself=others)
        return outcome

    def _learn(self, attempt: Attempt, outcome: PostOutcome) -> None:
        """What the answer says about the place; written down with the next notes."""
        desk, key, run_id = self._desk, attempt.place.key, self._request.run_id
        health, now, cooldown_s = desk.places.of(key), desk.clock.now(), desk.policy.cooldown_s
        match outcome:
            case Made():
                desk.places.set(key, cooling.made(health, run_id, now))
            case RefusedForSure(RefusalKind.NO_STOCK):
                desk.places.set(key, cooling.out_of_stock(health, now, cooldown_s))
            case RefusedForSure(RefusalKind.REFUSED):
                desk.places.set(key, cooling.refused(health, run_id, now, cooldown_s))
            case _:
                return

    def _guard(self) -> None:
        desk = self._desk
        if not desk.lease.covers(desk.policy.launch_timeout_s):
            raise NotSentError("the leader's lease does not cover the create call")
        if desk.safe_mode or desk.draining:
            raise NotSentError("launches are held")

    async def _create(self, cloud: Cloud, order: LaunchOrder) -> PostOutcome:
        try:
            launched = await cloud.provider.launch(order)
        except NotSentError as error:
            return NotSent(error.text)
        except RateLimitedError as error:
            return Throttled(error.retry_after_s)
        except NameTakenError:
            return NameTaken()
        except NoCreditError as error:
            self._pause(cloud, Reason.NO_CREDIT, error)
            return RefusedForSure(RefusalKind.PAUSED, error.text, itself=False)
        except (AuthError, ForbiddenError) as error:
            self._pause(cloud, Reason.AUTH, error)
            return RefusedForSure(RefusalKind.PAUSED, error.text, itself=False)
        except CapacityError as error:
            return RefusedForSure(RefusalKind.NO_STOCK, error.text, itself=False)
        except RejectedError as error:
            return RefusedForSure(RefusalKind.REFUSED, error.text, itself=True)
        except AmbiguousLaunchError as error:
            return LaunchUnknown(error.text)
        except ProviderError as error:
            return LaunchUnknown(str(error))
        return Made(launched.machine_id)

    def _pause(self, cloud: Cloud, reason: Reason, error: ProviderError) -> None:
        cloud.pause = Pause(reason, error.text, self._desk.clock.now() + PAUSE_RETRY_S)
        log.error("launches_paused", provider=cloud.provider.name, reason=reason.value, error=str(error))

    async def look_up(self, attempt: Attempt) -> LookedUp | LookUpFailed:
        """The attempt's name at its provider."""
        cloud = self._desk.clouds[attempt.place.provider]
        try:
            if not await cloud.is_of(attempt.place.account):
                return LookUpFailed()
            return LookedUp(await cloud.provider.find(attempt.name))
        except ProviderError as error:
            log.warning("look_up_failed", machine=attempt.name, error=str(error))
            return LookUpFailed()

    # Getting ready ---------------------------------------------------------------------------------------------------

    async def _head(self, run: Run) -> RepoSnapshot:
        try:
            return await self._watcher.fresh_head(self._desk.clock.now())
        except HubRepoMissingError:
            await self._desk.hub.ensure_repo(run.terms.repo)
            self._watcher.retry_now()
            return await self._watcher.fresh_head(self._desk.clock.now())

    async def _pin_code(self, run: Run) -> str:
        code = self._request.hub.code
        commit = await self._desk.hub.resolve(code.repo or run.terms.repo, code.revision)
        return commit or code.revision

    def _granted(self, run: Run, grant: Grant, snapshot: RepoSnapshot, revision: str) -> Granted:
        desk = self._desk
        return Granted(
            place=grant.offer.place,
            name=machine_name(desk.ns, run.terms.run_id, run.next_number),
            token=desk.random.randbytes(TOKEN_BYTES).hex(),
            head=snapshot.head or "",
            code_revision=revision,
            last_choice=grant.last_choice,
        )

    async def _spill(self, run: Run, granted: Granted, tick: Tick) -> None:
        """Commit a spec that is too large for the payload; nothing is launched before it is there."""
        pinned = replace(run, code_revision=granted.code_revision)
        attempt = new_attempt(run, granted, tick)
        if payload_of(pinned, attempt, self._request, self._desk.boot).spec_in_hub:
            title = f"flashd run={run.terms.run_id} seed={run.terms.seed} spec"
            files = {f"{run.terms.prefix}/{SPEC_FILE}": encode_spec(self._request.spec)}
            await self._desk.hub.commit(run.terms.repo, title, files)

    def _hub_wait(self, reason: Reason, error: HubError) -> MustWait:
        return MustWait(reason, next_try_at=self._desk.clock.now() + HUB_RETRY_S, detail=str(error))
