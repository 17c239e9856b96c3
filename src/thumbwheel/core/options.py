"""Options of the command line that commands of several stages share."""

from __future__ import annotations

from typing import Annotated

import typer

Here = Annotated[
    bool,
    typer.Option("--here", help="Compute in this command, although the home is served by workers."),
]
