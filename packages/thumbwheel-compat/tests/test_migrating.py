"""The tables of docs/40-migrating.md, walked: no capability of the five systems is missing, and
what stands for one is really here."""

from __future__ import annotations

import importlib
import re
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import thumbwheel
import thumbwheel.compat
from tests.command_line import Run
from tests.worlds.animals_world import write_world
from thumbwheel.cli.main import command_line
from thumbwheel.llm import tools

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "40-migrating.md").read_text()
LAST = {0: 75, 1: 67, 2: 52, 3: 34, 4: 37}
"""System -> the number of its last capability."""
CODE = re.compile(r"`([^`]+)`")
STANDS = {
    "A": "support",
    "VERSION": "v1",
    "BASE": "base",
    "DATASET": "chats",
    "FILE": "world.jsonl",
}
"""What the names in the table of files are in the test."""


@dataclass(frozen=True)
class Line:
    """One line of a table."""

    cells: tuple[str, ...]

    def words(self, column: int) -> list[str]:
        return CODE.findall(self.cells[column])


def table(title: str) -> Iterator[Line]:
    for line in PAGE.split(f"### {title}")[1].split("\n#")[0].splitlines():
        if line.startswith("| ") and not line.startswith(("| no.", "| theirs")):
            yield Line(tuple(cell.strip() for cell in line.strip("|").split(" | ")))


def numbers(cell: str) -> Iterator[str]:
    for part in cell.split(", "):
        system, first, last = re.fullmatch(r"(\d)\.(\d+)(?:-\d\.(\d+))?", part).groups()
        yield from (f"{system}.{number}" for number in range(int(first), int(last or first) + 1))


MAPPED = [line for system in LAST for line in table(f"{system}: ")]
WORDS = sorted(
    {word for line in MAPPED for word in line.words(2)}
    | {word for line in table("Their files") for word in line.words(2)}
)


def test_no_capability_is_missing() -> None:
    named = [number for line in MAPPED if line.cells[0] != "+" for number in numbers(line.cells[0])]
    assert sorted(named) == sorted(
        f"{system}.{number}" for system, last in LAST.items() for number in range(1, last + 1)
    )
    assert [len(line.cells) for line in MAPPED] == [4] * len(MAPPED)


def test_what_is_not_here_says_so() -> None:
    for line in MAPPED:
        if not line.words(2):
            assert line.cells[2].startswith("left out: ") or "](" in line.cells[2], line


def test_not_yet_is_said_of_nothing_that_exists() -> None:
    """Whoever writes "not yet" names the command or class that is missing, and once it is there the
    line has to go."""
    for line in PAGE.splitlines():
        _, mark, rest = line.partition("not yet")
        if not mark:
            continue
        names = CODE.findall(rest)
        assert names, f"{line} does not say what will bring it"
        for name in names:
            assert not exists(name), f"{name} is here by now: {line}"


def exists(word: str) -> bool:
    """Whether a command or a dotted name is here."""
    try:
        if word.startswith("thumbwheel "):
            require_command(shlex.split(word)[1:])
        else:
            resolve(word)
    except (AssertionError, AttributeError, ImportError, SystemExit):
        return False
    return True


def test_what_exists_is_told_from_what_does_not() -> None:
    assert exists("thumbwheel loop enable --agent A")
    assert exists("thumbwheel.compat.rlhf_plan.ContinuousLearner")
    assert not exists("thumbwheel loop foretell --agent A")
    assert not exists("thumbwheel.compat.rlhf_plan.Foreteller")


@pytest.mark.parametrize("word", WORDS)
def test_what_stands_for_it_is_here(word: str) -> None:
    if word.startswith("thumbwheel "):
        require_command(shlex.split(word)[1:])
    elif word.startswith("thumbwheel."):
        assert resolve(word) is not None
    elif word.startswith("make "):
        assert f"\n{word.split()[1]}:" in (ROOT / "Makefile").read_text()
    else:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
            "optional-dependencies"
        ]
        assert re.fullmatch(r"pip install 'thumbwheel\[(\w+)\]'", word)[1] in extras


