"""`thumbwheel plan FILE` and `thumbwheel dataset ...`: the commands of this stage; each calls one
verb and presents it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thumbwheel.capture.location import path_or_address
from thumbwheel.core.config import options as options_of
from thumbwheel.datasets.types import DatasetConfig

if TYPE_CHECKING:
    from thumbwheel.datasets.dataplan import DataPlan
    from thumbwheel.datasets.stale import Stale
    from thumbwheel.datasets.types import Dataset
    from thumbwheel.db.workspace import Workspace

Agent = Annotated[str, typer.Option(help="The agent whose feedback is meant.")]
AgentOfName = Annotated[
    str | None, typer.Option("--agent", help="The agent, unless the dataset is named by its id.")
]
AsJson = Annotated[bool, typer.Option("--json", help="The answer as JSON on standard output.")]

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
    column: Annotated[
        list[str] | None,
        typer.Option(help="MEANING=COLUMN of a table, repeatable: prompt=question."),
    ] = None,
    scale: Annotated[
        list[str] | None,
        typer.Option(help="NAME=LOW:HIGH of its numbers, repeatable: rating=1:10."),
    ] = None,
    timezone: Annotated[
        str | None,
        typer.Option(help="The zone of times that are written without one [default: UTC]."),
    ] = None,
    json: AsJson = False,
) -> None:
    """What a file of feedback would teach: which methods it permits, what is missing, whether to
    train at all.

    Any export that a source reads: Open WebUI, Langfuse, OpenAI, TRL, CSV, Parquet and more
    (thumbwheel import --help). Nothing is stored and no model is needed. Example: thumbwheel plan
    ratings.jsonl
    """
    from thumbwheel.capture.detect import Options
    from thumbwheel.datasets.plan import plan_file

    config = ctx.obj.settings().load(DatasetConfig, "dataset", options)
    _present(
        plan_file(
            file, source, config=config, options=Options.parsed(column, scale, timezone=timezone)
        ),
        json,
    )


@dataset.command("plan")
@options_of(DatasetConfig)
def plan_agent(
    ctx: typer.Context, agent: Agent, options: dict[str, Any], json: AsJson = False
) -> None:
    """The data plan of what an agent has: signals, what each permits, contradictions, what is
    missing, the recommended method."""
    from thumbwheel.datasets.plan import data_plan

    with ctx.obj() as ws:
        found = data_plan(ws, agent, ws.settings(DatasetConfig, "dataset", options))
    _present(found, json)


@dataset.command()
@options_of(DatasetConfig)
def build(
    ctx: typer.Context,
    agent: Agent,
    options: dict[str, Any],
    shape: Annotated[
        str | None,
        typer.Option(
            help="chats (for sft), pairs (dpo), labels (kto), scored (reward), prompts (grpo, ppo) "
            "or groups (grpo on recorded answers)."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="sft, dpo, kto, reward, grpo, ppo, grpo_offline or auto: the data plan picks the "
            "shape and says why."
        ),
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(help="Only feedback given at this time (UTC) or later is heard."),
    ] = None,
    until: Annotated[
        datetime | None, typer.Option(help="Only feedback given before this time (UTC) is heard.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Freeze training data: rows of one shape, split in train, dev and gate. The same evidence
    gives the same dataset.

    Example: thumbwheel dataset build --agent support --shape pairs, or --method kto, which picks
    the shape and says why.
    """
    from thumbwheel.core.errors import InputError
    from thumbwheel.datasets.build import build as build_dataset
    from thumbwheel.datasets.choose_shape import choose

    if (shape is None) == (method is None):
        raise InputError(
            "dataset build",
            "it takes either --shape or --method",
            "Give one; --method auto takes what the data plan recommends",
        )
    with ctx.obj() as ws:
        window = {name: at for name, at in (("since", since), ("until", until)) if at}
        config = ws.settings(DatasetConfig, "dataset", options | window)
        choice = choose(ws, agent, method, config) if method else None
        found = build_dataset(ws, agent, choice.shape if choice else str(shape), config)
    _describe(found, json, why=choice.why if choice else None)


@dataset.command()
def show(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="An id, a shape (its newest dataset) or 'latest'.")],
    agent: AgentOfName = None,
    rows: Annotated[int, typer.Option(min=0, help="Rows of train to show.")] = 3,
    json: AsJson = False,
) -> None:
    """One dataset: counts, what was left out and why, weights, and its first rows."""
    from dataclasses import asdict
    from itertools import islice

    from thumbwheel.datasets.build import load_rows
    from thumbwheel.datasets.stale import stale

    with ctx.obj() as ws:
        found = _named(ws, name, agent)
        first = [asdict(row) for row in islice(load_rows(ws, found.id, "train"), rows)]
        changed = stale(ws, found)
    _describe(found, json, first, stale=changed)


