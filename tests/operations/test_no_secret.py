"""Canaries for every secret, the real process at level debug among faults that repeat what they were sent."""

from __future__ import annotations

import base64
import json
import signal
from pathlib import Path

import pytest

from flashd.sim.cloud_faults import Effect as CloudEffect
from flashd.sim.cloud_faults import Fault as CloudFault
from flashd.sim.harness import API_KEY, HF_BOX_TOKEN, HF_TOKEN
from flashd.sim.hub_faults import Effect as HubEffect
from flashd.sim.hub_faults import Fault as HubFault
from tests.e2e.fleet import FleetRun
from tests.operations.process import Operated, operated

pytestmark = pytest.mark.slow

RUN_SECRET = "canary-of-a-run-secret-0123456789"
LATE_SECRET = "canary-that-came-later-9876543210"
CANARIES = (API_KEY, HF_TOKEN, HF_BOX_TOKEN, RUN_SECRET, LATE_SECRET)


def forms(secret: str) -> list[str]:
    """The secret itself, and the part of its base64 that does not depend on what stands beside it."""
    return [secret, *(base64.b64encode(b"x" * shift + secret.encode()).decode()[4:-4] for shift in range(3))]


async def everything_told(on: Operated) -> str:
    _, status = await on.get("/statusz")
    _, ready = await on.get("/readyz")
    _, metrics = await on.get("/metrics")
    return "\n".join((on.log, json.dumps(status), json.dumps(ready), metrics))


async def test_no_secret_is_told_whatever_goes_wrong(short_path: Path) -> None:
    async with operated(short_path, {"log": {"level": "debug"}}) as on:
        house = on.house
        runs = short_path / "credentials" / "runs"
        (runs / "CANARY").write_text(f"{RUN_SECRET}\n")
        await house.daemon.start()
        await on.until_ready()

        # What comes back holds what was sent, as a proxy's error page may. The late one has not been sent yet.
        echo = " ".join(CANARIES[:-1])
        house.cloud.faults.add(
            CloudFault(CloudEffect.STATUS, method="GET", times=6, status=500, body={"message": echo})
        )
        house.cloud.faults.add(
            CloudFault(CloudEffect.STATUS, method="DELETE", times=2, status=500, body=f"<p>{echo}</p>")
        )
        house.hub.faults.add(HubFault(HubEffect.STATUS, times=1, status=503, json={"error": echo}))
        (runs / "LATE").write_text(LATE_SECRET)
        request = FleetRun("r1", ("preempted", "ok")).request()
        request["worker"]["secrets"] = ["CANARY", "LATE"]
        await house.submit(request)
        await house.submit({"run_id": "bad", "spec": {"token": HF_TOKEN}})
        await house.redis.xadd(house.key("requests"), {"request": f"{{{echo}"})
        await house.until_released(["r1"], 90.0)

        echo = " ".join(CANARIES)
        house.cloud.accounts.revoke(API_KEY)
        house.cloud.faults.add(CloudFault(CloudEffect.STATUS, times=3, status=401, body={"message": echo}))
        await on.until_alarm("provider_key_refused_hyperstack")
        on.reconfigure(hub={"endpoint": "no address"})
        on.signal(signal.SIGHUP)
        await on.until_alarm("configuration_refused")

        told = await everything_told(on)
        assert "level=debug" in told or "level=info" in told
        assert [form for secret in CANARIES for form in forms(secret) if form in told] == []
        assert '"user_data"' not in told and "cloud-config" not in told
