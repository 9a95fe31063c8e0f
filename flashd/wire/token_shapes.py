"""The exact shapes of access tokens and private keys: what may never be written to Redis, a log or an event."""

from __future__ import annotations

import re

_SHAPES = (
    ("Hugging Face token", r"\bhf_[A-Za-z0-9]{30,64}\b"),
    ("private key", r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"),
    ("Anthropic key", r"\bsk-ant-[a-z0-9]{2,8}-[A-Za-z0-9_-]{40,}"),
    ("OpenAI key", r"\bsk-(?:(?:proj|svcacct|admin)-[A-Za-z0-9_-]{40,}|[A-Za-z0-9]{40,64}\b)"),
    ("OpenRouter key", r"\bsk-or-v1-[0-9a-f]{64}\b"),
    ("AWS access key", r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    ("GitHub token", r"\b(?:gh[pousr]_[A-Za-z0-9]{36,251}|github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59})\b"),
    ("GitLab token", r"\bglpat-[A-Za-z0-9_-]{20,}"),
    ("Google key", r"\bAIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])"),
    ("Slack token", r"\bxox[abeoprs]-[0-9]{8,14}-[A-Za-z0-9-]{16,}"),
    ("Stripe key", r"\b[rs]k_live_[A-Za-z0-9]{24,}\b"),
    ("PyPI token", r"\bpypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{40,}"),
    ("NVIDIA key", r"\bnvapi-[A-Za-z0-9_-]{60,}"),
)
# A plain search for these costs next to nothing; the patterns run only where one of them stands.
_STARTS = (
    "hf_",
    "PRIVATE KEY",
    "sk-",
    "AKIA",
    "ASIA",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "AIza",
    "xox",
    "k_live_",
    "pypi-AgEI",
    "nvapi-",
)
_ANY = re.compile("|".join(f"({shape})" for _, shape in _SHAPES))
# Looser than the shapes: only decides whether a refused body is kept for the operator to look at.
_SECRET_FIELD = re.compile(
    r"""["'][^"'\n]{0,64}(?:token(?!iz)|secret|passw|api_?key|credential|private_?key)[^"'\n]{0,64}["']\s*:\s*["'][^"']""",
    re.IGNORECASE,
)
_TELLING_WORDS = ("token", "secret", "passw", "apikey", "api_key", "credential", "privatekey", "private_key")
_URL_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]{0,20}://[^/\s:@]{0,128}:[^/\s@]{1,256}@", re.IGNORECASE)
_ASCII_ESCAPE = re.compile(r"\\u00([0-7][0-9A-Fa-f])")


def token_kind(text: str) -> str | None:
    """What kind of secret stands in the text, or None. Only exact shapes count: `hf_model` is none."""
    if not any(start in text for start in _STARTS):
        return None
    found = _ANY.search(text)
    return None if found is None or found.lastindex is None else _SHAPES[found.lastindex - 1][0]


def masked(text: str) -> str:
    """The text with every token replaced by `***`."""
    return text if token_kind(text) is None else _ANY.sub("***", text)


def may_hold_secret(text: str) -> bool:
    """True when a text should not be shown to others: a token, a field with a telling name, or a password in a URL."""
    plain = _ASCII_ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    return any(_telling(version) for version in {text, plain})


def _telling(text: str) -> bool:
    folded = text.casefold()
    return (
        token_kind(text) is not None
        or (any(word in folded for word in _TELLING_WORDS) and _SECRET_FIELD.search(text) is not None)
        or ("://" in text and "@" in text and _URL_PASSWORD.search(text) is not None)
    )
