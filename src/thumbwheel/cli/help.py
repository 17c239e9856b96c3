"""The text of `--help`: commands by stage, and the options of a command.

A long command shows the options that matter first; `--help-all` shows the others, too. Nothing is
shortened: a name that does not fit beside its text stands on a line of its own.
"""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache, partial
from typing import Annotated, Any

import typer
from typer.main import get_command

from thumbwheel.app.command_table import COMMANDS, PLUGINS, STAGES, parameter_name

LONG = 20
"""A command with more options than this has `--help-all`."""

FIRST = {
    "plan": ("column", "scale", "source", "allow", "tag", "without_tag", "min_confidence", "limit"),
    "dataset plan": ("gate", "salt", "allow", "tag", "without_tag", "min_confidence", "limit"),
    "dataset build": ("shape", "method", "since", "until", "gate", "salt", "tag", "limit", "here"),
    "queue create": (
        *("of", "most", "session", "status", "since", "ask", "labels", "instructions", "raters"),
    ),
    "evaluate": (
        *("compare_base", "against", "gate", "suite", "reward_model", "judge_model"),
        *("max_new_tokens", "examples", "here"),
    ),
    "experiment start": (
        *("arm", "share", "ramp", "metric", "guard", "min_units", "max_hours", "promote"),
        "dry_run",
    ),
    "loop enable": (
        *("base", "methods", "least", "every_hours", "export", "deploy", "auto_deploy"),
        *("auto_promote", "experiment"),
    ),
    "train grpo": (
        *("base", "dataset", "resume", "dry_run", "max_steps", "num_generations"),
        *("max_completion_length", "reward_functions", "reward_model"),
    ),
    "train ppo": (
        *("base", "dataset", "resume", "dry_run", "max_steps", "max_completion_length"),
        *("reward_functions", "reward_model", "learning_rate"),
    ),
    "train": (
        *("base", "dataset", "resume", "dry_run", "learning_rate", "num_train_epochs"),
        *("max_steps", "max_length", "preset"),
    ),
}
"""The options that matter first, by command or group of commands, beside those that are
required."""

WIDEST_NAME = 26
"""Most characters of the column of names; the text of a longer name begins on the next line."""
NARROWEST, WIDEST = 40, 100
"""Columns of the terminal that the help fits into."""
STYLE = re.compile(r"\x1b\[[0-9;]*m")
"""Control characters of bold and coloured text."""
REPEATED = re.compile(r"<list\[([^\[\]]+)\]>")
"""The type of an option that may be given more than once."""


def add_help(command: Any, path: str = "") -> None:
    """Give the command and all below it this help."""
    subcommands = getattr(command, "commands", None)
    if subcommands is None and len(_options(command)) > LONG:
        command.params.append(_help_all_flag())
    command.get_help = partial(help_text, command, path)
    for name, subcommand in (subcommands or {}).items():
        add_help(subcommand, f"{path} {name}".strip())


def help_text(command: Any, path: str, ctx: Any, *, everything: bool = False) -> str:
    """Return the help of the command as lines that fit the terminal."""
    width = max(NARROWEST, min(shutil.get_terminal_size().columns, WIDEST))
    parts = [command.get_usage(ctx)]
    if command.help:
        parts.append(_paragraphs(command.help, width))
    if getattr(command, "commands", None) is None:
        parts += _parameter_sections(command, path, ctx, width, everything)
    else:
        parts += _command_sections(command, path, width)
        parts.append(_section("Options", _records(_options(command, ctx), ctx), width))
    return "\n\n".join(part for part in parts if part)


def _parameter_sections(
    command: Any, path: str, ctx: Any, width: int, everything: bool
) -> Iterator[str]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    yield _section("Arguments", _records(arguments, ctx), width)
    options = _options(command, ctx)
    if not any(_is_help_all(option) for option in options):
        yield _section("Options", _records(options, ctx), width)
        return
    first = [option for option in options if _comes_first(option, path)]
    others = [option for option in options if option not in first]
    yield _section("Options that matter first", _records(first, ctx), width)
    if everything:
        yield _section("All other options", _records(others, ctx), width)
    else:
        yield f"{len(others)} more options: {ctx.command_path} --help-all"


