"""`thumbwheel plan FILE`, `thumbwheel dataset plan` and `thumbwheel dataset build`: what the
feedback could teach, and by which method. They need the methods, which datasets do not know.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from thumbwheel.capture.commands import ColumnOptions, ScaleOptions, TimezoneOption
from thumbwheel.core import present
from thumbwheel.core.config import options as options_of
from thumbwheel.core.options import Here
from thumbwheel.datasets import commands
from thumbwheel.datasets.commands import Agent, dataset_page
from thumbwheel.datasets.dataplan import ConcludedPlan
from thumbwheel.datasets.shapes import SHAPES
from thumbwheel.datasets.types import BuiltDataset, DatasetConfig
from thumbwheel.importers.location import path_or_address
from thumbwheel.jobs.request import JobRequest
from thumbwheel.training.algorithms import ALGORITHMS

dataset = typer.Typer(no_args_is_help=True)


@options_of(DatasetConfig)
def plan(
    ctx: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            parser=path_or_address,
            metavar="FILE",
            help="Any file, folder or address that a source reads: an export of ratings.",
        ),
    ],
    options: dict[str, Any],
    source: Annotated[
        str | None,
        typer.Option(
            help="The source that reads it [default: the one that recognises its first rows]."
        ),
    ] = None,
    column: ColumnOptions = None,
    scale: ScaleOptions = None,
    timezone: TimezoneOption = None,
) -> present.Answer[ConcludedPlan]:
    """Tell what a file of feedback is good for: which methods it permits, what is missing, whether
    to train at all.

    Reads any export that a source reads: Open WebUI, Langfuse, OpenAI, TRL, CSV, Parquet and more
    (thumbwheel import --help). Nothing is stored and no model is needed. Example: thumbwheel plan
    ratings.jsonl
    """
    from thumbwheel.importers.detect import Options
    from thumbwheel.training.data_plan import plan_file

    config = ctx.obj.settings().load(DatasetConfig, "dataset", options)
    parsed = Options.parsed(column, scale, timezone=timezone)
    plan = plan_file(file, source, config=config, options=parsed)
    return present.page(ConcludedPlan.of(plan), plan.to_words())


@dataset.command("plan")
@options_of(DatasetConfig)
def plan_agent(
    ctx: typer.Context, agent: Agent, options: dict[str, Any]
) -> present.Answer[ConcludedPlan]:
    """Show the data plan of an agent: its feedback, the methods that it permits, contradictions,
    the missing data, and the recommended method."""
    from thumbwheel.training.data_plan import data_plan

    with ctx.obj() as ws:
        plan = data_plan(ws, agent, ws.settings(DatasetConfig, "dataset", options))
    return present.page(ConcludedPlan.of(plan), plan.to_words())


@dataset.command()
@options_of(DatasetConfig)
def build(
    ctx: typer.Context,
    agent: Agent,
    options: dict[str, Any],
    shape: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(SHAPES.names())}: what the rows hold; each method learns from one."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(ALGORITHMS.names())} or auto: the data plan picks the shape and says "
            "why."
        ),
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(help="Only feedback given at this time (UTC) or later is heard."),
    ] = None,
    until: Annotated[
        datetime | None, typer.Option(help="Only feedback given before this time (UTC) is heard.")
    ] = None,
    here: Here = False,
) -> JobRequest[BuiltDataset, BuiltDataset]:
    """Freeze training data: rows of one shape, split into train, dev and gate. The same evidence
    gives the same dataset.

    Example: thumbwheel dataset build --agent support --shape pairs, or --method kto, which picks
    the shape and says why.
    """
    from thumbwheel.core.errors import InputError
    from thumbwheel.training.jobs import DatasetBuildSpec

    if (shape is None) == (method is None):
        raise InputError(
            "dataset build",
            "it takes either --shape or --method",
            "Give one; --method auto takes what the data plan recommends",
        )
    spec = DatasetBuildSpec(
        agent=agent, shape=shape, method=method, since=since, until=until, options=options
    )

    def show(dataset: BuiltDataset) -> present.Answer[BuiltDataset]:
        return present.page(dataset, [*(dataset.why or []), *dataset_page(dataset)])

    return JobRequest("dataset build", spec, show, here=here)


dataset.add_typer(commands.dataset)
