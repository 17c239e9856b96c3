"""The house: private stores, light imports, no stray names. The import direction itself is
import-linter's."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from install import requirements
from tests.distributions import PACKAGE, ROOT, TESTS, import_graph, source_files

SOURCES = source_files()
WRITTEN = [path for path in SOURCES if "migrations/versions" not in path.as_posix()]
SCRIPTS = sorted((ROOT / "benchmarks").rglob("*.py"))
STAGES = (
    "access",
    "jobs",
    "models",
    "capture",
    "rewards",
    "review",
    "datasets",
    "training",
    "evaluation",
    "export",
    "deploy",
    "report",
    "erasure",
    "loop",
    "homes",
)
MODULES_OF_TORCH = {
    "packages/thumbwheel-compat/src/thumbwheel/compat/n3/policy_model.py",
    "packages/thumbwheel-compat/src/thumbwheel/compat/n3/reward_model.py",
}
"""Their classes derive from torch's, and their package imports them only where they are used."""
HEAVY = {
    "ray",
    "torch",
    "transformers",
    "trl",
    "peft",
    "datasets",
    "accelerate",
    "matplotlib",
    "pyarrow",
    "scipy",
    "sqlalchemy",
}


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", WRITTEN, ids=named)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{named(path)} has no docstring"


def test_no_module_is_a_drawer() -> None:
    drawers = {"utils", "util", "helpers", "helper", "common", "manager", "managers", "misc"}
    assert not [
        named(path) for path in SOURCES + SCRIPTS if drawers & set(path.with_suffix("").parts)
    ]


def test_test_modules_outside_of_packages_have_names_of_their_own() -> None:
    """Python would take the second for the first, and pytest then collects nothing at all."""
    paths = [
        path
        for folder in TESTS
        for path in sorted((ROOT / folder).rglob("test_*.py"))
        if not (path.parent / "__init__.py").exists()
    ]
    names = Counter(path.name for path in paths)
    assert [path for path in paths if names[path.name] > 1] == []


def test_no_unfinished_business() -> None:
    marks = re.compile(
        "#.*\\b(TO" + "DO|FIX" + "ME|XX" + "X)\\b|\\b(TO" + "DO|FIX" + "ME|XX" + "X):"
    )  # as a word of somebody's data it is none
    assert not [named(path) for path in WRITTEN + SCRIPTS if marks.search(path.read_text())]


def test_a_store_is_private_to_its_stage() -> None:
    graph = import_graph()
    for stage in STAGES:
        store = f"thumbwheel.{stage}.store"
        if store not in graph.modules:
            continue
        for user in graph.find_modules_that_directly_import(store):
            assert user.startswith(f"thumbwheel.{stage}."), (
                f"{user} reads {stage}'s tables; call a verb of thumbwheel.{stage} instead"
            )


TERMINAL = ("core/log.py", "core/present.py")
CHILDREN = (
    "sandbox/inside",
    "llm/library_child.py",
    "datasets/collect.py",
    "importers/columnar_child.py",
    "engine/template_child.py",
    "deploy/grammar_child.py",
    "app/drain_process.py",
)
"""Programs whose standard output is read by a program."""
PRINTERS = re.compile(
    r"print|typer\.(echo|secho)|Console|(log\.)?console|sys\.(stdout|stderr)\.write"
)


def printers(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=func) if PRINTERS.fullmatch(ast.unparse(func)):
                yield ast.unparse(func)
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] == "rich":
                yield module
            case _:
                pass


def test_commands_show_results_through_the_presenter_alone() -> None:
    """core/present.py and core/log.py print. So JSON and tables look alike, and nothing imported
    reaches the terminal unseen."""
    written = {}
    for path in SOURCES:
        name = path.as_posix().rpartition(f"src/{PACKAGE}/")[2]
        child = any(child in name for child in CHILDREN)
        if name not in TERMINAL and not child and (calls := [*printers(path)]):
            written[name] = calls
    assert written == {}


def modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.split(".")[0] for name in done.stdout.split()}


def test_the_sdk_is_light() -> None:
    loaded = modules_after("import thumbwheel; thumbwheel.trace; thumbwheel.feedback")
    assert not loaded & (HEAVY | {"pydantic", "typer", "rich", "http", "asyncio", "ssl"})


def test_help_is_light() -> None:
    code = (
        "import sys; sys.argv=['thumbwheel','--help']\nfrom thumbwheel.cli.main import main\ntry: "
        "main()\nexcept SystemExit: pass"
    )
    assert not modules_after(code) & HEAVY


def test_commands_import_nothing_heavy() -> None:
    code = (
        "from thumbwheel.app.command_table import COMMANDS, load\n"
        "for at, _ in COMMANDS.values(): load(at)\n"
        "from thumbwheel.app.command_table import plugin_commands; plugin_commands()"
    )
    assert not modules_after(code) & (HEAVY - {"sqlalchemy"})


def test_what_a_module_imports_at_once_comes_with_the_base_installation() -> None:
    """Functions import extras where they use them, and name the extra that is missing."""
    base = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    installed = {
        re.split(r"[\[<>=,; ]", requirement)[0].lower().replace("_", "-") for requirement in base
    }
    provided = {
        name
        for name, by in packages_distributions().items()
        if {requirement.lower().replace("_", "-") for requirement in by} & installed
    }
    loaded = {
        (named(path), name)
        for path in SOURCES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
        )
    }
    importable = provided | sys.stdlib_module_names | {"thumbwheel"}
    assert [
        (path, name)
        for path, name in sorted(loaded)
        if name.partition(".")[0] not in importable
        and "sandbox/inside" not in path
        and path not in MODULES_OF_TORCH
    ] == []


def test_every_package_is_pinned_with_hashes() -> None:
    """torch has none: its build depends on the machine, and install.py chooses it."""
    text = (ROOT / "constraints.txt").read_text()
    entries = re.findall(
        r"^([\w.-]+)==\S+((?: \\\n    --hash=sha256:[0-9a-f]{64})*)\n", text, re.MULTILINE
    )
    assert [name for name, hashes in entries if not hashes] == ["torch"]
    pinned = {re.sub(r"[-_.]+", "-", name).lower() for name, _ in entries}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = requirements(list(project["optional-dependencies"]))
    names = {re.split(r"[\[<>=,; ]", item)[0].lower().replace("_", "-") for item in wanted}
    assert names <= pinned, f"not in constraints.txt: {sorted(names - pinned)}"
