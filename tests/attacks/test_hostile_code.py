"""Python that strangers wrote, in files and in answers: what parses it cannot be interrupted, and
the whole process waits for it. 300 bytes of gzip stopped a server for half a minute."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from thumbwheel.core import python_source
from thumbwheel.core.python_source import check_source, parse_module
from thumbwheel.importers.lines import ignore_position
from thumbwheel.importers.sources import SOURCES
from thumbwheel.rewards.functions.code_execution import defined_names, parses
from thumbwheel.rewards.functions.syntax import problem

SECONDS = 2
"""Of the processor."""
NAME = "a." * 45_000 + "a"
SOURCES_OF_STRANGERS = {
    "import": f"import {NAME}",
    "from": f"from {NAME} import b",
    "relative": f"from .{NAME} import b",
    "over lines": "import a" + ".\\\na" * 45_000,
    "with blanks": "import a" + " . a" * 45_000,
    "after another": f"def f():\n    import b, {NAME}",
}


def processor_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def read(folder: Path, source: str, row: dict[str, Any]) -> None:
    path = folder / f"{source}.jsonl"
    path.write_text(json.dumps(row) + "\n")
    for _ in SOURCES.get(source).read(path, ignore_position):
        pass


@pytest.mark.parametrize("attack", SOURCES_OF_STRANGERS)
def test_a_dotted_name_without_end_is_not_parsed(attack: str) -> None:
    source = SOURCES_OF_STRANGERS[attack]
    with pytest.raises(ValueError, match="dotted name"):
        parse_module(source)
    assert processor_seconds(lambda: (parses(source), defined_names(source))) < SECONDS
    assert processor_seconds(lambda: problem("python", source)) < SECONDS


def test_a_task_with_such_a_name_stops_no_import(tmp_path: Path) -> None:
    source = "import " + "a." * 100_000 + "a"
    tests = ["assert f(1) == 1"]
    for row in (
        {"task_id": 1, "text": "Add.", "code": source, "test_list": tests},
        {"task_id": 2, "text": "Add.", "code": "def f(x): return x", "test_list": [source]},
    ):
        assert processor_seconds(partial(read, tmp_path, "mbpp", row)) < SECONDS


def test_a_long_program_is_not_parsed() -> None:
    for source in ("a;" * 1_000_000, "a and b or " * 200_000 + "b"):
        assert processor_seconds(partial(parses, source)) < SECONDS
        with pytest.raises(ValueError, match="characters"):
            check_source(source)


def test_programs_of_people_are_parsed() -> None:
    names = ".".join(["package"] * 40)
    source = f"import {names}\nx = b{'.c' * 500}\n" + "y = 1.5 + 2.25\n" * 5000
    assert parses(source)
    assert defined_names(Path(python_source.__file__).read_text()) == {
        "parse_module",
        "check_source",
    }
