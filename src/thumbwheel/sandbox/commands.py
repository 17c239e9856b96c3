"""The `sandbox` group: what this machine can do with code that nobody trusts."""

from __future__ import annotations

from typing import Any

import typer

from thumbwheel.core import present

REFUSED = 3
"""Exit code where code may not run."""

sandbox = typer.Typer(help="Check whether code of answers may run on this machine.")


@sandbox.callback()
def group() -> None:
    """Whether code of answers may run on this machine."""


@sandbox.command()
def check() -> present.Answer[Any]:
    """Try the attacks on this machine and say which level it reaches; exit code 0 only where code
    may run.

    Example: thumbwheel sandbox check
    """
    from dataclasses import asdict

    from thumbwheel.sandbox.canaries import examine

    report = examine()
    held = list(report.attacks.values()).count("held")
    count = f"{held} of {len(report.attacks)} attacks failed, as they should"
    parts: list[present.Part] = [
        present.Table(f"level: {report.level}", ("attack", "result"), report.attacks.items()),
        *(present.Note(text) for text in (count, report.reason, report.fix) if text),
    ]
    data = asdict(report) | {"allowed": report.allowed, "held": held}
    answer = present.page(data, parts)
    return answer if report.allowed else answer.ending(REFUSED)
