"""Whose key it is and what money is left: the account's own pages of Hyperstack.

Source: the provider's OpenAPI models of /auth/organizations, /auth/me and /billing/user-credit/credit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec

from flashd.adapters.http import Call
from flashd.adapters.limiter import Lane
from flashd.errors import ForbiddenError, UnavailableError
from flashd.providers.base import Credit
from flashd.providers.hyperstack_api import HyperstackApi
from flashd.providers.hyperstack_wire import Envelope, Parsed


class Organisation(msgspec.Struct):
    id: int | str | None = None


class User(msgspec.Struct):
    email: str | None = None
    username: str | None = None


class CreditData(msgspec.Struct):
    credit: float | None = None
    can_create_instance: bool | None = None


class OrganisationAnswer(Envelope):
    organization: Organisation | None = None


class UserAnswer(Envelope):
    user: User | None = None


class CreditAnswer(Envelope):
    data: CreditData | None = None


_organisation = Parsed(OrganisationAnswer)
_user = Parsed(UserAnswer)
_credit = Parsed(CreditAnswer)


class AccountReader:
    """Reads the account behind the present key."""

    def __init__(self, api: HyperstackApi, api_key: Callable[[], str]) -> None:
        self._api = api
        self._api_key = api_key
        self._known: tuple[str, str] | None = None  # the key's hash and what it belongs to

    async def identity(self) -> str:
        """The organisation's id (`org:7`), since machines belong to it and every member's key sees them.

        A key whose role may not read the organisation is known by a hash of its user instead. Asked once for each key.
        """
        key = hashlib.sha256(self._api_key().encode()).hexdigest()
        if self._known is not None and self._known[0] == key:
            return self._known[1]
        found = await self._organisation_id() or await self._user_hash()
        self._known = (key, found)
        return found

    async def credit(self, lane: Lane) -> Credit:
        data = (await self._api.read(Call(lane, "GET", "/billing/user-credit/credit"), _credit)).data
        return Credit(data.credit, data.can_create_instance) if data else Credit(None, None)

    async def _organisation_id(self) -> str | None:
        try:
            answer = await self._api.read(Call(Lane.REST, "GET", "/auth/organizations"), _organisation)
        except ForbiddenError:
            return None
        found = answer.organization
        return f"org:{found.id}" if found is not None and found.id is not None else None

    async def _user_hash(self) -> str:
        found = (await self._api.read(Call(Lane.REST, "GET", "/auth/me"), _user)).user
        name = (found.email or found.username) if found else None
        if not name:
            raise UnavailableError("GET /auth/me: an answer without a user")
        return f"user:{hashlib.sha256(name.casefold().encode()).hexdigest()[:16]}"


def is_broke(credit: Credit) -> bool:
    """Whether the account can make no machine; the provider's own word counts before the balance."""
    if credit.can_create is not None:
        return not credit.can_create
    return credit.balance_usd is not None and credit.balance_usd <= 0
