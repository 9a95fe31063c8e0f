"""The contract's exit statuses, and what the program says with each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from flashd.adapters.store import Store
from flashd.daemon.memory import StateDirectory
from tests.cli import runs
from tests.cli.conftest import SECRETS, Cli
from tests.redis_server import RedisServer

NOBODY = {"FLASHD_REDIS__URL": "redis://127.0.0.1:1/0"}
PASSWORD_IN_PORT = {"FLASHD_REDIS__URL": "redis://:geheim/a@127.0.0.1:6379/0"}
GOOD = runs.request_json("r1")

TABLE = [
    ("no verb", (), {}, "", 2, "usage: flashd"),
    ("unknown verb", ("statsu",), {}, "", 2, "did you mean status?"),
    ("verb far from any", ("qqq",), {}, "", 2, "no verb qqq"),
    ("option before the verb", ("--config", "x", "status"), {}, "", 2, "options come after it"),
    ("misspelt option", ("status", "--jsno"), {}, "", 2, "did you mean --json?"),
    ("shortened option", ("events", "--fol"), {}, "", 2, "did you mean --follow?"),
    ("missing argument", ("submit",), {}, "", 2, "FILE"),
    ("empty run id", ("status", ""), {}, "", 2, "not empty"),
    ("count of nothing", ("events", "--count", "0"), {}, "", 2, "no number from 1 to"),
    ("time that is none", ("submit", "-", "--wait", "--timeout", "nan"), {}, GOOD, 2, "seconds above 0"),
    ("timeout without wait", ("submit", "-", "--timeout", "5"), {}, GOOD, 2, "--timeout is for --wait"),
    ("dry run to wait for", ("submit", "-", "--dry-run", "--wait"), {}, GOOD, 2, "nothing to --wait for"),
    ("no such file", ("submit", "/nonexistent.json"), {}, "", 2, "No such file"),
    ("a directory", ("submit", "/"), {}, "", 2, "Is a directory"),
    ("sweep for real", ("sweep",), {}, "", 2, "add --dry-run"),
    ("cancel of no id", ("cancel", "a b"), {}, "", 2, "bad_run_id"),
    ("no such run", ("status", "nobody"), {}, "", 3, "no run nobody"),
    ("no such run's events", ("events", "--run", "nobody"), {}, "", 3, "no run nobody"),
    ("cancel of no run", ("cancel", "nobody"), {}, "", 3, "no run nobody"),
    ("wrong request", ("submit", "-"), {}, '{"run_id": "r1"}', 1, "missing_field"),
    ("Redis down", ("status",), NOBODY, "", 69, "Is Redis running"),
    ("Redis down at submit", ("submit", "-"), NOBODY, GOOD, 69, "Is Redis running"),
    ("wrong request, Redis down", ("submit", "-"), NOBODY, "{", 1, "bad_json"),
    ("no address", ("status",), PASSWORD_IN_PORT, "", 78, "is no address"),
    ("no credential", ("doctor",), {}, "", 78, "no credential hf_token"),
    ("unknown key", ("status",), {"FLASHD_REDSI__URL": "x"}, "", 78, "FLASHD_REDSI__URL: unknown name"),
    ("no file", ("status", "--config", "/nonexistent"), {}, "", 78, "flashd print-default-config"),
    ("a file of others", ("check-config", "--config", "/"), {}, "", 78, "cannot be read"),
    ("all well", ("status",), {}, "", 0, ""),
    ("help", ("--help",), {}, "", 0, ""),
    ("a verb's help", ("submit", "--help"), {}, "", 0, ""),
    ("version", ("--version",), {}, "", 0, ""),
]


@pytest.mark.parametrize(
    ("words", "env", "stdin", "status", "said"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE]
)
def test_exit_status(cli: Cli, words: tuple[str, ...], env: dict[str, str], stdin: str, status: int, said: str) -> None:
    done = cli(*words, env=env, stdin=stdin)
    assert (done.status, said in done.err) == (status, True), done
    assert "Traceback" not in done.err and "geheim" not in done.err
    if status:
        assert done.out == ""  # talk is on stderr, and there is no data


@pytest.mark.parametrize(
    ("words", "env", "status"),
    [
        (("status", "nobody"), {}, 3),
        (("status",), NOBODY, 69),
        (("status", "--config", "/nonexistent"), {}, 78),
        (("check-config",), {}, 78),
        (("sweep",), {}, 2),
        (("cancel", "nobody"), {}, 3),
        (("submit", "/nonexistent.json"), {}, 2),
    ],
)
def test_an_error_with_json_is_one_document(cli: Cli, words: tuple[str, ...], env: dict[str, str], status: int) -> None:
    done = cli(*words, "--json", env=env)
    assert done.status == status == done.json["exit"]


def test_a_wrong_password_is_77(cli: Cli, new_redis: Callable[..., RedisServer]) -> None:
    server = new_redis()
    with redis.Redis.from_url(server.url) as client:
        client.config_set("requirepass", "right")
    for url in (server.url, f"unix://:wrong@{server.socket}?db=0"):
        done = cli("status", env={"FLASHD_REDIS__URL": url})
        assert done.status == 77, done
        assert "credential" in done.err and "wrong" not in done.err


async def test_a_cancel_of_what_has_ended_is_1(cli: Cli, store: Store) -> None:
    await runs.failed().put(store)
    done = cli("cancel", "fails")
    assert (done.status, done.err) == (1, "fails has already ended: failed; what has ended stays ended\n")
    assert await store.events_range(stream="control") == ()


async def test_a_cancel_is_sent_with_its_reason(cli: Cli, store: Store) -> None:
    await runs.training().put(store)
    done = cli("cancel", "trains", "--by", "ann", "--reason", "too slow", "--json")
    assert done.status == 0
    assert done.json["state"] == "training"
    (entry,) = await store.events_range(stream="control")
    sent = {"command": "cancel", "run_id": "trains", "by": "ann", "reason": "too slow"}
    assert (entry.entry_id, json.loads(entry.fields["command"])) == (done.json["entry_id"], sent)


def test_a_second_daemon_on_a_state_directory_is_75(cli: Cli) -> None:
    with StateDirectory(cli.state):
        done = cli("run", env=SECRETS)
    assert done.status == 75
    assert "is in use by another flashd" in done.err


@pytest.mark.parametrize(
    ("kind", "begins"),
    [
        ("auto", "time=20"),
        ("text", "time=20"),
        ("json", '{"detail":'),
        ("journal", "<4>configuration_warning"),
    ],
)
def test_the_log_has_the_configured_form(cli: Cli, kind: str, begins: str) -> None:
    if kind == "journal" and Path("/run/systemd/journal/socket").exists():
        pytest.skip("here the line goes into the journal itself")
    cli.configure("redis://127.0.0.1:1/0", "[policy]\nstall_after_s = 10\n")
    with StateDirectory(cli.state):
        done = cli("run", env={**SECRETS, "FLASHD_LOG__FORMAT": kind})
    first = done.err.splitlines()[0]
    assert first.startswith(begins)
    assert "configuration_warning" in first
    if kind == "json":
        said = json.loads(first)
        assert (said["level"], said["event"]) == ("warning", "configuration_warning")


def test_help_imports_nothing_heavy() -> None:
    """Instead of a time, which depends on the machine: what makes the difference between 40 ms and a second."""
    program = """
