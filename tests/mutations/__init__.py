"""Bugs that tests have to catch: one small file each, and what runs the tests against it.

`python -m tests.mutations [NAME...]` plants one bug after the other in a copy of the source, never
in the checkout, and runs the tests that the bug's file names. It is caught where a test fails. To
add one, write NAME.toml with:

    why = "what the bug would do"
    file = "evaluation/gate.py", below src/thumbwheel
    old = the text that is replaced, which stands there once
    new = the text that stands there instead
    tests = ["tests/unit/evaluation/test_gate.py::test_name"], fast ones

`old` and `new` are whole lines or parts of a line. A test that has to go where the code went is
better than a patch with line numbers, which the next edit above it makes useless.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PACKAGE = "src/thumbwheel"
TESTS_FAILED = 1
"""Exit code of pytest."""
SECONDS = 300
"""A bug may make a test wait for ever; that is caught, too."""


@dataclass(frozen=True)
class Mutation:
    """A bug that is planted by replacing `old` by `new` in `file`."""

    name: str
    why: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Mutation:
        """The mutation of one file."""
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        return cls(path.stem, **values | {"tests": tuple(values["tests"])})

    def count(self, root: Path = ROOT) -> int:
        """How often its old text stands in its file."""
        return (root / PACKAGE / self.file).read_text(encoding="utf-8").count(self.old)

    def plant(self, root: Path) -> None:
        """Put the bug into the source below `root`; raises ValueError where it has no place."""
        if self.count(root) != 1:
            raise ValueError(
                f"mutation {self.name}: its old text stands {self.count(root)} times in "
                f"{self.file} instead of once. Bring tests/mutations/{self.name}.toml up to date"
            )
        path = root / PACKAGE / self.file
        source = path.read_text(encoding="utf-8")
        path.write_text(source.replace(self.old, self.new), encoding="utf-8")


@dataclass(frozen=True)
class Outcome:
    """What the tests said about a bug. `output` is theirs."""

    caught: bool
    output: str


def mutations(names: Iterable[str] = ()) -> list[Mutation]:
    """The mutations of these names, or all of them, by name; raises ValueError for an unknown
    one."""
    paths = {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}
    wanted = list(names) or list(paths)
    if unknown := [name for name in wanted if name not in paths]:
        raise ValueError(f"no mutation {', '.join(unknown)}. Known: {', '.join(paths)}")
    return [Mutation.read(paths[name]) for name in wanted]


@contextmanager
def planted(mutation: Mutation) -> Iterator[Path]:
    """A copy of the source with the bug in it, for as long as the block."""
    with tempfile.TemporaryDirectory(prefix="thumbwheel-mutation-") as folder:
        copy = Path(folder)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / PACKAGE, copy / PACKAGE, ignore=ignored)
        mutation.plant(copy)
        yield copy / "src"


def try_out(mutation: Mutation) -> Outcome:
    """Run the tests of a mutation against it. Raises RuntimeError where they could not be run."""
    with planted(mutation) as source:
        environment = os.environ | {
            "PYTHONPATH": str(source),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "pytest", "-x", "--tb=line", *mutation.tests]
        try:
            run = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return Outcome(True, f"its tests ran for more than {SECONDS} s")
    output = run.stdout + run.stderr
    if run.returncode not in (0, TESTS_FAILED):
        raise RuntimeError(f"the tests of mutation {mutation.name} could not be run:\n{output}")
    return Outcome(run.returncode == TESTS_FAILED, output)
