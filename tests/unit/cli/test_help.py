"""`--help` at 80 columns: no name is cut, commands stand by stage, long commands begin with what
matters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.command_line import Run
from thumbwheel.app.command_table import COMMANDS, PLUGINS, STAGES, leaves, parameter_name
from thumbwheel.cli.help import FIRST, LONG
from thumbwheel.cli.main import command_line as whole_command_line

pytestmark = pytest.mark.slow

COLUMNS = 80
MOST_FIRST = 10


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


@pytest.fixture(scope="module")
def commands() -> dict[str, Any]:
    return dict(leaves(whole_command_line()))


def groups(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, subcommand in getattr(command, "commands", {}).items():
        if hasattr(subcommand, "commands"):
            yield f"{path} {name}".strip(), subcommand
            yield from groups(subcommand, f"{path} {name}".strip())


def shown(path: str, command: Any, **options: bool) -> str:
    context = typer.Context(command, info_name=f"thumbwheel {path}")
    text: str = re.sub("\x1b\\[[0-9;]*m", "", command.get_help(context, **options))
    return text


def names_of(command: Any) -> set[str]:
    """Return the names of all options of a command that are not hidden."""
    names: set[str] = set()
    for parameter in command.params:
        if parameter.param_type_name == "option" and not parameter.hidden:
            names.update(parameter.opts, parameter.secondary_opts)
    return names


def test_no_name_of_an_option_is_cut(commands: dict[str, Any]) -> None:
    for path, command in commands.items():
        text = shown(path, command, everything=True)
        words = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text))
        missing = {name for name in names_of(command) if name not in words}
        assert not missing, f"{path}: {missing} in {text}"
        assert "…" not in text


def test_no_line_is_wider_than_the_terminal(commands: dict[str, Any]) -> None:
    for path, command in commands.items():
        for line in shown(path, command, everything=True).splitlines():
            assert len(line) <= COLUMNS or " " not in line.strip(), f"{path}: {line!r}"


def test_no_command_of_a_group_is_cut() -> None:
    program = whole_command_line()
    for path, group in [("", program), *groups(program)]:
        text = shown(path, group)
        for name in group.commands:
            assert re.search(rf"^  {re.escape(name)} +\S", text, re.MULTILINE), f"{path} {name}"


def test_a_long_command_shows_ten_options_and_says_where_the_others_are(
    commands: dict[str, Any],
) -> None:
    long = {
        path: command for path, command in commands.items() if "--help-all" in names_of(command)
    }
    assert {"train sft", "train ppo", "evaluate", "plan"} <= set(long)
    for path, command in commands.items():
        n_options = sum(each.param_type_name == "option" for each in command.params)
        assert (n_options > LONG) == (path in long), path
    for path, command in long.items():
        text = shown(path, command)
        others = text.rpartition("\n\n")[2]
        assert re.fullmatch(rf"\d+ more options: thumbwheel {path} --help-all", others), path
        options = set(re.findall(r"^  (--[\w-]+)", text, re.MULTILINE)) - {"--help"}
        assert len(options) <= MOST_FIRST, f"{path}: {options}"
        assert len(text.splitlines()) <= 70, path


def test_what_comes_first_exists(commands: dict[str, Any]) -> None:
    for path, first in FIRST.items():
        matching = {
            parameter_name(parameter)
            for name, command in commands.items()
            if name == path or name.startswith(f"{path} ")
            for parameter in command.params
        }
        assert set(first) <= matching, f"{path}: {set(first) - matching}"


def test_every_command_belongs_to_one_stage() -> None:
    listed = [name for names in STAGES.values() for name in names]
    assert sorted(listed) == sorted(COMMANDS)


def test_the_help_of_the_program_groups_commands_by_stage(command_line: Run) -> None:
    code, out, err = command_line("--help")
    assert (code, err) == (0, "")
    places = [out.index(f"\n{stage}:\n") for stage in STAGES]
    assert places == sorted(places) and out.index("\nOptions:\n") > places[-1]


def test_help_all_shows_every_option(command_line: Run) -> None:
    code, short, _ = command_line("train", "sft", "--help")
    assert code == 0 and "--lora-r" not in short
    code, whole, _ = command_line("train", "sft", "--help-all")
    assert code == 0 and "  --lora-r <int>" in whole and "more options" not in whole
    code, _, err = command_line("traces", "list", "--help-all")
    assert code == 2 and "No such option" in err


def test_a_group_without_a_command_shows_its_help(command_line: Run) -> None:
    code, out, err = command_line("queue")
    assert code == 2 and "Commands:" in out + err and "\\x1b" not in out + err


PRESS = '''"""A plugin's command."""

import typer

from thumbwheel.app.command_table import PluginCommand

app = typer.Typer()


@app.command("dry")
def dry(days: int = 3) -> None:
    """Press a flower."""


PRESS = PluginCommand(app, "Press flowers.", "Collect")
'''


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with a command, and one whose command cannot be loaded."""
    (tmp_path / "flower_press.py").write_text(PRESS)
    points = {"press": "flower_press:PRESS", "broken": "no_such_module:COMMAND"}
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(PLUGINS, "locations", points)


@pytest.mark.usefixtures("plugins")
def test_a_plugins_command_is_listed_in_its_stage(command_line: Run) -> None:
    code, out, err = command_line("--help")
    assert code == 0
    collect = out.partition("\nCollect:\n")[2].partition("\n\n")[0]
    assert re.search(r"^  press +Press flowers\.$", collect, re.MULTILINE)
    assert "broken" not in out
    assert err.count("the command 'broken' of no_such_module:COMMAND is left out") == 1


@pytest.mark.usefixtures("plugins")
def test_a_plugins_command_has_its_own_help(command_line: Run) -> None:
    code, out, _ = command_line("press", "dry", "--help")
    assert code == 0 and "Press a flower." in out and "--days <int>" in out


def test_a_command_of_ours_loads_no_plugin(command_line: Run, plugins: None) -> None:
    code, _, err = command_line("traces", "list", "--help")
    assert (code, err) == (0, "")


def test_a_missing_command_names_the_extra(
    command_line: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PLUGINS, "locations", {})
    code, _, err = command_line("settings", "convert", "rlhf.yaml")
    assert code == 2 and "pip install 'thumbwheel[compat]'" in err
    code, _, err = command_line("setings")
    assert code == 2 and "No such command" in err
