"""Names of every Redis key of one namespace. The public ones are the contract's; the rest is the store's own."""

from __future__ import annotations

PER_RUN = frozenset({"run", "core", "log", "gone", "tomb", "cancel"})
_RENAMED = {"log": "events"}  # `events:<run_id>` is called `log` in scripts, beside the namespace's `events`


class Keys:
    """Key names below `flashd:{<ns>}:`. The braces are literal: one namespace, one slot."""

    def __init__(self, ns: str) -> None:
        self.prefix = f"flashd:{{{ns}}}:"

    def name(self, short: str, run_id: str = "") -> str:
        """The key that scripts call `short`; `run_id` is needed for the keys that exist per run."""
        if short not in PER_RUN:
            return self.prefix + short
        if not run_id:
            raise ValueError(f"the key {short} needs a run id")
        return f"{self.prefix}{_RENAMED.get(short, short)}:{run_id}"

    def notify(self, run_id: str = "") -> str:
        """The pub/sub channel, of all runs or of one."""
        return f"{self.prefix}notify:{run_id}" if run_id else f"{self.prefix}notify"
