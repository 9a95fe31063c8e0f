"""One HTTP session per account behind its limiter. Gives the answer as it came or says that there was none.

Knows nothing of any provider: what a status means is decided by the caller. Logs nothing, so no header, body or
credential can reach a log from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
import anyio

from flashd.adapters.limiter import WINDOW_S, Lane, Limiter
from flashd.errors import NotSentError, UnavailableError

CONNECT_TIMEOUT_S = 10.0
CALL_TIMEOUT_S = 30.0
MAX_BODY_BYTES = 8 << 20  # a page of 100 machines is about 200 kB
CHUNK_BYTES = 64 << 10
KEEPALIVE_S = 75.0  # above the poll interval, so that a tick reuses the last tick's connection
TOO_MANY_REQUESTS = 429

OnRequest = Callable[[Lane, int], None]


@dataclass(frozen=True, slots=True)
class Call:
    """One request. `timeout_s` runs from the moment the budget lets it go. `guard` is called at that moment too:
    what it raises means that nothing was sent."""

    lane: Lane
    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = field(default=None, repr=False)
    timeout_s: float = CALL_TIMEOUT_S
    guard: Callable[[], None] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, of any status. Header names are in lower case."""

    status: int
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def retry_after_s(self) -> float:
        """The server's Retry-After in seconds, else one whole window. Dates are not read: clocks differ."""
        text = self.headers.get("retry-after", "").strip()
        return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else WINDOW_S


class AccountHttp:
    """The only way to a provider's API. `headers` is called for each request, so a changed credential works at once.

    `on_request` gets the lane and the status of every request, 0 when there was no answer.
    """

    def __init__(
        self,
        base_url: str,
        limiter: Limiter,
        headers: Callable[[], Mapping[str, str]],
        on_request: OnRequest | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self.limiter = limiter
        self._headers = headers
        self._on_request = on_request
        self._max_body_bytes = max_body_bytes
        self._session: aiohttp.ClientSession | None = None

    async def send(self, call: Call) -> Answer:
        """Wait for the budget, send once, read the whole answer. A 429 holds all lanes until its window is over.

        Raises NotSentError when no connection was made, UnavailableError when no whole answer came in time (the
        server may have acted), and whatever `call.guard` raises.
        """
        async with self.limiter.slot(call.lane):
            if call.guard is not None:
                call.guard()
            code = 0
            try:
                answer = await self._exchange(call)
                code = answer.status
            finally:
                if self._on_request is not None:
                    self._on_request(call.lane, code)
        if answer.status == TOO_MANY_REQUESTS:
            self.limiter.block(answer.retry_after_s)
        return answer

    async def aclose(self) -> None:
        """Close the session; a later call opens a new one."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _exchange(self, call: Call) -> Answer:
        where = f"{call.method} {call.path}"
        try:
            with anyio.fail_after(call.timeout_s):
                return await self._roundtrip(call)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NotSentError(f"{where}: no connection to the API ({type(error).__name__})") from error
        except TimeoutError as error:
            raise UnavailableError(f"{where}: no answer within {call.timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UnavailableError(f"{where}: the connection broke ({type(error).__name__})") from error

    async def _roundtrip(self, call: Call) -> Answer:
        headers = dict(self._headers())
        if call.body is not None:
            headers["Content-Type"] = "application/json"
        # A redirect would carry the credential to wherever it points; it is an answer like any other.
        async with self._opened().request(
            call.method,
            self._base_url + call.path,
            params=call.query,
            data=call.body,
            headers=headers,
            allow_redirects=False,
        ) as response:
            body = bytearray()
            async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                body += chunk
                if len(body) > self._max_body_bytes:
                    raise UnavailableError(
                        f"{call.method} {call.path}: the answer is larger than {self._max_body_bytes} bytes",
                        response.status,
                    )
            found = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, bytes(body), found)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                # The limiter is the gate, so nobody ever waits for a place in the pool and no deadline runs meanwhile.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=True,
            )
        return self._session
