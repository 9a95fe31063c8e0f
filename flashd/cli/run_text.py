"""One run for people: what, why, whose fault, what next; no line is longer than 80 columns but for names that are."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from flashd.cli.advice import fault_for, next_for
from flashd.cli.follow import Event, data_of, facts_of, name_of
from flashd.cli.output import WIDTH, age, cut
from flashd.cli.run_fields import Fields, max_attempts, number
from flashd.core.model import TERMINAL

LABEL = 9
WHY_LINES = 12
EVENTS_SHOWN = 15
METRICS_SHOWN = 300


def run_text(run_id: str, fields: Fields, events: Sequence[Event], now: float) -> str:
    """`events` are the run's, oldest first; `now` in Unix seconds."""
    state, reason = fields.get("state", ""), fields.get("reason", "")
    lines = [f"{run_id}: {state}" + (f", {reason}" if reason and reason != state else "")]
    for label, text in _facts(fields, events, now):
        lines += _labelled(label, text)
    lines.append("events")
    shown = events[-EVENTS_SHOWN:]
    if len(events) > len(shown):
        lines.append(f"  ... {len(events) - len(shown)} earlier: flashd events --run {run_id}")
    lines += [cut(f"  {event.get('time')}  {name_of(event)}  {facts_of(event)}".rstrip()) for event in shown]
    return "\n".join(lines)


def _facts(fields: Fields, events: Sequence[Event], now: float) -> Iterator[tuple[str, str]]:
    state, reason = fields.get("state", ""), fields.get("reason", "")
    over = state in TERMINAL
    if state != "succeeded":
        yield "why", _last_lines(fields.get("detail", ""))
        yield "fault", _said(events, "failed", "fault") or fault_for(reason)
        yield "next", _next(state, reason, events)
    yield "age", _age(fields, now)
    yield "machine", _machine(fields) if not over else ""
    yield "stage", _stage(fields, now) if not over else ""
    yield "result", fields.get("metrics", "")[:METRICS_SHOWN]
    yield "artifacts", _artifacts(events)
    yield "cost", f"${number(fields, 'cost_usd') or 0:.4f} {'final' if fields.get('released') == '1' else 'so far'}"
    yield "machines", "" if not over else "all proved gone" if fields.get("released") == "1" else "being deleted"
    yield "pending", _pending(fields)


def _labelled(label: str, text: str) -> list[str]:
    lines: list[str] = []
    for line in text.splitlines():
        head = " " * (LABEL + 3) if lines else f"  {label:<{LABEL}} "
        lines += textwrap.wrap(
            line, WIDTH, initial_indent=head, subsequent_indent=" " * (LABEL + 3), break_long_words=False
        )
    return lines


def _last_lines(detail: str) -> str:
    """A traceback says what went wrong at its end."""
    lines = detail.splitlines()
    return "\n".join(["...", *lines[-WHY_LINES:]] if len(lines) > WHY_LINES else lines)


def _next(state: str, reason: str, events: Sequence[Event]) -> str:
    step = next_for(state, reason)
    at = _said(events[-1:], "waiting", "next_try") or _said(events[-1:], "attempt_failed", "retry_at")
    return f"{step} (at {at})" if step and at else step


def _age(fields: Fields, now: float) -> str:
    accepted_at = number(fields, "accepted_at")
    tries = f"{fields.get('attempts_used') or 0} of {max_attempts(fields)} attempts used"
    if accepted_at is None:
        return tries
    finished_at = number(fields, "finished_at")
    took = f", ended after {age(finished_at - accepted_at)}" if finished_at is not None else ""
    return f"accepted {age(now - accepted_at)} ago{took}; {tries}"


def _machine(fields: Fields) -> str:
    if not fields.get("machine") or fields.get("state") in ("queued", "backoff"):
        return ""
    price = number(fields, "usd_per_hour")
    where = " ".join(fields.get(name, "") for name in ("provider", "region", "gpu"))
    cost = f" at ${price:.2f}/h" if price is not None else ""
    return f"{fields['machine']}\n{where}, id {fields.get('machine_id') or 'not known yet'}{cost}"


def _stage(fields: Fields, now: float) -> str:
    if not fields.get("stage") and not fields.get("step"):
        return ""
    heard_at = number(fields, "heartbeat_at")
    heard = f", heard of {age(now - heard_at)} ago" if heard_at is not None else ""
    step = f", step {fields['step']}" if fields.get("step") else ""
    return f"{fields.get('stage') or '-'}{step}{heard}"


def _artifacts(events: Sequence[Event]) -> str:
    found = next((data_of(event).get("artifacts") for event in events if name_of(event) == "succeeded"), None)
    if not isinstance(found, dict):
        return ""
    return f"{found.get('repo')} {found.get('prefix')}\nat commit {found.get('commit')}"


def _pending(fields: Fields) -> str:
    match fields.get("pending"):
        case "cancel":
            return "a cancel was asked for; the run ends as soon as its machine is on its way out"
        case "outcome":
            return "how the attempt ended is still asked of the Hub"
        case "metrics":
            return "the worker says it succeeded; its metrics are still to be read"
        case other:
            return other or ""


def _said(events: Sequence[Event], name: str, key: str) -> str:
    """A fact of the newest event of that name."""
    found = next((data_of(event).get(key) for event in reversed(events) if name_of(event) == name), None)
    return str(found) if found else ""
