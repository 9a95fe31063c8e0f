"""Requests and commands as no producer should send them: each gets its reason, and none stops the others."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.attack.siege import audit, check_no_secret, entries, request, siege, until_ready

TOKEN = "hf_" + "AbCdEf0123" * 4


def of(part: str, **changes: Any) -> bytes:
    """A good request with one part of it changed; part "" = the request itself."""
    good = request("bad")
    target = good.setdefault(part, {}) if part else good
    target.update(changes)
    return json.dumps(good).encode()


def raw(text: str) -> bytes:
    return ('{"run_id":"bad","spec":' + text + "}").encode()


REFUSED: dict[str, list[bytes]] = {
    "bad_json": [
        b"",
        b"hello",
        bytes(range(256)),
        b"\0" * 1000,
        b"[1]",
        b"null",
        b'{"run_id":"a"',
        b'{"run_id":"a","run_id":"b"}',
        b"\xef\xbb\xbf{}",
        of("").decode().encode("utf-16"),
        raw("NaN"),
        raw("-Infinity"),
        raw("1e400"),
        raw("9" * 5000),
        raw("[" * 100_000 + "]" * 100_000),
        raw("[" * 101 + "]" * 101),
        raw(r'"\ud800"'),
        rb'{"run_id":"bad","\udc00":1}',
    ],
    "too_large": [
        raw('"' + "a" * 300_000 + '"'),
        raw('"' + "a" * 2_000_000 + '"'),
        of("", spec="a" * 129 * 1024),
        of("worker", env={"A": "x" * 7000}),
        of("", labels={f"l{number}": "v" for number in range(255)}),
        of("", labels={"k" * 64: "v"}),
        of("", labels={"k": "v" * 129}),
        of("", group="\u00e9" * 65),
    ],
    "missing_field": [b"{}", b'{"run_id":"bad","gpu":{"class":"H100"}}', of("", mode="preload")],
    "unknown_field": [
        of("", runid="z"),
        of("gpu", clas="L40"),
        of("", **{"\u00fcnicode\u202e": 1}),
        of("", **{f"k{number}": 1 for number in range(5000)}),
    ],
    "bad_run_id": [
        of("", run_id=run_id)
        for run_id in (
            "..",
            "a/b",
            "a\n",
            "a" * 129,
            "",
            5,
            ["a"],
            None,
            "r\u00fcn",
            "a\u0661",
            "{a}",
            " a",
            "-a",
            "\0",
        )
    ],
    "bad_value": [
        *(of("", seed=seed) for seed in (9_999_999_999, -1, True, 1.5, "1", None)),
        *(of("", phase=phase) for phase in ("SFT", "../x", "", 5)),
        *(of("", schema=schema) for schema in (2, True, "1")),
        of("", mode="serve"),
        of("", gpu="H100"),
        of("", traceparent="zz"),
        of("", priority=101),
        of("", limits=[]),
        of("", labels={"k": 1}),
        of("", models=["../../x"]),
        of("gpu", **{"class": [1]}),
        *(of("gpu", max_usd_per_hour=price) for price in (0, -1, True, "1")),
        *(
            of("hub", repo=repo)
            for repo in ("nope", "../x", "a/b?x=1", "a/b#c", "a/..", "a/b/c", "a/b.git", "a /b", "\u00e4/b")
        ),
        of("hub", code={"path": "../../etc"}),
        of("hub", code={"path": "/etc"}),
        of("hub", code={"revision": "../../x"}),
        *(of("worker", command=command) for command in ([], "python x", ["a\0b"], [1])),
        *(
            of("worker", env=env)
            for env in ({"A": 1}, {"A=B": "1"}, {"HF_TOKEN": "x"}, {"FLASH_RUN_ID": "x"}, {"A": "\0"})
        ),
        of("worker", image="a b; rm -rf /"),
        of("worker", secrets=["../HF"]),
        *(of("limits", max_wall_s=wall) for wall in (1, "NaN", True)),
        *(of("limits", max_attempts=attempts) for attempts in (0, 21, 1.5)),
        of("limits", max_usd=-1),
        of("limits", deadline_s=0),
        of("cache", volume="UP"),
    ],
    "unknown_gpu": [of("gpu", **{"class": "H1000"})],
    "unknown_secret": [of("worker", secrets=["NOPE"])],
    "inline_secret": [
        of("worker", env={"A": TOKEN}),
        of("", spec={TOKEN: 1}),
        of("", spec="-----BEGIN RSA PRIVATE KEY-----\nMIIE"),
        of("", labels={"a": TOKEN}),
        of("", run_id=TOKEN),
        of("", group=TOKEN),
    ],
}
ODD_BUT_GOOD = [
    request("Z" * 128),
    request("A.-_-.A"),
    request("0----"),
    request("preload-x"),
    request("flash-demo-x-aaaa"),
    request("seed", over={"seed": 2_147_483_647}),
    request("labels", over={"labels": {f"{number:063}": "\u00e9" * 64 for number in range(16)}, "group": "\U0001f600"}),
    request("deep", x=json.loads("[" * 90 + "]" * 90)),
    request("shell", x="\U0001f600\u202e\u0000\n<b>{{}}${X}$(rm)`", y="'\"\\", z=10**400),
    request("large", x="\u00e9" * 20_000),
    request("env", over={"worker": {"command": ["x", "$(x) `y`\n'\""], "env": {"A": "\n$(x)\u2028"}}}),
]
COMMANDS: list[dict[Any, Any]] = [
    {"command": b""},
    {"command": b"\xff"},
    {"command": b"[]"},
    {"command": b'{"command":"explode","run_id":"labels"}'},
    {"command": b'{"command":"cancel"}'},
    {"command": b'{"command":"cancel","run_id":"../labels"}'},
    {"command": b'{"command":"cancel","run_id":["labels"]}'},
    {"command": b'{"command":"cancel","run_id":"labels","force":true}'},
    {"command": b'{"command":"cancel","run_id":"labels","run_id":"deep"}'},
    {"command": b'{"command":"cancel","run_id":"' + b"a" * 2_000_000 + b'"}'},
    {"command": b"[" * 100_000},
    {"request": b"{}"},
    {b"\xff\x00": b"\xfe"},
]


async def test_every_hostile_request_gets_its_reason_and_the_good_ones_go_on(short_path: Path) -> None:
    async with siege(short_path) as house:
        await until_ready(house)
        requests, control = house.key("requests"), house.key("control")
        expected = {
            await house.redis.xadd(requests, {"request": body}): reason
            for reason, bodies in REFUSED.items()
            for body in bodies
        }
        assert len(expected) > 100
        expected[await house.redis.xadd(requests, {"x": "y"})] = "missing_field"
        expected[await house.redis.xadd(requests, {b"\xff": b"\xfe"})] = "missing_field"
        commands = [await house.redis.xadd(control, command) for command in COMMANDS]
        unseen = {"command": "cancel", "run_id": "never-seen", "by": TOKEN, "reason": "\x1b[31m" * 500}
        await house.redis.xadd(control, {"command": json.dumps(unseen)})
        for good in ODD_BUT_GOOD:
            await house.submit(good)
        run_ids = [good["run_id"] for good in ODD_BUT_GOOD]
        await house.until_released(run_ids, 40)
        # The two streams count for themselves: an entry of each may have the same id.
        rejected = Counter(said["entry_id"] for said in await entries(house, "rejected"))
        assert rejected == Counter(expected.keys()) + Counter(commands)
        told = [event for event in await house.all_events() if event["type"] == "dev.flashd.request.rejected.v1"]
        assert {event["data"]["entry_id"]: event["data"]["reason"] for event in told} == expected
        assert {(await house.fields(run_id))["state"] for run_id in run_ids} == {"succeeded"}
        await audit(house, run_ids)
        await check_no_secret(house, [TOKEN])
