"""Ready, alive, or neither: what each age means for /readyz and for systemd's watchdog."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashd.daemon.health import NEVER, ObserverPulse, Pulse

CLOUD = ObserverPulse("hyperstack", list_s=5.0, turn_s=5.0, late_s=60.0, stuck_s=660.0)
WELL = Pulse(
    leading=True,
    recovered=True,
    lease_turn_s=5.0,
    intake_pass_s=1.0,
    intake_turn_s=1.0,
    releaser_pass_s=3.0,
    observers=(CLOUD,),
)
BLIND = replace(CLOUD, list_s=3600.0, turn_s=30.0, problem="provider_unreachable")

READY: dict[str, tuple[Pulse, str]] = {
    "all loops pass": (WELL, ""),
    "nothing has happened yet": (Pulse(), "starting"),
    "Redis is down": (replace(WELL, redis_down=True), "redis_down"),
    "Redis does not answer the intake": (replace(WELL, intake_interrupted=True, intake_pass_s=12.0), "redis_down"),
    "Redis hiccups": (replace(WELL, intake_interrupted=True, intake_pass_s=2.0), ""),
    "another daemon leads": (Pulse(other="host-2"), "standby"),
    "machines are being adopted": (replace(WELL, recovered=False), "starting"),
    "Redis has forgotten": (replace(WELL, safe_mode=True), "safe_mode"),
    "the intake does not get through": (replace(WELL, intake_pass_s=61.0), "intake_stalled"),
    "the intake has not begun": (replace(WELL, intake_pass_s=NEVER), "intake_stalled"),
    "the releaser is stuck": (replace(WELL, releaser_pass_s=61.0), "releaser_stalled"),
    "the provider is away": (replace(WELL, observers=(BLIND,)), "observer_stalled: hyperstack: provider_unreachable"),
    "the provider was not read yet": (
        replace(WELL, observers=(replace(CLOUD, list_s=NEVER),)),
        "observer_stalled: hyperstack: no complete list yet",
    ),
    "a list as old as a long poll interval": (replace(WELL, observers=(replace(CLOUD, list_s=150, late_s=360.0),)), ""),
}
MOVING: dict[str, tuple[Pulse, bool]] = {
    "all loops pass": (WELL, True),
    "an hour of provider outage": (replace(WELL, observers=(BLIND,)), True),
    "a long Retry-After after a slow list": (replace(WELL, observers=(replace(BLIND, turn_s=600.0),)), True),
    "the observer is stuck": (replace(WELL, observers=(replace(BLIND, turn_s=661.0),)), False),
    "Redis does not answer, the intake keeps asking": (replace(WELL, intake_pass_s=900.0, intake_turn_s=4.0), True),
    "the intake is stuck": (replace(WELL, intake_turn_s=61.0), False),
    "the releaser is stuck": (replace(WELL, releaser_pass_s=61.0), False),
    "not ready for safe mode": (replace(WELL, safe_mode=True), True),
    "just started": (Pulse(), False),
    "waits for Redis at the start": (Pulse(lease_turn_s=2.0), True),
    "a standby": (Pulse(other="host-2", lease_turn_s=20.0), True),
    "a standby that does not look any more": (Pulse(other="host-2", lease_turn_s=61.0), False),
    "a long recovery": (replace(WELL, recovered=False, releaser_pass_s=NEVER, intake_turn_s=NEVER), True),
    "a long lease is renewed rarely": (Pulse(other="host-2", lease_turn_s=80.0, lease_stale_s=300.0), True),
}


@pytest.mark.parametrize("row", READY)
def test_readyz_names_what_is_wrong(row: str) -> None:
    pulse, reason = READY[row]
    assert pulse.reason == reason


@pytest.mark.parametrize("row", MOVING)
def test_the_watchdog_is_fed_while_the_loops_turn(row: str) -> None:
    pulse, moving = MOVING[row]
    assert pulse.is_moving is moving


def test_ages_are_of_completed_passes() -> None:
    pulse = replace(WELL, observers=(replace(BLIND, list_s=NEVER),))
    assert pulse.ages == {"intake": 1.0, "releaser": 3.0, "observer_hyperstack": None}
