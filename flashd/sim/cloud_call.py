"""One API call on its way: what the routes read, without the web framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flashd.sim.cloud import Cloud
from flashd.sim.cloud_types import Account, Json, Machine, bad_request, not_found


@dataclass(slots=True)
class Call:
    """`hidden` is a regex of names that listings leave out (fault `drop_rows`); `made` collects created machines."""

    cloud: Cloud
    account: Account
    query: Mapping[str, str]
    path: Mapping[str, str]
    raw_body: object = None
    hidden: str = ""
    made: list[Machine] = field(default_factory=list)

    @property
    def body(self) -> Json:
        if not isinstance(self.raw_body, dict):
            raise bad_request("The request body must be a JSON object")
        return self.raw_body

    @property
    def id(self) -> int:
        raw = self.path["id"]
        if not raw.isdecimal():
            raise not_found(f"{raw} does not exist")
        return int(raw)

    def machine(self) -> Machine:
        return self.cloud.machines.find(self.account, self.id)


Handler = Callable[[Call], object]
Route = tuple[str, str, Handler]
