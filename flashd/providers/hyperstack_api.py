"""Calls to Hyperstack's API: one typed read, one paged read, one write. Every other answer becomes an error here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import msgspec

from flashd.adapters.http import AccountHttp, Answer, Call
from flashd.adapters.limiter import Lane
from flashd.errors import NotFoundError, UnavailableError
from flashd.providers.hyperstack_wire import Parsed, failure

PAGE_SIZE = 100  # what is asked for; the server may give less without saying so
MAX_PAGES = 1_000
PASSES = 2  # lists are not stable: rows may be skipped while others are deleted
Query = tuple[tuple[str, str], ...]
T = TypeVar("T")


class Row(Protocol):
    @property
    def id(self) -> int | str: ...


RowT = TypeVar("RowT", bound=Row)
RowT_co = TypeVar("RowT_co", bound=Row, covariant=True)


class Page(Protocol[RowT_co]):
    """A page as decoded: `rows` unset or null is not the same as empty."""

    @property
    def count(self) -> int | None: ...

    @property
    def rows(self) -> Sequence[RowT_co] | msgspec.UnsetType | None: ...


class HyperstackApi:
    """The account's HTTP with Hyperstack's error shape. Errors never carry the key, even if the server echoes it."""

    def __init__(self, http: AccountHttp, api_key: Callable[[], str]) -> None:
        self.http = http
        self._api_key = api_key

    def scrub(self, text: str) -> str:
        """A text of the provider without our key."""
        key = self._api_key()
        return text.replace(key, "[key]") if key else text

    async def read(self, call: Call, parsed: Parsed[T]) -> T:
        """The parsed body of a 2xx answer. Raises what `failure` says, or UnavailableError for an unreadable body.

        A 404 is UnavailableError too: the address of a list does not vanish, so something is wrong with the API.
        """
        where = f"{call.method} {call.path}"
        answer = await self.http.send(call)
        if answer.ok:
            return parsed(answer, where)
        error = failure(answer, where, self.scrub)
        raise UnavailableError(error.text, 404) if isinstance(error, NotFoundError) else error

    async def send(self, call: Call) -> Answer:
        """The answer as it came."""
        return await self.http.send(call)

    async def pages(self, lane: Lane, path: str, parsed: Parsed[Page[RowT]], query: Query = ()) -> list[RowT]:
        """All rows of a list, de-duplicated by id, in the server's order; complete or UnavailableError.

        A page shorter than asked for is not the end: servers cap the size in silence. The end is an empty page, or one
        shorter than an earlier one. `count` (the total or the page's length, the contract does not say) never ends a
        list, but rows that it announces must turn up. Source: Hyperstack API guide, pagination.
        """
        found: dict[int | str, RowT] = {}
        call = Call(lane, "GET", path, query)
        for _ in range(PASSES):
            announced = await self._pass(call, parsed, found)
            if announced <= len(found):
                return list(found.values())
        raise UnavailableError(f"GET {path}: {announced} rows are announced, the pages show {len(found)}")

    async def _pass(self, call: Call, parsed: Parsed[Page[RowT]], found: dict[int | str, RowT]) -> int:
        """One walk over the pages into `found`; returns how many rows were announced."""
        announced, longest, before = 0, 0, set[int | str]()
        for number in range(1, MAX_PAGES + 1):
            query = (*call.query, ("page", str(number)), ("pageSize", str(PAGE_SIZE)))
            rows, count = rows_of(await self.read(replace(call, query=query), parsed), call.path)
            announced = max(announced, count)
            ids = {row.id for row in rows}
            if rows and ids == before:
                raise UnavailableError(f"GET {call.path}: page {number} repeats the page before it")
            found.update((row.id, row) for row in rows)
            if not rows or len(rows) < longest:
                return announced
            longest, before = max(longest, len(rows)), ids
        raise UnavailableError(f"GET {call.path}: no end after {MAX_PAGES} pages")


def rows_of(page: Page[RowT], path: str) -> tuple[Sequence[RowT], int]:
    """Rows and announced count. A list that is missing is not an empty one, unless the count says 0."""
    rows, count = page.rows, page.count or 0
    if rows is None and page.count == 0:
        return [], 0
    if rows is None or isinstance(rows, msgspec.UnsetType):
        raise UnavailableError(f"GET {path}: an answer without its list")
    return rows, count
