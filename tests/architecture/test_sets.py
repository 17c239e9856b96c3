"""Every test is in a set, and a change reaches the tests of what it touches."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import distributions, selection
from tests.sets import ALWAYS, BY_TOUCH, ELSEWHERE, OUTSIDE, QUICK_SECONDS
from tests.touched import ROOT, LastFullRun, Reach

NAMED = next(iter(ALWAYS))
COMPAT = distributions.COMPAT.as_posix()
PLUGIN_TEST = f"{COMPAT}/tests/test_n3_datasets.py"
RECORD = LastFullRun(
    "0" * 40,
    {"tests/unit/a.py": QUICK_SECONDS, "tests/unit/b.py": 0.4},
    {"tests/unit/a.py::s3": 500.0, "tests/unit/b.py::test_long": 3.0},
)


@dataclass(frozen=True)
class Item:
    """A collected test, as far as a choice looks at it."""

    nodeid: str
    marks: tuple[str, ...] = ()

    def iter_markers(self) -> Any:
        return [SimpleNamespace(name=mark) for mark in self.marks]


ITEMS = [
    Item("tests/unit/a.py::test_quick"),
    Item("tests/unit/b.py::test_fast"),
    Item("tests/unit/b.py::test_long"),
    Item("tests/store/c.py::test_twin[postgresql-1]"),
    Item(NAMED, ("slow",)),
    *(Item(f"tests/unit/a.py::{name}", ("slow",)) for name in ("s1", "s2", "s3")),
]


def names(name: str, seconds: float = 25.0) -> set[str]:
    return {item.nodeid.split("::")[-1] for item in selection.chosen(ITEMS, name, seconds)}  # type: ignore[arg-type, list-item]


@pytest.fixture(autouse=True)
def record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "last_full_run", lambda: RECORD)


def test_each_set_holds_the_smaller_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "nearness", lambda base: lambda item: 1)
    monkeypatch.setattr(selection, "is_known", lambda commit: True)
    monkeypatch.setattr(selection, "is_stale", lambda commit: False)
    named = NAMED.split("::")[-1]
    assert names("quick") == {"test_quick"}
    assert names("fast") == {"test_quick", "test_fast"}
    assert names("always") == {"test_quick", "test_fast", named}
    assert (
        names("touched") == names("everything") == {item.nodeid.split("::")[-1] for item in ITEMS}
    )


def test_ci_takes_the_nearest_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    distance = {"s1": 2, "s2": 0, "s3": 1, "test_long": None, "test_twin[postgresql-1]": None}
    monkeypatch.setattr(
        selection, "nearness", lambda base: lambda item: distance[item.nodeid.split("::")[-1]]
    )
    monkeypatch.setattr(selection, "is_known", lambda commit: True)
    monkeypatch.setattr(selection, "is_stale", lambda commit: False)
    monkeypatch.setattr(selection, "git", lambda *arguments: "2026-01-01")
    assert names("ci", 10.0) == names("always") | {"s2"}
    assert names("ci", 25.0) == names("always") | {"s2", "s1"}


def test_without_a_recent_full_run_three_turns_prove_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "is_known", lambda commit: False)
    turns = []
    for turn in range(3):
        monkeypatch.setattr(selection, "git", lambda *arguments, turn=turn: f"2026-01-0{turn + 1}")
        turns.append(names("ci", 1e6) - names("always"))
    assert set.union(*turns) == names("everything") - names("always")
    assert sum(map(len, turns)) == len(set.union(*turns))


def test_every_named_proof_exists_and_has_a_reason() -> None:
    for name, reason in ALWAYS.items():
        file, _, rest = name.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        functions = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        function = rest.partition("[")[0].rpartition("::")[-1]
        assert reason
        assert any(named.startswith(function or "test_") for named in functions), name


def test_every_marker_is_in_a_set_or_elsewhere(pytestconfig: pytest.Config) -> None:
    markers = {line.split(":")[0] for line in pytestconfig.getini("markers")}
    ours = markers & {*BY_TOUCH, *ELSEWHERE, "slow", "ui", "tools", "sqlite"}
    assert {*BY_TOUCH, *ELSEWHERE} <= ours
    makefile = (ROOT / "Makefile").read_text()
    for why in ELSEWHERE.values():
        command = why.rpartition("make ")[2]
        assert f"\n{command}: " in makefile


@pytest.mark.parametrize(
    ("changed", "test", "distance"),
    [
        ("src/thumbwheel/stats/sequential.py", "tests/unit/stats/test_sequential.py::test_x", 0),
        ("src/thumbwheel/report/report.py", "tests/unit/stats/test_sequential.py::test_x", None),
        ("docs/13-ingest.md", "tests/e2e/test_docs.py::test_a_page_runs[13-ingest.md]", 0),
        ("docs/13-ingest.md", "tests/e2e/test_docs.py::test_a_page_runs[15-sources.md]", None),
        ("tests/models/tiny_models.py", "tests/unit/training/test_parity_trl.py::test_sft", 0),
        ("tests/unit/stats/test_paired.py", "tests/unit/stats/test_paired.py::test_x", 0),
        ("tests/unit/stats/test_paired.py", "tests/unit/stats/test_sequential.py::test_x", None),
        (
            f"{COMPAT}/src/thumbwheel/compat/n3/routes.py",
            "tests/unit/stats/test_paired.py::x",
            None,
        ),
        (f"{COMPAT}/src/thumbwheel/compat/n3/datasets.py", f"{PLUGIN_TEST}::test_x", 0),
        (f"{COMPAT}/pyproject.toml", f"{PLUGIN_TEST}::test_x", 0),
        (f"{COMPAT}/tests/system_tasks.py", f"{COMPAT}/tests/test_system_tasks.py::test_x", 0),
        ("docs/13-ingest.md", f"{PLUGIN_TEST}::test_x", None),
        ("conftest.py", "tests/unit/stats/test_paired.py::test_x", 0),
        (next(iter(OUTSIDE)) + "year.py", next(iter(OUTSIDE.values())) + "test_worlds.py::x", 0),
    ],
)
def test_a_change_reaches_what_it_touches(changed: str, test: str, distance: int | None) -> None:
    assert Reach([changed]).distance(test) == distance


def test_tests_of_the_plugins_run_where_the_change_reaches_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    items = [Item("tests/unit/a.py::test_quick"), Item(f"{PLUGIN_TEST}::test_fast")]
    for distance, expected in ((None, items[:1]), (3, items)):
        monkeypatch.setattr(selection, "nearness", lambda base, n=distance: lambda item: n)
        assert selection.chosen(items, "fast", 0.0) == expected  # type: ignore[arg-type, comparison-overlap]
        assert selection.chosen(items, "everything", 0.0) == items  # type: ignore[arg-type, comparison-overlap]


def test_a_test_is_the_farther_the_more_imports_lie_between() -> None:
    reach = Reach(["src/thumbwheel/stats/sequential.py"])
    near = reach.distance("tests/unit/stats/test_sequential.py::test_x")
    far = reach.distance("tests/unit/experiments/test_controller.py::test_x")
    assert near is not None and far is not None and near < far


def test_a_script_of_the_pages_reaches_their_tests() -> None:
    folder = Path("src/thumbwheel/server/pages/static")
    script = next((ROOT / folder).rglob("*.js")).relative_to(ROOT)
    assert Reach([str(script)]).distance("tests/ui/test_traces.py::test_filters") is not None


RECORDED = {"tests/unit/stats/test_paired.py::test_x": "passed", "t2": "failed", "t3": "skipped"}
PASSED = {name for name, outcome in RECORDED.items() if outcome == "passed"}


@pytest.mark.parametrize(
    ("recorded", "state", "changed", "passed"),
    [
        ("abc", "abc", [], PASSED),
        ("abc", "def", ["src/thumbwheel/stats/sequential.py"], PASSED),
        ("abc", "def", ["src/thumbwheel/stats/paired.py"], set()),
        ("abc", "def", ["tests/unit/stats/test_paired.py"], set()),
        ("abc", "def", ["constraints.txt"], set()),
        ("abc", None, [], set()),
        (None, "def", [], set()),
        ("a commit that the history has not", "def", [], set()),
    ],
)
def test_a_full_run_goes_on_after_commits_that_do_not_reach_what_passed(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    recorded: str | None,
    state: str | None,
    changed: list[str],
    passed: set[str],
) -> None:
    """What failed is run again, and what passed with other files in the checkout."""
    row = {"seconds": 1.0, "processor": 1.0, "is_slow": False}
    tests = {name: row | {"outcome": outcome} for name, outcome in RECORDED.items()}
    record = tmp_path / "tests.json"
    record.write_text(json.dumps({"commit": recorded, "seconds": 9.0, "tests": tests}))
    selection.passed_before.cache_clear()
    monkeypatch.setattr(selection, "state_of_checkout", lambda: state)
    monkeypatch.setattr(selection, "is_known", lambda commit: commit == "abc")
    monkeypatch.setattr(selection, "changed_files", lambda base: set(changed))
    assert selection.passed_before(record).keys() == passed
    selection.passed_before.cache_clear()