def require_command(arguments: list[str]) -> None:
    """Every word before the options is a command or an argument of it, every option exists, and
    what is chosen from a table is in it."""
    command: Any = command_line(arguments)
    path = []
    while arguments and arguments[0] in getattr(command, "commands", {}):
        path.append(arguments.pop(0))
        command = command.commands[path[-1]]
    assert not hasattr(command, "commands"), f"{path} is a group without {arguments}"
    options = [word for word in arguments if word.startswith("--")]
    assert set(options) <= {
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }, f"{path} has not all of {options}"
    needed = [
        parameter.opts
        for parameter in command.params
        if parameter.required and parameter.param_type_name == "option"
    ]
    assert all(set(names) & set(options) for names in needed), (
        f"{path} needs more of {needed} than {options}"
    )
    for option, value in pairwise(arguments):
        names = names_of(path[0], option)
        assert names is None or value in names, f"{option} {value}: {names}"
    if path == ["import"]:
        assert arguments[0] in names_of("import", "source")


def names_of(command: str, option: str) -> list[str] | None:
    tables = {
        ("import", "source"): "thumbwheel.importers.sources.SOURCES",
        ("serve", "--dialect"): "thumbwheel.app.dialects.DIALECTS",
        ("dataset", "--shape"): "thumbwheel.datasets.shapes.SHAPES",
        ("evaluate", "--suite"): "thumbwheel.evaluation.suites.SUITES",
        ("export", "--format"): "thumbwheel.export.formats.FORMATS",
        ("deploy", "--target"): "thumbwheel.deploy.targets.TARGETS",
    }
    return resolve(tables[command, option]).names() if (command, option) in tables else None


def resolve(name: str) -> Any:
    """What a dotted name means: a module, or something in one."""
    module, _, attribute = name.rpartition(".")
    with suppress(ModuleNotFoundError):
        return importlib.import_module(name)
    return getattr(importlib.import_module(module), attribute)


def by_python(name: str, folder: Path) -> None:
    """What an app or a script does where no command writes the file."""
    if name == "thumbwheel.compat.TraceCollector":
        collector = thumbwheel.compat.TraceCollector("rl_traces")
        collector.start_trace("s1", "Where?")
        collector.finish_trace("In the den.", execution_duration_ms=1.0)
    elif name == "thumbwheel.feedback":
        trace = thumbwheel.trace("support", input="Where is it?", output="In the den.")
        thumbwheel.feedback("support", trace, thumb=True, rater="ann")
    else:
        assert name == "thumbwheel.compat.TrainingPipeline"
        pipeline = thumbwheel.compat.TrainingPipeline(
            "support", str(folder / "base"), method="sft", settings={"max_steps": 2}
        )
        assert "the gate rejected it" in pipeline.run_full_pipeline()["error"]


@pytest.mark.slow
def test_every_file_is_written_by_what_is_named(command_line: Run, tmp_path: Path) -> None:
    write_world(tmp_path)
    for line in table("Their files"):
        paths = [word.replace("HOME", "home").replace("/A/", "/support/") for word in line.words(1)]
        writers = line.words(2)
        if "gguf" in line.cells[2] and not all(
            map(tools.find, ("converter", "library", "bindings"))
        ):
            continue
        if writers:
            assert not [path for path in paths if list(tmp_path.glob(path))], (
                f"{paths} were there before {writers}"
            )
        for word in writers:
            if word.startswith("thumbwheel."):
                by_python(word, tmp_path)
                continue
            if word.startswith("thumbwheel evaluate"):
                assert (
                    command_line("import", "jsonl", "gold.jsonl", "--agent", "support", "--gold")[0]
                    == 0
                )
            arguments = [STANDS.get(part, part) for part in shlex.split(word)[1:]]
            code, _, err = command_line(*arguments)
            assert code == 0, (word, err)
        assert [path for path in paths if not list(tmp_path.glob(path))] == [], (
            writers or "the line before"
        )
