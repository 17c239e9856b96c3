"""The examples in docstrings are run, so none of them tells what the code does not do."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

from tests.distributions import ROOT, module_of, source_files

WITH_EXAMPLES = [path for path in source_files() if ">>>" in path.read_text("utf-8")]


def module_name(path: Path) -> str:
    return module_of(path.relative_to(ROOT).as_posix()) or ""


def test_there_are_modules_with_examples() -> None:
    assert WITH_EXAMPLES


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=module_name)
def test_docstring_examples(path: Path) -> None:
    text = path.read_text("utf-8")
    prompts = text.count(">>>")
    at_line_starts = len(re.findall(r"^ *>>> ", text, re.MULTILINE))
    assert at_line_starts == prompts, "an example does not begin its line"

    results = doctest.testmod(importlib.import_module(module_name(path)))
    assert results.failed == 0
    # doctest does not look into nested functions, for one.
    assert results.attempted == prompts, "doctest does not find every example"
