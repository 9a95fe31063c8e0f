"""The shipped units as systemd itself reads them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[2] / "systemd"
NAMES = ["flashd.service", "flashd@.service"]
INSTALLED = "/opt/flashd/bin/flashd"
# On systemd's scale of 0 to 100; what is left is that the daemon has the network.
MAX_EXPOSURE = 15

needs_systemd = [
    pytest.mark.systemd,
    pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on PATH"),
]


def installed_in(directory: Path, name: str) -> Path:
    """The unit as on a host where flashd is installed: verify wants every program to exist."""
    unit = directory / name
    unit.write_text((UNITS / name).read_text().replace(INSTALLED, "/bin/true"))
    return unit


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60, check=False)


def directives(name: str) -> list[str]:
    lines = (UNITS / name).read_text().splitlines()
    return [line for line in lines if "=" in line and not line.startswith("#")]


class TestWithSystemd:
    pytestmark = needs_systemd

    @pytest.mark.parametrize("name", NAMES)
    def test_systemd_has_nothing_to_say_against_the_unit(self, name: str, tmp_path: Path) -> None:
        verdict = analyze("verify", "--man=no", str(installed_in(tmp_path, name)))
        # Unknown keys and bad values are only warnings on stderr, with exit status 0.
        assert (verdict.returncode, verdict.stdout, verdict.stderr) == (0, "", "")

    @pytest.mark.parametrize("name", NAMES)
    def test_an_unknown_key_would_be_noticed(self, name: str, tmp_path: Path) -> None:
        unit = installed_in(tmp_path, name)
        unit.write_text(unit.read_text().replace("NoNewPrivileges=", "NoNewPriviledges="))
        assert "NoNewPriviledges" in analyze("verify", "--man=no", str(unit)).stderr

    @pytest.mark.parametrize("name", NAMES)
    def test_the_unit_is_hardened(self, name: str, tmp_path: Path) -> None:
        unit = str(installed_in(tmp_path, name))
        verdict = analyze(
            "security", "--offline=yes", f"--threshold={MAX_EXPOSURE}", "--no-pager", "--json=short", unit
        )
        open_points = [point["name"] for point in json.loads(verdict.stdout) if point["set"] is False]
        assert verdict.returncode == 0, open_points


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "directive",
    [
        "Type=notify",
        "Restart=always",
        "RestartSec=5s",
        "RestartPreventExitStatus=78",
        "StartLimitIntervalSec=0",
        "WatchdogSec=60s",
        "KillMode=mixed",
        "DynamicUser=yes",
        "LogRateLimitIntervalSec=0",
    ],
)
def test_what_machines_depend_on_is_in_the_unit(name: str, directive: str) -> None:
    assert directive in directives(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_reload_checks_before_it_signals(name: str) -> None:
    reloads = [line for line in directives(name) if line.startswith("ExecReload=")]
    assert reloads[0].startswith(f"ExecReload={INSTALLED} check-config --offline")
    assert reloads[1:] == ["ExecReload=/bin/sh -c 'kill -HUP $MAINPID'"]


def test_the_template_is_the_unit_but_for_its_instance() -> None:
    def without_instance(line: str) -> str:
        line = line.replace(" --config /etc/flashd/%i.toml", "").replace(" (%i)", "")
        return line.replace("-%i", "").replace("/%i", "")

    template = [line for line in directives("flashd@.service") if not line.startswith("Environment=FLASHD_STATE")]
    assert [without_instance(line) for line in template] == directives("flashd.service")
