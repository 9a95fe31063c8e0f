"""A provider that lies, lags, loses its answers or breaks off: no machine is doubled, leaked or touched wrongly."""

from __future__ import annotations

from pathlib import Path

from flashd.sim.cloud_faults import Effect, Fault
from tests.attack.siege import audit, request, siege, until_ready

CREATE = "/core/virtual-machines$"


async def test_a_box_that_ends_before_its_launch_is_found_is_heard_at_once(short_path: Path) -> None:
    """What it committed while the launch was unknown must not wait for the limit on silence (here 60 s)."""
    async with siege(short_path) as house:
        await until_ready(house)
        house.cloud.faults.add(Fault(Effect.LIST_LAG, method="POST", path=CREATE, seconds=2.5, times=1))
        house.cloud.faults.add(Fault(Effect.APPLIED_STATUS, method="POST", path=CREATE, status=504, times=1))
        await house.submit(request("quick"))
        await house.until_released(["quick"], 15)
        assert len(house.machines_of("quick")) == 1
        await audit(house, ["quick"])
