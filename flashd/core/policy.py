"""The numbers that rules of `core` use, as one value. `flashd.config` builds it from the `[policy]` section."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All in seconds, but `last_choice_factor`. The meaning of each is the comment of its key in `config.example.toml`.

    `hub_settle_s` is the wait between two fresh terminal reads before an absence counts: the Hub may answer a read
    that follows a commit closely with the state before it.
    """

    load_timeout_s: float = 900.0
    first_sign_timeout_s: float = 900.0
    setup_grace_s: float = 3000.0
    stall_after_s: float = 1500.0
    last_choice_factor: float = 1.5
    provision_grace_s: float = 3000.0
    launch_timeout_s: float = 30.0
    launch_settle_s: float = 120.0
    retry_backoff_s: float = 30.0
    release_check_s: float = 10.0
    release_wait_s: float = 600.0
    metrics_wait_s: float = 60.0
    done_grace_s: float = 180.0
    lease_ttl_s: float = 60.0
    cooldown_s: float = 180.0
    hub_settle_s: float = 20.0
