"""The configuration file as types: every section and key with its default, unit, range and comment.

The comments here are those of `config.example.toml`; keys are the contract's, additions have defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, Strict

from flashd.wire.fields import NAMESPACE_PATTERN, Flag, Image, Number, Text

_CLOSED = ConfigDict(extra="forbid")
ABSOLUTE_PATTERN = r"^/[^\x00]*$"
FILE_PATTERN = r"^(?:/[^\x00]*)?$"
URL_PATTERN = r"^https?://[^\s/@]+(?:/[^\s@]*)?$"
_PORT = r"(?:6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5]?[0-9]{1,4})"
LISTEN_PATTERN = rf"^(?:(?:\[[0-9A-Fa-f:]+\]|[A-Za-z0-9.-]+):{_PORT})?$"
# The client takes a database that is no number for 0 without a word, so that it is refused here.
_REDIS_HOST = rf"(?:[^\s/?#]*@)?(?:\[[0-9A-Fa-f:]+\]|[^\s/?#@:\[\]]*)(?::{_PORT})?"
REDIS_PATTERN = rf"^(?:rediss?://{_REDIS_HOST}(?:/[0-9]{{0,4}})?|unix://[^\s/?#]*/[^\s?#]+)(?:\?[^\s#]*)?$"
CREDENTIALS = "/etc/flashd/credentials"

Whole = Annotated[int, Strict(), Field(ge=1, le=1_000_000)]
Seconds = Annotated[Number, Field(ge=0.1, le=1_000_000_000)]
Days = Annotated[Number, Field(gt=0, le=36_500)]
Directory = Annotated[Text, Field(pattern=ABSOLUTE_PATTERN)]
File = Annotated[Text, Field(pattern=FILE_PATTERN)]
Url = Annotated[Text, Field(pattern=URL_PATTERN)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Redis:
    """Redis 7.0 or Valkey 7.2 and newer."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    url: Annotated[
        Text, Field(pattern=REDIS_PATTERN, description="without a password; one with a password goes into url_file")
    ] = "redis://127.0.0.1:6379/0"
    url_file: Annotated[File, Field(description="file that holds the URL, used instead of url")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """The Hugging Face Hub, the only way back from the boxes."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    endpoint: Annotated[Url, Field(description="address of the Hub")] = "https://huggingface.co"
    token_file: Annotated[
        File, Field(description="the daemon's token: creates repositories, reads and writes them")
    ] = f"{CREDENTIALS}/hf_token"
    box_token_file: Annotated[
        File, Field(description="the token that boxes get: may write to the runs' repositories")
    ] = f"{CREDENTIALS}/hf_box_token"
    share_daemon_token: Annotated[
        Flag, Field(description="true: boxes get the daemon's own token, and user code can read it")
    ] = False
    poll_interval_s: Annotated[Seconds, Field(description="between two looks at a repository's head")] = 15.0
    commits_per_hour: Annotated[Whole, Field(description="commits that the Hub takes per repository")] = 128
    runs_per_repo: Annotated[Whole, Field(description="live runs per repository")] = 14
    first_commit_after_s: Annotated[Seconds, Field(description="boxes commit no heartbeat earlier")] = 240.0
    commit_interval_s: Annotated[Seconds, Field(description="boxes commit heartbeats this far apart")] = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """What runs do not say themselves."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    image: Annotated[
        Image, Field(min_length=1, description="container image; {gpu} and {sm} are filled in per offer")
    ] = "ghcr.io/freesolo-co/flash-worker:cu128"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperstack:
    """The account at Hyperstack."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    base_url: Annotated[Url, Field(description="address of the API")] = "https://infrahub-api.nexgencloud.com/v1"
    api_key_file: Annotated[File, Field(description="file that holds the API key")] = (
        f"{CREDENTIALS}/hyperstack_api_key"
    )
    poll_interval_s: Annotated[Seconds, Field(description="between two passes over the list of machines")] = 15.0
    requests_per_minute: Annotated[
        Whole, Field(description="no sliding 60 s holds more, deletes and launches included")
    ] = 400
    blocked_regions: Annotated[tuple[Text, ...], Field(description="nothing is launched there")] = ("CANADA-1",)
    no_volume_regions: Annotated[tuple[Text, ...], Field(description="no cache volumes there; runs start cold")] = (
        "CANADA-2",
    )
    keypair: Annotated[Text, Field(description="name of an existing keypair; empty = one is made per environment")] = ""
    environment: Annotated[
        Text, Field(description="name of an existing environment; empty = found or made per region")
    ] = ""
    image: Annotated[
        Text, Field(description="name of the machine image; empty = the newest with docker and a driver")
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Providers:
    """The clouds."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    hyperstack: Hyperstack = field(default_factory=Hyperstack)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySection:
    """When a run is given up, tried again, released. Seconds; any number >= 0.1, nothing is silently clamped."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    load_timeout_s: Annotated[Seconds, Field(description="create call to ACTIVE, else never_active")] = 900.0
    first_sign_timeout_s: Annotated[
        Seconds, Field(description="ACTIVE to the box's first commit, else no_sign_of_life")
    ] = 900.0
    setup_grace_s: Annotated[Seconds, Field(description="create call to the first step >= 1, else stalled")] = 3000.0
    stall_after_s: Annotated[
        Seconds, Field(description="last progress in training, then stalled; >= 2 x hub.commit_interval_s")
    ] = 1500.0
    last_choice_factor: Annotated[
        Seconds, Field(description="setup_grace_s is multiplied by it when nothing else is left to try")
    ] = 1.5
    provision_grace_s: Annotated[Seconds, Field(description="added to max_wall_s for the deadline outside the box")] = (
        3000.0
    )
    launch_timeout_s: Annotated[Seconds, Field(description="longest create call; <= lease_ttl_s / 2")] = 30.0
    launch_settle_s: Annotated[Seconds, Field(description="how long an unknown launch is looked for by name")] = 120.0
    retry_backoff_s: Annotated[Seconds, Field(description="pause after a failed attempt")] = 30.0
    release_check_s: Annotated[Seconds, Field(description="between two proofs of a machine's absence")] = 10.0
    release_wait_s: Annotated[
        Seconds, Field(description="longest wait for that proof before the next attempt goes on")
    ] = 600.0
    metrics_wait_s: Annotated[Seconds, Field(description="longest wait for readable metrics while the Hub answers")] = (
        60.0
    )
    done_grace_s: Annotated[Seconds, Field(description="a DONE without a marker counts after it")] = 180.0
    lease_ttl_s: Annotated[Seconds, Field(description="leadership ends so long after its last renewal")] = 60.0
    cooldown_s: Annotated[Seconds, Field(description="a place that refused is left alone")] = 180.0
    hub_settle_s: Annotated[Seconds, Field(description="between two fresh reads before an absence counts")] = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The search for machines that nobody owns."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    interval_s: Annotated[Seconds, Field(description="between two passes")] = 300.0
    initial_interval_s: Annotated[Seconds, Field(description="between the first ten passes")] = 30.0
    grace_s: Annotated[Seconds, Field(description="younger machines are left alone; >= policy.launch_timeout_s")] = (
        120.0
    )
    max_deletes: Annotated[
        int, Strict(), Field(ge=0, le=1_000_000, description="above it nothing is deleted, alarm")
    ] = 20
    dry_run: Annotated[Flag, Field(description="true: report only")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Ceilings of the whole namespace."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    max_machines: Annotated[Whole, Field(description="machines at the same time")] = 100
    max_usd_per_hour: Annotated[
        Number, Field(gt=0, le=1_000_000_000, description="dollars per hour of all machines together")
    ] = 200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long Redis remembers."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    runs_days: Annotated[Days, Field(description="run hashes, after `released`")] = 7.0
    remember_days: Annotated[Days, Field(description="run ids and content hashes; >= runs_days")] = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Http:
    """Health and metrics."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    listen: Annotated[
        Text, Field(pattern=LISTEN_PATTERN, description="where /livez, /readyz, /statusz and /metrics are served")
    ] = "127.0.0.1:8787"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretsSection:
    """Secrets of runs, resolved at every launch."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    directory: Annotated[Directory, Field(description="one file per name in worker.secrets")] = f"{CREDENTIALS}/runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What the daemon says."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    level: Annotated[
        Text, Field(pattern="^(?:debug|info|warning|error)$", description="debug, info, warning or error")
    ] = "info"
    format: Annotated[
        Text,
        Field(
            pattern="^(?:auto|journal|json|text)$",
            description="auto = journal under systemd, else text; or journal, json, text",
        ),
    ] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """flashd's configuration."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    namespace: Annotated[
        Text, Field(pattern=NAMESPACE_PATTERN, description="one namespace = one fleet, one set of Redis keys; required")
    ]
    state_directory: Annotated[Directory, Field(description="what the daemon remembers besides Redis")] = (
        "/var/lib/flashd"
    )
    redis: Redis = field(default_factory=Redis)
    hub: Hub = field(default_factory=Hub)
    worker: Worker = field(default_factory=Worker)
    providers: Providers = field(default_factory=Providers)
    policy: PolicySection = field(default_factory=PolicySection)
    sweep: Sweep = field(default_factory=Sweep)
    limits: Limits = field(default_factory=Limits)
    retention: Retention = field(default_factory=Retention)
    http: Http = field(default_factory=Http)
    secrets: SecretsSection = field(default_factory=SecretsSection)
    log: Log = field(default_factory=Log)


# Secrets by their place in the file, where they are refused, and the key that names a file instead.
INLINE_SECRETS: dict[tuple[str, ...], str] = {
    ("hub", "token"): "hub.token_file",
    ("hub", "box_token"): "hub.box_token_file",
    ("providers", "hyperstack", "api_key"): "providers.hyperstack.api_key_file",
}
