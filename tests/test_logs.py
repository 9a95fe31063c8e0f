"""What is written for people: where it goes, what it looks like, and that no secret is ever in it."""

from __future__ import annotations

import base64
import io
import json
import logging
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import structlog
from aiohttp import ClientResponseError, RequestInfo
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from flashd.log_outputs import MAX_FIELD_BYTES, JournalOutput, KeyValueOutput, Output, TerminalOutput, choose_output
from flashd.logs import MAX_RECENT, configure, get_logger
from flashd.redaction import Redactor

CANARY = "c4n/ry+SECRET=0123456789 abcdef"
NOON = 1_764_590_400.25  # 2025-12-01T12:00:00.250Z


@pytest.fixture(autouse=True)
def restores_logging() -> Iterator[None]:
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.fixture
def redactor() -> Redactor:
    redactor = Redactor()
    redactor.add(CANARY)
    return redactor


def written(
    redactor: Redactor, say: Callable[[], object], make: Callable[[io.StringIO], Output] = KeyValueOutput
) -> str:
    stream = io.StringIO()
    configure(redactor, now=lambda: NOON, level="debug", output=make(stream))
    say()
    return stream.getvalue()


def response_error() -> ClientResponseError:
    headers = CIMultiDictProxy(CIMultiDict({"api_key": CANARY, "Authorization": f"Bearer {CANARY}"}))
    url = URL("http://127.0.0.1/v1").with_query(key=CANARY)
    return ClientResponseError(RequestInfo(url, "GET", headers, url), (), status=401, message="no", headers=headers)


def raise_with_a_token_in_a_local() -> None:
    token = CANARY
    user_data = base64.b64encode(token.encode())
    raise ValueError(f"the box refused {token}, its payload was {user_data.decode()}")


def log_a_chain_of_errors() -> None:
    try:
        try:
            raise_with_a_token_in_a_local()
        except ValueError as error:
            error.add_note(f"note: {CANARY}")
            raise ExceptionGroup("both", [error, response_error()]) from response_error()
    except ExceptionGroup:
        get_logger().exception("launch_failed")


SAYINGS: dict[str, Callable[[], object]] = {
    "plain": lambda: get_logger().info("said", text=CANARY),
    "in_the_event_itself": lambda: get_logger().info(f"said {CANARY}"),
    "inside_a_sentence": lambda: get_logger().info("said", text=f"key {CANARY} refused"),
    "bound": lambda: get_logger(word=CANARY).bind(more=CANARY).warning("said"),
    "nested": lambda: get_logger().info("said", deep={"a": [{"b": (CANARY, {CANARY: {CANARY}})}]}),
    "bytes": lambda: get_logger().info("said", raw=CANARY.encode()),
    "object": lambda: get_logger().info("said", thing=structlog.BoundLoggerBase(None, [], {"a": CANARY})),
    "path": lambda: get_logger().info("said", path=Path("/x") / CANARY),
    "url_encoded": lambda: get_logger().info("said", url=f"http://h/?k={quote(CANARY, safe='')}"),
    "base64": lambda: get_logger().info("said", text=base64.b64encode(CANARY.encode()).decode()),
    "base64_inside_1": lambda: get_logger().info(
        "said", text=base64.b64encode(b"x" + CANARY.encode() + b"yy").decode()
    ),
    "base64_inside_2": lambda: get_logger().info(
        "said", text=base64.b64encode(b"xx" + CANARY.encode() + b"y").decode()
    ),
    "base64_urlsafe": lambda: get_logger().info("said", text=base64.urlsafe_b64encode(CANARY.encode()).decode()),
    "json_in_json": lambda: get_logger().info("said", text=json.dumps({"a": CANARY})),
    "http_error": lambda: get_logger().info("said", error=response_error()),
    "http_error_repr": lambda: get_logger().info("said", error=repr(response_error())),
    "error_chain": log_a_chain_of_errors,
    "cut_in_the_middle": lambda: get_logger().info("said", text="x" * (MAX_FIELD_BYTES - 9) + CANARY),
    "library": lambda: logging.getLogger("aiohttp.client").warning("header %s", CANARY),
}


def traces_of(secret: str) -> list[str]:
    shifted = [base64.b64encode(b"x" * n + secret.encode()).decode()[4 : 4 + len(secret) - 4] for n in range(3)]
    return [secret, secret[:9], quote(secret, safe=""), *shifted, shifted[0].replace("+", "-").replace("/", "_")]


@pytest.mark.parametrize("name", SAYINGS)
@pytest.mark.parametrize("make", [KeyValueOutput, lambda stream: TerminalOutput(stream, colour=True)])
def test_a_canary_is_in_no_line(name: str, make: Callable[[io.StringIO], Output], redactor: Redactor) -> None:
    text = written(redactor, SAYINGS[name], make)
    assert text
    for trace in traces_of(CANARY):
        assert trace not in text


