"""Organisations of the simulated cloud: keys, environments, keypairs."""

from __future__ import annotations

from collections.abc import Callable

from flashd.sim.cloud_catalogue import Catalogue
from flashd.sim.cloud_payload import fingerprint, name_of, text
from flashd.sim.cloud_types import (
    NAME_MAX,
    Account,
    ApiError,
    ApiKey,
    Environment,
    Json,
    Keypair,
    already_exists,
    bad_request,
    not_found,
)


class Accounts:
    def __init__(self, catalogue: Catalogue, now: Callable[[], float]) -> None:
        self._catalogue = catalogue
        self._now = now
        self.by_name: dict[str, Account] = {}
        self.keys: dict[str, ApiKey] = {}
        self._next_id = 500

    def add(self, name: str, credit: float = 1000.0) -> Account:
        """A new organisation with the default environment of every region."""
        if name in self.by_name:
            raise bad_request(f"account {name!r} exists")
        account = Account(name, 9001 + len(self.by_name), credit)
        self.by_name[name] = account
        for region in self._catalogue.regions:
            self._environment(account, f"default-{region.name}", region.name)
        return account

    def add_key(self, key: str, account: str, *, read_only: bool = False) -> None:
        """Let `key` act for `account`; also moves an existing key to another account."""
        if account not in self.by_name:
            raise bad_request(f"no account is called {account!r}")
        self.keys[key] = ApiKey(account, read_only)

    def revoke(self, key: str, revoked: bool = True) -> None:
        if key not in self.keys:
            raise bad_request("no such key")
        self.keys[key].revoked = revoked

    def authenticate(self, key: str | None, *, writes: bool) -> Account:
        """The account behind a key. Raises 401 for a missing, wrong or revoked key, 403 if a read-only one writes."""
        found = self.keys.get(key or "")
        if found is None or found.revoked:
            raise ApiError(401, "unauthorized", "Unauthorized: invalid or missing API key")
        if writes and found.read_only:
            raise ApiError(403, "forbidden", "You do not have permission to perform this action")
        return self.by_name[found.account]

    def environment_named(self, account: Account, name: str) -> Environment:
        for environment in account.environments.values():
            if environment.name == name:
                return environment
        raise not_found(f"Environment {name} does not exist")

    def environment(self, account: Account, environment_id: int) -> Environment:
        found = account.environments.get(environment_id)
        if found is None:
            raise not_found(f"Environment {environment_id} does not exist")
        return found

    def create_environment(self, account: Account, body: Json) -> Environment:
        name, region = name_of(body), text(body, "region")
        if not self._catalogue.has_region(region):
            raise not_found(f"Region {region} does not exist")
        self._check_environment_name(account, name)
        return self._environment(account, name, region)

    def rename_environment(self, account: Account, environment_id: int, body: Json) -> Environment:
        found = self.environment(account, environment_id)
        name = name_of(body)
        if name != found.name:
            self._check_environment_name(account, name)
        found.name = name
        return found

    def import_keypair(self, account: Account, body: Json) -> Keypair:
        name = name_of(body)
        environment = self.environment_named(account, text(body, "environment_name"))
        public_key = text(body, "public_key")
        mark = fingerprint(public_key)
        if self.find_keypair(account, environment, name) is not None:
            raise already_exists(f"Keypair {name} already exists")
        made = Keypair(self._new_id(), name, environment, public_key, mark, self._now())
        account.keypairs[made.id] = made
        return made

    def find_keypair(self, account: Account, environment: Environment, name: str) -> Keypair | None:
        for keypair in account.keypairs.values():
            if keypair.name == name and keypair.environment is environment:
                return keypair
        return None

    def keypair(self, account: Account, keypair_id: int) -> Keypair:
        found = account.keypairs.get(keypair_id)
        if found is None:
            raise not_found(f"Keypair {keypair_id} does not exist")
        return found

    def _check_environment_name(self, account: Account, name: str) -> None:
        if any(environment.name == name for environment in account.environments.values()):
            raise already_exists(f"Environment {name} already exists")

    def _environment(self, account: Account, name: str, region: str) -> Environment:
        made = Environment(self._new_id(), name[:NAME_MAX], region, self._now())
        account.environments[made.id] = made
        return made

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id
