"""The command `thumbwheel settings convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

settings = typer.Typer()


@settings.callback()
def group() -> None:
    """Settings of a replaced system."""


@settings.command("convert")
def convert(
    path: Annotated[Path, typer.Argument(help="The plan's YAML file, with the section rlhf.")],
    out: Annotated[
        Path | None, typer.Option(help="Write our settings here [default: print them].")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON on standard output and nothing else.")
    ] = False,
) -> None:
    """Turn a file of `rlhf:` settings into ours; says which keys became words of commands, and
    which are left out and why.

    Example: thumbwheel settings convert rlhf.yaml --out thumbwheel.yaml
    """
    from thumbwheel.compat.rlhf_plan.settings import convert_settings
    from thumbwheel.core import log
    from thumbwheel.core.errors import InputError

    converted = convert_settings(path)
    if out is not None:
        if out.exists():
            raise InputError(
                f"--out {str(out)!r}",
                "it is there already",
                "Name another file, and put the sections together",
            )
        try:
            out.write_text(converted.as_yaml(), encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"--out {str(out)!r}",
                error.strerror or str(error),
                "Name a file that can be written",
            ) from None
    if as_json:
        log.answer(
            {
                "settings": converted.settings,
                "commands": converted.commands,
                "left_out": converted.left_out,
            }
        )
        return
    if out is None:
        log.console(stderr=False).print(converted.as_yaml(), markup=False, end="")
    for command in converted.commands:
        log.say(f"run: {command}")
    for key, reason in converted.left_out.items():
        log.say(f"left out: rlhf.{key}: {reason}")