def test_the_canary_would_be_seen_without_redaction() -> None:
    for name in ("plain", "nested", "error_chain", "base64_inside_1", "library"):
        text = written(Redactor(), SAYINGS[name])
        assert any(trace in text for trace in traces_of(CANARY)), name


@pytest.mark.parametrize(
    "unannounced",
    [
        {"api_key": "never-announced"},
        {"headers": {"Authorization": "Bearer never-announced"}},
        {"hf_token": "never-announced"},
        {"user_data": "never-announced"},
        {"text": "curl -H 'api_key: never-announced' http://h"},
        {"text": "authorization: bearer never-announced"},
        {"text": "token hf_neverannouncedneverannouncedever refused"},
        {"text": "-----BEGIN RSA PRIVATE KEY-----\nneverannounced\n-----END RSA PRIVATE KEY-----"},
    ],
)
def test_a_secret_nobody_announced_is_known_by_its_name_or_shape(unannounced: dict[str, object]) -> None:
    text = written(Redactor(), lambda: get_logger().info("said", **unannounced))
    assert "announced" not in text
    assert "***" in text


def test_a_number_or_nothing_under_a_telling_name_stays_readable(redactor: Redactor) -> None:
    text = written(redactor, lambda: get_logger().info("said", share_daemon_token=True, api_key=None, box_token=""))
    assert text.endswith('share_daemon_token=true api_key=null box_token=""\n')


def test_of_a_redis_url_only_the_password_is_secret() -> None:
    redactor = Redactor()
    redactor.add("redis://user:pa55word@db.example:6379/0")
    assert redactor.text("redis://user:pa55word@db.example:6379/0") == "redis://user:***@db.example:6379/0"


def test_an_empty_or_tiny_secret_blanks_nothing() -> None:
    redactor = Redactor()
    for secret in ("", " ", "abc", "redis://localhost:6379/0"):
        redactor.add(secret)
    assert redactor.text("abc redis://localhost:6379/0") == "abc redis://localhost:6379/0"


def test_an_object_that_cannot_be_printed_costs_no_line(redactor: Redactor) -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    text = written(redactor, lambda: get_logger().info("said", thing=Broken()))
    assert "unprintable Broken" in text


def test_a_line_is_key_value_with_utc_time_of_the_given_clock(redactor: Redactor) -> None:
    text = written(redactor, lambda: get_logger().info("machine_launched", run_id="r1", note="two words", usd=1.5))
    expected = 'time=2025-12-01T12:00:00.250Z level=info event=machine_launched run_id=r1 note="two words" usd=1.5\n'
    assert text == expected


def test_a_fact_cannot_forge_a_second_line(redactor: Redactor) -> None:
    for make in (KeyValueOutput, lambda stream: TerminalOutput(stream, colour=False)):
        text = written(redactor, lambda: get_logger().info("said", text="a\nlevel=error\r\x1b[2J\x9b"), make)
        assert text.count("\n") == 1
        assert not any(control in text for control in ("\r", "\x1b", "\x9b"))


def test_a_terminal_gets_a_readable_traceback_without_locals(redactor: Redactor) -> None:
    text = written(redactor, log_a_chain_of_errors, lambda stream: TerminalOutput(stream, colour=False))
    assert text.startswith("12:00:00.250 error    launch_failed\n")
    assert "raise_with_a_token_in_a_local" in text
    assert "ValueError: the box refused ***" in text


def test_a_long_fact_is_cut_and_says_so(redactor: Redactor) -> None:
    text = written(redactor, lambda: get_logger().info("said", text="é" * MAX_FIELD_BYTES))
    assert len(text.encode()) < MAX_FIELD_BYTES + 200
    assert f"({2 * MAX_FIELD_BYTES} bytes)" in text


def test_context_of_a_task_is_on_its_lines(redactor: Redactor) -> None:
    structlog.contextvars.bind_contextvars(run_id="r7")
    assert "run_id=r7" in written(redactor, lambda: get_logger().info("said"))


def test_recent_keeps_the_last_warnings_only(redactor: Redactor) -> None:
    recent = configure(redactor, now=lambda: NOON, output=KeyValueOutput(io.StringIO()))
    for number in range(MAX_RECENT + 5):
        get_logger().info("ordinary")
        get_logger().warning("odd", number=number, text=CANARY)
    assert [line.facts["number"] for line in recent.lines] == list(range(5, MAX_RECENT + 5))
    assert recent.lines[0].message == "odd number=5 text=***"


