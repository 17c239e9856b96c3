"""The command `doctor`."""

from __future__ import annotations

from typing import Any

import typer

from thumbwheel.core import present


def doctor(
    ctx: typer.Context,
) -> present.Answer[Any]:
    """Examine the installation, the machine and the home, and say how to mend what is wrong.

    It changes nothing. The exit code is 1 where something is wrong; a note is about what not
    everybody needs. Example: thumbwheel doctor
    """

    from thumbwheel.app.doctor import FindingState, examine

    findings = list(examine(ctx.obj))
    rows = [(finding.name, finding.state, finding.text) for finding in findings]
    parts: list[present.Part] = [present.Table("Findings", ("what", "state", "found"), rows)]
    parts += [present.Note(f"{finding.name}: {finding.fix}") for finding in findings if finding.fix]
    answer = present.page(findings, parts)
    is_wrong = any(finding.state is FindingState.WRONG for finding in findings)
    return answer.ending(1) if is_wrong else answer