@dataset.command()
def health(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="An id, a shape (its newest dataset) or 'latest'.")],
    agent: AgentOfName = None,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens from which rows would be cut.")
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Folder with the tokenizer.json of the base [default: an estimate]."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Is a dataset fit for training? Every check reads all rows; exit code 4 where one finds an
    error."""
    from dataclasses import asdict

    from thumbwheel.core import log
    from thumbwheel.datasets.build import health as check_dataset
    from thumbwheel.datasets.health import ERROR
    from thumbwheel.datasets.tokens import counter

    with ctx.obj() as ws:
        found = _named(ws, name, agent)
        findings = check_dataset(
            ws, found.id, max_length, counter(tokenizer) if tokenizer else None
        )
    if json:
        log.answer({"id": found.id, "findings": [asdict(one) for one in findings]})
    else:
        shown = (
            (one.check, one.verdict, one.text, one.count or "", " ".join(one.rows[:2]))
            for one in findings
        )
        log.table(
            f"{found.id}: {found.shape} of {found.agent}",
            ("check", "verdict", "what was found", "rows", "such as"),
            shown,
        )
    if any(one.verdict == ERROR for one in findings):
        raise typer.Exit(4)


@dataset.command("list")
def list_(ctx: typer.Context, agent: Agent, json: AsJson = False) -> None:
    """All datasets of an agent, oldest first."""
    from dataclasses import asdict

    from thumbwheel.core import log
    from thumbwheel.datasets.build import datasets
    from thumbwheel.datasets.stale import stale
    from thumbwheel.models.versions import require_agent

    with ctx.obj() as ws:
        require_agent(ws, agent)
        found = datasets(ws, agent)
        changed = {one.id: stale(ws, one) for one in found}
    if json:
        log.answer([asdict(one) | {"stale": _stale_rows(changed[one.id])} for one in found])
        return
    shown = (
        (one.id, one.shape, *one.counts.values(), f"{one.recorded_at:%Y-%m-%d %H:%M}")
        for one in found
    )
    log.table(f"Datasets of {agent}", ("id", "shape", "train", "dev", "gate", "built (UTC)"), shown)
    for name, one in changed.items():
        if one:
            log.show(f"{name} {one}")


@dataset.command()
def export(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="An id, a shape (its newest dataset) or 'latest'.")],
    to: Annotated[Path, typer.Option(help="A new or empty folder.")],
    agent: AgentOfName = None,
    format: Annotated[
        str,
        typer.Option(help="jsonl, parquet, or hf (a Hugging Face folder with the columns of TRL)."),
    ] = "jsonl",
    json: AsJson = False,
) -> None:
    """Write a dataset into a folder, to be used elsewhere.

    Example: thumbwheel dataset export pairs --agent support --format hf --to pairs-for-trl
    """
    from thumbwheel.core import log
    from thumbwheel.datasets.export import export as export_dataset

    with ctx.obj() as ws:
        found = _named(ws, name, agent)
        path = export_dataset(ws, found.id, to, format)
    if json:
        log.answer({"id": found.id, "path": str(path), "format": format, "counts": found.counts})
    else:
        log.say(f"{found.id} ({found.shape}) is in {path}")


def _named(ws: Workspace, name: str, agent: str | None) -> Dataset:
    from thumbwheel.datasets.build import by_id, find

    return find(ws, agent, name) if agent else by_id(ws, name)


def _present(found: DataPlan, json: bool) -> None:
    from thumbwheel.core import log

    if json:
        log.answer(found.to_json())
        return
    for line in found.to_words():
        log.show(line)


def _stale_rows(found: Stale | None) -> int:
    return found.rows if found else 0


def _describe(
    found: Dataset,
    json: bool,
    rows: list[dict[str, Any]] | None = None,
    why: list[str] | None = None,
    stale: Stale | None = None,
) -> None:
    from dataclasses import asdict

    from thumbwheel.core import log

    if json:
        shown = {} if rows is None else {"rows": rows, "stale": _stale_rows(stale)}
        log.answer(asdict(found) | shown | ({} if why is None else {"why": why}))
        return
    manifest = found.manifest
    if stale:
        log.show(str(stale))
    for line in why or []:
        log.show(line)
    log.table(
        f"{found.id}: {found.shape} of {found.agent}", ("split", "rows"), found.counts.items()
    )
    log.table("Where they come from", ("origin", "rows"), manifest["origins"].items())
    log.table("Left out", ("reason", "how many"), manifest["drops"].items())
    told = (one for one in manifest["health"]["findings"] if one["verdict"] in ("warning", "error"))
    findings = (f"{one['check']} ({one['verdict']}): {one['text']}" for one in told)
    figures = _figures(manifest)
    fitted = (f"{name}: {value}" for name, value in manifest["fitted"].items())
    for line in (*manifest["warnings"], *findings, *figures, *fitted, f"rule: {manifest['rule']}"):
        log.show(line)
    for row in rows or []:
        log.console(stderr=False).print_json(data=row)


def _figures(manifest: dict[str, Any]) -> Iterator[str]:
    """Contradictions, one loud rater, and what the rows are like; older datasets say less."""
    from thumbwheel.datasets.dataplan import contradictions
    from thumbwheel.datasets.row_stats import Scores
    from thumbwheel.rewards.types import DominantRater

    if torn := contradictions(manifest["notes"], manifest["rule"]):
        yield torn
    if loudest := manifest.get("loudest"):
        yield f"Careful: {DominantRater(**loudest)}."
    if scores := manifest.get("scores"):
        yield f"scores: {Scores(**scores)}"
    if characters := manifest.get("characters"):
        yield (
            "mean length in characters: "
            f"{', '.join(f'{name} {mean:g}' for name, mean in characters.items())}"
        )
