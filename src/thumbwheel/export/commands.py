"""The `export` command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thumbwheel.core import present
from thumbwheel.core.options import Here
from thumbwheel.export.types import CheckedExport
from thumbwheel.jobs.request import JobRequest

if TYPE_CHECKING:
    from thumbwheel.export.types import Export, TaskScore

MERGED = "merged"


def export(
    ctx: typer.Context,
    version: Annotated[str, typer.Argument(help="v3, an alias, or latest.")],
    agent: Annotated[str, typer.Option(help="The agent.")],
    format: Annotated[
        str | None,
        typer.Option(
            help="merged (one ordinary model folder), adapter or lora (for PEFT, vLLM), gguf "
            "(Ollama, llama.cpp), lora_gguf (the adapter alone, over a GGUF file), or onnx "
            "[default: lora_gguf where the base came from a GGUF file or Ollama, else merged]."
        ),
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="The same as --format merged.")] = False,
    quant: Annotated[
        str | None,
        typer.Option(
            help="Precision of gguf: F16, Q8_0, ... Q2_K [default: by this machine's memory]."
        ),
    ] = None,
    ladder: Annotated[
        str | None,
        typer.Option(
            help='Several precisions side by side, as "Q8_0,Q4_K_M", or "all"; each in a folder '
            "below --to."
        ),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="The new folder [default: ./AGENT-VERSION-FORMAT].")
    ] = None,
    tree: Annotated[
        bool,
        typer.Option(
            "--tree",
            help="Write AGENT/VERSION/policy below --to [./models], and beside it the reward model "
            "and training_results.json.",
        ),
    ] = False,
    accept: Annotated[
        str | None,
        typer.Option(help='Keep it although parity fails: "your name: the reason"; recorded.'),
    ] = None,
    cases: Annotated[
        int,
        typer.Option(
            min=0,
            help="Held-out cases on which a smaller precision is compared with the trained model.",
        ),
    ] = 24,
    here: Here = False,
) -> JobRequest[list[CheckedExport], CheckedExport | list[CheckedExport]]:
    """Write a version as an adapter, merged, GGUF or ONNX model, checked for parity.

    The files are loaded again with the programs that they are for. Tokens, ends of answers and
    logits are compared with the trained model's. Where they differ by more than the precision
    explains, nothing is kept, unless somebody accepts it by name.

    Example: thumbwheel export latest --agent support --format gguf --ladder q8_0,q4_k_m --to ladder
    """
    from thumbwheel.core.errors import InputError
    from thumbwheel.export.jobs import ExportSpec

    if ladder is not None and (quant or accept or tree):
        raise InputError(
            "--ladder",
            "it tries several precisions; --quant, --accept and --tree are about one",
            "Give one or the other",
        )
    if merge and format not in (None, MERGED):
        why = f"--merge means --format {MERGED}, and an export has one format"
        raise InputError(
            f"--merge with --format {format}", why, "Leave out one of them, or export twice"
        )
    spec = ExportSpec(
        version=version,
        agent=agent,
        format=MERGED if merge else format,
        quant=quant,
        ladder=ladder,
        to=to and to.expanduser().absolute(),
        parent=Path.cwd(),
        tree=tree,
        accept=accept,
        cases=cases,
    )

    def show(
        exports: list[CheckedExport],
    ) -> present.Answer[CheckedExport | list[CheckedExport]]:
        title = f"{agent} {exports[0].version} as {exports[0].format}"
        if ladder:
            return present.records(exports, title, LADDER_COLUMNS, data=exports)
        return present.record(exports[0], title, _rows(exports[0]))

    return JobRequest("export", spec, show, here=here)


def _speed(finished: Export) -> str:
    speed = finished.parity.tokens_per_second
    return f"{speed:.0f}" if speed else ""


def _ladder_score(finished: Export) -> str:
    task = finished.parity.task
    if task is None:
        return ""
    return f"{task.score:.3f} ({_task_gap(task, '{:+.3f}, {:+.3f} to {:+.3f}')})"


def _ladder_folder(finished: Export) -> str:
    if finished.files:
        return str(finished.path)
    return f"not kept: {'; '.join(finished.parity.failures)}"


LADDER_COLUMNS: dict[str, Callable[[Export], object]] = {
    "precision": lambda row: row.parity.dtype,
    "MB": lambda row: f"{row.parity.size / 1e6:.1f}",
    "tokens/s": _speed,
    "mean KL": lambda row: f"{row.parity.mean_kl:.2g}",
    "same top token": lambda row: f"{100 * row.parity.top1:.1f} %",
    "score of cases": _ladder_score,
    "folder": _ladder_folder,
}


def _rows(finished: Export) -> list[present.Row]:
    parity, task = finished.parity, finished.parity.task
    megabytes = sum(file["size"] for file in finished.files.values()) / 1e6
    mean_kl = f"{parity.mean_kl:.2g} nats"
    if parity.effect_kl is not None:
        mean_kl = f"{mean_kl} (training moved it {parity.effect_kl:.2g})"
    rows: list[present.Row] = [
        ("folder", finished.path),
        ("files", f"{len(finished.files)}, {megabytes:.1f} MB ({parity.dtype})"),
        ("compared on", f"{parity.prompts} prompts, {parity.tokens} tokens"),
        ("largest logit difference", f"{parity.max_abs_diff:.2g}"),
        ("mean KL", mean_kl),
        ("same most likely token", f"{100 * parity.top1:.2f} %"),
    ]
    if parity.tokens_per_second:
        rows.append(("speed", f"{parity.tokens_per_second:.0f} tokens/s"))
    if task:
        gap = _task_gap(task, "{:+.3f} [{:+.3f}, {:+.3f}]")
        score = f"{task.score:.3f} on {task.cases}, {gap} against the trained model"
        rows.append(("score of cases", score))
    if len(finished.stops) > 1:
        rows.append(("answers end at", " ".join(finished.stops)))
    rows += [("note", note) for note in parity.notes]
    if finished.accepted:
        failures = "; ".join(parity.failures)
        rows.append(("accepted", f"{finished.accepted} (failed: {failures})"))
    return rows


def _task_gap(task: TaskScore, layout: str) -> str:
    """Format the difference to the trained model's score, with its interval."""
    return layout.format(task.score - task.trained, task.low, task.high)
