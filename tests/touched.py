"""Which tests a change reaches.

A change is all that differs from the commit of the last full run (tests/last_full_run.json). The
import graph says how far each module of the package is from a changed one, a test is as far as the
nearest module that it imports, and sets.OUTSIDE maps files that are no modules. The nearest tests
are the likeliest to fail. `python -m tests.touched NAME...` ends with 0 where a module of these
names is touched.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from tests.distributions import PACKAGE, ROOT, SOURCES, TESTS, import_graph, module_of
from tests.doc_pages import PAGES, blocks
from tests.sets import OUTSIDE, STALE_COMMITS

RECORD = ROOT / "tests" / "last_full_run.json"
COMMAND_LINE = ("command_line", '"-m", "thumbwheel', "THUMBWHEEL_HOME")
"""Texts of a test that uses the command line, and so everything behind it."""
PAGES_BY_NAME = {page.name: page for page in PAGES}


@dataclass(frozen=True)
class LastFullRun:
    """The record that `make test-all` writes."""

    commit: str
    file_seconds: dict[str, float]
    """File of tests -> seconds of the processor that a fast test of it takes, on average."""
    slow_seconds: dict[str, float]
    """Name of a slow test -> its seconds."""

    @classmethod
    def read(cls) -> LastFullRun:
        """Read the record of the checkout."""
        record: dict[str, Any] = json.loads(RECORD.read_text())
        return cls(record["commit"], record["file_seconds"], record["slow_seconds"])


def git(*arguments: str) -> str:
    """Return what git prints; raises CalledProcessError where it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def changed_files(base: str) -> set[str]:
    """Return the paths that differ from the commit `base`, files that git does not know yet among
    them; raises CalledProcessError where the history does not have the commit."""
    differing = git("diff", "--name-only", base)
    unknown = git("ls-files", "--others", "--exclude-standard")
    return set(filter(None, [*differing.split("\n"), *unknown.split("\n")]))


def is_stale(base: str) -> bool:
    """Return whether the last full run is more than STALE_COMMITS commits of the source ago."""
    return int(git("rev-list", "--count", f"{base}..HEAD", "--", *SOURCES)) > STALE_COMMITS


def changed_modules(files: Iterable[str]) -> set[str]:
    """Return the modules of these files. A page, a script or a table of the package changes all
    modules of its folder."""
    graph = import_graph()
    modules: set[str] = set()
    for file in files:
        if not file.startswith(tuple(f"{folder}/" for folder in SOURCES)):
            continue
        if file.endswith(".py"):
            modules |= {name for name in [module_of(file)] if name}
            continue
        packages = [parent / "__init__.py" for parent in Path(file).parents]
        package = next((module_of(str(each)) for each in packages if (ROOT / each).exists()), None)
        if package:
            modules |= {package} | graph.find_children(package)
    return modules & graph.modules


def distances(modules: Iterable[str]) -> dict[str, int]:
    """Return how many imports lie between each module and the nearest of `modules`, for those that
    import one of them at all."""
    graph = import_graph()
    steps = dict.fromkeys(modules, 0)
    queue = deque(steps)
    while queue:
        module = queue.popleft()
        for importer in graph.find_modules_that_directly_import(module):
            if importer not in steps:
                steps[importer] = steps[module] + 1
                queue.append(importer)
    return steps


@cache
def module_of_tests(name: str) -> Path | None:
    """Return the file of a module of the tests, as they import it; None for any other module."""
    folders = [ROOT / folder for folder in TESTS]
    for folder in [ROOT, *folders]:
        path = folder.joinpath(*name.split(".")).with_suffix(".py")
        if path.exists() and any(tests in path.parents for tests in folders):
            return path
    return None


def imports(path: Path) -> Iterator[str]:
    """Yield the names of all modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{alias.name}" for alias in names)


@cache
def files_behind(path: Path) -> frozenset[Path]:
    """Return a file of tests with all modules of the tests that it imports, and its conftests."""
    files: set[Path] = set()
    folders = [folder for folder in path.parents if ROOT in folder.parents]
    waiting = [path, *(folder / "conftest.py" for folder in folders)]
    while waiting:
        file = waiting.pop()
        if file in files or not file.exists():
            continue
        files.add(file)
        modules = [module_of_tests(name) for name in imports(file)]
        waiting += [module for module in modules if module is not None]
    return frozenset(files)


@cache
def modules_used(path: Path) -> frozenset[str]:
    """Return the modules of the package that a file of tests uses."""
    graph = import_graph()
    modules: set[str] = set()
    for file in files_behind(path):
        modules |= graph.modules & set(imports(file))
        source = " ".join(file.read_text().split())  # a command may stand on several lines
        if any(text in source for text in COMMAND_LINE):
            modules.add(f"{PACKAGE}.cli.main")
    return frozenset(modules)


@cache
def modules_of_page(page: Path) -> frozenset[str]:
    """Return the modules of the commands and imports that a page of the docs executes."""
    from thumbwheel.app.command_table import COMMANDS

    modules: set[str] = set()
    for block in blocks(page):
        for name, (function, _) in COMMANDS.items():
            if f"thumbwheel {name}" in block.text:
                modules.add(function.partition(":")[0])
        if block.kind == "python":
            modules |= set(re.findall(rf"\b{PACKAGE}(?:\.\w+)+", block.text))
    return frozenset(modules & import_graph().modules)


class Reach:
    """How far tests are from a change."""

    def __init__(self, files: Iterable[str]) -> None:
        self.files = frozenset(ROOT / file for file in files)
        self.steps = distances(changed_modules(files))
        self._mapped = {
            tests
            for beginning, tests in OUTSIDE.items()
            if any(file.startswith(beginning) for file in files)
        }

    def distance(self, name: str) -> int | None:
        """Return how far the test of this name is from the change; None where it is not reached."""
        path = ROOT / name.split("::")[0]
        page = PAGES_BY_NAME.get(name.partition("[")[2].rstrip("]"))
        files = frozenset({page}) if page else files_behind(path)
        if files & self.files or any(name.startswith(tests) for tests in self._mapped):
            return 0
        modules = modules_of_page(page) if page else modules_used(path)
        return min((self.steps[module] for module in modules & self.steps.keys()), default=None)


def is_reached(*patterns: str) -> bool:
    """Return whether the change since the last full run touches a module of one of these names, in
    which * stands for any text; also where the history does not have that run."""
    try:
        files = changed_files(LastFullRun.read().commit)
    except subprocess.CalledProcessError:
        return True
    modules = changed_modules(files)
    return any(fnmatchcase(module, pattern) for module in modules for pattern in patterns)


if __name__ == "__main__":
    sys.exit(0 if is_reached(*sys.argv[1:]) else 1)
