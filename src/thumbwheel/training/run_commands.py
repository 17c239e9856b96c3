"""`thumbwheel run`: recorded training runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from thumbwheel.core import present
from thumbwheel.training.types import Reproduction, Sameness

DIFFERENT = 1
"""Exit code of a reproduction that did not come out the same."""

run = typer.Typer(help="Recorded training runs: train one again and compare.")


@run.callback()
def _group() -> None:
    """Make `reproduce` a subcommand."""


@run.command()
def reproduce(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(help="A run, as `models show` names it.")],
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
