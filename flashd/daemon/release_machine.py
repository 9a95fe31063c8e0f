"""One machine on its way out: DELETE until two GETs, some seconds apart, prove it gone under its own account."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import anyio
import structlog

from flashd.adapters.backoff import Backoff
from flashd.core.ledger import LedgerRow, RowState
from flashd.core.machines import Machine
from flashd.core.model import Reason
from flashd.core.placement import Pause
from flashd.daemon.desk import Cloud, Desk
from flashd.errors import AuthError, ProviderError, RateLimitedError
from flashd.providers.base import DeleteAnswer

log = structlog.get_logger(__name__)

HOLD_S = 5.0  # between two looks whether an act is allowed again
REISSUE_MIN_S = 30.0  # an accepted delete may stop without an error: it is sent again. Source: Hyperstack changelog
REISSUE_MAX_S = 60.0
FIRST_LOOK_S = 20.0  # without word from a listing; each look that finds the machine doubles it
LONGEST_LOOK_S = 60.0
ERROR_PAUSE_S = 5.0
ERROR_PAUSE_MAX_S = 60.0
FOREIGN_PAUSE_S = 60.0


@dataclass(slots=True)
class _Progress:
    delete_at: float = float("-inf")
    absent_since: float | None = None
    look_s: float = FIRST_LOOK_S


class MachineRelease:
    """Proves one machine of the ledger gone. It never gives up; it returns early only when the row is no more to do."""

    def __init__(self, desk: Desk, name: str, present: Callable[[], LedgerRow | None]) -> None:
        self._desk = desk
        self._name = name
        self._row = present
        self._progress = _Progress()
        self._backoff = Backoff(desk.random, ERROR_PAUSE_S, ERROR_PAUSE_MAX_S, spread=(0.75, 1.25))
        self._log = log.bind(machine=name)

    async def prove_gone(self) -> LedgerRow | None:
        """The row whose machine does not exist any more; None when the row is not `deleting` any more."""
        while True:
            row = self._row()
            if row is None or row.state is not RowState.DELETING or row.machine_id is None:
                return None
            try:
                if not await may_act(self._desk, row):
                    await anyio.sleep(HOLD_S)
                elif await self._step(row, row.machine_id):
                    return row
            except ProviderError as error:
                await self._after(error)

    async def _step(self, row: LedgerRow, machine_id: str) -> bool:
        """One round: a DELETE if one is due, a look, a wait. True = proved gone."""
        desk, progress, cloud = self._desk, self._progress, self._desk.clouds[row.provider]
        due = progress.absent_since is None and desk.clock.now() >= progress.delete_at
        if due and await self._may_delete(cloud, machine_id):
            await self._delete(cloud, machine_id)
        found = await self._get(cloud, machine_id)
        if found is not None:
            await self._still_there(cloud, found)
            return False
        now = desk.clock.now()
        if progress.absent_since is None:
            progress.absent_since = now
        elif now >= progress.absent_since + desk.policy.release_check_s:
            # The key may have been replaced between the two reads.
            return await may_act(desk, row)
        await anyio.sleep(progress.absent_since + desk.policy.release_check_s - now)
        return False

    async def _may_delete(self, cloud: Cloud, machine_id: str) -> bool:
        """An id is the provider's word, which may be wrong: a machine of another name is never deleted for it."""
        snapshot = cloud.observer.snapshot
        if snapshot is None:
            seen = await cloud.provider.get(machine_id)
        else:
            seen = snapshot.by_id.get(machine_id)
        listed_as_foreign = snapshot is not None and machine_id in snapshot.foreign_ids
        return not listed_as_foreign and (seen is None or seen.name == self._name)

    async def _get(self, cloud: Cloud, machine_id: str) -> Machine | None:
        """The row's machine; another one under its id proves that there is none."""
        found = await cloud.provider.get(machine_id)
        if found is None or found.name == self._name:
            return found
        self._log.error("machine_id_of_another", machine_id=machine_id, found=found.name)
        return None

    async def _delete(self, cloud: Cloud, machine_id: str) -> None:
        """One DELETE. None of its answers proves anything, and one that fails does not keep us from looking."""
        progress, now = self._progress, self._desk.clock.now
        try:
            answer = await cloud.provider.delete(machine_id)
        except (RateLimitedError, AuthError):
            raise
        except ProviderError as error:
            self._log.warning("machine_delete_failed", machine_id=machine_id, error=str(error))
            progress.delete_at = now() + self._backoff.next_s()
            return
        progress.delete_at = now() + self._desk.random.uniform(REISSUE_MIN_S, REISSUE_MAX_S)
        self._log.info("machine_delete_sent", machine_id=machine_id, answer=answer.value)
        if answer is not DeleteAnswer.NOT_FOUND:
            await self._until_unlisted(cloud, progress.look_s)

    async def _still_there(self, cloud: Cloud, found: Machine) -> None:
        progress = self._progress
        if progress.absent_since is not None:
            self._log.warning("machine_back", machine_id=found.id, status=found.raw_status)
        progress.absent_since = None
        until_delete_s = max(progress.delete_at - self._desk.clock.now(), 0.0)
        await self._until_unlisted(cloud, min(progress.look_s, until_delete_s))
        progress.look_s = min(progress.look_s * 2, LONGEST_LOOK_S)

    async def _until_unlisted(self, cloud: Cloud, seconds: float) -> None:
        """Wait; a complete list that lacks the machine ends it, as does one that shows it otherwise than before."""
        asked_at, changed = self._desk.clock.now(), anyio.Event()

        def look() -> None:
            snapshot = cloud.observer.snapshot
            if snapshot is not None and snapshot.started_at > asked_at and self._name not in snapshot.by_name:
                changed.set()

        subscription = cloud.observer.subscribe(self._name, look)
        try:
            with anyio.move_on_after(seconds):
                await changed.wait()
        finally:
            subscription.close()

    async def _after(self, error: ProviderError) -> None:
        self._log.warning("release_interrupted", error=str(error))
        pause_s = self._backoff.next_s()
        if isinstance(error, RateLimitedError):
            pause_s = max(pause_s, min(error.retry_after_s, ERROR_PAUSE_MAX_S))
        await anyio.sleep(pause_s)


async def may_act(desk: Desk, row: LedgerRow) -> bool:
    """Whether this process may delete and look under the account that made the row's machine. Raises ProviderError.

    Under another account's key a 404 proves nothing: its provider is paused until the right key is back.
    """
    cloud = desk.clouds.get(row.provider)
    if cloud is None:
        text = f"{row.name} was made there; configure it again"
        desk.alarms.incident(f"provider_missing_{row.provider}", text, desk.clock.now())
        return False
    if desk.safe_mode or not desk.lease.held:
        return False
    if await cloud.is_of(row.account):
        return True
    text = f"{row.name} belongs to account {row.account}, the key to {cloud.account}: put the former's key back"
    desk.alarms.set(another_account(row.provider), text)
    cloud.pause = Pause(Reason.AUTH, text, desk.clock.now() + FOREIGN_PAUSE_S)
    return False


def another_account(provider: str) -> str:
    """The alarm that machines of another account wait for its key."""
    return f"another_account_{provider}"
