"""Every exception flashd raises on purpose, on one page. Adapters map a library's exceptions to these, once."""

from __future__ import annotations


class FlashdError(Exception):
    """Base of all errors that flashd raises on purpose."""


class ConfigError(FlashdError):
    """The configuration cannot be used; `lines` holds `file:line:column: key: what is wrong; what is allowed`, each."""

    def __init__(self, lines: tuple[str, ...]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class RequestError(FlashdError):
    """Bad input from a producer: it belongs into `rejected`, with every fault."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class PayloadTooLargeError(RequestError):
    """The boot payload does not fit into what the provider takes."""


class StateDirectoryError(FlashdError):
    """The state directory is in use by another process, or cannot be used."""


# Providers -----------------------------------------------------------------------------------------------------------


class ProviderError(FlashdError):
    """A GPU cloud did not do what was asked. `code` is the HTTP status (0 = none), `text` the provider's own words."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text if not code else f"HTTP {code}: {text}")
        self.text = text
        self.code = code


class RejectedError(ProviderError):
    """Refused for sure: no machine was made. The request itself, its place or the account is at fault."""


class CapacityError(RejectedError):
    """Refused for sure for want of stock at this place."""


class NoCreditError(RejectedError):
    """Refused for sure: the account has no credit left."""


class ForbiddenError(RejectedError):
    """403. On a create: refused for sure, launches pause. On one machine: it says nothing about that machine."""


class NameTakenError(ProviderError):
    """409 on a create: a machine of this name exists; nothing is known yet about whose it is."""


class AmbiguousLaunchError(ProviderError):
    """A machine may exist: no answer, a 5xx, or an answer without an id."""


class NotFoundError(ProviderError):
    """The provider proved that there is no such thing (404 with `not_found`)."""


class RateLimitedError(ProviderError):
    """429: nothing was done; ask again after `retry_after_s` seconds."""

    def __init__(self, text: str, retry_after_s: float) -> None:
        super().__init__(text, 429)
        self.retry_after_s = retry_after_s


class AuthError(ProviderError):
    """The credential was refused (401), or belongs to another account than the fleet's."""


class UnavailableError(ProviderError):
    """No usable answer (timeout, reset, 5xx, unparsable body): nothing is known."""


class NotSentError(UnavailableError):
    """The request never left (no connection, or a read that had to come first failed): nothing was done for sure."""


# Hub -----------------------------------------------------------------------------------------------------------------


class HubError(FlashdError):
    """The Hub gave no usable answer; nothing is known about the artifacts."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text if not code else f"HTTP {code}: {text}")
        self.text = text
        self.code = code


class HubUnavailableError(HubError):
    """Timeout, reset, 5xx or an unparsable body."""


class HubThrottledError(HubError):
    """429: `retry_after_s` seconds; `commit_quota` when it is the hourly commit quota and not the request window."""

    def __init__(self, text: str, retry_after_s: float, *, commit_quota: bool) -> None:
        super().__init__(text, 429)
        self.retry_after_s = retry_after_s
        self.commit_quota = commit_quota


class HubAuthError(HubError):
    """401: the daemon's token was refused."""


class HubForbiddenError(HubError):
    """403: the token may not do this in this repository."""


class HubRepoMissingError(HubError):
    """404 for the whole repository: absent, renamed, or invisible to this token."""


# Redis ---------------------------------------------------------------------------------------------------------------


class StoreError(FlashdError):
    """Redis did not do what was asked."""


class StoreUnavailableError(StoreError):
    """No answer, or Redis cannot serve now (down, LOADING, READONLY, MISCONF): the outcome of a write is unknown."""


class StoreFullError(StoreError):
    """Redis is out of memory: nothing was written."""


class StoreAuthError(StoreError):
    """Redis refused the password or the user's rights: retrying does not help."""


class FencedError(StoreError):
    """Another daemon leads this namespace: nothing was written, and this process must stop acting."""


class StaleError(StoreError):
    """The run changed underneath: nothing was written."""
