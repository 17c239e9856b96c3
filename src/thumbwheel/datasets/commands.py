"""`thumbwheel dataset ...`: what there is of datasets. Those that plan and build, which know the
methods, are in training/dataset_commands.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from thumbwheel.core import present
from thumbwheel.datasets.types import (
    Dataset,
    DatasetHealth,
    ExportedDataset,
    Finding,
    ListedDataset,
    ShownDataset,
    StoredCalibration,
)

if TYPE_CHECKING:
    from thumbwheel.datasets.stale import Stale
    from thumbwheel.db.workspace import Workspace

Agent = Annotated[str, typer.Option(help="The agent whose feedback is meant.")]
AgentOfName = Annotated[
    str | None, typer.Option("--agent", help="The agent, unless the dataset is named by its id.")
]

dataset = typer.Typer(no_args_is_help=True)


@dataset.command()
def show(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="An id, a shape (its newest dataset) or 'latest'.")],
    agent: AgentOfName = None,
    rows: Annotated[int, typer.Option(min=0, help="How many rows to show.")] = 3,
    split: Annotated[str, typer.Option(help="Of which split: train, dev or gate.")] = "train",
    skip: Annotated[int, typer.Option(min=0, help="Rows of the split to pass over.")] = 0,
) -> present.Answer[ShownDataset]:
    """Show a dataset: its counts, the rows left out and why, its weights, and some rows.

    Example: thumbwheel dataset show latest --agent support --split dev --skip 20 --rows 20
    """
    from itertools import islice

    from thumbwheel.datasets.build import load_rows
    from thumbwheel.datasets.stale import stale

    with ctx.obj() as ws:
        dataset = _named(ws, name, agent)
        first = list(islice(load_rows(ws, dataset.id, split, skip), rows))
        stale_rows = stale(ws, dataset)
    shown = ShownDataset(**vars(dataset), rows=first, stale=_stale_rows(stale_rows))
    parts = [
        *([str(stale_rows)] if stale_rows else []),
        *dataset_page(dataset),
        *(present.json_text(row) for row in first),
    ]
    return present.page(shown, parts)


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
) -> present.Answer[DatasetHealth]:
    """Is a dataset fit for training? Every check reads all rows; the exit code is 4 if one finds an
    error."""
    from thumbwheel.core.errors import DataError
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
    health = DatasetHealth(dataset.id, findings)
    answer = present.records(findings, title, columns, data=health)
    is_wrong = any(finding.verdict == ERROR for finding in findings)
    return answer.ending(DataError.exit_code) if is_wrong else answer


@dataset.command("list")
def list_(ctx: typer.Context, agent: Agent) -> present.Answer[list[ListedDataset]]:
    """List all datasets of an agent, oldest first."""
    from thumbwheel.datasets.build import datasets
    from thumbwheel.datasets.stale import stale
    from thumbwheel.models.versions import require_agent

    with ctx.obj() as ws:
        require_agent(ws, agent)
        existing = datasets(ws, agent)
        stale_of = {dataset.id: stale(ws, dataset) for dataset in existing}
    rows = []
    for dataset in existing:
        counts = [dataset.counts.get(split) for split in ("train", "dev", "gate")]
        built = f"{dataset.recorded_at:%Y-%m-%d %H:%M}"
        rows.append((dataset.id, dataset.shape, *counts, built))
    columns = ("id", "shape", "train", "dev", "gate", "built (UTC)")
    empty = f"no datasets yet; build one: thumbwheel dataset build --agent {agent}"
    parts: list[present.Part] = [present.Table(f"Datasets of {agent}", columns, rows, empty)]
    for dataset_id, stale_rows in stale_of.items():
        if stale_rows:
            parts.append(f"{dataset_id} {stale_rows}")
    listed = []
    for dataset in existing:
        n_stale = _stale_rows(stale_of[dataset.id])
        listed.append(ListedDataset(**vars(dataset), stale=n_stale))
    return present.page(listed, parts)


@dataset.command()
def export(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="An id, a shape (its newest dataset) or 'latest'.")],
    to: Annotated[Path, typer.Option(help="A new or empty folder.")],
    agent: AgentOfName = None,
    format: Annotated[
        str,
        typer.Option(
            help="jsonl, json, parquet, or hf (a Hugging Face folder with the columns of TRL)."
        ),
    ] = "jsonl",
) -> present.Answer[ExportedDataset]:
    """Write a dataset into a folder, to be used elsewhere.

    Example: thumbwheel dataset export pairs --agent support --format hf --to pairs-for-trl
    """
    from thumbwheel.datasets.export import export as export_dataset

    with ctx.obj() as ws:
        dataset = _named(ws, name, agent)
        path = export_dataset(ws, dataset.id, to, format)
    exported = ExportedDataset(dataset.id, path, format, dataset.counts)
    return present.message(exported, f"{dataset.id} ({dataset.shape}) is in {path}")


def _named(ws: Workspace, name: str, agent: str | None) -> Dataset:
    from thumbwheel.datasets.build import by_id, find

    return find(ws, agent, name) if agent else by_id(ws, name)


def _stale_rows(stale: Stale | None) -> int:
    return stale.rows if stale else 0


def dataset_page(dataset: Dataset) -> Iterator[present.Part]:
    """Return the page about a dataset."""
    manifest = dataset.manifest
    title = f"{dataset.id}: {dataset.shape} of {dataset.agent}"
    yield present.Table(title, ("split", "rows"), dataset.counts.items())
    yield present.Table("Where they come from", ("origin", "rows"), manifest["origins"].items())
    yield present.Table("Left out", ("reason", "how many"), manifest["drops"].items())
    yield from manifest["warnings"]
    for finding in manifest["health"]["findings"]:
        if finding["verdict"] in ("warning", "error"):
            yield f"{finding['check']} ({finding['verdict']}): {finding['text']}"
    yield from _figures(manifest)
    for name, value in manifest["fitted"].items():
        yield f"{name}: {value}"
    yield f"rule: {manifest['rule']}"


def _figures(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield lines about contradictions, a dominant rater, and the rows."""
    from thumbwheel.datasets.dataplan import contradictions
    from thumbwheel.datasets.row_stats import ScoreStatistics
    from thumbwheel.rewards.types import DominantRater

    if text := contradictions(manifest["notes"], manifest["rule"]):
        yield text
    if loudest := manifest.get("loudest"):
        yield f"Careful: {DominantRater(**loudest)}."
    if scores := manifest.get("scores"):
        yield f"scores: {ScoreStatistics(**scores)}"
    if characters := manifest.get("characters"):
        lengths = ", ".join(f"{name} {mean:g}" for name, mean in characters.items())
        yield f"mean length in characters: {lengths}"


