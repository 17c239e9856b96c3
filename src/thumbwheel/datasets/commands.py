"""The commands of this stage: `thumbwheel plan FILE` and `thumbwheel dataset ...`."""

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
    """What a file of feedback is good for: which methods it permits, what is missing, whether to
    train at all.

    Reads any export that a source reads: Open WebUI, Langfuse, OpenAI, TRL, CSV, Parquet and more
    (thumbwheel import --help). Nothing is stored and no model is needed. Example: thumbwheel plan
    ratings.jsonl
    """
    from thumbwheel.capture.detect import Options
    from thumbwheel.datasets.plan import plan_file

    config = ctx.obj.settings().load(DatasetConfig, "dataset", options)
    parsed = Options.parsed(column, scale, timezone=timezone)
    _present(plan_file(file, source, config=config, options=parsed), json)


@dataset.command("plan")
@options_of(DatasetConfig)
def plan_agent(
    ctx: typer.Context, agent: Agent, options: dict[str, Any], json: AsJson = False
) -> None:
    """The data plan of an agent: its feedback, which methods it permits, contradictions, what is
    missing, the recommended method."""
    from thumbwheel.datasets.plan import data_plan

    with ctx.obj() as ws:
        plan = data_plan(ws, agent, ws.settings(DatasetConfig, "dataset", options))
    _present(plan, json)


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
    """Freeze training data: rows of one shape, split into train, dev and gate. The same evidence
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
        if since:
            options["since"] = since
        if until:
            options["until"] = until
        config = ws.settings(DatasetConfig, "dataset", options)
        why = None
        if method:
            choice = choose(ws, agent, method, config)
            shape, why = choice.shape, choice.why
        dataset = build_dataset(ws, agent, str(shape), config)
    _describe(dataset, json, why=why)


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
        dataset = _named(ws, name, agent)
        first = [asdict(row) for row in islice(load_rows(ws, dataset.id, "train"), rows)]
        stale_rows = stale(ws, dataset)
    _describe(dataset, json, first, stale=stale_rows)


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
    """Is a dataset fit for training? Every check reads all rows; the exit code is 4 if one finds an
    error."""
    from dataclasses import asdict

    from thumbwheel.core import log
    from thumbwheel.datasets.build import health as check_dataset
    from thumbwheel.datasets.health import ERROR
    from thumbwheel.datasets.tokens import counter

    with ctx.obj() as ws:
        dataset = _named(ws, name, agent)
        tokens = counter(tokenizer) if tokenizer else None
        findings = check_dataset(ws, dataset.id, max_length, tokens)
    if json:
        log.answer({"id": dataset.id, "findings": [asdict(finding) for finding in findings]})
    else:
        columns = ("check", "verdict", "what was found", "rows", "such as")
        lines = []
        for finding in findings:
            examples = " ".join(finding.rows[:2])
            lines.append(
                (finding.check, finding.verdict, finding.text, finding.count or "", examples)
            )
        log.table(f"{dataset.id}: {dataset.shape} of {dataset.agent}", columns, lines)
    if any(finding.verdict == ERROR for finding in findings):
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
        existing = datasets(ws, agent)
        stale_of = {dataset.id: stale(ws, dataset) for dataset in existing}
    if json:
        log.answer(
            [asdict(dataset) | {"stale": _stale_rows(stale_of[dataset.id])} for dataset in existing]
        )
        return
    lines = []
    for dataset in existing:
        built_at = f"{dataset.recorded_at:%Y-%m-%d %H:%M}"
        lines.append((dataset.id, dataset.shape, *dataset.counts.values(), built_at))
    log.table(f"Datasets of {agent}", ("id", "shape", "train", "dev", "gate", "built (UTC)"), lines)
    for dataset_id, stale_rows in stale_of.items():
        if stale_rows:
            log.show(f"{dataset_id} {stale_rows}")


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
        dataset = _named(ws, name, agent)
        path = export_dataset(ws, dataset.id, to, format)
    if json:
        log.answer(
            {"id": dataset.id, "path": str(path), "format": format, "counts": dataset.counts}
        )
    else:
        log.say(f"{dataset.id} ({dataset.shape}) is in {path}")


def _named(ws: Workspace, name: str, agent: str | None) -> Dataset:
    from thumbwheel.datasets.build import by_id, find

    return find(ws, agent, name) if agent else by_id(ws, name)


def _present(plan: DataPlan, json: bool) -> None:
    from thumbwheel.core import log

    if json:
        log.answer(plan.to_json())
        return
    for line in plan.to_words():
        log.show(line)


def _stale_rows(stale: Stale | None) -> int:
    return stale.rows if stale else 0


def _describe(
    dataset: Dataset,
    json: bool,
    rows: list[dict[str, Any]] | None = None,
    why: list[str] | None = None,
    stale: Stale | None = None,
) -> None:
    from dataclasses import asdict

    from thumbwheel.core import log

    if json:
        answer = asdict(dataset)
        if rows is not None:
            answer |= {"rows": rows, "stale": _stale_rows(stale)}
        if why is not None:
            answer["why"] = why
        log.answer(answer)
        return
    manifest = dataset.manifest
    if stale:
        log.show(str(stale))
    for line in why or []:
        log.show(line)
    title = f"{dataset.id}: {dataset.shape} of {dataset.agent}"
    log.table(title, ("split", "rows"), dataset.counts.items())
    log.table("Where they come from", ("origin", "rows"), manifest["origins"].items())
    log.table("Left out", ("reason", "how many"), manifest["drops"].items())
    lines = list(manifest["warnings"])
    findings = manifest["health"]["findings"]
    lines += [
        f"{finding['check']} ({finding['verdict']}): {finding['text']}"
        for finding in findings
        if finding["verdict"] in ("warning", "error")
    ]
    lines += _figures(manifest)
    lines += [f"{name}: {value}" for name, value in manifest["fitted"].items()]
    lines.append(f"rule: {manifest['rule']}")
    for line in lines:
        log.show(line)
    for row in rows or []:
        log.console(stderr=False).print_json(data=row)


def _figures(manifest: dict[str, Any]) -> Iterator[str]:
    """Lines about contradictions, a dominant rater, and the rows."""
    from thumbwheel.datasets.dataplan import contradictions
    from thumbwheel.datasets.row_stats import Scores
    from thumbwheel.rewards.types import DominantRater

    if text := contradictions(manifest["notes"], manifest["rule"]):
        yield text
    if loudest := manifest.get("loudest"):
        yield f"Careful: {DominantRater(**loudest)}."
    if scores := manifest.get("scores"):
        yield f"scores: {Scores(**scores)}"
    if characters := manifest.get("characters"):
        lengths = ", ".join(f"{name} {mean:g}" for name, mean in characters.items())
        yield f"mean length in characters: {lengths}"
