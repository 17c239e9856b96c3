"""What every target promises, over the table of targets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.third_party import names
from thumbwheel.app.settings import sections
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.deploy.types import ENDPOINT, Endpoint, TargetConfig
from thumbwheel.export.formats import FORMATS


@pytest.mark.parametrize("name", names(TARGETS))
def test_a_target_is_configured_and_says_what_it_takes(name: str) -> None:
    target = TARGETS.get(name)
    assert issubclass(target.Config, TargetConfig) and sections()[f"deploy.{name}"] is target.Config
    kinds = {FORMATS.get(format).kind for format in FORMATS.names()}
    takes_files = kinds >= set(target.kinds)
    assert target.kinds and (takes_files or target.kinds == (ENDPOINT,))
    assert all(field.description for field in target.Config.model_fields.values())


@pytest.mark.parametrize("name", names(TARGETS))
def test_what_was_never_there_is_dead_and_nothing_is_raised(name: str, tmp_path: Path) -> None:
    details = {
        "place": str(tmp_path / "place"),
        "host": "http://127.0.0.1:9",
        "folder": str(tmp_path),
        "key_variable": "NO_SUCH_KEY",
    }
    health = TARGETS.get(name).health(Endpoint("http://127.0.0.1:9/v1", "support-v1", details))
    assert not health.alive and health.why
