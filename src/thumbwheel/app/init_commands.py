"""The command `init`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from thumbwheel.core import present

FILE = Path("thumbwheel.yaml")
"""Settings that every command of this folder reads."""
SETTINGS = """\
# Settings of Thumbwheel for commands that run in this folder. `thumbwheel doctor` checks them.

loop:
  # What is trained over; all that this machine has or can get: thumbwheel models available
  {base}
"""


@dataclass(frozen=True)
class InitialHome:
    """A home that was made, or that was there."""

    home: Path
    settings: Path
    settings_written: bool
    """Whether the file of settings is new; one that was there is left as it is."""
    base: str | None
    """The base that `--base` named, else the proposed one."""
    next_steps: list[str]


def init(
    ctx: typer.Context,
    agent: Annotated[
        str, typer.Option(help="The name of your app, for the commands that come next.")
    ] = "my-app",
    base: Annotated[
        str | None,
        typer.Option(help="Base model for thumbwheel.yaml [default: the one that fits here]."),
    ] = None,
) -> present.Answer[InitialHome]:
    """Make the home and a thumbwheel.yaml in this folder, and say what to do next.

    What is there already is left as it is. Example: thumbwheel init --agent support
    """
    import yaml

    from thumbwheel.core.files import replace
    from thumbwheel.training.base_picker import available_bases, proposed_base

    bases = available_bases()
    proposal = proposed_base(bases)
    if base is None and proposal is not None:
        base = proposal.name
    with ctx.obj() as ws:
        home = ws.home.path
    settings = (ctx.obj.config or FILE).absolute()
    is_new = not settings.exists() and base is not None
    if is_new:
        line = yaml.safe_dump({"base": base}, width=1000).strip()
        replace(settings, SETTINGS.format(base=line))

    steps = [
        "thumbwheel plan FILE",
        f"thumbwheel import --detect FILE, then: thumbwheel import SOURCE FILE --agent {agent}",
    ]
    is_here = {available.name: available.is_here for available in bases}
    if base is not None and not is_here.get(base, True):
        steps.append(f"thumbwheel models fetch {base}")
    steps += [f"thumbwheel loop run --agent {agent} --deploy embedded", "thumbwheel serve"]
    initial = InitialHome(home, settings, is_new, base, steps)
    parts: list[present.Part] = [
        f"home: {home}",
        f"settings: {settings} ({'new' if is_new else 'left as it is'})",
        "next:",
        *(f"  {number}. {step}" for number, step in enumerate(steps, 1)),
    ]
    return present.page(initial, parts)
