"""`thumbwheel run`: recorded training runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import typer

from thumbwheel.core import present
from thumbwheel.core.figures import duration, size
from thumbwheel.training.types import (
    ListedRun,
    Reproduction,
    RunComparison,
    RunFiles,
    RunNote,
    Sameness,
)

DIFFERENT = 1
"""Exit code of a reproduction that did not come out the same."""

run = typer.Typer(help="Recorded training runs: list, compare, train one again.")


@run.command("list")
def list_(
    ctx: typer.Context,
    agent: Annotated[str, typer.Option(help="Whose runs.")],
) -> present.Answer[list[ListedRun]]:
    """List the training runs of an agent, oldest first, with what each gave or does now.

    Example: thumbwheel run list --agent support
    """
    from thumbwheel.models.versions import require_agent
    from thumbwheel.training.run_list import listed_runs

    with ctx.obj() as ws:
        listed = listed_runs(ws, require_agent(ws, agent))
    columns: dict[str, Callable[[ListedRun], object]] = {
        "run": lambda row: row.id,
        "method": lambda row: row.algorithm,
        "state": lambda row: row.activity or str(row.state),
        "steps": lambda row: (row.metrics or {}).get("steps"),
        "version": lambda row: row.version,
        "tags": lambda row: ", ".join(row.tags),
        "began (UTC)": lambda row: f"{row.recorded_at:%Y-%m-%d %H:%M}" if row.recorded_at else "",
        "took": _duration,
    }
    empty = f"no runs yet; train: thumbwheel train sft --agent {agent} --base BASE"
    return present.records(listed, f"runs of {agent}", columns, data=listed, empty=empty)


def _duration(row: ListedRun) -> str:
    if row.recorded_at is None or row.ended_at is None:
        return ""
    return duration((row.ended_at - row.recorded_at).total_seconds())


@run.command()
def compare(
    ctx: typer.Context,
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Two runs or more, by their ids.")
    ],
    agent: Annotated[str, typer.Option(help="Whose runs.")],
) -> present.Answer[RunComparison]:
    """Compare runs: what they came to, and the settings that differ.

    Example: thumbwheel run compare run_01k3 run_01k4 --agent support
    """
    from thumbwheel.models.versions import require_agent
    from thumbwheel.training.run_list import compare_runs

    with ctx.obj() as ws:
        comparison = compare_runs(ws, require_agent(ws, agent), runs)
    return present.page(comparison, _comparison_page(comparison))


def _comparison_page(comparison: RunComparison) -> Iterator[present.Part]:
    from thumbwheel.training.run_list import SECONDS

    headings = ("", *(run.id for run in comparison.runs))
    rows: list[Sequence[object]] = []
    for line in comparison.results:
        is_time = line.name == SECONDS
        cells = [duration(value) if is_time else _cell(value) for value in line.values]
        rows.append(("time" if is_time else line.name, *cells))
    yield present.Table("results", headings, rows)
    settings = [(line.name, *map(_cell, line.values)) for line in comparison.settings]
    nothing_differs = "method, base, dataset and every setting are the same"
    yield present.Table("settings that differ", headings, settings, nothing_differs)
    if settings:
        yield present.Note(f"{len(comparison.same)} settings are the same")


def _cell(value: object) -> object:
    """Return how a value of a run is shown."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "–" if value is None else value


@run.command()
def note(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(help="A run, as `run list` names it.")],
    agent: Annotated[str, typer.Option(help="Whose run it is.")],
    text: Annotated[str, typer.Option(help="The note; empty: none.")] = "",
    tag: Annotated[
        list[str] | None, typer.Option(help="A tag; repeatable. Without any it has none.")
    ] = None,
) -> present.Answer[RunNote]:
    """Write the note and the tags of a run, in place of earlier ones.

    Example: thumbwheel run note run_01k3 --agent support --text "too short" --tag baseline
    """
    from thumbwheel.models.versions import require_agent
    from thumbwheel.training.run_notes import write_note
    from thumbwheel.training.train import run_of

    with ctx.obj() as ws:
        written = write_note(ws, run_of(ws, require_agent(ws, agent), run), text, tag or ())
    tags = f"; tags: {', '.join(written.tags)}" if written.tags else ""
    return present.message(written, f"note: {written.text or 'none'}{tags}")


@run.command()
def delete(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(help="A run, as `run list` names it.")],
    agent: Annotated[str, typer.Option(help="Whose run it is.")],
) -> present.Answer[RunFiles]:
    """Delete a run with its note, curves, log and checkpoints. Its dataset stays. A run that gave a
    version or a reward model is kept.

    Example: thumbwheel run delete run_01k3 --agent support
    """
    from thumbwheel.models.versions import require_agent
    from thumbwheel.training.run_notes import delete_run

    with ctx.obj() as ws:
        removed = delete_run(ws, require_agent(ws, agent), run)
    text = f"deleted the run, with {removed.checkpoints} checkpoints, {size(removed.size)}"
    return present.message(removed, text)


@run.command()
def reproduce(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(help="A run, as `run list` names it.")],
    agent: Annotated[str, typer.Option(help="Whose run it is.")],
    tolerance: Annotated[
        float,
        typer.Option(
            min=0, help="Largest relative difference of adapters and of losses that counts as none."
        ),
    ] = 0.05,
) -> present.Answer[Reproduction]:
    """Train a run again, with the same rows, settings, seed and base, and say whether the same
    adapter comes out.

    Nothing is recorded. With the same packages on the same machine it is the same bit by bit; what
    is different about them is said. Exit code 0 where the result is the same or within the
    tolerance.

    Example: thumbwheel run reproduce run_01k3 --agent support
    """
    from thumbwheel.models.versions import require_agent
    from thumbwheel.training.reproduce import reproduce as reproduce_run
    from thumbwheel.training.train import run_of

    with ctx.obj() as ws:
        result = reproduce_run(ws, run_of(ws, require_agent(ws, agent), run), tolerance)
    answer = present.page(result, _page(result))
    return answer.ending(DIFFERENT) if result.sameness is Sameness.DIFFERENT else answer


def _page(result: Reproduction) -> Iterator[present.Part]:
    rows: list[tuple[str, object]] = [
        ("result", result.sameness),
        ("ended then, now", f"{result.state_then}, {result.state_now}"),
        ("distance of the adapters", _figure(result.weights_distance)),
        ("largest distance of a loss", _figure(result.loss_distance)),
        ("tolerance", f"{result.tolerance:g}"),
    ]
    yield present.Table(f"run {result.run_id}, trained again", ("", ""), rows)
    if result.differences:
        changes = [(change.name, change.then, change.now) for change in result.differences]
        yield present.Table("not as it was", ("", "then", "now"), changes)
    for reason in result.reasons:
        yield present.Note(reason)


def _figure(distance: float | None) -> str:
    return "nothing to compare" if distance is None else f"{distance:.3g}"
