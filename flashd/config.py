"""Settings: one TOML file, `FLASHD_SECTION__KEY` over it, credentials from files, everything checked in one pass.

load_settings(path, env, need=ALL_CREDENTIALS) -> Settings     raises ConfigError with every fault, one line each
read_config(text, file, env) -> ConfigFile                     the same without credentials
warnings(settings), fleet_ceiling(settings)                    for check-config
print_default_config() -> str                                  `config.example.toml`
Settings: namespace, state_directory, redis, hub, worker, providers.hyperstack, policy (core.policy.Policy), sweep,
limits, retention, http, secrets, log, credentials (Secret each: hf_token, hf_box_token, hyperstack_api_key, redis_url).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from flashd.config_credentials import (
    ALL_CREDENTIALS,
    HF_BOX_TOKEN,
    HF_TOKEN,
    HYPERSTACK_API_KEY,
    REDIS_URL,
    Credentials,
    CredentialSource,
    Secret,
    find_credential,
)
from flashd.config_keys import KEYS, SECTIONS, Section
from flashd.config_model import (
    REDIS_PATTERN,
    ConfigFile,
    Http,
    Hub,
    Hyperstack,
    Limits,
    Log,
    Providers,
    Redis,
    Retention,
    SecretsSection,
    Sweep,
    Worker,
)
from flashd.config_rules import FleetCeiling, contradictions, fleet_ceiling_of, warnings_of
from flashd.config_source import Source, read_source
from flashd.core.policy import Policy
from flashd.errors import ConfigError
from flashd.wire.shape import words_of

__all__ = [
    "ALL_CREDENTIALS",
    "ConfigFile",
    "Credentials",
    "FleetCeiling",
    "Http",
    "Hub",
    "Hyperstack",
    "Limits",
    "Log",
    "Providers",
    "Redis",
    "Retention",
    "Secret",
    "SecretsSection",
    "Settings",
    "Sweep",
    "Worker",
    "fleet_ceiling",
    "load_settings",
    "print_default_config",
    "read_config",
    "warnings",
]

MAX_CONFIG_BYTES = 1024 * 1024
_FILE: TypeAdapter[ConfigFile] = TypeAdapter(ConfigFile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a process is configured with; nothing in it changes. `file` is what was read, for diffs on SIGHUP."""

    namespace: str
    state_directory: str
    redis: Redis
    hub: Hub
    worker: Worker
    providers: Providers
    policy: Policy
    sweep: Sweep
    limits: Limits
    retention: Retention
    http: Http
    secrets: SecretsSection
    log: Log
    credentials: Credentials
    file: ConfigFile


def load_settings(path: str | Path, env: Mapping[str, str], need: Collection[str] = ALL_CREDENTIALS) -> Settings:
    """Read and check the file, the environment and the credentials.

    `need` names the credentials that must be there; others stay empty when they are not. Raises ConfigError.
    """
    source = read_source(_read_file(path), str(path), env)
    file = _checked(source)
    credentials = None if source.broken else _credentials(source, env, need)
    if file is None or credentials is None or source.faults:
        raise ConfigError(source.lines())
    return settings_of(file, credentials)


def read_config(text: str, file: str, env: Mapping[str, str]) -> ConfigFile:
    """Check text and environment without looking at credentials. Raises ConfigError with every fault."""
    source = read_source(text, file, env)
    read = _checked(source)
    if read is None or source.faults:
        raise ConfigError(source.lines())
    return read


def settings_of(file: ConfigFile, credentials: Credentials) -> Settings:
    """Settings from parts that are right."""
    return Settings(
        namespace=file.namespace,
        state_directory=file.state_directory,
        redis=file.redis,
        hub=file.hub,
        worker=file.worker,
        providers=file.providers,
        policy=Policy(**asdict(file.policy)),
        sweep=file.sweep,
        limits=file.limits,
        retention=file.retention,
        http=file.http,
        secrets=file.secrets,
        log=file.log,
        credentials=credentials,
        file=file,
    )


def warnings(settings: Settings) -> tuple[str, ...]:
    """What is allowed and probably not meant, as `key: what it does; what is advised`."""
    return tuple(f"{'.'.join(w.key)}: {w.wrong}; {w.allowed}" for w in warnings_of(settings.file))


def fleet_ceiling(settings: Settings) -> FleetCeiling:
    """How many machines and runs the budgets carry; `.text` for people."""
    return fleet_ceiling_of(settings.file)


