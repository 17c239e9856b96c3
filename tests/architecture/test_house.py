"""The house: budgets, private stores, light imports, no stray names. The import direction itself is import-linter's."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
WRITTEN = [path for path in SOURCES if "migrations/versions" not in path.as_posix()]
SCRIPTS = sorted((ROOT / "benchmarks").rglob("*.py"))
STAGES = ("models", "capture", "rewards", "datasets", "training", "evaluation", "export", "deploy", "loop")
HEAVY = {"torch", "transformers", "trl", "peft", "datasets", "accelerate", "matplotlib", "pyarrow", "scipy", "sqlalchemy"}
FILE_LINES, FUNCTION_LINES, CODE_LINES = 400, 60, 33_760


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", WRITTEN + SCRIPTS, ids=named)
def test_file_and_function_budgets(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= FILE_LINES, f"{named(path)} has more than {FILE_LINES} lines: split it by what it does"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            length = (node.end_lineno or 0) - first.lineno + 1
            assert length <= FUNCTION_LINES, f"{named(path)}:{node.lineno} {node.name} has {length} lines, more than {FUNCTION_LINES}"


def code_lines(path: Path) -> int:
    """Lines that are neither blank, comment nor docstring."""
    text = path.read_text()
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") and number not in prose for number, line in lines)


def test_code_budget() -> None:
    assert sum(map(code_lines, WRITTEN)) <= CODE_LINES


@pytest.mark.parametrize("path", WRITTEN, ids=named)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{named(path)} has no docstring"


def test_no_module_is_a_drawer() -> None:
    drawers = {"utils", "util", "helpers", "helper", "common", "manager", "managers", "misc"}
    assert not [named(path) for path in SOURCES + SCRIPTS if drawers & set(path.with_suffix("").parts)]


def test_no_unfinished_business() -> None:
    marks = re.compile(
        "#.*\\b(TO" + "DO|FIX" + "ME|XX" + "X)\\b|\\b(TO" + "DO|FIX" + "ME|XX" + "X):"
    )  # as a word of somebody's data it is none
    assert not [named(path) for path in WRITTEN + SCRIPTS if marks.search(path.read_text())]


def test_a_store_is_private_to_its_stage() -> None:
    graph = grimp.build_graph("thumbwheel")
    for stage in STAGES:
        store = f"thumbwheel.{stage}.store"
        if store not in graph.modules:
            continue
        for user in graph.find_modules_that_directly_import(store):
            assert user.startswith(f"thumbwheel.{stage}."), f"{user} reads {stage}'s tables; call a verb of thumbwheel.{stage} instead"


def modules_after(code: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_the_sdk_is_light() -> None:
    loaded = modules_after("import thumbwheel; thumbwheel.trace; thumbwheel.feedback")
    assert not loaded & (HEAVY | {"pydantic", "typer", "rich"})


def test_help_is_light() -> None:
    code = "import sys; sys.argv=['thumbwheel','--help']\nfrom thumbwheel.cli.main import main\ntry: main()\nexcept SystemExit: pass"
    assert not modules_after(code) & HEAVY


def test_commands_import_nothing_heavy() -> None:
    code = "from thumbwheel.cli import main\nfor at, _ in main.COMMANDS.values(): main._load(at)"
    assert not modules_after(code) & (HEAVY - {"sqlalchemy"})


def test_what_a_module_imports_at_once_comes_with_the_base_installation() -> None:
    """Extras are imported where they are used, by functions that name the extra when it is missing."""
    base = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    installed = {re.split(r"[\[<>=,; ]", one)[0].lower().replace("_", "-") for one in base}
    provided = {name for name, by in packages_distributions().items() if {one.lower().replace("_", "-") for one in by} & installed}
    loaded = {
        (named(path), name)
        for path in SOURCES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    known = provided | sys.stdlib_module_names | {"thumbwheel"}
    assert [(path, name) for path, name in sorted(loaded) if name.partition(".")[0] not in known and "sandbox/inside" not in path] == []
