"""The command `erase`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from thumbwheel.core import present
from thumbwheel.erasure.types import Erasure
from thumbwheel.report.commands import by_split


def erase(
    ctx: typer.Context,
    subject: Annotated[
        str, typer.Option(help="The subject, as the traces name it, or our id (sub_...).")
    ],
    agent: Annotated[str, typer.Option("--agent", "-a", help="The agent whose data it is.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go; change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> present.Answer[Erasure]:
    """Erase everything about a subject: rows, datasets, caches, checkpoints, reports; mark what
    learned from them, and say what to retrain.

    It cannot be undone, and an import cannot bring it back. After a crash the same command finishes
    the job. Example: thumbwheel erase --subject customer-17 --agent support --dry-run
    """
    from thumbwheel.core import log
    from thumbwheel.erasure.erase import erase as run
    from thumbwheel.models.versions import require_agent

    with ctx.obj() as ws:
        learner = require_agent(ws, agent)
        if not (dry_run or yes):
            planned = run(ws, learner, subject, dry_run=True)
            present.show(_erasure_page(planned))
            if planned.state == "planned":
                _ask(ctx.obj.attended)
        erasure = run(
            ws, learner, subject, dry_run=dry_run, stage=lambda name: log.say(f"erase: {name}")
        )
    return present.page(erasure, _erasure_page(erasure))


def _ask(attended: bool) -> None:
    from thumbwheel.core.errors import InputError

    if not attended:
        raise InputError(
            "erase",
            "it cannot be undone, and there is no terminal to ask at",
            "Give --yes, or --dry-run to look first",
        )
    typer.confirm("Erase this for good?", abort=True, err=True)


def _erasure_page(erasure: Erasure) -> Iterator[present.Part]:
    if erasure.state != "already":
        done = erasure.state == "done"
        rows: list[tuple[str, object]] = []
        rows += [(table, count) for table, count in erasure.rows.items() if count]
        rows += [(f"rows of {name}", by_split(counts)) for name, counts in erasure.datasets.items()]
        rows += erasure.files.items()
        title = f"{'Erased' if done else 'Would go'} from {erasure.agent}"
        yield present.Table(title, ("what", "how many"), rows)
        tainted = [(kind, ", ".join(names)) for kind, names in erasure.tainted.items()]
        if tainted:
            title = "Tainted" if done else "Would be tainted"
            yield present.Table(title, ("what", "which"), tainted)
    yield from erasure.notes
    if erasure.retrain:
        yield "To train anew:"
    for command in erasure.retrain:
        yield f"  {command}"