def calibrate(
    ctx: typer.Context,
    agent: Agent,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the calibration here, for the reward function `next_turn`."),
    ] = None,
) -> present.Answer[StoredCalibration]:
    """Fit what users' next messages are worth to people's thumbs, and say how well that holds.

    It counts how often people called an answer good after which the user gave thanks, complained
    and so on: on the training rows. The figures are of the dev rows. Use it in the settings:

        rewards:
          components:
            next_turn: {weight: 0.5, settings: {calibration: latest}}

    Example: thumbwheel reward calibrate --agent support
    """
    from thumbwheel.core.files import write_output
    from thumbwheel.datasets.calibrate_next_turn import calibrate_next_turn
    from thumbwheel.datasets.types import DatasetConfig
    from thumbwheel.models.documents import as_bytes
    from thumbwheel.models.versions import require_agent

    with ctx.obj() as ws:
        learner = require_agent(ws, agent)
        name, document = calibrate_next_turn(ws, learner, ws.settings(DatasetConfig, "dataset"))
    if out is not None:
        write_output("--out", out, as_bytes(document))
    stored = cast(StoredCalibration, {"calibration": name, **document})
    return present.page(stored, _calibration_page(name, document))


def _calibration_page(name: str, document: dict[str, Any]) -> Iterator[present.Part]:
    from thumbwheel.rewards.next_turn import Calibration, ReplyReading

    calibration = Calibration.of(document)
    rows = []
    for reading in ReplyReading:
        good, bad = calibration.counts.get(reading, (0, 0))
        rows.append((reading, good, bad, f"{calibration.chance(reading):.2f}"))
    title = f"calibration {name[:12]} of {document['agent']}: people's verdicts on training rows"
    yield present.Table(title, ("the user's next message", "good", "bad", "chance"), rows)
    report = document["report"]
    if not report["rows"]:
        yield present.Note("there are no dev rows to measure it on")
        return
    yield (
        f"On {report['rows']} dev rows: accuracy {report['accuracy']:.3f} "
        f"(always the more frequent verdict: {report['majority']:.3f}), "
        f"Brier score {report['brier']:.3f} "
        f"(the share of good ones for all: {report['brier_of_the_share']:.3f})"
    )
