"""The command `doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from thumbwheel.core import present


def doctor(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Examine the installation, the machine and the home, and say how to mend what is wrong.

    It changes nothing. The exit code is 1 where something is wrong; a note is about what not
    everybody needs. Example: thumbwheel doctor
    """
    from dataclasses import asdict

    from thumbwheel.app.doctor import State, examine

    findings = list(examine(ctx.obj))
    rows = [(finding.name, finding.state, finding.text) for finding in findings]
    parts: list[present.Part] = [present.Table("Findings", ("what", "state", "found"), rows)]
    parts += [present.Note(f"{finding.name}: {finding.fix}") for finding in findings if finding.fix]
    present.page([asdict(finding) for finding in findings], parts, json=as_json)
    if any(finding.state is State.WRONG for finding in findings):
        raise typer.Exit(1)
