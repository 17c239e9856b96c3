"""The commands `dataset why`, `feedback used-in` and `erase`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from thumbwheel.core import present
from thumbwheel.loop.types import Erasure, RowOrigin, UsageReport


def why(
    ctx: typer.Context,
    row: Annotated[str, typer.Argument(help="The id of a row, or DATASET:ROW.", metavar="ROW")],
    subjects: Annotated[
        bool,
        typer.Option("--subjects", help="Name the subjects in --json instead of keyed hashes."),
    ] = False,
) -> present.Answer[RowOrigin]:
    """Explain why a row is in a dataset: the traces, feedback, subjects, case, rule and rewards
    that it came from."""
    from thumbwheel.loop import row_lineage

    with ctx.obj() as ws:
        lineage = row_lineage.why(ws, row, subjects=subjects)
        with_subjects = row_lineage.why(ws, row, subjects=True)
    lines = ("   " * depth + text for depth, text in row_lineage.in_words(with_subjects))
    return present.page(lineage, lines)


def used_in(
    ctx: typer.Context,
    id: Annotated[
        str,
        typer.Argument(
            help="A piece of feedback, or a trace: our id, or with --agent its own.", metavar="ID"
        ),
    ],
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", help="The agent, unless the id is our own.")
    ] = None,
) -> present.Answer[UsageReport]:
    """Show where a piece of feedback ended up: datasets and their rows, runs, versions, reward
    models, evaluations, exports."""
    from thumbwheel.loop import row_lineage

    with ctx.obj() as ws:
        uses = row_lineage.used_in(ws, id, agent)
    return present.page(uses, [_uses_table(uses, id)])


def _uses_table(uses: UsageReport, source: str) -> present.Table:
    rows = [
        ("dataset", f"{dataset.id} ({dataset.shape})", _counts(dataset.counts))
        for dataset in uses.datasets
    ]
    rows += [("run", run.id, f"{run.algorithm}, {run.state}") for run in uses.runs]
    rows += [("version", name, "") for name in uses.versions]
    rows += [("reward model", name, "") for name in uses.reward_models]
    rows += [("evaluation", name, "") for name in uses.evaluations]
    rows += [("export", path, "") for path in uses.exports]
    title = f"{source} is in" if rows else f"{source} is in nothing yet"
    return present.Table(title, ("what", "which", ""), rows)


def _counts(rows: dict[str, int]) -> str:
    """Return the numbers of rows as text: train 5, dev 2."""
    return ", ".join(f"{split} {count}" for split, count in rows.items())


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
    from thumbwheel.loop.erase import erase as run
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
        rows += [(f"rows of {name}", _counts(counts)) for name, counts in erasure.datasets.items()]
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
