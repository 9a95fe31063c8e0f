"""What the simulated cloud is made of: knobs, records and the seam to the box.

Nothing here knows flashd: the world is written from the provider's side.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

Json = dict[str, object]
NAME_MAX = 50


class ApiError(Exception):
    """An error answer of the API. `reason` None leaves `error_reason` out, as some real answers do."""

    def __init__(self, status: int, reason: str | None, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    def body(self) -> Json:
        found: Json = {"status": False, "message": self.message}
        if self.reason is not None:
            found["error_reason"] = self.reason
        return found


def bad_request(message: str) -> ApiError:
    return ApiError(400, "bad_request", message)


def not_found(message: str) -> ApiError:
    return ApiError(404, "not_found", message)


def already_exists(message: str) -> ApiError:
    return ApiError(409, "already_exist", message)


def not_allowed(message: str) -> ApiError:
    return ApiError(405, "not_allowed", message)


class Status(StrEnum):
    """`status` of a machine. GONE is the world's own word: the API answers 404."""

    CREATING = "CREATING"
    BUILD = "BUILD"
    ACTIVE = "ACTIVE"
    ERROR = "ERROR"
    STOPPING = "STOPPING"
    SHUTOFF = "SHUTOFF"
    STARTING = "STARTING"
    REBOOTING = "REBOOTING"
    HIBERNATING = "HIBERNATING"
    HIBERNATED = "HIBERNATED"
    RESTORING = "RESTORING"
    DELETING = "DELETING"
    GONE = "GONE"


BILLED = frozenset({Status.ACTIVE, Status.SHUTOFF})


@dataclass(slots=True)
class Knobs:
    """How this world behaves. All durations are real seconds; what the provider's pages leave open is a switch here."""

    create_s: float = 0.2
    boot_s: float = 1.0
    delete_s: float = 0.5
    power_s: float = 0.3
    floating_ip_s: float = 0.5
    volume_s: float = 0.2
    attach_s: float = 0.1
    console_s: float = 0.1
    list_lag_s: float = 0.0
    default_page_size: int = 10
    max_page_size: int = 100
    images_per_page: int = 0
    count_is_total: bool = True
    zoned_times: bool = False
    delete_conflict: bool = True
    delete_refused_while_building: bool = False
    name_free_after_delete: bool = True
    box_runs_while_deleting: bool = False
    requests_per_minute: int = 0
    user_data_max_base64: int = 65535
    machines_per_environment: int = 2000
    prices_as_text: bool = False
    no_volume_regions: list[str] = field(default_factory=lambda: ["CANADA-2"])

    def change(self, name: str, value: object) -> None:
        """Set one knob. Raises bad_request for an unknown name or another type (an integer passes for a float)."""
        if name not in {known.name for known in dataclasses.fields(self)}:
            raise bad_request(f"no knob is called {name!r}")
        present = getattr(self, name)
        if isinstance(present, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not type(present):
            raise bad_request(f"knob {name} takes {type(present).__name__}, not {type(value).__name__}")
        setattr(self, name, value)


@dataclass(frozen=True, slots=True)
class SimMachine:
    """What a box needs to know of the machine it runs on. Times are Unix seconds.

    `console` appends text to the machine's console log; `power_off` is the guest switching itself off: SHUTOFF, which
    is still billed. Call both on the server's event loop.
    """

    id: int
    name: str
    user_data: str
    region: str
    flavor: str
    gpu: str
    gpu_count: int
    image: str
    labels: tuple[str, ...]
    account: str
    created_at: float
    active_at: float
    console: Callable[[str], None]
    power_off: Callable[[], None]


class BoxHost(Protocol):
    """Runs what a machine would run. Calls for one machine come in order; calls for different machines overlap."""

    async def start(self, machine: SimMachine) -> None:
        """The machine became ACTIVE, also after a stop and start. Returns when the box is under way, not at its end."""

    async def stop(self, machine_id: int) -> None:
        """The machine lost its power. Kills everything at once; also called for a machine whose start failed."""


@dataclass(slots=True)
class Span:
    """A stretch of time in one status; `end` None = still lasting."""

    status: Status
    start: float
    end: float | None = None


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to a machine by itself, `after_s` seconds after it became ACTIVE."""

    after_s: float
    how: str


@dataclass(frozen=True, slots=True)
class Planting:
    """A machine to be put into the world past the API; `account` None = the first one; made `age_s` ago."""

    name: str
    region: str = "NORWAY-1"
    flavor: str = "n3-RTX-A6000x1"
    account: str | None = None
    labels: tuple[str, ...] = ()
    status: Status = Status.ACTIVE
    age_s: float = 0.0


@dataclass(slots=True)
class Environment:
    id: int
    name: str
    region: str
    created_at: float


@dataclass(slots=True)
class Keypair:
    id: int
    name: str
    environment: Environment
    public_key: str
    fingerprint: str
    created_at: float


@dataclass(slots=True)
class Machine:
    """Every machine ever made keeps its record, also when it is gone."""

    id: int
    name: str
    account: str
    environment: Environment
    flavor: str
    image: str
    keypair: str
    labels: list[str]
    user_data: str
    public_ip: bool
    usd_per_hour: float
    created_at: float
    status: Status
    spans: list[Span]
    port_randomization: bool = True
    security_rules: list[Json] = field(default_factory=list)
    listed_from: float = 0.0
    active_at: float | None = None
    deleting_at: float | None = None
    gone_at: float | None = None
    ended_by: str = ""
    epoch: int = 0
    fate: Fate | None = None
    console: list[str] = field(default_factory=list)
    events: list[tuple[float, str, str]] = field(default_factory=list)
    planted: bool = False
    holds_stock: bool = True

    @property
    def region(self) -> str:
        return self.environment.region


@dataclass(slots=True)
class Attachment:
    id: int
    machine_id: int
    device: str
    protected: bool
    attached_at: float


@dataclass(slots=True)
class Volume:
    id: int
    name: str
    account: str
    environment: Environment
    size: int
    volume_type: str
    description: str
    usd_per_hour: float
    created_at: float
    status: str = "creating"
    attachment: Attachment | None = None
    gone_at: float | None = None
    epoch: int = 0


@dataclass(slots=True)
class Account:
    """An organisation. `credit` is what was paid in; what is left is that less the bill."""

    name: str
    org_id: int
    credit: float
    threshold: float = 0.0
    environments: dict[int, Environment] = field(default_factory=dict)
    keypairs: dict[int, Keypair] = field(default_factory=dict)


@dataclass(slots=True)
class ApiKey:
    account: str
    read_only: bool = False
    revoked: bool = False
