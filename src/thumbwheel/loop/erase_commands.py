"""The commands `dataset why`, `feedback used-in` and `erase`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from thumbwheel.loop.erase import Erasure

AsJson = Annotated[bool, typer.Option("--json", help="The answer as JSON on standard output.")]


def why(
    ctx: typer.Context,
    row: Annotated[str, typer.Argument(help="The id of a row, or DATASET:ROW.", metavar="ROW")],
    subjects: Annotated[
        bool,
        typer.Option("--subjects", help="Name the subjects in --json instead of keyed hashes."),
    ] = False,
    json: AsJson = False,
) -> None:
    """Why a row is in a dataset: the traces, feedback, subjects, case, rule and rewards that it
    came from."""
    from thumbwheel.core import log
    from thumbwheel.loop import row_lineage

    with ctx.obj() as ws:
        lineage = row_lineage.why(ws, row, subjects=subjects or not json)
    if json:
        log.answer(lineage)
        return
    for depth, text in row_lineage.in_words(lineage):
        log.show("   " * depth + text)


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
    json: AsJson = False,
) -> None:
    """Where a piece of feedback ended up: datasets and their rows, runs, versions, reward models,
    evaluations, exports."""
    from thumbwheel.core import log
    from thumbwheel.loop import row_lineage

    with ctx.obj() as ws:
        uses = row_lineage.used_in(ws, id, agent)
    if json:
        log.answer(uses)
        return
    rows = [
        ("dataset", f"{dataset['id']} ({dataset['shape']})", _counts(dataset["counts"]))
        for dataset in uses["datasets"]
    ]
    rows += [("run", run["id"], f"{run['algorithm']}, {run['state']}") for run in uses["runs"]]
    rows += [("version", name, "") for name in uses["versions"]]
    rows += [("reward model", name, "") for name in uses["reward_models"]]
    rows += [("evaluation", name, "") for name in uses["evaluations"]]
    rows += [("export", path, "") for path in uses["exports"]]
    log.table(f"{id} is in" if rows else f"{id} is in nothing yet", ("what", "which", ""), rows)


def _counts(rows: dict[str, int]) -> str:
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
    json: AsJson = False,
) -> None:
    """Erase everything about a subject: rows, datasets, caches, checkpoints, reports; mark what
    learned from them, and say what to retrain.

    It cannot be undone, and an import cannot bring it back. After a crash the same command finishes
    the job. Example: thumbwheel erase --subject customer-17 --agent support --dry-run
    """
    from thumbwheel.core import log
    from thumbwheel.loop.erase import erase as run

    with ctx.obj() as ws:
        if not (dry_run or yes):
            planned = run(ws, agent, subject, dry_run=True)
            _show(planned)
            if planned.state == "planned":
                _ask()
        erasure = run(
            ws, agent, subject, dry_run=dry_run, stage=lambda name: log.say(f"erase: {name}")
        )
    if json:
        log.answer(erasure.to_json())
    else:
        _show(erasure)


def _ask() -> None:
    import sys

    from thumbwheel.core.errors import InputError

    if not sys.stdin.isatty():
        raise InputError(
            "erase",
            "it cannot be undone, and nobody is there to be asked",
            "Give --yes, or --dry-run to look first",
        )
    typer.confirm("Erase this for good?", abort=True, err=True)


def _show(erasure: Erasure) -> None:
    from thumbwheel.core import log

    if erasure.state != "already":
        done = erasure.state == "done"
        rows: list[tuple[str, object]] = []
        rows += [(table, count) for table, count in erasure.rows.items() if count]
        rows += [(f"rows of {name}", _counts(counts)) for name, counts in erasure.datasets.items()]
        rows += erasure.files.items()
        title = f"{'Erased' if done else 'Would go'} from {erasure.agent}"
        log.table(title, ("what", "how many"), rows)
        tainted = [(kind, ", ".join(names)) for kind, names in erasure.tainted.items()]
        if tainted:
            log.table("Tainted" if done else "Would be tainted", ("what", "which"), tainted)
    for note in erasure.notes:
        log.show(note)
    if erasure.retrain:
        log.show("To train anew:")
    for command in erasure.retrain:
        log.show(f"  {command}")
