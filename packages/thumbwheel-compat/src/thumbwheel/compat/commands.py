"""The commands `thumbwheel settings` and `thumbwheel widgets`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from thumbwheel.app.command_table import PluginCommand
from thumbwheel.core import present

settings = typer.Typer()
widgets = typer.Typer()

SETTINGS = PluginCommand(
    settings, "Turn the settings of a replaced system into ours.", "Look after a home"
)
WIDGETS = PluginCommand(
    widgets, "List every variation of a catalogue of widgets, to be rated as cards.", "Collect"
)


@settings.callback()
def group() -> None:
    """Convert the settings of a replaced system."""


@settings.command("convert")
def convert(
    path: Annotated[Path, typer.Argument(help="The plan's YAML file, with the section rlhf.")],
    agent: Annotated[str, typer.Option(help="The agent that learns.")] = "assistant",
    out: Annotated[
        Path | None, typer.Option(help="Write our settings here [default: print them].")
    ] = None,
) -> present.Answer[Any]:
    """Turn a file of `rlhf:` settings into ours; says which keys became words of commands, and
    which are left out and why.

    Example: thumbwheel settings convert rlhf.yaml --out thumbwheel.yaml
    """
    from thumbwheel.compat.rlhf_plan.settings import convert_settings
    from thumbwheel.core.errors import InputError
    from thumbwheel.core.files import write_output

    converted = convert_settings(path, agent)
    if out is not None:
        if out.exists():
            raise InputError(
                f"--out {str(out)!r}",
                "it already exists",
                "Name another file, and put the sections together",
            )
        write_output("--out", out, converted.as_yaml())
    data = {
        "settings": converted.settings,
        "commands": converted.commands,
        "left_out": converted.left_out,
    }
    parts: list[present.Part] = []
    if out is None:
        parts.append(converted.as_yaml().removesuffix("\n"))
    parts += [present.Note(f"run: {command}") for command in converted.commands]
    for key, reason in converted.left_out.items():
        parts.append(present.Note(f"left out: rlhf.{key}: {reason}"))
    return present.page(data, parts)


@widgets.callback()
def widget_group() -> None:
    """Widgets that people rate."""


@widgets.command("generate")
def generate_widgets(
    catalogue: Annotated[Path, typer.Argument(help="JSON: {scenario: {fixture: description}}.")],
    out: Annotated[Path, typer.Option(help="Write the run here (exhaustive_data.json).")],
    questions: Annotated[
        Path | None, typer.Option(help="A question bank, JSON: [{id, question, category}].")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Samples of data, JSON: {scenario: [{label, value}]}.")
    ] = None,
    size: Annotated[
        list[str] | None, typer.Option(help="A size, repeatable [default: all four].")
    ] = None,
) -> present.Answer[Any]:
    """Write every variation of a catalogue of widgets: each question with each scenario, fixture
    and size, on each sample of data.

    Import the file, and rate it as cards. Example: thumbwheel widgets generate catalog.json --out
    run/exhaustive_data.json
    """
    import json

    from thumbwheel.compat.command_center.variations import SIZES, run_of
    from thumbwheel.core.files import write_output

    run = run_of(catalogue, questions, data, size or SIZES)
    write_output("--out", out, json.dumps(run, ensure_ascii=False, indent=1))
    count = len(run["entries"])
    result = {"run_id": run["run_id"], "entries": count, "out": str(out)}
    return present.message(result, f"{count} variations in {out}")
