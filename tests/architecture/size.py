"""How large each stage is, and how densely it is written: `make size`.

Tokens are those of Python's tokenizer. Comments, docstrings and line ends are counted apart, so
that explaining something costs nothing here. There is no limit on any figure: they are there to be
read. A stage that gets denser (tokens a line) is being packed.

With `--against REF` each figure has its difference to the source at that git reference.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import subprocess
import tarfile
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("src/thumbwheel", "packages/thumbwheel-compat/src/thumbwheel")
LAYOUT = {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
LONGEST = 3
"""So many functions of a stage are named."""


@dataclass
class Size:
    """One stage. `lines` are those with code on them; `words` are tokens in comments and docstrings
    (a comment or docstring counts by its blanks)."""

    files: int = 0
    tokens: int = 0
    lines: int = 0
    words: int = 0
    functions: list[tuple[int, str]] = field(default_factory=list)
    """Lines and name of each function."""

    @property
    def density(self) -> float:
        """Tokens a line of code."""
        return self.tokens / max(self.lines, 1)

    @property
    def longest(self) -> list[tuple[int, str]]:
        return sorted(self.functions, reverse=True)[:LONGEST]


def docstring_starts(tree: ast.Module) -> set[tuple[int, int]]:
    """Where expressions that are only a string begin: docstrings, and texts under fields."""
    return {
        (node.lineno, node.col_offset)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def add_file(size: Size, name: str, text: str) -> None:
    tree = ast.parse(text)
    docstrings = docstring_starts(tree)
    code_lines: set[int] = set()
    size.files += 1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in LAYOUT:
            continue
        if token.type == tokenize.COMMENT or token.start in docstrings:
            size.words += len(token.string.split())
            continue
        size.tokens += 1
        code_lines.update(range(token.start[0], token.end[0] + 1))
    size.lines += len(code_lines)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            size.functions.append((node.end_lineno - node.lineno + 1, f"{name}:{node.name}"))


def stage_of(path: str) -> str:
    """The stage (or top-level module) that a path under the package belongs to."""
    return name_in_package(path).split("/")[0].removesuffix(".py")


def name_in_package(path: str) -> str:
    """A path from the repository's root as one from its package."""
    for package in PACKAGES:
        path = path.removeprefix(f"{package}/")
    return path


def measure(sources: Iterator[tuple[str, str]]) -> dict[str, Size]:
    """`sources`: path from the repository's root, and text."""
    sizes: dict[str, Size] = defaultdict(Size)
    for path, text in sources:
        add_file(sizes[stage_of(path)], name_in_package(path), text)
    return dict(sorted(sizes.items()))


def working_tree() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text()


def committed(reference: str) -> Iterator[tuple[str, str]]:
    """The sources at a git reference. Raises CalledProcessError where there is none."""
    listed = subprocess.run(
        ["git", "ls-tree", "-d", "--name-only", reference, *PACKAGES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    command = ["git", "archive", "--format=tar", reference, *listed]
    archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            file = files.extractfile(member) if member.name.endswith(".py") else None
            if file is not None:
                yield member.name, file.read().decode()


def print_table(sizes: dict[str, Size], earlier: dict[str, Size]) -> None:
    print(f"{'stage':12} {'files':>6} {'tokens':>8} {'change':>8} {'a line':>7}  longest functions")
    for stage, size in sizes.items():
        change = size.tokens - earlier[stage].tokens if stage in earlier else 0
        names = ", ".join(f"{name} {lines}" for lines, name in size.longest)
        print(
            f"{stage:12} {size.files:6} {size.tokens:8,} {change:+8,} {size.density:7.1f}  {names}"
        )
    tokens = sum(size.tokens for size in sizes.values())
    lines = sum(size.lines for size in sizes.values())
    files = sum(size.files for size in sizes.values())
    change = tokens - sum(size.tokens for size in earlier.values()) if earlier else 0
    print(f"{'all':12} {files:6} {tokens:8,} {change:+8,} {tokens / lines:7.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--against", help="a git reference; figures change from there")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "size.json")
    options = parser.parse_args()
    sizes = measure(working_tree())
    earlier: dict[str, Size] = {}
    if options.against:
        try:
            earlier = measure(committed(options.against))
        except subprocess.CalledProcessError:
            print(f"there is no {options.against!r} here to compare with")
    print_table(sizes, earlier)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    figures = {
        stage: {key: value for key, value in asdict(size).items() if key != "functions"}
        | {"density": round(size.density, 2), "longest": size.longest}
        for stage, size in sizes.items()
    }
    options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
