"""Every mutation still has its place and its tests; planted, it is caught."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.mutations import ROOT, Mutation, mutations, try_out

ALL = mutations()


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: mutation.name)
def test_a_mutation_has_its_place_and_names_fast_tests_that_exist(mutation: Mutation) -> None:
    assert mutation.count() == 1, f"{mutation.old!r} in {mutation.file}"
    assert mutation.new != mutation.old
    assert mutation.why and mutation.tests
    for test in mutation.tests:
        file, _, function = test.partition("::")
        functions = _functions(ROOT / file)
        name = re.sub(r"\[.*", "", function)
        assert name in functions, f"{test} does not exist"
        assert not functions[name] & {"slow", "repeat"}, f"{test} is not fast"


def _functions(path: Path) -> dict[str, set[str]]:
    """The tests of a file -> the marks that each one has, also from the whole file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    marks_of_file: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            marks_of_file = set(re.findall(r"mark\.(\w+)", ast.unparse(node.value)))
    functions = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            decorators = " ".join(ast.unparse(decorator) for decorator in node.decorator_list)
            # A mark inside of parametrize is one of a single case.
            marks = "" if "parametrize" in decorators else decorators
            functions[node.name] = marks_of_file | set(re.findall(r"mark\.(\w+)", marks))
    return functions


def test_a_mutation_that_has_no_place_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "src/thumbwheel/core/ids.py"
    source.parent.mkdir(parents=True)
    source.write_text("a = 1\na = 1\n")
    mutation = Mutation("twice", "", "core/ids.py", "a = 1", "a = 2", ())
    with pytest.raises(ValueError, match=r"stands 2 times in core/ids\.py instead of once"):
        mutation.plant(tmp_path)


@pytest.mark.repeat
@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: mutation.name)
def test_a_planted_mutation_is_caught(mutation: Mutation) -> None:
    outcome = try_out(mutation)
    assert outcome.caught, f"{mutation.why}\n{outcome.output}"
