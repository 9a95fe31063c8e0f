"""The configuration: every fault at its line in one pass, nothing clamped, nothing secret shown."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashd.config import (
    ALL_CREDENTIALS,
    Settings,
    fleet_ceiling,
    load_settings,
    print_default_config,
    read_config,
    warnings,
)
from flashd.config_keys import KEYS
from flashd.config_model import PolicySection
from flashd.core.policy import Policy
from flashd.errors import ConfigError

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"(?:c\.toml:\d+:\d+|environment:FLASHD_\w+): [^;]+: [^;]+;.* .+")
# The contract's file, as written there.
CONTRACT = """
namespace = "prod"
state_directory = "/var/lib/flashd"
[redis]
url = "redis://127.0.0.1:6379/0"
[hub]
endpoint = "https://huggingface.co"
token_file = "/etc/flashd/credentials/hf_token"
box_token_file = "/etc/flashd/credentials/hf_box_token"
share_daemon_token = false
poll_interval_s = 15
commits_per_hour = 128
runs_per_repo = 14
first_commit_after_s = 240
commit_interval_s = 600
[worker]
image = "ghcr.io/freesolo-co/flash-worker:cu128"
[providers.hyperstack]
base_url = "https://infrahub-api.nexgencloud.com/v1"
api_key_file = "/etc/flashd/credentials/hyperstack_api_key"
poll_interval_s = 15
requests_per_minute = 400
blocked_regions = ["CANADA-1"]
no_volume_regions = ["CANADA-2"]
keypair = ""
[policy]
load_timeout_s = 900
first_sign_timeout_s = 900
setup_grace_s = 3000
stall_after_s = 1500
last_choice_factor = 1.5
provision_grace_s = 3000
launch_timeout_s = 30
launch_settle_s = 120
retry_backoff_s = 30
release_check_s = 10
release_wait_s = 600
metrics_wait_s = 60
done_grace_s = 180
lease_ttl_s = 60
cooldown_s = 180
[sweep]
interval_s = 300
initial_interval_s = 30
grace_s = 120
max_deletes = 20
dry_run = false
[limits]
max_machines = 100
max_usd_per_hour = 200.0
[retention]
runs_days = 7
remember_days = 90
[http]
listen = "127.0.0.1:8787"
[secrets]
directory = "/etc/flashd/credentials/runs"
"""


def lines_of(text: str, env: Mapping[str, str] | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        read_config(text, "c.toml", env or {})
    return caught.value.lines


def loaded(directory: Path, text: str = 'namespace = "a"\n', **env: str) -> Settings:
    """Settings with no credential required."""
    path = directory / "c.toml"
    path.write_text(text)
    return load_settings(path, env, need=())


def test_the_example_is_what_is_printed() -> None:
    assert (ROOT / "config.example.toml").read_text(encoding="utf-8") == print_default_config()


def test_the_printed_defaults_are_the_defaults_and_those_of_the_contract() -> None:
    printed = read_config(print_default_config(), "c.toml", {})
    assert printed == read_config('namespace = "prod"', "c.toml", {}) == read_config(CONTRACT, "c.toml", {})


def test_the_printed_file_has_every_key_with_a_comment() -> None:
    text = print_default_config().splitlines()
    for key in KEYS.values():
        at = [index for index, line in enumerate(text) if line.startswith(f"{key.path[-1]} = ")]
        assert at and all(text[index - 1].startswith("# ") for index in at), key.dotted
        assert key.comment, key.dotted


def test_the_contracts_keys_all_exist() -> None:
    def paths(table: dict[str, Any], prefix: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
        return {
            path
            for name, value in table.items()
            for path in (paths(value, (*prefix, name)) if isinstance(value, dict) else {(*prefix, name)})
        }

    assert paths(tomllib.loads(CONTRACT)) <= set(KEYS)


def test_the_policy_section_is_the_cores_policy() -> None:
    assert {item.name for item in fields(PolicySection)} == {item.name for item in fields(Policy)}
    assert asdict(PolicySection()) == asdict(Policy())


def test_a_policy_divided_by_twenty_is_taken_as_it_is(tmp_path: Path) -> None:
    fast = {name: value / 20 for name, value in asdict(Policy()).items() if name.endswith("_s")}
    text = 'namespace = "a"\n[policy]\n' + "\n".join(f"{name} = {value}" for name, value in fast.items())
    assert asdict(loaded(tmp_path, text).policy) == asdict(Policy()) | fast


@pytest.mark.parametrize("value", ["0.1", "1", "1e6"])
def test_any_number_from_a_tenth_is_taken_unchanged(tmp_path: Path, value: str) -> None:
    settings = loaded(tmp_path, f'namespace = "a"\n[policy]\ncooldown_s = {value}')
    assert settings.policy.cooldown_s == float(value)


MANY = """\
namespace = "A B"
state_directory = 3
sttate = 1

