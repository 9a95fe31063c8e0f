"""What a Hyperstack region needs before a machine can be made there: environment, keypair, image.

Found where they exist, made where they can be made, cached with an expiry, forgotten when a launch was refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import anyio
import msgspec

from flashd.adapters.clock import Clock, Random
from flashd.adapters.http import Answer, Call
from flashd.adapters.limiter import Lane
from flashd.errors import RejectedError, UnavailableError
from flashd.providers.cached import Cached
from flashd.providers.hyperstack_api import HyperstackApi
from flashd.providers.hyperstack_images import Image, ImagesAnswer, Need, choose_image, flattened
from flashd.providers.hyperstack_wire import (
    Environment,
    EnvironmentAnswer,
    EnvironmentPage,
    Keypair,
    KeypairAnswer,
    KeypairPage,
    Parsed,
    error_body,
    failure,
    words,
)
from flashd.providers.ssh_key import SEED_BYTES, public_key

NAME_MAX = 50
LIST_TTL_S = 300.0
IMAGES_TTL_S = 600.0
IMAGES_PER_PAGE = 100
MAX_IMAGE_PAGES = 50
MANAGED = "flashd"  # what flashd makes itself starts with this

_environments = Parsed(EnvironmentPage)
_keypairs = Parsed(KeypairPage)
_images = Parsed(ImagesAnswer)


@dataclass(frozen=True, slots=True)
class SiteSettings:
    """Names from the configuration; empty = found or made."""

    environment: str = ""
    keypair: str = ""
    image: str = ""


@dataclass(frozen=True, slots=True)
class Site:
    """Names for a create call."""

    environment: str
    keypair: str
    image: str


class Sites:
    """Sites of one account. Raises RejectedError where a region cannot be used, in words for the operator."""

    def __init__(self, api: HyperstackApi, settings: SiteSettings, clock: Clock, chance: Random) -> None:
        self._api = api
        self._settings = settings
        self._clock = clock
        self._chance = chance
        self._environments: Cached[Sequence[Environment]] = Cached(clock, LIST_TTL_S)
        self._keypairs: Cached[Sequence[Keypair]] = Cached(clock, LIST_TTL_S)
        self._images: dict[str, Cached[Sequence[Image]]] = {}
        self._making = anyio.Lock()  # two launches in a new region must not both make its environment

    def forget(self, region: str) -> None:
        """Read everything of a region again: a create there was refused, so something may be gone."""
        self._environments.forget()
        self._keypairs.forget()
        self._images.pop(region, None)

    async def check(self, need: Need, lane: Lane) -> None:
        """Raise RejectedError if no machine can be made there; makes nothing itself."""
        await self._image(need, lane)
        environment = self._pick_environment(await self._all_environments(lane), need.region)
        if environment is not None:
            self._pick_keypair(await self._all_keypairs(lane), environment)

    async def prepare(self, need: Need, lane: Lane) -> Site:
        """The names for a create call; makes environment and keypair if there are none."""
        image = await self._image(need, lane)
        async with self._making:
            environment = await self._environment(need.region, lane)
            keypair = await self._keypair(environment, lane)
        return Site(environment, keypair, image)

    async def _environment(self, region: str, lane: Lane) -> str:
        found = self._pick_environment(await self._all_environments(lane), region)
        if found is not None:
            return found
        name = f"{MANAGED}-{region.lower()}"[:NAME_MAX]
        await self._make(lane, "/core/environments", {"name": name, "region": region}, Parsed(EnvironmentAnswer))
        found = self._pick_environment(await self._all_environments(lane, fresh=True), region)
        if found is None:
            raise UnavailableError(f"environment {name} was made in {region} and is not listed yet")
        return found

    async def _keypair(self, environment: str, lane: Lane) -> str:
        found = self._pick_keypair(await self._all_keypairs(lane), environment)
        if found is not None:
            return found
        name = _managed_key(environment)
        key = public_key(self._chance.randbytes(SEED_BYTES), MANAGED)
        body = {"name": name, "environment_name": environment, "public_key": key}
        await self._make(lane, "/core/keypairs", body, Parsed(KeypairAnswer))
        found = self._pick_keypair(await self._all_keypairs(lane, fresh=True), environment)
        if found is None:
            raise UnavailableError(f"keypair {name} was made in {environment} and is not listed yet")
        return found

    async def _make(self, lane: Lane, path: str, body: dict[str, str], parsed: Parsed[object]) -> None:
        """POST once. A name that is taken is somebody's race with us, which the list that follows settles."""
        answer = await self._api.send(Call(lane, "POST", path, body=msgspec.json.encode(body)))
        if answer.ok:
            parsed(answer, f"POST {path}")
        elif answer.status != 409:
            raise _refused(answer, path, self._api.scrub)

    def _pick_environment(self, rows: Iterable[Environment], region: str) -> str | None:
        """The configured one, else ours, else the provider's default, else the oldest. None = one must be made."""
        wanted = self._settings.environment
        if wanted:
            if any(row.name == wanted and row.region == region for row in rows):
                return wanted
            raise RejectedError(f"the configured environment {wanted!r} is not in {region}")
        names = [row.name for row in rows if row.name and row.region == region]
        for name in (f"{MANAGED}-{region.lower()}", f"default-{region}"):
            if name in names:
                return name
        return names[0] if names else None

    def _pick_keypair(self, rows: Iterable[Keypair], environment: str) -> str | None:
        """The configured one, else ours, else the oldest of exactly this environment. None = one must be made."""
        names = [row.name for row in rows if row.name and row.environment and row.environment.name == environment]
        wanted = self._settings.keypair
        if wanted:
            if wanted in names:
                return wanted
            raise RejectedError(f"the configured keypair {wanted!r} is not in environment {environment!r}")
        ours = _managed_key(environment)
        return ours if ours in names else next(iter(names), None)

    async def _image(self, need: Need, lane: Lane) -> str:
        cached = self._images.setdefault(need.region, Cached(self._clock, IMAGES_TTL_S))
        rows = await cached.get(lambda: self._read_images(need.region, lane))
        return choose_image(rows, need, self._settings.image)

    async def _all_environments(self, lane: Lane, *, fresh: bool = False) -> Sequence[Environment]:
        read: Callable[[], Awaitable[Sequence[Environment]]]
        read = lambda: self._api.pages(lane, "/core/environments", _environments)  # noqa: E731
        return await self._environments.get(read, fresh=fresh)

    async def _all_keypairs(self, lane: Lane, *, fresh: bool = False) -> Sequence[Keypair]:
        read: Callable[[], Awaitable[Sequence[Keypair]]]
        read = lambda: self._api.pages(lane, "/core/keypairs", _keypairs)  # noqa: E731
        return await self._keypairs.get(read, fresh=fresh)

    async def _read_images(self, region: str, lane: Lane) -> Sequence[Image]:
        """All images of a region, public ones included. Pages end where nothing new comes: this list's own page size
        is not in the contract, and some servers answer everything at once."""
        found: dict[int | str, Image] = {}
        for number in range(1, MAX_IMAGE_PAGES + 1):
            query = (
                ("region", region),
                ("include_public", "true"),
                ("page", str(number)),
                ("per_page", str(IMAGES_PER_PAGE)),
            )
            answer = await self._api.read(Call(lane, "GET", "/core/images", query), _images)
            rows = flattened(answer, region)
            fresh = {key: row for row in rows if (key := row.id or row.name or "") not in found}
            found.update(fresh)
            if not fresh:
                return tuple(found.values())
        raise UnavailableError(f"GET /core/images: no end after {MAX_IMAGE_PAGES} pages")


def _managed_key(environment: str) -> str:
    return f"{MANAGED}-{environment}"[:NAME_MAX]


def _refused(answer: Answer, path: str, scrub: Callable[[str], str]) -> Exception:
    where = f"POST {path}"
    if answer.status in (400, 404, 405, 406, 422) and error_body(answer) is not None:
        return RejectedError(f"{where}: {scrub(words(answer))}", answer.status)
    return failure(answer, where, scrub)
