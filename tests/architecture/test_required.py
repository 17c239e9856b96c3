"""No test is left out in CI without a word."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest
from tests.servers.llama_tools import needs
from tests.public_data import public_data
from thumbwheel.llm import tools

def test_tools(monkeypatch):
    monkeypatch.setattr(tools, "find", lambda name: None)
    needs("converter")

def test_data():
    public_data("no/such.jsonl")

def test_package():
    pytest.importorskip("no_such_package")

@pytest.mark.skipif(True, reason="a reason of its own")
def test_mark():
    pass

def test_machine():
    pytest.skip("no cgroup: /sys/fs/cgroup is read-only")

@pytest.mark.xfail
def test_known():
    assert False
"""


def outcome(folder: Path, **variables: str) -> str:
    (folder / "test_some.py").write_text(TESTS)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("THUMBWHEEL_REQUIRE")
    }
    environment |= variables | {"PYTHONPATH": f"{ROOT / 'tests'}{os.pathsep}{ROOT}"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "conftest",
        "--rootdir",
        str(folder),
        "test_some.py",
    ]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("variables", "failed", "skipped"),
    [
        ((), 0, 5),
        (("TOOLS",), 1, 4),
        (("DATA", "TOOLS"), 2, 3),
        (("ALL",), 4, 1),
        (("ALL", "DATA", "TOOLS"), 4, 1),
    ],
)
def test_a_skip_is_a_failure_where_what_it_needs_is_demanded(
    tmp_path: Path, variables: tuple[str, ...], failed: int, skipped: int
) -> None:
    last = outcome(tmp_path, **{f"THUMBWHEEL_REQUIRE_{name}": "1" for name in variables})
    counts = {what: int(count) for count, what in re.findall(r"(\d+) (\w+)", last)}
    refused = sum(
        counts.get(what, 0) for what in ("failed", "error", "errors")
    )  # a mark skips before the test begins
    assert (refused, counts["skipped"], counts["xfailed"]) == (failed, skipped, 1)


def test_ci_demands_everything() -> None:
    demanded = set(re.findall(r"THUMBWHEEL_REQUIRE_\w+(?==1)", (ROOT / ".ci" / "run").read_text()))
    variables = set(
        re.findall(r"THUMBWHEEL_REQUIRE_[A-Z]+", (ROOT / "tests" / "required.py").read_text())
    )
    # servers of others are installed for minutes: make test-peers demands them
    assert demanded == variables - {"THUMBWHEEL_REQUIRE_PEERS"}
    assert "THUMBWHEEL_REQUIRE_PEERS=1" in (ROOT / "Makefile").read_text()


def test_tests_that_need_something_ask_for_it_in_one_place() -> None:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.name not in ("required.py", "test_required.py"):
            assert "pytest.fail(" not in path.read_text() or "REQUIRE" not in path.read_text(), path
