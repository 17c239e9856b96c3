"""`thumbwheel reward-model`: list reward models, show the figures of one, let one score answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from math import exp, isnan
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thumbwheel.core import present
from thumbwheel.models.types import NamedRewardModel, RewardModelRecord

if TYPE_CHECKING:
    from thumbwheel.models.types import RewardModelRecord

reward_model = typer.Typer(help="Reward models: list, show, and score answers.")

Agent = Annotated[str, typer.Option(help="The agent whose reward models are meant.")]
Name = Annotated[str, typer.Argument(help="rm3 or latest.")]
ANSWERS = ("answer", "chosen", "rejected")
"""Keys of a line that hold an answer."""


@dataclass(frozen=True)
class ScoredAnswer:
    """An answer with the score of a reward model."""

    line: int
    """Line of the file, from 1 on."""
    answer: str
    """The answer that was judged."""
    score: float | None
    """None if the answer is longer than the model can read."""
    raw: float | None = None
    """In the units of the ratings, after regression."""
    chance: float | None = None
    """Probability of being good, after classification."""


@reward_model.command("list")
def list_(ctx: typer.Context, agent: Agent) -> present.Answer[list[NamedRewardModel]]:
    """List all reward models of an agent, oldest first."""
    from thumbwheel.models import reward_models

    with ctx.obj() as ws:
        records = reward_models.reward_models(ws, agent)
    data = [_named(record) for record in records]
    empty = f"no reward models yet; train one: thumbwheel train reward --agent {agent} --base BASE"
    return present.records(records, f"reward models of {agent}", COLUMNS, data=data, empty=empty)


@reward_model.command()
def show(ctx: typer.Context, name: Name, agent: Agent) -> present.Answer[NamedRewardModel]:
    """Show a reward model: its parts, and its figures on dev rows while it learned and at the end.

    Example: thumbwheel reward-model show latest --agent support
    """
    from thumbwheel.models import reward_models

    with ctx.obj() as ws:
        record = reward_models.find(ws, agent, name)
    title = f"{agent} {record.name}"
    return present.record(_named(record), title, _rows(record))


def _rows(record: RewardModelRecord) -> list[present.Row]:
    metrics = record.metrics
    return [
        ("learned by", metrics["loss_type"]),
        ("on dev rows", _held_out(metrics["held_out"])),
        *((f"dev {key}", f"{value:.4g}") for key, value in metrics["dev"].items()),
        ("base", record.base),
        ("fingerprint", record.base_fingerprint),
        ("run", record.run_id),
        *((f"file {file}", sha256) for file, sha256 in record.files.items()),
    ]


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
) -> present.Answer[list[ScoredAnswer]]:
    """Score answers by a reward model: in raw units after regression, as the chance of being good
    after classification.

    Example: thumbwheel reward-model score rm1 --agent support --prompt "Where is my parcel?"
    --answer "On its way."
    """
    from thumbwheel.core.hardware import device
    from thumbwheel.engine.reward_model import RewardInput, RewardModel
    from thumbwheel.models import reward_models
    from thumbwheel.models.base import require_training

    answers = list(_answers_to_score(prompt, answer, file))
    require_training()
    with ctx.obj() as ws:
        folder = reward_models.folder(ws, reward_models.find(ws, agent, name))
        cache = ws.home.cache
    model = RewardModel.load(folder, device=device("auto"), cache=cache)

    # A line's answers are read after the same messages.
    by_line = [list(of_line) for _, of_line in groupby(answers, key=attrgetter("line"))]
    inputs = [[RewardInput(each.messages, each.text) for each in of_line] for of_line in by_line]
    scores = chain.from_iterable(model.score_together(inputs))
    results = [
        ScoredAnswer(
            each.line, each.text, None if isnan(value) else value, **_meaning(model, value)
        )
        for each, value in zip(answers, scores, strict=True)
    ]
    columns: dict[str, Callable[[ScoredAnswer], object]] = {
        "line": lambda result: result.line,
        "answer": lambda result: present.shortened(result.answer),
        "score": lambda result: _shown(result)[0],
        "": lambda result: _shown(result)[1],
    }
    return present.records(results, f"scores by {name}", columns, data=results)


@dataclass(frozen=True)
class AnswerToScore:
    """An answer of one line of the file (or of the options), after its messages."""

    line: int
    messages: list[dict[str, Any]]
    text: str


def _answers_to_score(
    prompt: str | None, answer: str | None, file: Path | None
) -> Iterator[AnswerToScore]:
    from thumbwheel.core.errors import InputError

    if file is None:
        if prompt is None or answer is None:
            raise InputError(
                "reward-model score",
                "there is nothing to score",
                "Give --prompt and --answer, or --file",
            )
        yield AnswerToScore(1, _messages(prompt), answer)
        return
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
        rows = [(number, json.loads(line)) for number, line in enumerate(lines, 1) if line.strip()]
        for number, row in rows:
            messages = _messages(row["prompt"])
            for key in ANSWERS:
                if key in row:
                    yield AnswerToScore(number, messages, str(row[key]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"--file {str(file)!r}",
            f"it cannot be read as JSON lines with prompt and answer ({type(error).__name__}: "
            f"{error})",
            'A line looks like {"prompt": "...", "answer": "..."}',
        ) from None


def _messages(prompt: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def _meaning(model: Any, score: float) -> dict[str, float]:
    if isnan(score):
        return {}
    if model.scale is not None:
        return {"raw": model.scale.raw(score)}
    if model.card.loss_type == "classification":
        return {"chance": 1 / (1 + exp(-score))}
    return {}


def _shown(result: ScoredAnswer) -> tuple[str, str]:
    if result.score is None:
        return "-", "longer than the reward model can read"
    if result.raw is not None:
        return f"{result.score:.3f}", f"raw {result.raw:.3f}"
    chance = "" if result.chance is None else f"chance {result.chance:.3f}"
    return f"{result.score:.3f}", chance


def _held_out(figures: dict[str, Any]) -> str:
    if not figures["n"]:
        return "no rows"
    if "accuracy" in figures:
        text = (
            f"{figures['accuracy']:.1%} of {figures['n']} right [{figures['low']:.1%}, "
            f"{figures['high']:.1%}]"
        )
        if "majority" in figures:
            text += f", {figures['majority']:.1%} by always saying the same"
        return text
    squared = f"squared {figures['mse']:.3g}, where their mean has {figures['mse_of_mean']:.3g}"
    return f"mean absolute error {figures['mae']:.3g} on {figures['n']}, {squared}"


COLUMNS: dict[str, Callable[[RewardModelRecord], object]] = {
    "name": lambda record: record.name,
    "learned by": lambda record: record.metrics["loss_type"],
    "on dev rows": lambda record: _held_out(record.metrics["held_out"]),
    "base": lambda record: record.base,
    "recorded": lambda record: f"{record.recorded_at:%Y-%m-%d}",
}


def _named(record: RewardModelRecord) -> NamedRewardModel:
    return NamedRewardModel(**vars(record), name=record.name)