def test_debug_is_silent_unless_asked_for(redactor: Redactor) -> None:
    stream = io.StringIO()
    configure(redactor, output=KeyValueOutput(stream))
    get_logger().debug("detail")
    assert stream.getvalue() == ""


def test_a_stderr_that_has_gone_stops_nobody(redactor: Redactor) -> None:
    stream = io.StringIO()
    configure(redactor, output=KeyValueOutput(stream))
    stream.close()
    get_logger().error("nobody_reads_this")


def test_the_output_follows_what_stderr_is(tmp_path: Path) -> None:
    with (tmp_path / "stderr").open("w") as stream:
        status = os.fstat(stream.fileno())
        assert isinstance(choose_output(stream, {}), KeyValueOutput)
        assert isinstance(choose_output(stream, {"JOURNAL_STREAM": "1:2"}), KeyValueOutput)
        connected = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        assert isinstance(choose_output(stream, connected), JournalOutput)
    leader, follower = os.openpty()
    with os.fdopen(follower, "w") as terminal, os.fdopen(leader):
        assert choose_output(terminal, {}) == TerminalOutput(terminal, colour=True)
        assert choose_output(terminal, {"NO_COLOR": "1"}) == TerminalOutput(terminal, colour=False)


# journald ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def journal() -> Iterator[socket.socket]:
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(f"{directory}/journal")
        server.settimeout(5)
        yield server


def fields_of(datagram: bytes) -> dict[str, str]:
    """Read the native protocol as journald does."""
    fields: dict[str, str] = {}
    while datagram:
        head, _, rest = datagram.partition(b"\n")
        if b"=" in head:
            name, _, value = head.partition(b"=")
        else:
            size = int.from_bytes(rest[:8], "little")
            name, value, rest = head, rest[8 : 8 + size], rest[8 + size + 1 :]
        fields[name.decode()] = value.decode()
        datagram = rest
    return fields


def test_facts_are_fields_in_the_journal(journal: socket.socket, redactor: Redactor) -> None:
    configure(redactor, output=JournalOutput(io.StringIO(), journal.getsockname()))
    get_logger().warning("machine_lost", run_id="r1", attempt=2, text="two\nlines", **{"odd-key é": CANARY})
    fields = fields_of(journal.recv(1 << 20))
    assert fields == {
        "MESSAGE": 'machine_lost run_id=r1 attempt=2 text="two\\nlines" odd-key é=***',
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "flashd",
        "FLASHD_EVENT": "machine_lost",
        "FLASHD_RUN_ID": "r1",
        "FLASHD_ATTEMPT": "2",
        "FLASHD_TEXT": "two\nlines",
        "FLASHD_ODD_KEY__": "***",
    }


def test_a_traceback_is_in_the_message_of_the_journal(journal: socket.socket, redactor: Redactor) -> None:
    configure(redactor, output=JournalOutput(io.StringIO(), journal.getsockname()))
    log_a_chain_of_errors()
    fields = fields_of(journal.recv(1 << 20))
    assert fields["PRIORITY"] == "3"
    assert fields["MESSAGE"].startswith("launch_failed\n")
    assert CANARY not in fields["MESSAGE"]
    assert "raise_with_a_token_in_a_local" in fields["MESSAGE"]


def test_a_line_too_large_for_one_datagram_keeps_its_message(journal: socket.socket, redactor: Redactor) -> None:
    configure(redactor, output=JournalOutput(io.StringIO(), journal.getsockname()))
    get_logger().error("flood", **{f"fact{number}": "x" * MAX_FIELD_BYTES for number in range(4)})
    fields = fields_of(journal.recv(1 << 20))
    assert fields["MESSAGE"].startswith("flood fact0=xxx")
    assert "FLASHD_FACT0" not in fields


def test_without_a_journal_the_line_goes_to_stderr(redactor: Redactor, tmp_path: Path) -> None:
    stream = io.StringIO()
    configure(redactor, output=JournalOutput(stream, str(tmp_path / "absent")))
    get_logger().error("said", text=CANARY)
    assert stream.getvalue() == "<3>said text=***\n"


def test_a_full_journal_never_blocks_and_the_loss_is_said(journal: socket.socket, redactor: Redactor) -> None:
    configure(redactor, output=JournalOutput(io.StringIO(), journal.getsockname()))
    for number in range(2000):
        get_logger().info("said", number=number)
    journal.setblocking(False)
    taken = 0
    with pytest.raises(BlockingIOError):
        while True:
            journal.recv(1 << 20)
            taken += 1
    get_logger().info("again")
    assert fields_of(journal.recv(1 << 20))["FLASHD_LINES_LOST"] == str(2000 - taken)
