"""The `export` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    ctx: typer.Context,
    version: Annotated[str, typer.Argument(help="v3, an alias, or latest.")],
    agent: Annotated[str, typer.Option(help="The agent whose version it is.")],
    format: Annotated[str, typer.Option(help="adapter (for PEFT, vLLM) or merged (one ordinary model folder).")] = "merged",
    to: Annotated[Path | None, typer.Option(help="The new folder [default: ./AGENT-VERSION-FORMAT].")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write a version as an adapter or merged model, checked for parity.

    The folder is loaded again with plain transformers or PEFT and its logits are compared with the trained model's; where they differ,
    nothing is kept.

    Example: thumbwheel export latest --agent support --format merged --to support-model
    """
    from dataclasses import asdict

    from thumbwheel.core import log
    from thumbwheel.export.package import export as write

    with ctx.obj() as ws:
        done = write(ws, agent, version, format, to)
    if json:
        log.answer(asdict(done))
        return
    found = done.parity
    rows = [
        ("folder", done.path),
        ("files", f"{len(done.files)}, {sum(one['size'] for one in done.files.values()) / 1e6:.1f} MB ({found.dtype})"),
        ("compared on", f"{found.prompts} prompts, {found.tokens} tokens"),
        ("largest logit difference", f"{found.max_abs_diff:.2g}"),
        ("mean KL", f"{found.mean_kl:.2g} nats" + (f" (training moved it {found.effect_kl:.2g})" if found.effect_kl is not None else "")),
        ("same most likely token", f"{100 * found.top1:.2f} %"),
    ]
    log.table(f"{done.agent} {done.version} as {done.format}", ("", ""), rows)
