"""Settings that together lose money (errors) or are probably not meant (warnings), and the fleet's ceiling."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from flashd.config_model import ConfigFile

LISTED_PER_REQUEST = 100  # machines on one page of a provider's list
SHARE_FOR_LISTS = 0.8  # a fifth of the request budget is kept for deletes and launches
HUB_BUDGET_SHARE = 0.8  # of commits_per_hour; at it launches into the repository wait


@dataclass(frozen=True, slots=True)
class Contradiction:
    """`key` cannot stand as it is; `wrong` says why and `allowed` what could."""

    key: tuple[str, ...]
    wrong: str
    allowed: str


@dataclass(frozen=True, slots=True)
class FleetCeiling:
    """How many machines the budgets carry."""

    max_machines: int
    max_usd_per_hour: float
    machines_listed: int  # what the request budget lists within one poll interval
    runs_per_repo: int
    repositories: int  # needed for max_machines live runs

    @property
    def machines(self) -> int:
        """The smallest of the ceilings that count machines."""
        return min(self.max_machines, self.machines_listed)

    @property
    def text(self) -> str:
        """A few lines for `flashd check-config`."""
        return "\n".join(
            (
                f"fleet ceiling: {self.machines} machines",
                f"  limits.max_machines: {self.max_machines} machines at the same time",
                f"  limits.max_usd_per_hour: {self.max_usd_per_hour:g} dollars per hour",
                f"  providers.hyperstack: requests for a list of {self.machines_listed} machines in each poll interval",
                f"  hub.runs_per_repo: {self.runs_per_repo} live runs a repository,"
                f" so {self.repositories} repositories for {self.max_machines} machines",
            )
        )


def fleet_ceiling_of(file: ConfigFile) -> FleetCeiling:
    """From the limits, the provider's request budget and the Hub's commit budget."""
    cloud = file.providers.hyperstack
    requests_a_pass = cloud.requests_per_minute * SHARE_FOR_LISTS * cloud.poll_interval_s / 60
    return FleetCeiling(
        max_machines=file.limits.max_machines,
        max_usd_per_hour=file.limits.max_usd_per_hour,
        machines_listed=math.floor(requests_a_pass) * LISTED_PER_REQUEST,
        runs_per_repo=file.hub.runs_per_repo,
        repositories=math.ceil(file.limits.max_machines / file.hub.runs_per_repo),
    )


def contradictions(file: ConfigFile) -> Iterator[Contradiction]:
    """What must not start: each of these has a way to pay twice or to delete what works."""
    policy = file.policy
    if policy.launch_timeout_s > policy.lease_ttl_s / 2:
        yield Contradiction(
            ("policy", "launch_timeout_s"),
            f"a create call of {policy.launch_timeout_s:g} s may outlive the lease: two daemons would launch",
            f"at most policy.lease_ttl_s / 2 = {policy.lease_ttl_s / 2:g}",
        )
    if file.sweep.grace_s < policy.launch_timeout_s:
        yield Contradiction(
            ("sweep", "grace_s"),
            "the sweep would judge machines whose create call has not answered yet",
            f"at least policy.launch_timeout_s = {policy.launch_timeout_s:g}",
        )
    if policy.release_wait_s < 2 * policy.release_check_s:
        yield Contradiction(
            ("policy", "release_wait_s"),
            "no absence can be proved in this time: each next attempt would run beside an unproved machine",
            f"at least 2 x policy.release_check_s = {2 * policy.release_check_s:g}",
        )
    if file.retention.remember_days < file.retention.runs_days:
        yield Contradiction(
            ("retention", "remember_days"),
            "a finished request that is sent again would be launched again",
            f"at least retention.runs_days = {file.retention.runs_days:g}",
        )


def warnings_of(file: ConfigFile) -> Iterator[Contradiction]:
    """What is probably not meant: runs would wait, or be given up while they work."""
    policy, hub = file.policy, file.hub
    if policy.stall_after_s < 2 * hub.commit_interval_s:
        yield Contradiction(
            ("policy", "stall_after_s"),
            "one lost heartbeat would end a healthy attempt",
            f"2 x hub.commit_interval_s = {2 * hub.commit_interval_s:g} or more is advised",
        )
    first_step_s = hub.first_commit_after_s + hub.commit_interval_s
    if policy.setup_grace_s < first_step_s:
        yield Contradiction(
            ("policy", "setup_grace_s"),
            "an attempt would be given up before its box may report a first step",
            f"hub.first_commit_after_s + hub.commit_interval_s = {first_step_s:g} or more is advised",
        )
    if policy.setup_grace_s < policy.load_timeout_s:
        yield Contradiction(
            ("policy", "setup_grace_s"),
            "it ends before the machine may have become active",
            f"policy.load_timeout_s = {policy.load_timeout_s:g} or more is advised",
        )
    settle_s = 2 * file.providers.hyperstack.poll_interval_s
    if policy.launch_settle_s < settle_s:
        yield Contradiction(
            ("policy", "launch_settle_s"),
            "an unknown launch may be given up before the list was read twice",
            f"2 x providers.hyperstack.poll_interval_s = {settle_s:g} or more is advised",
        )
    if policy.lease_ttl_s > 80:
        yield Contradiction(
            ("policy", "lease_ttl_s"), "a standby takes over late", "80 or less for a takeover within 90 s"
        )
    yield from _budget_warnings(file)
    host = file.http.listen.rpartition(":")[0]
    if host and host not in ("127.0.0.1", "[::1]", "localhost"):
        yield Contradiction(("http", "listen"), "others can read it, there is no password", "127.0.0.1 is advised")


def _budget_warnings(file: ConfigFile) -> Iterator[Contradiction]:
    hub, ceiling = file.hub, fleet_ceiling_of(file)
    commits = hub.runs_per_repo * 3600 / hub.commit_interval_s
    if commits > HUB_BUDGET_SHARE * hub.commits_per_hour:
        yield Contradiction(
            ("hub", "runs_per_repo"),
            f"heartbeats alone make {commits:g} commits an hour in a repository: launches will wait with hub_budget",
            f"at most {math.floor(HUB_BUDGET_SHARE * hub.commits_per_hour * hub.commit_interval_s / 3600)} is advised",
        )
    if ceiling.machines_listed < ceiling.max_machines:
        yield Contradiction(
            ("limits", "max_machines"),
            "the provider's request budget does not list as many in one poll interval; news will be late",
            f"at most {ceiling.machines_listed}, or a longer providers.hyperstack.poll_interval_s",
        )
