"""What every verb reads first."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from flashd.cli.session import settings_for
from flashd.errors import ConfigError


@pytest.mark.parametrize("url", ["redis://user:p[w@localhost:6379/0", "redis://localhost:port/0"])
def test_a_redis_url_that_is_no_address_is_refused_with_the_rest_of_the_configuration(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    config.write_text('namespace = "prod"\n')
    monkeypatch.setenv("FLASHD_REDIS__URL", url)
    with pytest.raises(ConfigError, match="no address") as caught:
        settings_for(argparse.Namespace(config=str(config)))
    assert url not in str(caught.value)