def print_default_config() -> str:
    """The whole file with every default, each key with its meaning and what is allowed."""
    lines = [
        "# flashd's configuration, with every key at its default.",
        "# FLASHD_SECTION__KEY in the environment goes over a key: FLASHD_POLICY__COOLDOWN_S=60.",
        "# Credentials come from $CREDENTIALS_DIRECTORY, else from the files named here, else from the environment.",
    ]
    for section in SECTIONS.values():
        lines += _section_lines(section)
    return "\n".join(lines) + "\n"


def _read_file(path: str | Path) -> str:
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        hint = "name one with --config or FLASHD_CONFIG; `flashd print-default-config` writes one"
        raise ConfigError((f"{path}:1:1: file: cannot be read ({error.strerror}); {hint}",)) from error
    if len(raw) > MAX_CONFIG_BYTES:
        raise ConfigError((f"{path}:1:1: file: {len(raw)} bytes; at most {MAX_CONFIG_BYTES}",))
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigError((f"{path}:{line}:1: file: not UTF-8; a configuration is text in UTF-8",)) from error


def _checked(source: Source) -> ConfigFile | None:
    """The typed file, or None with the faults noted."""
    try:
        file = _FILE.validate_python(source.document)
    except ValidationError as error:
        if not source.broken:
            _note_types(source, error)
        return None
    for found in contradictions(file):
        source.fault(found.key, found.wrong, found.allowed)
    return file


def _note_types(source: Source, error: ValidationError) -> None:
    for found in error.errors(include_url=False, include_input=False):
        path = tuple(part for part in found["loc"] if isinstance(part, str))
        key = KEYS.get(path)
        allowed = key.allowed if key is not None else "what `flashd print-default-config` shows"
        misfit = found["type"] == "string_pattern_mismatch" or words_of(found).endswith(allowed)
        source.fault(path, "does not fit" if misfit else words_of(found), f"allowed: {allowed}")


def _credentials(source: Source, env: Mapping[str, str], need: Collection[str]) -> Credentials | None:
    token = _credential(source, env, HF_TOKEN, need)
    shared = source.said(("hub", "share_daemon_token")) is True
    box_token = token if shared else _credential(source, env, HF_BOX_TOKEN, need)
    api_key = _credential(source, env, HYPERSTACK_API_KEY, need)
    redis_url = _redis_url(source, env)
    if token is None or box_token is None or api_key is None or redis_url is None:
        return None
    return Credentials(hf_token=token, hf_box_token=box_token, hyperstack_api_key=api_key, redis_url=redis_url)


def _credential(
    source: Source, env: Mapping[str, str], wanted: CredentialSource, need: Collection[str]
) -> Secret | None:
    said = source.said(wanted.file_key)
    file = said if isinstance(said, str) else str(KEYS[wanted.file_key].default)
    try:
        found = find_credential(wanted, file, env)
    except ConfigError as error:
        source.fault(wanted.file_key, error.lines[0], f"the file holds the credential {wanted.name} and nothing else")
        return None
    if found is None and wanted.name in need:
        places = f"$CREDENTIALS_DIRECTORY/{wanted.name}, {file or 'a file named here'}, or {wanted.variable}"
        source.fault(wanted.file_key, f"no credential {wanted.name} was found", f"it is looked for in {places}")
        return None
    return found or Secret("")


def _redis_url(source: Source, env: Mapping[str, str]) -> Secret | None:
    """As the others, but the file's own `redis.url` comes last, unless a file was named and is not there."""
    said = source.said(REDIS_URL.file_key)
    named = said if isinstance(said, str) else ""
    found = _credential(source, env, REDIS_URL, (REDIS_URL.name,) if named else ())
    if found and not re.match(REDIS_PATTERN, found.reveal()):
        source.fault(REDIS_URL.file_key, "the credential redis_url is no address", KEYS[("redis", "url")].allowed)
        return None
    if found is None or found:
        return found
    url = source.said(("redis", "url"))
    return Secret(url if isinstance(url, str) else Redis().url)


def _section_lines(section: Section) -> Iterator[str]:
    if not section.keys:
        return
    yield ""
    if section.path:
        yield f"[{'.'.join(section.path)}]  # {section.comment}"
    for key in section.keys:
        said = f"{key.path[-1]} = {_toml(key.default)}"
        about = key.comment if key.allowed in key.comment else f"{key.comment}; {key.allowed}"
        yield f"# {about}"
        yield said


def _toml(value: object) -> str:
    """Scalars and lists of texts are written alike in TOML and JSON."""
    if isinstance(value, float):
        return f"{value:g}" if value != int(value) else f"{int(value)}"
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
