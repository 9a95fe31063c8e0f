"""Exit statuses of the command line, the same ones for every verb, and which error of flashd leads to which."""

from __future__ import annotations

from enum import IntEnum

from flashd.errors import (
    AuthError,
    ConfigError,
    FlashdError,
    HubAuthError,
    HubError,
    HubThrottledError,
    ProviderError,
    RateLimitedError,
    StateDirectoryError,
    StoreAuthError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)


class Exit(IntEnum):
    """As sysexits where it has a word for it."""

    OK = 0
    FAILED = 1  # the run or the operation failed
    USAGE = 2
    NO_SUCH_RUN = 3
    UNREACHABLE = 69  # Redis or the cloud
    LATER = 75  # try again later
    REFUSED = 77  # a credential was refused
    CONFIG = 78
    TIMEOUT = 124
    INTERRUPTED = 130


def exit_of(error: FlashdError) -> tuple[Exit, str]:
    """The exit status of an error that no verb handled itself, and what to say."""
    match error:
        case ConfigError():
            return Exit.CONFIG, str(error)
        case StateDirectoryError():
            return Exit.LATER, str(error)
        case StoreAuthError():
            return Exit.REFUSED, str(error)
        case StoreUnavailableError():
            return Exit.UNREACHABLE, f"{str(error).rstrip('.')}. Is Redis running, and is redis.url right?"
        case StoreFullError():
            return Exit.LATER, str(error)
        case StoreError():
            return Exit.FAILED, str(error)
        case AuthError() | HubAuthError():
            return Exit.REFUSED, f"the credential was refused: {error}"
        case RateLimitedError() | HubThrottledError():
            return Exit.LATER, f"asked too often, try again in {error.retry_after_s:.0f} s: {error}"
        case ProviderError() | HubError():
            return Exit.UNREACHABLE, f"no usable answer: {error}"
        case _:
            return Exit.FAILED, str(error)
