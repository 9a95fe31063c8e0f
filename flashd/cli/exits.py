"""Exit statuses of the command line; the same ones for every verb."""

from __future__ import annotations

from enum import IntEnum


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