import sys
sys.argv = ["flashd", *sys.argv[1:]]
from flashd.cli.main import main
try:
    main()
except SystemExit:
    pass
heavy = {"aiohttp", "anyio", "asyncio", "huggingface_hub", "msgspec", "pydantic", "redis", "structlog", "yaml"}
print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
    for words in (["--help"], ["submit", "--help"], ["--version"], []):
        done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
        assert done.stderr.splitlines()[-1] == "[]", words


def test_print_default_config_is_right_by_itself(cli: Cli, tmp_path: Path) -> None:
    printed = cli("print-default-config")
    path = tmp_path / "printed.toml"
    path.write_text(printed.out)
    done = cli("check-config", "--offline", "--config", str(path), env=SECRETS)
    assert done.status == 0, done.err
    assert done.out.splitlines()[-1] == "the configuration is right (nothing outside was asked)"
    assert cli("print-default-config", "--json").json == {"config": printed.out.rstrip("\n") + "\n"}


def test_check_config_tells_every_fault_with_its_place(cli: Cli) -> None:
    cli.config.write_text('namespace = "UPPER"\n[redis]\nurll = "redis://127.0.0.1"\n[policy]\nlaunch_timeout_s = 50\n')
    done = cli("check-config", "--offline", env=SECRETS)
    assert done.status == 78
    places = [":".join(line.removeprefix(f"{cli.config}:").split(":")[:3]) for line in done.err.splitlines()]
    assert places == ["1:1: namespace", "3:1: redis.urll"]
    assert cli("check-config", "--offline", "--json", env=SECRETS).json["errors"] == done.err.splitlines()


def test_check_config_asks_outside_and_exits_with_the_worst(cli: Cli) -> None:
    closed = "http://127.0.0.1:1"
    env = {**SECRETS, "FLASHD_HUB__ENDPOINT": closed, "FLASHD_PROVIDERS__HYPERSTACK__BASE_URL": closed}
    done = cli("check-config", env=env)
    assert done.status == 69
    levels = {line.split(":")[0] for line in done.out.splitlines()}
    assert {"OK    redis", "FAIL  hub", "FAIL  hyperstack"} <= levels


def test_output_into_a_closed_pipe_is_no_error(cli: Cli) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "flashd", "print-default-config"],
            stdout=write,
            stderr=subprocess.PIPE,
            env=cli.environment({}),
            check=False,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")
