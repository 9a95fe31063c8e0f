"""A daemon that dies again and again at one entry: the entries behind it must not be taken for poison."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from flashd.daemon.intake import POISON_DELIVERIES, Intake
from tests.daemon.bench import request_text
from tests.daemon.test_intake import Consumer, a_consumer, queued, serving

BEHIND = [f"r{number}" for number in range(1, 10)]


class Killed(BaseException):
    """Stands for SIGKILL: no handler of the daemon's own sees it."""


def _die() -> Collection[str]:
    raise Killed


async def _dies_at_its_first_entry(consumer: Consumer) -> None:
    intake = Intake(consumer.desk, secret_names=_die, on_accepted=lambda *_: None, on_cancel=lambda *_: None)
    await consumer.lead()
    with pytest.raises(Killed):
        await intake.serve()


async def test_only_the_entry_in_hand_pays_for_deaths(redis_url: str) -> None:
    async with a_consumer(redis_url) as producer:
        for run_id in ["r0", *BEHIND]:
            await queued(producer, request_text(run_id))
    for number in range(POISON_DELIVERIES - 1):
        async with a_consumer(redis_url, f"{number:016x}") as consumer:
            await _dies_at_its_first_entry(consumer)
    async with serving(redis_url) as consumer:
        await consumer.until(lambda: consumer.ids == BEHIND)
        (record,) = await consumer.rejected()
        assert record["reason"] == "poison"