def _command_sections(group: Any, path: str, width: int) -> Iterator[str]:
    """Yield the commands of a group; those of the program by stage."""
    stages = {"Commands": tuple(group.commands)} if path else _stages(group.commands)
    longest = max(len(name) for name in group.commands)
    for stage, names in stages.items():
        rows = [(name, _first_paragraph(group.commands[name].help)) for name in names]
        yield _section(stage, rows, width, min(longest, WIDEST_NAME))


def _stages(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the commands of the program by stage, those of plugins at the end of theirs."""
    stages = dict(STAGES)
    for name in names:
        if name not in COMMANDS:
            stage = PLUGINS.get(name).stage
            stages[stage] = (*stages.get(stage, ()), name)
    return stages


def _first_paragraph(text: str | None) -> str:
    return inspect.cleandoc(text or "").split("\n\n")[0]


def _options(command: Any, ctx: Any = None) -> list[Any]:
    parameters = command.params if ctx is None else command.get_params(ctx)
    return [
        each
        for each in parameters
        if each.param_type_name == "option" and not getattr(each, "hidden", False)
    ]


def _comes_first(option: Any, path: str) -> bool:
    names = FIRST.get(path) or FIRST.get(path.split()[0], ())
    return option.required or "--help" in option.opts or parameter_name(option) in names


def _records(parameters: Iterable[Any], ctx: Any) -> list[tuple[str, str]]:
    records = [parameter.get_help_record(ctx) for parameter in parameters]
    return [(_plain_type(name), text) for name, text in filter(None, records)]


def _plain_type(name: str) -> str:
    """Return the name of a parameter with its type as people write it.

    >>> [_plain_type(name) for name in ("--tag <list[str]>", "--most <int range>", "PATH <Path>")]
    ['--tag <str>...', '--most <int>', 'PATH <path>']
    """
    name = REPEATED.sub(r"<\1>...", name)
    return name.replace(" range>", ">").replace("<Path>", "<path>")


def _section(
    title: str, rows: Iterable[tuple[str, str]], width: int, column: int = WIDEST_NAME
) -> str:
    """Return a section with a name and a text in each row; `column` is the width of the names."""
    lines = [line for row in rows for line in _row(*row, width, column)]
    if not lines:
        return ""
    return "\n".join([typer.style(f"{title}:", bold=True), *lines])


def _row(name: str, text: str, width: int, column: int) -> list[str]:
    indent = " " * (column + 4)
    lines = _wrapped(text, width - len(indent))
    if len(name) > column:
        names = [f"  {_styled(part)}" for part in _wrapped(name, width - 2)]
        return [*names, *(indent + line for line in lines)]
    beside = lines[0] if lines else ""
    start = f"  {_styled(name)}{' ' * (column - len(name))}  {beside}".rstrip()
    return [start, *(indent + line for line in lines[1:])]


def _styled(name: str) -> str:
    return typer.style(name, fg=typer.colors.CYAN)


def _paragraphs(text: str, width: int) -> str:
    """Return the paragraphs of a docstring, each wrapped."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join("\n".join(_wrapped(paragraph, width)) for paragraph in paragraphs)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), width, break_on_hyphens=False, break_long_words=False
    )


@cache
def _help_all_flag() -> Any:
    """Return the option `--help-all`."""

    def flag(
        help_all: Annotated[
            bool,
            typer.Option(
                "--help-all",
                help="Show all options and exit.",
                is_eager=True,
                expose_value=False,
                callback=_show_everything,
            ),
        ] = False,
    ) -> None: ...

    app = typer.Typer(add_completion=False)
    app.command()(flag)
    return next(option for option in get_command(app).params if _is_help_all(option))


def _is_help_all(option: Any) -> bool:
    return "--help-all" in option.opts


def _show_everything(ctx: typer.Context, requested: bool) -> None:
    if requested:
        from thumbwheel.core import present

        show_help: Any = ctx.command.get_help
        present.write(STYLE.sub("", show_help(ctx, everything=True)) + "\n")
        raise typer.Exit