[policy]  # "quoted # comment"
stall_after = 5
  cooldown_s = "x"
load_timeout_s = 0.05
launch_settle_s = nan
[hub]
box_token_file = \"\"\"
retry_backoff_s = 1
[sweep]
\"\"\"
share_daemon_token = 1
max_usd_per_hour = 2
[providers.hyperstack]
blocked_regions = [
  "a", # ]
  3,
]
requests_per_minute = true
poll_interval_s = inf
[providers.lambda]
x = 1
[log]
level = "loud"
"""


def test_every_fault_is_reported_in_one_pass_at_its_line_and_column() -> None:
    lines = lines_of(MANY)
    assert [line.split(": ")[:2] for line in lines] == [
        ["c.toml:1:1", "namespace"],
        ["c.toml:2:1", "state_directory"],
        ["c.toml:3:1", "sttate"],
        ["c.toml:6:1", "policy.stall_after"],
        ["c.toml:7:3", "policy.cooldown_s"],
        ["c.toml:8:1", "policy.load_timeout_s"],
        ["c.toml:9:1", "policy.launch_settle_s"],
        ["c.toml:11:1", "hub.box_token_file"],
        ["c.toml:15:1", "hub.share_daemon_token"],
        ["c.toml:16:1", "hub.max_usd_per_hour"],
        ["c.toml:18:1", "providers.hyperstack.blocked_regions"],
        ["c.toml:22:1", "providers.hyperstack.requests_per_minute"],
        ["c.toml:23:1", "providers.hyperstack.poll_interval_s"],
        ["c.toml:24:1", "providers.lambda"],
        ["c.toml:27:1", "log.level"],
    ]
    assert all(LINE.fullmatch(line) for line in lines), lines


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("", "c.toml:1:1: namespace: required; "),
        ("[redis]\n", "c.toml:1:1: namespace: required; "),
        ('namespace = "a"\nhub = 3', "c.toml:2:1: hub: must be a table; [hub] with endpoint, "),
        ('namespace = "a"\n[[hub]]', "c.toml:2:1: hub: must be a table; "),
        (
            'namespace = "a"\n[policy]\nlease_ttl = 1',
            'c.toml:3:1: policy.lease_ttl: unknown key; did you mean "lease_ttl_s"?',
        ),
        (
            'namespace = "a"\nmax_machines = 1',
            'c.toml:2:1: max_machines: unknown key; did you mean "limits.max_machines"?',
        ),
        (
            'namespace = "a"\npolicy.cooldown_s = 0',
            "c.toml:2:1: policy.cooldown_s: must be greater than or equal to 0.1; ",
        ),
        ('namespace = "a"\npolicy = { cooldown_s = 0 }', "c.toml:2:1: policy.cooldown_s: "),
        (
            'namespace = "a"\n"state_directory" = "x"',
            "c.toml:2:1: state_directory: does not fit; allowed: an absolute path",
        ),
        ('namespace = "a"\n[http]\nlisten = "8787"', "c.toml:3:1: http.listen: does not fit; allowed: host:port"),
        ("namespace = \n", "c.toml:1:13: syntax: "),
        ('namespace = "a"\n[hub', "c.toml:2:5: syntax: "),
        ('namespace = "a"\nnamespace = "b"', "c.toml:2:16: syntax: "),
    ],
)
def test_one_fault_stands_at_its_place(text: str, start: str) -> None:
    lines = lines_of(text)
    assert len(lines) == 1
    assert lines[0].startswith(start), lines[0]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[policy]\nlaunch_timeout_s = 30.5", "policy.launch_timeout_s"),
        ("[policy]\nlease_ttl_s = 59", "policy.launch_timeout_s"),
        ("[sweep]\ngrace_s = 29", "sweep.grace_s"),
        ("[policy]\nrelease_wait_s = 19", "policy.release_wait_s"),
        ("[retention]\nremember_days = 6", "retention.remember_days"),
    ],
)
def test_contradictions_that_lose_money_are_errors(text: str, key: str) -> None:
    (line,) = lines_of(f'namespace = "a"\n{text}')
    assert f": {key}: " in line


def test_a_limit_of_a_contradiction_is_allowed() -> None:
    read_config(
        'namespace = "a"\n[policy]\nlaunch_timeout_s = 30\nlease_ttl_s = 60\n[sweep]\ngrace_s = 30', "c.toml", {}
    )


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[policy]\nstall_after_s = 1199", "policy.stall_after_s"),
        ("[policy]\nsetup_grace_s = 800", "policy.setup_grace_s"),
        ("[policy]\nlaunch_settle_s = 20", "policy.launch_settle_s"),
        ("[policy]\nlease_ttl_s = 120", "policy.lease_ttl_s"),
        ("[hub]\nruns_per_repo = 30", "hub.runs_per_repo"),
        ("[limits]\nmax_machines = 10000", "limits.max_machines"),
        ('[http]\nlisten = "0.0.0.0:8787"', "http.listen"),
    ],
)
def test_what_is_probably_not_meant_is_a_warning(tmp_path: Path, text: str, key: str) -> None:
    found = warnings(loaded(tmp_path, f'namespace = "a"\n{text}'))
    assert any(line.startswith(f"{key}: ") for line in found), found
    assert warnings(loaded(tmp_path)) == ()


def test_the_ceiling_counts_what_the_budgets_carry(tmp_path: Path) -> None:
    ceiling = fleet_ceiling(loaded(tmp_path))
    assert (ceiling.machines, ceiling.machines_listed, ceiling.repositories) == (100, 8000, 8)
    slow = loaded(
        tmp_path, 'namespace = "a"\n[providers.hyperstack]\nrequests_per_minute = 20\n[limits]\nmax_machines = 1000'
    )
    assert fleet_ceiling(slow).machines == 400
    assert "400 machines" in fleet_ceiling(slow).text


def test_the_environment_goes_over_the_file(tmp_path: Path) -> None:
    settings = loaded(
        tmp_path,
        'namespace = "a"\n[policy]\ncooldown_s = 1',
        FLASHD_NAMESPACE="b2",
        FLASHD_POLICY__COOLDOWN_S="2.5",
        FLASHD_LIMITS__MAX_MACHINES="7",
        FLASHD_SWEEP__DRY_RUN="true",
        FLASHD_HTTP__LISTEN="",
        FLASHD_PROVIDERS__HYPERSTACK__BLOCKED_REGIONS="A, B",
        FLASHD_PROVIDERS__HYPERSTACK__NO_VOLUME_REGIONS='["C"]',
        FLASHD_CONFIG="/x",
        PATH="/bin",
    )
    cloud = settings.providers.hyperstack
    assert (settings.namespace, settings.policy.cooldown_s, settings.limits.max_machines) == ("b2", 2.5, 7)
    assert (settings.sweep.dry_run, settings.http.listen) == (True, "")
    assert (cloud.blocked_regions, cloud.no_volume_regions) == (("A", "B"), ("C",))


def test_faults_of_the_environment_name_the_variable() -> None:
    env = {"FLASHD_POLCY__COOLDOWN_S": "1", "FLASHD_SWEEP__MAX_DELETES": "many", "FLASHD_HUB": "x", "FLASHDX": "y"}
    first, second, third = lines_of('namespace = "a"', env)
    assert first.startswith("environment:FLASHD_HUB: unknown name")
    assert second.startswith(
        'environment:FLASHD_POLCY__COOLDOWN_S: unknown name; did you mean "FLASHD_POLICY__COOLDOWN_S"?'
    )
    assert third.startswith("environment:FLASHD_SWEEP__MAX_DELETES: sweep.max_deletes: must be an integer; ")


SECRET = "s3cr3t-value"


@pytest.mark.parametrize(
    ("text", "key", "instead"),
    [
        (f'[hub]\ntoken = "{SECRET}"', "hub.token", "hub.token_file"),
        (f'[hub]\nbox_token = "{SECRET}"', "hub.box_token", "hub.box_token_file"),
        (f'[providers.hyperstack]\napi_key = "{SECRET}"', "providers.hyperstack.api_key", "api_key_file"),
        (f'[redis]\nurl = "redis://:{SECRET}@host/0"', "redis.url", "redis.url_file"),
    ],
)
def test_a_secret_in_the_file_is_an_error_that_does_not_repeat_it(text: str, key: str, instead: str) -> None:
    (line,) = lines_of(f'namespace = "a"\n{text}')
    assert line.startswith(f"c.toml:3:1: {key}: ") and instead in line
    assert SECRET not in line


def test_no_value_is_repeated_in_a_fault() -> None:
    text = f'namespace = "{SECRET} x"\n[policy]\ncooldown_s = "{SECRET}"\n[hub]\ntoken_file = "{SECRET}"'
    env = {"FLASHD_LIMITS__MAX_MACHINES": SECRET}
    assert not any(SECRET in line for line in lines_of(text, env))


def test_credentials_come_from_systemd_then_the_file_then_the_environment(tmp_path: Path) -> None:
    systemd = tmp_path / "creds"
    systemd.mkdir()
    (systemd / "hf_token").write_text("from-systemd\n")
    (tmp_path / "hf").write_text("from-file")
    (tmp_path / "box").write_text(" from-file \n")
    text = f'namespace = "a"\n[hub]\ntoken_file = "{tmp_path}/hf"\nbox_token_file = "{tmp_path}/box"'
    text += f'\n[providers.hyperstack]\napi_key_file = "{tmp_path}/absent"'
    env = {
        "CREDENTIALS_DIRECTORY": str(systemd),
        "FLASHD_HUB__TOKEN": "from-env",
        "FLASHD_HUB__BOX_TOKEN": "from-env",
        "FLASHD_PROVIDERS__HYPERSTACK__API_KEY": "from-env",
        "FLASHD_REDIS__URL": "redis://:pw@h/1",
    }
    path = tmp_path / "c.toml"
    path.write_text(text)
    settings = load_settings(path, env)
    found = settings.credentials
    assert found.hf_token.reveal() == "from-systemd"
    assert found.hf_box_token.reveal() == "from-file"
    assert found.hyperstack_api_key.reveal() == "from-env"
    assert found.redis_url.reveal() == "redis://:pw@h/1"
    shown = f"{settings!r} {settings} {found.hf_token} {found.hf_token!r} {[found.redis_url]}"
    assert not re.search("from-|pw@", shown)


def test_credentials_that_are_needed_and_absent_are_all_named(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        f'namespace = "a"\n[hub]\ntoken_file = "{tmp_path}/no"\nbox_token_file = ""\n'
        '[providers.hyperstack]\napi_key_file = ""'
    )
    with pytest.raises(ConfigError) as caught:
        load_settings(path, {}, need=ALL_CREDENTIALS)
    assert [line.split(": ")[0:2] for line in caught.value.lines] == [
        [f"{path}:3:1", "hub.token_file"],
        [f"{path}:4:1", "hub.box_token_file"],
        [f"{path}:6:1", "providers.hyperstack.api_key_file"],
    ]
    assert f"$CREDENTIALS_DIRECTORY/hf_token, {tmp_path}/no, or FLASHD_HUB__TOKEN" in caught.value.lines[0]


@pytest.mark.parametrize("content", [b"", b"  \n", b"two words", b"a\nb", b"\xff\xfe", b"x" * 9000, "tokén".encode()])
def test_a_credential_that_cannot_be_one_is_an_error_even_if_another_is_there(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "hf").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, f'namespace = "a"\n[hub]\ntoken_file = "{tmp_path}/hf"', FLASHD_HUB__TOKEN="good")
    assert caught.value.lines[0].startswith(f"{tmp_path}/c.toml:3:1: hub.token_file: ")


def test_a_credential_file_that_is_a_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        loaded(tmp_path, f'namespace = "a"\n[hub]\ntoken_file = "{tmp_path}"')


def test_a_shared_daemon_token_needs_no_second_one(tmp_path: Path) -> None:
    settings = loaded(tmp_path, 'namespace = "a"\n[hub]\nshare_daemon_token = true', FLASHD_HUB__TOKEN="t")
    assert settings.credentials.hf_box_token.reveal() == "t"


def test_the_address_of_redis_is_never_guessed_when_a_file_was_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"redis\.url_file: no credential redis_url was found"):
        loaded(tmp_path, f'namespace = "a"\n[redis]\nurl_file = "{tmp_path}/absent"')
    (tmp_path / "url").write_text("localhost:6379")
    with pytest.raises(ConfigError, match="is no address"):
        loaded(tmp_path, f'namespace = "a"\n[redis]\nurl_file = "{tmp_path}/url"')
    assert loaded(tmp_path).credentials.redis_url.reveal() == "redis://127.0.0.1:6379/0"
    url = loaded(tmp_path, 'namespace = "a"\n[redis]\nurl = "unix:///run/r.sock"').credentials.redis_url
    assert url.reveal() == "unix:///run/r.sock"


def test_a_file_that_is_no_text_or_not_there_is_an_error_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    with pytest.raises(ConfigError, match=f"{path}:1:1: file: cannot be read"):
        load_settings(path, {})
    path.write_bytes(b'namespace = "a"\nx = "\xff"')
    with pytest.raises(ConfigError, match=f"{path}:2:1: file: not UTF-8"):
        load_settings(path, {})
    path.write_bytes(b"#" * 2_000_000)
    with pytest.raises(ConfigError, match="at most"):
        load_settings(path, {})


def test_a_syntax_error_is_not_drowned_in_what_follows_from_it(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[hub\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(path, {})
    assert len(caught.value.lines) == 1


@given(st.text(max_size=200))
def test_no_text_makes_it_crash(text: str) -> None:
    for document in (
        text,
        f"namespace = {text}",
        f'namespace = "a"\n[policy]\ncooldown_s = {text}',
        f"[hub]\n{text} = 1",
    ):
        try:
            read_config(document, "c.toml", {})
        except ConfigError as error:
            assert error.lines


@given(st.dictionaries(st.sampled_from([f"FLASHD_{'__'.join(path).upper()}" for path in KEYS]), st.text(max_size=30)))
def test_no_environment_makes_it_crash(env: dict[str, str]) -> None:
    try:
        read_config('namespace = "a"', "c.toml", env)
    except ConfigError as error:
        assert all(line.startswith(("environment:", "c.toml:")) for line in error.lines)
