"""One HTTP session for the Hub: a gate, a deadline per request, redirects by hand, capped bodies, closed windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
import anyio
from yarl import URL

import flashd
from flashd.adapters.clock import Clock
from flashd.adapters.hub import Quota
from flashd.adapters.hub_answers import Answer, error_of, window
from flashd.errors import HubAuthError, HubThrottledError, HubUnavailableError

IN_FLIGHT_MAX = 8
REQUEST_TIMEOUT_S = 10.0
COMMIT_TIMEOUT_S = 70.0  # the Hub itself gives up after about 60 s
CONNECT_TIMEOUT_S = 5.0
REDIRECTS_MAX = 5
JSON_MAX = 8 * 1024 * 1024

_REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `kind` names it in metrics; `path` begins with `/`; `form` and `body` exclude each other."""

    kind: str
    method: str
    path: str
    query: str = ""
    form: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    content_type: str = ""
    max_bytes: int = JSON_MAX
    timeout_s: float = REQUEST_TIMEOUT_S
    writes: bool = False
    fine: tuple[int, ...] = field(default=(200,))

    @property
    def bucket(self) -> str:
        """Source: Hub documentation, "Rate limits": any path with /resolve/ counts as a resolver."""
        return "resolvers" if "/resolve/" in self.path else "api"


class HubSession:
    """Sends requests; every failure is a HubError. Made without a loop, opened by the first request."""

    def __init__(
        self, endpoint: str, token: Callable[[], str], clock: Clock, on_request: Callable[[str, int], None]
    ) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._token = token
        self._clock = clock
        self._on_request = on_request
        self._gate = anyio.Semaphore(IN_FLIGHT_MAX)
        self._http: aiohttp.ClientSession | None = None
        self._closed_until: dict[str, float] = {}
        self._quota: Quota | None = None

    @property
    def quota(self) -> Quota | None:
        """The API window of the last answer, None before the first."""
        return self._quota

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def send(self, ask: Ask) -> Answer:
        """An answer whose status is in `ask.fine`. Raises HubError.

        A request window that was answered with 429 stays closed here too, without asking, until it is over.
        """
        token = self._token().strip()
        if not token:
            raise HubAuthError("there is no Hub token")
        async with self._gate:
            self._check_window(ask.bucket)
            answer = await self._timed(ask, token)
        self._note_window(ask.bucket, answer)
        if answer.status in ask.fine:
            return answer
        error = error_of(answer, self._clock.now(), writes=ask.writes)
        if isinstance(error, HubThrottledError) and not error.commit_quota:
            self._closed_until[ask.bucket] = self._clock.now() + error.retry_after_s
        raise error

    async def _timed(self, ask: Ask, token: str) -> Answer:
        """The deadline begins behind the gate: a queue of ours says nothing about the Hub."""
        code = 0
        try:
            with anyio.move_on_after(ask.timeout_s):
                answer = await self._follow(ask, token)
                code = answer.status
                return answer
            raise HubUnavailableError(f"{self._endpoint} gave no answer to {ask.kind} within {ask.timeout_s:.0f} s")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            words = f"{type(error).__name__}: {error}".replace(token, "***")
            raise HubUnavailableError(f"{self._endpoint} gave no answer to {ask.kind}: {words}") from error
        finally:
            self._on_request(ask.kind, code)

    async def _follow(self, ask: Ask, token: str) -> Answer:
        url = URL(self._endpoint + ask.path + (f"?{ask.query}" if ask.query else ""), encoded=True)
        home = url.origin()
        for _ in range(REDIRECTS_MAX + 1):
            # A signed storage address needs no token, and another host must never see ours.
            answer = await self._once(ask, url, token if url.origin() == home else "")
            location = answer.headers.get("location")
            may_follow = ask.method == "GET" or answer.status in (307, 308)
            if answer.status not in _REDIRECTS or not may_follow or not location:
                return answer
            url = url.join(URL(location, encoded=True))  # a signature covers the address as it was written
        raise HubUnavailableError(f"more than {REDIRECTS_MAX} redirects for {ask.kind}")

    async def _once(self, ask: Ask, url: URL, token: str) -> Answer:
        data: aiohttp.FormData | bytes | None = aiohttp.FormData(list(ask.form)) if ask.form else ask.body or None
        session, headers = self._open(), _headers(ask, token)
        async with session.request(ask.method, url, data=data, headers=headers, allow_redirects=False) as response:
            body, cut = await _capped(response, ask.max_bytes)
            return Answer(response.status, {k.lower(): v for k, v in response.headers.items()}, body, cut)

    def _open(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=IN_FLIGHT_MAX),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._http

    def _check_window(self, bucket: str) -> None:
        left_s = self._closed_until.get(bucket, 0.0) - self._clock.now()
        if left_s > 0:
            raise HubThrottledError(f"the {bucket} window is used up (not asked)", left_s, commit_quota=False)

    def _note_window(self, bucket: str, answer: Answer) -> None:
        seen = window(answer)
        if bucket == "api" and seen is not None and seen.bucket == "api" and seen.limit:
            self._quota = Quota(seen.limit, seen.left, seen.reset_s)


def _headers(ask: Ask, token: str) -> Mapping[str, str]:
    headers = {"User-Agent": f"flashd/{flashd.__version__}"}
    if ask.bucket == "resolvers":
        headers["Accept-Encoding"] = "identity"  # so that Content-Length is the file's
    if ask.content_type:
        headers["Content-Type"] = ask.content_type
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return headers


async def _capped(response: aiohttp.ClientResponse, max_bytes: int) -> tuple[bytes, bool]:
    """At most `max_bytes` of the body, and whether there was more."""
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_chunked(64 * 1024):
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            response.close()
            return b"".join(parts)[:max_bytes], True
    return b"".join(parts), False
