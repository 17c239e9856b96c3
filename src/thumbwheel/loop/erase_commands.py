"""The commands `dataset why`, `feedback used-in` and `erase`: lineage of single things, and taking
a subject out."""

from __future__ import annotations

from typing import Annotated, Any

import typer

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
        found = row_lineage.why(ws, row, subjects=subjects or not json)
    if json:
        log.answer(found)
        return
    for depth, text in row_lineage.in_words(found):
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
        found = row_lineage.used_in(ws, id, agent)
    if json:
        log.answer(found)
        return
    rows = [
        ("dataset", f"{one['id']} ({one['shape']})", _counts(one["counts"]))
        for one in found["datasets"]
    ]
    rows += [("run", run["id"], f"{run['algorithm']}, {run['state']}") for run in found["runs"]]
    kinds = (
        ("version", "versions"),
        ("reward model", "reward_models"),
        ("evaluation", "evaluations"),
        ("export", "exports"),
    )
    rows += [(word, name, "") for word, key in kinds for name in found[key]]
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
        found = run(
            ws, agent, subject, dry_run=dry_run, stage=lambda name: log.say(f"erase: {name}")
        )
    if json:
        log.answer(found.to_json())
    else:
        _show(found)


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


def _show(found: Any) -> None:
    from thumbwheel.core import log

    if found.state != "already":
        done = found.state == "done"
        rows = [(table, count) for table, count in found.rows.items() if count]
        rows += [
            (f"rows of {dataset}", _counts(counts)) for dataset, counts in found.datasets.items()
        ]
        rows += list(found.files.items())
        log.table(
            f"{'Erased' if done else 'Would go'} from {found.agent}", ("what", "how many"), rows
        )
        tainted = [(kind, ", ".join(names)) for kind, names in found.tainted.items()]
        if tainted:
            log.table("Tainted" if done else "Would be tainted", ("what", "which"), tainted)
    lines = [
        *found.notes,
        *(
            ["To train anew:", *(f"  {command}" for command in found.retrain)]
            if found.retrain
            else []
        ),
    ]
    for line in lines:
        log.show(line)
