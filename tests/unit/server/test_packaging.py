"""What is shipped to run the server agrees with what the server reads. The tools of the field look
at it in tests/others/test_packaging.py."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.worlds.gateway_world import GatewayWorld
from thumbwheel.app.settings import sections
from thumbwheel.core.config import Sources, check_sections

ROOT = Path(__file__).parents[3]
PACKAGING = ROOT / "packaging"
CHART = PACKAGING / "helm" / "thumbwheel"


def test_the_units_are_understood(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not here")
    for unit in (PACKAGING / "systemd").iterdir():
        text = unit.read_text().replace("/opt/thumbwheel/venv/bin/thumbwheel", sys.executable)
        (tmp_path / unit.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, tmp_path.iterdir())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_settings_of_the_chart_are_read() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    check_sections(Sources(values["settings"], "values.yaml", {}), sections())


def test_the_environment_of_containers_is_read() -> None:
    compose = yaml.safe_load((PACKAGING / "compose.yaml").read_text())
    environment = dict(compose["services"]["server"]["environment"])
    dockerfile = (PACKAGING / "Dockerfile").read_text()
    environment |= dict(re.findall(r"(THUMBWHEEL_\w+)=(\S+)", dockerfile))
    assert "THUMBWHEEL_LOG__FORM" in environment
    check_sections(Sources({}, "none", environment), sections())


def test_the_image_installs_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    dockerfile = (PACKAGING / "Dockerfile").read_text()
    for extras in re.findall(r'EXTRAS="([^"]+)"', dockerfile):
        assert set(extras.split()) <= project["optional-dependencies"].keys()
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == project["version"]


def test_what_probes_ask_is_answered(gateway: GatewayWorld) -> None:
    text = "".join(path.read_text() for path in PACKAGING.rglob("*") if path.is_file())
    paths = {*re.findall(r'"path" "([^"]+)"', text), *re.findall(r":8787(/\w+)", text)}
    assert paths == {"/live", "/ready"}
    for path in paths:
        assert gateway.client.get(path, headers={"host": "localhost"}).status_code == 200
