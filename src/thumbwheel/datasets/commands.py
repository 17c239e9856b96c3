"""`thumbwheel dataset ...`: what there is of datasets. Those that plan and build, which know the
methods, are in training/dataset_commands.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thumbwheel.core import present

if TYPE_CHECKING:
    from thumbwheel.datasets.health import Finding
    from thumbwheel.datasets.stale import Stale
    from thumbwheel.datasets.types import Dataset
    from thumbwheel.db.workspace import Workspace

Agent = Annotated[str, typer.Option(help="The agent whose feedback is meant.")]
AgentOfName = Annotated[
    str | None, typer.Option("--agent", help="The agent, unless the dataset is named by its id.")
]
AsJson = Annotated[bool, typer.Option("--json", help="The answer as JSON on standard output.")]

dataset = typer.Typer(no_args_is_help=True)


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
    describe(dataset, json, first, stale=stale_rows)


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
    from thumbwheel.datasets.build import health as check_dataset
    from thumbwheel.datasets.health import ERROR
    from thumbwheel.datasets.tokens import counter

    with ctx.obj() as ws:
        dataset = _named(ws, name, agent)
        tokens = counter(tokenizer) if tokenizer else None
        findings = check_dataset(ws, dataset.id, max_length, tokens)
    columns: dict[str, Callable[[Finding], object]] = {
        "check": lambda finding: finding.check,
        "verdict": lambda finding: finding.verdict,
        "what was found": lambda finding: finding.text,
        "rows": lambda finding: finding.count or "",
        "such as": lambda finding: " ".join(finding.rows[:2]),
    }
    title = f"{dataset.id}: {dataset.shape} of {dataset.agent}"
    data = {"id": dataset.id, "findings": findings}
    present.records(findings, title, columns, json=json, data=data)
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
    columns: dict[str, Callable[[Dataset], object]] = {
        "id": lambda dataset: dataset.id,
        "shape": lambda dataset: dataset.shape,
        "train": lambda dataset: dataset.counts.get("train"),
        "dev": lambda dataset: dataset.counts.get("dev"),
        "gate": lambda dataset: dataset.counts.get("gate"),
        "built (UTC)": lambda dataset: f"{dataset.recorded_at:%Y-%m-%d %H:%M}",
    }
    data = [asdict(dataset) | {"stale": _stale_rows(stale_of[dataset.id])} for dataset in existing]
    present.records(existing, f"Datasets of {agent}", columns, json=json, data=data)
    if json:
        return
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
    from thumbwheel.datasets.export import export as export_dataset

    with ctx.obj() as ws:
        dataset = _named(ws, name, agent)
        path = export_dataset(ws, dataset.id, to, format)
    data = {"id": dataset.id, "path": path, "format": format, "counts": dataset.counts}
    present.message(data, f"{dataset.id} ({dataset.shape}) is in {path}", json=json)


def _named(ws: Workspace, name: str, agent: str | None) -> Dataset:
    from thumbwheel.datasets.build import by_id, find

    return find(ws, agent, name) if agent else by_id(ws, name)


def _stale_rows(stale: Stale | None) -> int:
    return stale.rows if stale else 0


def describe(
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
