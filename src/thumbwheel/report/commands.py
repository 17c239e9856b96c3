"""The commands `dataset why` and `feedback used-in`."""

from __future__ import annotations

from typing import Annotated

import typer

from thumbwheel.core import present
from thumbwheel.report.types import RowOrigin, UsageReport


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
    from thumbwheel.report import row_lineage

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
    from thumbwheel.report import row_lineage

    with ctx.obj() as ws:
        uses = row_lineage.used_in(ws, id, agent)
    return present.page(uses, [_uses_table(uses, id)])


def _uses_table(uses: UsageReport, source: str) -> present.Table:
    rows = [
        ("dataset", f"{dataset.id} ({dataset.shape})", by_split(dataset.counts))
        for dataset in uses.datasets
    ]
    rows += [("run", run.id, f"{run.algorithm}, {run.state}") for run in uses.runs]
    rows += [("version", name, "") for name in uses.versions]
    rows += [("reward model", name, "") for name in uses.reward_models]
    rows += [("evaluation", name, "") for name in uses.evaluations]
    rows += [("export", path, "") for path in uses.exports]
    title = f"{source} is in" if rows else f"{source} is in nothing yet"
    return present.Table(title, ("what", "which", ""), rows)


def by_split(rows: dict[str, int]) -> str:
    """Return the numbers of rows as text: train 5, dev 2."""
    return ", ".join(f"{split} {count}" for split, count in rows.items())
