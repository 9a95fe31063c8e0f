"""A provider that lies, lags, loses its answers or breaks off: no machine is doubled, leaked or touched wrongly."""

from __future__ import annotations

from pathlib import Path

from flashd.sim.cloud_faults import Effect, Fault
from flashd.sim.cloud_types import Planting
from flashd.sim.demo_daemon import Sections
from tests.attack.siege import Pardon, audit, request, siege, until, until_ready

CREATE = "/core/virtual-machines$"
QUICK_SWEEP: Sections = {
    "policy": {"launch_timeout_s": 1, "launch_settle_s": 1},
    "sweep": {"grace_s": 2, "initial_interval_s": 1, "interval_s": 1},
}


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


async def test_a_create_answered_with_the_id_of_another_machine_touches_neither(short_path: Path) -> None:
    """Neither a stranger's machine nor another run's is deleted for it; the machine that was made is an orphan."""
    async with siege(short_path, QUICK_SWEEP) as house:
        await until_ready(house)
        await house.submit(request("victim", seconds=3.0))
        await until(lambda: house.machines_of("victim"), what="the victim's machine")
        foreign = house.cloud.plant(Planting("somebody-else", age_s=5000))
        for run_id, other in (("thief", house.machines_of("victim")[0].id), ("liar", foreign.id)):
            house.cloud.faults.add(
                Fault(Effect.SHOW, method="POST", path=CREATE, name=f"-{run_id}-", fields={"id": other})
            )
            await house.submit(request(run_id, seconds=0.3))
        await house.until_released(["thief", "liar", "victim"], 25)
        assert [len(house.machines_of(run_id)) for run_id in ("thief", "liar", "victim")] == [1, 1, 1]
        await until(lambda: len(house.cloud.living()) == 1, what="the machines that were made to be swept")
        await audit(house, ["thief", "liar", "victim"], Pardon(planted=frozenset({foreign.id})))
