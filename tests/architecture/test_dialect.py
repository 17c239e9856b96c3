"""Names are nouns of the field. Words that only say which part of a sentence a value is are none.

The list is that of the style guide. ALLOWED is short, and argued: a word may stand where the field
itself, a library or a stored format uses it.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "packages", "tests", "benchmarks", "gpu")
WORDS = frozenset(
    [
        "one",
        "found",
        "said",
        "told",
        "given",
        "made",
        "kept",
        "known",
        "taken",
        "some",
        "mine",
        "theirs",
        "own",
        "at",
        "place",
        "stands",
    ]
)
ALLOWED: dict[tuple[str, str], str] = {
    ("src/thumbwheel/capture/trace_types.py", "at"): "a key of answers of the API",
    ("src/thumbwheel/capture/trace_types.py", "said"): "a key of answers of the API",
    ("src/thumbwheel/core/config.py", "at"): "Home.at(folder) reads as what it does",
    ("src/thumbwheel/deploy/processes.py", "place"): "a key of a stored JSON record",
    ("src/thumbwheel/rewards/aggregate.py", "at"): "as in rewards/types.py",
    ("src/thumbwheel/rewards/label.py", "at"): "as in rewards/types.py",
    (
        "src/thumbwheel/rewards/types.py",
        "at",
    ): "a field that the fingerprints of the ledger contain",
    ("src/thumbwheel/training/guard.py", "kept"): "a key of the state in checkpoints",
    ("tests/third_party/kennel/reward.py", "place"): "a place of the kennel",
}
"""(path from the root, word): why it is the right name there."""


def identifiers(tree: ast.Module) -> Iterator[str]:
    """Every name that a file gives to a value: what it assigns, takes, defines or imports as."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
                yield name
            case _:
                pass


def dialect(path: Path) -> Counter[str]:
    return Counter(name for name in identifiers(ast.parse(path.read_text())) if name in WORDS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_are_nouns_of_the_field(folder: str) -> None:
    spoken = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for word, count in dialect(path).items():
            if (name, word) not in ALLOWED:
                spoken[f"{name}: {word}"] = count
    assert spoken == {}


def test_what_is_allowed_is_still_there() -> None:
    gone = [key for key in ALLOWED if key[1] not in dialect(ROOT / key[0])]
    assert gone == []
