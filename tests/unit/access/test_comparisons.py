"""What somebody could guess bit by bit is compared in a time that says nothing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import thumbwheel

SOURCES = Path(thumbwheel.__file__).parent
FILES = [*sorted((SOURCES / "access").glob("*.py")), SOURCES / "server" / "login.py"]
GUESSABLE = ("mac", "signature", "csrf", "secret", "cookie", "password", "nonce", "state", "token")


def guessable(node: ast.expr) -> bool:
    name = ast.unparse(node).rpartition(".")[2]
    return any(name == word or name.endswith(f"_{word}") for word in GUESSABLE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_secrets_are_compared_by_compare_digest(path: Path) -> None:
    compared = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            sides = [node.left, *node.comparators]
            is_absence = any(isinstance(side, ast.Constant) for side in sides)
            if any(map(guessable, sides)) and not is_absence:
                compared.append(ast.unparse(node))
    assert compared == []
