"""`thumbwheel reward-model`: list reward models, show the figures of one, let one score answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer

reward_model = typer.Typer(help="Reward models: list, show, and score answers.")

Agent = Annotated[str, typer.Option(help="The agent whose reward models are meant.")]
Name = Annotated[str, typer.Argument(help="rm3 or latest.")]
AsJson = Annotated[bool, typer.Option("--json", help="The answer as JSON on standard output.")]
ANSWERS = ("answer", "chosen", "rejected")
"""Keys of a line that hold an answer."""


@reward_model.command("list")
def list_(ctx: typer.Context, agent: Agent, as_json: AsJson = False) -> None:
    """All reward models of an agent, oldest first."""
    from thumbwheel.core import log
    from thumbwheel.models import reward_models

    with ctx.obj() as ws:
        records = reward_models.reward_models(ws, agent)
    if as_json:
        log.answer([_as_json(record) for record in records])
        return
    rows = [
        (
            record.name,
            record.metrics["loss_type"],
            _held_out(record.metrics["held_out"]),
            record.base,
            f"{record.recorded_at:%Y-%m-%d}",
        )
        for record in records
    ]
    log.table(
        f"reward models of {agent}", ("name", "learned by", "on dev rows", "base", "recorded"), rows
    )


@reward_model.command()
def show(ctx: typer.Context, name: Name, agent: Agent, as_json: AsJson = False) -> None:
    """One reward model: what it is made of, and its figures on dev rows, while it learned and at
    the end.

    Example: thumbwheel reward-model show latest --agent support
    """
    from thumbwheel.core import log
    from thumbwheel.models import reward_models

    with ctx.obj() as ws:
        record = reward_models.find(ws, agent, name)
    if as_json:
        log.answer(_as_json(record))
        return
    rows = [
        ("learned by", record.metrics["loss_type"]),
        ("on dev rows", _held_out(record.metrics["held_out"])),
    ]
    rows += [(f"dev {key}", f"{value:.4g}") for key, value in record.metrics["dev"].items()]
    rows += [
        ("base", record.base),
        ("fingerprint", record.base_fingerprint),
        ("run", record.run_id),
    ]
    log.table(
        f"{agent} {record.name}",
        ("", ""),
        rows + [(f"file {file}", sha256) for file, sha256 in record.files.items()],
    )


@reward_model.command()
def score(
    ctx: typer.Context,
    name: Name,
    agent: Agent,
    prompt: Annotated[str | None, typer.Option(help="What was asked.")] = None,
    answer: Annotated[str | None, typer.Option(help="The answer to score.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="JSON lines instead: prompt (text or messages), with answer, or chosen and "
            "rejected."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What a reward model gives answers: in raw units after regression, a chance of being good
    after classification.

    Example: thumbwheel reward-model score rm1 --agent support --prompt "Where is my parcel?"
    --answer "On its way."
    """
    from thumbwheel.core import log
    from thumbwheel.engine.reward_model import RewardInput, RewardModel
    from thumbwheel.models import reward_models
    from thumbwheel.training.base import require_training
    from thumbwheel.training.hardware import device

    asked = list(_asked(prompt, answer, file))
    require_training()
    with ctx.obj() as ws:
        model = RewardModel.load(
            reward_models.folder(ws, reward_models.find(ws, agent, name)), device=device("auto")
        )
    by_line = [
        list(answers) for _, answers in groupby(asked, key=itemgetter(0))
    ]  # a line's answers are read after the same turns
    compared = model.score_together(
        [[RewardInput(messages, text) for _, messages, text in answers] for answers in by_line]
    )
    scores = [score for line_scores in compared for score in line_scores]
    results = [
        {
            "line": line,
            "answer": text,
            "score": None if value != value else value,
            **_meaning(model, value),
        }
        for (line, _, text), value in zip(asked, scores, strict=True)
    ]
    if as_json:
        log.answer(results)
        return
    rows = [(result["line"], _short(str(result["answer"])), *_shown(result)) for result in results]
    log.table(f"scores by {name}", ("line", "answer", "score", ""), rows)


def _asked(
    prompt: str | None, answer: str | None, file: Path | None
) -> Iterator[tuple[int, Sequence[dict[str, Any]], str]]:
    from thumbwheel.core.errors import InputError

    if file is None:
        if prompt is None or answer is None:
            raise InputError(
                "reward-model score",
                "there is nothing to score",
                "Give --prompt and --answer, or --file",
            )
        yield 1, _messages(prompt), answer
        return
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
        rows = [
            (number, json.loads(line)) for number, line in enumerate(lines, start=1) if line.strip()
        ]
        for number, row in rows:
            yield from (
                (number, _messages(row["prompt"]), str(row[key])) for key in ANSWERS if key in row
            )
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = (
            f"it cannot be read as JSON lines with prompt and answer ({type(error).__name__}: "
            f"{error})"
        )
        raise InputError(
            f"--file {str(file)!r}", why, 'A line looks like {"prompt": "...", "answer": "..."}'
        ) from None


def _messages(prompt: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def _meaning(model: Any, score: float) -> dict[str, float]:
    from math import exp, isnan

    if isnan(score):
        return {}
    if model.scale is not None:
        return {"raw": model.scale.raw(score)}
    return {"chance": 1 / (1 + exp(-score))} if model.card.loss_type == "classification" else {}


def _shown(result: dict[str, Any]) -> tuple[str, str]:
    if result["score"] is None:
        return "-", "longer than the reward model reads"
    return f"{result['score']:.3f}", "".join(
        f"{key} {result[key]:.3f}" for key in ("raw", "chance") if key in result
    )


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _held_out(figures: dict[str, Any]) -> str:
    if not figures["n"]:
        return "no rows"
    if "accuracy" in figures:
        right = (
            f"{figures['accuracy']:.1%} of {figures['n']} right [{figures['low']:.1%}, "
            f"{figures['high']:.1%}]"
        )
        return right + (
            f", {figures['majority']:.1%} by always saying the same"
            if "majority" in figures
            else ""
        )
    squared = f"squared {figures['mse']:.3g}, where their mean has {figures['mse_of_mean']:.3g}"
    return f"mean absolute error {figures['mae']:.3g} on {figures['n']}, {squared}"


def _as_json(record: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(record) | {"name": record.name}
