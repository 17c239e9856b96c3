"""The `export` command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from thumbwheel.export.types import Export

MERGED = "merged"
OTHER_NAMES = {"lora": "adapter"}
"""What others call a format -> what it is called here."""


def export(
    ctx: typer.Context,
    version: Annotated[str, typer.Argument(help="v3, an alias, or latest.")],
    agent: Annotated[str, typer.Option(help="The agent whose version it is.")],
    format: Annotated[
        str,
        typer.Option(
            help="merged (one ordinary model folder), adapter or lora (for PEFT, vLLM), gguf "
            "(Ollama, llama.cpp), lora_gguf, or onnx."
        ),
    ] = MERGED,
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
            help="Write AGENT/VERSION/policy below --to [./models], beside it the reward model and "
            "training_results.json.",
        ),
    ] = False,
    accept: Annotated[
        str | None,
        typer.Option(help='Keep it though parity fails: "your name: the reason"; it is recorded.'),
    ] = None,
    cases: Annotated[
        int,
        typer.Option(
            min=0, help="Held-out cases that a smaller precision answers, beside the trained model."
        ),
    ] = 24,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write a version as an adapter, merged, GGUF or ONNX model, checked for parity.

    The files are loaded again with the programs that they are for, and tokens, ends of answers and
    logits are compared with the trained model's; where they differ by more than the precision
    explains, nothing is kept, unless somebody takes it by name.

    Example: thumbwheel export latest --agent support --format gguf --ladder q8_0,q4_k_m --to ladder
    """
    from dataclasses import asdict

    from thumbwheel.core import log
    from thumbwheel.core.errors import InputError
    from thumbwheel.export import package
    from thumbwheel.export import version_tree as by_version
    from thumbwheel.export.formats import FORMATS

    if ladder is not None and (quant or accept or tree):
        raise InputError(
            "--ladder",
            "it tries several precisions; --quant, --accept and --tree are about one",
            "Give one or the other",
        )
    if merge and format != MERGED:
        why = f"--merge means --format {MERGED}, and an export has one format"
        raise InputError(
            f"--merge with --format {format}", why, "Leave out one of them, or export twice"
        )
    format = OTHER_NAMES.get(format, format)
    with ctx.obj() as ws:
        if ladder is None:
            write = by_version.export if tree else package.export
            done = [write(ws, agent, version, format, to, quant, accept, cases)]
        else:
            quants = (
                FORMATS.get(format).quants
                if ladder.lower() == "all"
                else [one.strip() for one in ladder.split(",")]
            )
            done = list(package.ladder(ws, agent, version, format, quants, to, cases))
    if json:
        answers = [asdict(one) | {"deployable": one.deployable} for one in done]
        log.answer(answers if ladder else answers[0])
    elif ladder:
        columns = (
            "precision",
            "MB",
            "tokens/s",
            "mean KL",
            "same top token",
            "score of cases",
            "folder",
        )
        log.table(f"{agent} {done[0].version} as {format}", columns, map(_rung, done))
    else:
        _show(done[0])


def _rung(done: Export) -> tuple[object, ...]:
    found, task = done.parity, done.parity.task
    speed = f"{found.tokens_per_second:.0f}" if found.tokens_per_second else ""
    score = (
        f"{task.score:.3f} ({task.score - task.trained:+.3f}, {task.low:+.3f} to {task.high:+.3f})"
        if task
        else ""
    )
    place = str(done.path) if done.files else f"not kept: {'; '.join(found.failures)}"
    return (
        found.dtype,
        f"{found.size / 1e6:.1f}",
        speed,
        f"{found.mean_kl:.2g}",
        f"{100 * found.top1:.1f} %",
        score,
        place,
    )


def _show(done: Export) -> None:
    from thumbwheel.core import log

    found, task = done.parity, done.parity.task
    rows = [
        ("folder", done.path),
        (
            "files",
            f"{len(done.files)}, {sum(one['size'] for one in done.files.values()) / 1e6:.1f} MB "
            f"({found.dtype})",
        ),
        ("compared on", f"{found.prompts} prompts, {found.tokens} tokens"),
        ("largest logit difference", f"{found.max_abs_diff:.2g}"),
        (
            "mean KL",
            f"{found.mean_kl:.2g} nats"
            + (
                f" (training moved it {found.effect_kl:.2g})" if found.effect_kl is not None else ""
            ),
        ),
        ("same most likely token", f"{100 * found.top1:.2f} %"),
    ]
    if found.tokens_per_second:
        rows.append(("speed", f"{found.tokens_per_second:.0f} tokens/s"))
    if task:
        gap = f"{task.score - task.trained:+.3f} [{task.low:+.3f}, {task.high:+.3f}]"
        rows.append(
            ("score of cases", f"{task.score:.3f} on {task.cases}, {gap} against the trained model")
        )
    rows += [("answers end at", " ".join(done.stops))] if len(done.stops) > 1 else []
    rows += [("note", note) for note in found.notes]
    if done.accepted:
        rows.append(("accepted", f"{done.accepted} (failed: {'; '.join(found.failures)})"))
    log.table(f"{done.agent} {done.version} as {done.format}", ("", ""), rows)
