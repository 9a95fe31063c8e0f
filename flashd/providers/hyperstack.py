"""Hyperstack under one account: rents, finds and deletes machines, and tells exactly what each answer proves.

Source of the facts: Hyperstack API guide and the provider's OpenAPI.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote

import anyio
import msgspec

from flashd.adapters.clock import Clock, Random
from flashd.adapters.http import AccountHttp, Answer, Call, OnRequest
from flashd.adapters.limiter import Lane, Limiter
from flashd.core.places import Place
from flashd.errors import (
    AmbiguousLaunchError,
    CapacityError,
    NoCreditError,
    NotSentError,
    ProviderError,
    RejectedError,
    UnavailableError,
)
from flashd.providers.base import Capabilities, Credit, DeleteAnswer, Launched, LaunchOrder, Machine, Stock
from flashd.providers.hyperstack_account import AccountReader, is_broke
from flashd.providers.hyperstack_api import HyperstackApi, Query
from flashd.providers.hyperstack_sites import Site, Sites, SiteSettings
from flashd.providers.hyperstack_stock import PROVIDER, PUBLIC_IP_USD_PER_HOUR, StockReader
from flashd.providers.hyperstack_wire import (
    CreateAnswer,
    Envelope,
    Instance,
    InstanceAnswer,
    InstancePage,
    Parsed,
    create_failure,
    failure,
    is_proven_absence,
    machine,
)

BASE_URL = "https://infrahub-api.nexgencloud.com/v1"
MACHINES = "/core/virtual-machines"
NAME_MAX = 50
BOOT_BYTES_MAX = 45_000  # 65,535 bytes of base64 are about 49,000 of text; the rest is margin
CONSOLE_LINES = 500
CONSOLE_TRIES = 10
CONSOLE_PAUSE_S = 2.0
CONSOLE_MAX_CHARS = 64_000
_LONG_WORD = re.compile(r"[\w.+/=-]{16,}")  # what a token or an encoded payload looks like


@dataclass(frozen=True, slots=True)
class Settings:
    """`api_key` is called for each request, so that a renewed credential works at once. `cuda_floor`: what the worker
    image needs of the driver. Empty names = found or made by flashd."""

    api_key: Callable[[], str] = field(repr=False)
    base_url: str = BASE_URL
    blocked_regions: tuple[str, ...] = ("CANADA-1",)
    no_volume_regions: tuple[str, ...] = ("CANADA-2",)
    keypair: str = ""
    environment: str = ""
    image: str = ""
    requests_per_minute: int = 400
    cuda_floor: tuple[int, int] = (12, 8)


class LogRequest(msgspec.Struct):
    request_id: int | str | None = None


class Logs(msgspec.Struct):
    logs: str | None = None


_page = Parsed(InstancePage)
_instance = Parsed(InstanceAnswer)
_created = Parsed(CreateAnswer)
_deleted = Parsed(Envelope)
_log_request = Parsed(LogRequest)
_logs = Parsed(Logs)


class Hyperstack:
    """See `flashd.providers.base.Provider`. Close it with `aclose`."""

    def __init__(self, settings: Settings, clock: Clock, chance: Random, on_request: OnRequest | None = None) -> None:
        self._settings = settings
        self.limiter = Limiter(clock, settings.requests_per_minute)
        http = AccountHttp(settings.base_url, self.limiter, lambda: {"api_key": settings.api_key()}, on_request)
        self._api = HyperstackApi(http, settings.api_key)
        names = SiteSettings(settings.environment, settings.keypair, settings.image)
        self._sites = Sites(self._api, names, clock, chance)
        self._shelves = StockReader(self._api, self._sites, clock, settings.blocked_regions, settings.cuda_floor)
        self._accounts = AccountReader(self._api, settings.api_key)

    @property
    def name(self) -> str:
        return PROVIDER

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            name_max=NAME_MAX,
            names_unique=True,
            boot_bytes_max=BOOT_BYTES_MAX,
            storage_attach="after_running",
            labels=True,
            console_log=True,
            extra_usd_per_hour=PUBLIC_IP_USD_PER_HOUR,
        )

    def takes_volumes(self, region: str) -> bool:
        """Whether cache volumes work in this region."""
        return region not in self._settings.no_volume_regions

    async def aclose(self) -> None:
        await self._api.http.aclose()

    async def account(self) -> str:
        return await self._accounts.identity()

    async def stock(self, *, fresh: bool = False) -> Stock:
        return await self._shelves.read(await self.account(), fresh=fresh)

    async def warm(self, place: Place) -> None:
        """Read and make what a launch at this place needs (environment, key, image), so that it costs no time later."""
        await self._sites.prepare(await self._shelves.need(place), Lane.REST)

    async def launch(self, order: LaunchOrder) -> Launched:
        site = await self._prepared(order)
        call = Call(Lane.LAUNCH, "POST", MACHINES, (), _create_body(order, site), order.timeout_s, order.guard)
        try:
            answer = await self._api.send(call)
        except NotSentError:
            raise
        except UnavailableError as error:
            raise AmbiguousLaunchError(error.text, error.code) from error
        if answer.ok:
            return _launched(answer, order.name)
        refusal = create_failure(answer, lambda text: _without_payload(self._api.scrub(text), order.user_data))
        # Its subclasses are explained already; a plain refusal is not.
        raise await self._explained(refusal, order.place) if type(refusal) is RejectedError else refusal

    async def find(self, name: str) -> tuple[Machine, ...]:
        found = [row for row in await self._machines(Lane.CONFIRM, (("search", name),)) if row.name == name]
        return tuple(sorted(found, key=lambda row: (row.created_at or 0.0, len(row.id), row.id)))

    async def get(self, machine_id: str) -> Machine | None:
        call = Call(Lane.CONFIRM, "GET", _path(machine_id))
        answer = await self._api.send(call)
        if is_proven_absence(answer):
            return None
        if not answer.ok:
            raise failure(answer, f"GET {call.path}", self._api.scrub)
        row = _instance(answer, f"GET {call.path}").instance
        if row is None or str(row.id) != machine_id:
            raise UnavailableError(f"GET {call.path}: an answer without that machine", answer.status)
        return machine(row)

    async def list(self) -> tuple[Machine, ...]:
        return await self._machines(Lane.LIST)

    async def delete(self, machine_id: str) -> DeleteAnswer:
        """409 says that a delete is under way or that the machine cannot be deleted yet: neither proves anything."""
        call = Call(Lane.DELETE, "DELETE", _path(machine_id))
        answer = await self._api.send(call)
        if answer.status == 409:
            return DeleteAnswer.IN_PROGRESS
        if is_proven_absence(answer):
            return DeleteAnswer.NOT_FOUND
        if not answer.ok:
            raise failure(answer, f"DELETE {call.path}", self._api.scrub)
        if answer.body.strip():
            _deleted(answer, f"DELETE {call.path}")  # a gateway's page or `status: false` is no acceptance
        return DeleteAnswer.ACCEPTED

    async def console_log(self, machine_id: str) -> str:
        """The last lines of the serial console, asked for and then fetched. NotFoundError when the machine is gone."""
        path = f"{_path(machine_id)}/logs"
        asked = Call(Lane.REST, "POST", path, body=msgspec.json.encode({"length": CONSOLE_LINES}))
        answer = await self._api.send(asked)
        if not answer.ok:
            raise failure(answer, f"POST {path}", self._api.scrub)
        request_id = _log_request(answer, f"POST {path}").request_id
        if request_id is None:
            raise UnavailableError(f"POST {path}: an answer without request_id", answer.status)
        fetch = Call(Lane.REST, "GET", path, (("request_id", str(request_id)),))
        for _ in range(CONSOLE_TRIES):
            answer = await self._api.send(fetch)
            if answer.ok and (logs := _logs(answer, f"GET {path}").logs) is not None:
                return logs[-CONSOLE_MAX_CHARS:]
            if not answer.ok and answer.status != 404:  # 404 while the log is being collected
                raise failure(answer, f"GET {path}", self._api.scrub)
            await anyio.sleep(CONSOLE_PAUSE_S)
        raise UnavailableError(f"GET {path}: the log was not ready after {CONSOLE_TRIES} tries")

    async def credit(self) -> Credit:
        return await self._accounts.credit(Lane.REST)

    async def _prepared(self, order: LaunchOrder) -> Site:
        """All that has to be known before the POST. Whatever fails here, nothing was sent."""
        size = len(order.user_data.encode())
        if len(order.name) > NAME_MAX or size > BOOT_BYTES_MAX:
            raise RejectedError(
                f"name {len(order.name)} of {NAME_MAX} characters, payload {size} of {BOOT_BYTES_MAX} bytes"
            )
        try:
            return await self._sites.prepare(await self._shelves.need(order.place), Lane.LAUNCH)
        except UnavailableError as error:
            raise NotSentError(error.text, error.code) from error

    async def _explained(self, error: RejectedError, place: Place) -> ProviderError:
        """Why a create was refused: the provider answers want of credit, want of stock and bad parameters alike.

        Only fresh reads tell them apart. When they fail, the refusal still stands as it was.
        """
        self._sites.forget(place.region)  # what the create named may be gone: image, key, environment
        try:
            if error.code in (400, 402) and is_broke(await self._accounts.credit(Lane.CONFIRM)):
                return NoCreditError(error.text, error.code)
            if await self._shelves.is_sold_out(place):
                return CapacityError(error.text, error.code)
        except ProviderError as unread:
            return RejectedError(f"{error.text} (the reason could not be read: {unread.text})", error.code)
        return error

    async def _machines(self, lane: Lane, query: Query = ()) -> tuple[Machine, ...]:
        return tuple(machine(row) for row in await self._api.pages(lane, MACHINES, _page, query))


def _path(machine_id: str) -> str:
    return f"{MACHINES}/{quote(machine_id, safe='')}"


def _create_body(order: LaunchOrder, site: Site) -> bytes:
    return msgspec.json.encode(
        {
            "name": order.name,
            "environment_name": site.environment,
            "image_name": site.image,
            "flavor_name": order.place.sku,
            "key_name": site.keypair,
            "count": 1,
            "assign_floating_ip": True,
            "enable_port_randomization": False,
            "labels": builtins.list(order.labels),
            "user_data": order.user_data,
        }
    )


def _launched(answer: Answer, name: str) -> Launched:
    """The machine of a 2xx answer. Without a usable id one may exist all the same: AmbiguousLaunchError."""
    try:
        body = _created(answer, "create")
    except UnavailableError as error:
        raise AmbiguousLaunchError(error.text, answer.status) from error
    rows = [row for row in (*(body.instances or ()), body.instance) if row is not None and _is_id(row)]
    row = next((row for row in rows if row.name == name), rows[0] if rows else None)
    if row is None:
        raise AmbiguousLaunchError("create: a good answer without the machine's id", answer.status)
    return Launched(str(row.id), {"name": row.name or "", "status": row.status or ""})


def _is_id(row: Instance) -> bool:
    return row.id > 0 if isinstance(row.id, int) else row.id != ""


def _without_payload(text: str, user_data: str) -> str:
    """A refusal may quote the boot payload, which carries the box's token; its longer words are cut out."""
    return _LONG_WORD.sub(lambda word: "[payload]" if word[0] in user_data else word[0], text)
