"""The core in an environment without the distribution of the plugins: everything of its own works,
and an error names the extra where somebody asks for a variant of the plugins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.distributions import ROOT
from tests.servers.thumbwheel_server import running

EXTRA = "pip install 'thumbwheel[compat]'"
LINES = [
    {"type": "trace", "id": "t1", "input": "Opening hours?", "output": "Nine to five."},
    {"type": "trace", "id": "t2", "input": "Is it waterproof?", "output": "Yes."},
    {"type": "feedback", "target": {"trace": "t1"}, "kind": "thumb", "value": True},
]

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a virtual environment that has all that this one has but our own
    distributions, and of these the core."""
    folder = tmp_path_factory.mktemp("core") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if "thumbwheel" not in package.name:
            (site / package.name).symlink_to(package)
    (site / "core.pth").write_text(f"{ROOT / 'src'}\n")
    return folder / "bin" / "python"


def environment(folder: Path) -> dict[str, str]:
    """The environment of a user, in which no variable adds to the path of Python."""
    inherited = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    return inherited | {"THUMBWHEEL_HOME": str(folder / "home")}


@pytest.fixture
def command(python: Path, tmp_path: Path) -> Command:
    """`thumbwheel` of that environment, in an empty folder."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, "-m", "thumbwheel", *arguments],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.slow
def test_the_plugins_are_not_there(python: Path, tmp_path: Path, command: Command) -> None:
    code = "from importlib.util import find_spec; print(find_spec('thumbwheel.compat'))"
    done = subprocess.run(
        [python, "-c", code], env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "None"
    shown = command("--help")
    assert shown.returncode == 0 and "\n  import " in shown.stdout
    assert "\n  widgets " not in shown.stdout and "\n  settings " not in shown.stdout


@pytest.mark.slow
def test_files_are_imported_judged_and_built_into_a_dataset(
    tmp_path: Path, command: Command
) -> None:
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    for arguments in (
        ("import", "jsonl", "lines.jsonl", "--agent", "support"),
        ("reward", "run", "--agent", "support"),
        ("dataset", "plan", "--agent", "support"),
        ("import", "--help"),
        ("serve", "--help"),
        ("doctor",),
    ):
        done = command(*arguments)
        assert done.returncode == 0, f"{arguments}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    counts = json.loads(command("feedback", "stats", "--agent", "support", "--json").stdout)
    assert counts["signals"]["thumb"]["count"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("import", "flowagent", "folder", "--agent", "support"),
        ("import", "decisions", "--agent", "support"),
        ("serve", "--dialect", "n3", "--port", "0"),
        ("settings", "convert", "rlhf.yaml"),
        ("widgets", "generate", "catalogue.json"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_an_error_names_the_extra(command: Command, arguments: tuple[str, ...]) -> None:
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert EXTRA in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"rewards": {"preset": "ocd"}},
        {"rewards": {"arithmetic": "isaa"}},
        {"rewards": {"checkers": {"decision": {}}}},
        {"server": {"dialects": ["command-center"]}},
    ],
    ids=json.dumps,
)
def test_an_error_about_settings_names_the_extra(
    tmp_path: Path, command: Command, settings: dict[str, object]
) -> None:
    (tmp_path / "thumbwheel.yaml").write_text(yaml.safe_dump(settings))
    done = command("serve", "--port", "0")
    assert done.returncode == 2
    assert EXTRA in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_home_is_served(python: Path, tmp_path: Path, command: Command) -> None:
    home = tmp_path / "home"
    with running(home, {"PYTHONPATH": ""}, workers=1, python=python) as server:
        assert server.health()["status"]
        remote = ("--server", server.url)
        (tmp_path / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
        imported = command(*remote, "import", "jsonl", "lines.jsonl", "--agent", "support")
        assert imported.returncode == 0, imported.stderr
        listed = command(*remote, "traces", "list", "--agent", "support", "--json")
        assert len(json.loads(listed.stdout)["traces"]) == 2, listed.stderr
