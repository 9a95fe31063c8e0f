"""What this box was told (`payload.json`), its names and titles, and the masking of its secrets.

Two variables exist for tests only: FLASH_BOX_ROOT puts every absolute path below a directory, FLASH_BOX_PACE multiplies
the built-in waits. Neither is ever set on a machine.
"""

from __future__ import annotations

import json
import math
import os
import re
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(os.environ.get("FLASH_BOX_ROOT", "/"))
PACE = float(os.environ.get("FLASH_BOX_PACE", "1"))
MIN_SECRET_LENGTH = 4  # shorter values would mask half of the output
CREDENTIAL_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|KEY(_|$)", re.IGNORECASE)


@dataclass(frozen=True)
class Job:
    """The parsed payload. `spec` is any JSON value."""

    run_id: str
    phase: str
    seed: int
    attempt: int
    token: str
    provider: str
    endpoint: str
    repo: str
    prefix: str
    first_commit_after_s: float
    commit_interval_s: float
    code_repo: str
    code_revision: str
    code_path: str
    image: str
    command: list[str]
    pip: list[str]
    env: dict[str, str]
    spec: object
    spec_in_hub: bool
    mode: str
    models: list[str]
    cache_mount: str
    cache_marker: str
    cache_label: str
    cache_size_gb: int
    cache_hint: str
    max_wall_s: float
    deadline_at: float
    secrets: list[str]

    def path(self, name: str) -> str:
        return f"{self.prefix}/{name}"

    @property
    def marker_path(self) -> str:
        return self.path(f"{self.provider}_attempt{self.attempt}.json")

    def title(self, event: str, heartbeat: dict[str, Any] | None = None) -> str:
        """A commit title that tells the daemon what happened without a read. Source: the contract, artifacts."""
        words = [f"flashd run={self.run_id} seed={self.seed} attempt={self.attempt} event={event}"]
        for key in ("stage", "step", "loss"):
            value = (heartbeat or {}).get(key)
            if isinstance(value, float):
                value = f"{value:.6g}"
            if value is not None:
                words.append(f"{key}={re.sub(r'[^A-Za-z0-9_.+-]', '_', self.mask(str(value)))[:64]}")
        if heartbeat and heartbeat.get("liveness"):
            words.append("liveness=1")
        return " ".join(words)

    def marker(self, ok: bool, retriable: bool, error: str, exit_code: int, ts: float) -> str:
        return json.dumps(
            {
                "ok": ok,
                "attempt": self.attempt,
                "token": self.token,
                "ts": ts,
                "retriable": retriable,
                "error": self.mask(error)[:16_000],
                "exit_code": exit_code,
            }
        )

    def mask(self, text: str) -> str:
        """The text without any of this box's secrets."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text

    def clean(self, value: object) -> object:
        """A JSON value without secrets in its texts, and strict: NaN and infinities become null."""
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if isinstance(value, dict):
            return {self.mask(str(key)): self.clean(item) for key, item in value.items()}
        return [self.clean(item) for item in value] if isinstance(value, list) else value


def load_job(path: Path) -> Job:
    p = json.loads(path.read_text())
    hub, code, worker, cache = p["hub"], p["code"], p["worker"], p.get("cache") or {}
    return Job(
        run_id=p["run_id"],
        phase=p["phase"],
        seed=p["seed"],
        attempt=p["attempt"],
        token=p["token"],
        provider=p["provider"],
        endpoint=hub["endpoint"].rstrip("/"),
        repo=hub["repo"],
        prefix=hub["prefix"],
        first_commit_after_s=hub["first_commit_after_s"],
        commit_interval_s=hub["commit_interval_s"],
        code_repo=code["repo"],
        code_revision=code["revision"],
        code_path=code["path"].strip("/"),
        image=worker["image"],
        command=worker["command"],
        pip=worker["pip"],
        env=p["env"],
        spec=p.get("spec"),
        spec_in_hub=bool(p.get("spec_in_hub")),
        mode=p.get("mode", "train"),
        models=p.get("models") or [],
        cache_mount=cache.get("mount", ""),
        cache_marker=cache.get("marker", ""),
        cache_label=cache.get("label", ""),
        cache_size_gb=cache.get("size_gb", 0),
        cache_hint=cache.get("device_hint", ""),
        max_wall_s=p["max_wall_s"],
        deadline_at=p["deadline_at"],
        secrets=_secret_forms(p["env"], p.get("secret_names") or []),
    )


def write_atomically(path: Path, text: str) -> None:
    """Whole or not at all, readable by root only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".new")
    scratch.unlink(missing_ok=True)
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def _secret_forms(env: dict[str, str], names: list[str]) -> list[str]:
    """Every spelling in which a secret may be printed, longest first: whole, by line, JSON-escaped, URL-quoted."""
    values = [value for name, value in env.items() if name in names or CREDENTIAL_NAME.search(name)]
    pieces = [piece.strip() for value in values for piece in [value, *value.splitlines()]]
    forms = {
        form
        for piece in pieces
        for form in (
            piece,
            json.dumps(piece)[1:-1],
            json.dumps(piece, ensure_ascii=False)[1:-1],
            urllib.parse.quote(piece, safe=""),
        )
        if len(piece) >= MIN_SECRET_LENGTH
    }
    return sorted(forms, key=len, reverse=True)
