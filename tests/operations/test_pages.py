"""Rules, pages and code say the same: alarms, alerts, metrics, commands, settings."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flashd.config_keys import KEYS
from flashd.daemon import intake, release_machine
from flashd.daemon.reload import is_live
from tests.daemon.test_metrics import CONTRACT

ROOT = Path(__file__).parents[2]
OPERATIONS = ROOT / "docs" / "operations"
RULES = ROOT / "contrib" / "prometheus" / "flashd.rules.yml"
SECTIONS_OF_AN_ALERT = ("Means", "Look", "Do")
OTHER_METRICS = {
    "flashd_leader",
    "flashd_build_info",
    "flashd_start_timestamp_seconds",
    "flashd_spend_limit_usd_per_hour",
    "flashd_last_pass_timestamp_seconds",
}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool on PATH: apt-get install prometheus"
)


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load(RULES.read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], cwd=RULES.parent, capture_output=True, text=True, check=False)


@needs_promtool
def test_promtool_takes_the_rules() -> None:
    verdict = promtool("check", "rules", RULES.name)
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr
    assert f"{len(rules())} rules found" in verdict.stdout


@needs_promtool
def test_every_alert_fires_when_it_should_and_only_then() -> None:
    verdict = promtool("test", "rules", "flashd.rules.test.yml")
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr


def test_every_alert_is_tested_both_ways() -> None:
    document = yaml.safe_load((RULES.parent / "flashd.rules.test.yml").read_text())
    both: dict[str, set[bool]] = {}
    for test in document["tests"]:
        for case in test["alert_rule_test"]:
            both.setdefault(case["alertname"], set()).add(bool(case["exp_alerts"]))
    assert both == {rule["alert"]: {True, False} for rule in rules()}


def test_every_alert_stands_on_metrics_that_exist() -> None:
    used = {name for rule in rules() for name in re.findall(r"\bflashd_\w+", str(rule["expr"]))}
    assert used - set(CONTRACT) - OTHER_METRICS == set()


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    pages = {page.stem for page in (OPERATIONS / "alerts").glob("*.md")}
    assert pages == {rule["alert"] for rule in rules()}
    for rule in rules():
        page = ROOT / rule["annotations"]["runbook"]
        assert page == OPERATIONS / "alerts" / f"{rule['alert']}.md"
        text = page.read_text()
        assert text.startswith(f"# {rule['alert']}\n")
        missing = [section for section in SECTIONS_OF_AN_ALERT if f"**{section}.**" not in text]
        assert missing == [], page.name
        assert "```sh\n" in text, f"{page.name} has no command to copy"
        assert f"`{rule['labels']['severity']}`" in text


def test_the_index_lists_every_page() -> None:
    index = (OPERATIONS / "README.md").read_text()
    pages = [str(page.relative_to(OPERATIONS)) for page in OPERATIONS.rglob("*.md") if page.name != "README.md"]
    assert [page for page in pages if f"({page})" not in index] == []


def test_every_metric_is_explained() -> None:
    text = (OPERATIONS / "metrics.md").read_text()
    assert set(re.findall(r"^\| `(flashd_\w+)", text, re.MULTILINE)) == set(CONTRACT) | OTHER_METRICS


def alarm_names() -> Iterator[str]:
    """The first argument of every call that raises or clears an alarm, `*` for what is filled in."""
    for path in sorted((ROOT / "flashd").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(ast.Attribute(where, "set" | "incident"), [name, _, *_]) if "alarms" in ast.unparse(
                    where
                ):
                    yield template(name)


def template(name: ast.expr) -> str:
    match name:
        case ast.Constant(str(text)):
            return text
        case ast.JoinedStr(parts):
            return "".join(part.value if isinstance(part, ast.Constant) else "*" for part in parts)  # type: ignore[misc]
        case ast.Name("FULL_ALARM"):
            return intake.FULL_ALARM
        case ast.Call(ast.Name("another_account"), _):
            return release_machine.another_account("*")
    raise AssertionError(f"an alarm's name that this test cannot read: {ast.unparse(name)}")


def test_every_alarm_of_the_code_is_on_the_page_and_no_other() -> None:
    text = (OPERATIONS / "alarms.md").read_text()
    sections = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    told = {re.sub(r"<\w+>", "*", section.splitlines()[0].strip("`")): section for section in sections}
    assert set(told) == set(alarm_names())
    silent = [name for name, section in told.items() for word in ("Fault:", "Do:", "Ends") if word not in section]
    assert silent == []


def test_the_page_on_reload_names_exactly_what_is_live() -> None:
    text = (OPERATIONS / "configure.md").read_text()
    (table,) = re.findall(r"<!-- live -->\n(.*?)<!-- end -->", text, re.DOTALL)
    told = set(re.findall(r"`([a-z_.]+)`", table))
    live = {".".join(key) for key in KEYS if is_live(key)}
    exceptions = {f"policy.{key[-1]}" for key in KEYS if key[0] == "policy" and not is_live(key)}
    single = {name for name in live if not name.startswith(("policy.", "limits."))}
    assert told == {"policy", "limits"} | exceptions | single
