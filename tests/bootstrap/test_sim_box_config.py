"""`user_data` is read as cloud-init reads it, and what cloud-init would skip in silence is refused."""

from __future__ import annotations

import base64
import gzip

import pytest
import yaml

from flashd.sim.box_config import BootFile, CloudConfigError, parse_user_data

TEXT = "line ' \" $x\n"
PACKED = base64.b64encode(gzip.compress(TEXT.encode(), mtime=0)).decode()


def document(**keys: object) -> str:
    return "#cloud-config\n" + yaml.safe_dump(keys)


@pytest.mark.parametrize(
    ("encoding", "content"),
    [
        (None, TEXT),
        ("text/plain", TEXT),
        ("b64", base64.b64encode(TEXT.encode()).decode()),
        ("base64", base64.encodebytes(TEXT.encode()).decode()),
        ("gz+b64", PACKED),
        ("gzip+base64", PACKED),
        ("gzip", gzip.compress(TEXT.encode(), mtime=0)),
    ],
)
def test_every_encoding_gives_the_same_bytes(encoding: str | None, content: str | bytes) -> None:
    plan = parse_user_data(document(write_files=[{"path": "/a/b", "content": content, "encoding": encoding}]))
    assert plan.files == (BootFile("/a/b", TEXT.encode(), 0o644),)


@pytest.mark.parametrize(("permissions", "mode"), [("0600", 0o600), (0o755, 0o755), ("1777", 0o1777), (None, 0o644)])
def test_permissions_are_octal_however_they_are_written(permissions: str | int | None, mode: int) -> None:
    plan = parse_user_data(document(write_files=[{"path": "/a", "permissions": permissions, "append": True}]))
    assert plan.files == (BootFile("/a", b"", mode, append=True),)


def test_commands_become_one_script_and_words_stay_words() -> None:
    plan = parse_user_data(document(runcmd=["a | b $HOME", ["echo", "a b", "$HOME", 3]]))
    assert plan.script == "#!/bin/sh\na | b $HOME\necho 'a b' '$HOME' 3\n"


def test_a_script_is_taken_as_it_is() -> None:
    plan = parse_user_data("#!/bin/bash\necho hi\n")
    assert (plan.files, plan.script) == ((), "#!/bin/bash\necho hi\n")


@pytest.mark.parametrize(
    ("user_data", "message"),
    [
        ("runcmd: []", "must begin with #cloud-config"),
        ("#cloud-config\n- a", "a mapping is expected"),
        ("#cloud-config\na: [", "not YAML"),
        (document(runcmds=["x"]), "unknown keys runcmds"),
        (document(runcmd="x"), "runcmd: a list is expected"),
        (document(runcmd=[["a", ["b"]]]), r"runcmd\[0\]"),
        (document(write_files=[{"path": "relative"}]), "an absolute path is required"),
        (document(write_files=[{"path": "/a/../../b"}]), "an absolute path is required"),
        (document(write_files=[{"path": "/a", "mode": "0600"}]), "unknown keys mode"),
        (document(write_files=[{"path": "/a", "encoding": "rot13"}]), "'rot13' is not known"),
        (document(write_files=[{"path": "/a", "encoding": "b64", "content": "%"}]), "not b64"),
        (document(write_files=[{"path": "/a", "encoding": "gz+b64", "content": "eHg="}]), r"not gz\+b64"),
        (document(write_files=[{"path": "/a", "permissions": "rw"}]), "is not octal"),
        (document(write_files=[{"path": "/a", "owner": "ubuntu"}]), "only root"),
    ],
)
def test_what_a_machine_could_not_execute_is_refused(user_data: str, message: str) -> None:
    with pytest.raises(CloudConfigError, match=message):
        parse_user_data(user_data)
