"""The bill, reckoned by the world from the statuses its machines went through, never from what a client believes.

ACTIVE and SHUTOFF are billed by the begun minute; building, power changes, DELETING, ERROR and HIBERNATED are not.
"""

from __future__ import annotations

import math

from flashd.sim.cloud_types import BILLED, Machine, Span, Status, Volume


def enter(machine: Machine, status: Status, at: float) -> None:
    """Close the machine's present span and begin one in `status`."""
    if machine.spans:
        machine.spans[-1].end = at
    machine.spans.append(Span(status, at, at if status is Status.GONE else None))
    machine.status = status


def seconds_in(machine: Machine, statuses: frozenset[Status], now: float) -> float:
    return sum(
        (now if span.end is None else span.end) - span.start for span in machine.spans if span.status in statuses
    )


def billed_minutes(machine: Machine, now: float) -> int:
    # Rounded first: the difference of two Unix times carries an error of about 1e-7 s.
    return math.ceil(round(seconds_in(machine, BILLED, now), 3) / 60)


def billed_usd(machine: Machine, now: float) -> float:
    return billed_minutes(machine, now) * machine.usd_per_hour / 60


def volume_minutes(volume: Volume, now: float) -> int:
    end = now if volume.gone_at is None else volume.gone_at
    return math.ceil(round(end - volume.created_at, 3) / 60)


def volume_usd(volume: Volume, now: float) -> float:
    return volume_minutes(volume, now) * volume.usd_per_hour / 60
