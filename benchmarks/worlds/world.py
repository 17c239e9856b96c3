"""What a world is: a base, what an app recorded, what people said of it, and the truth, all from
one seed.

A world is written as plain files in our own line format (`traces.jsonl`, `feedback.jsonl`,
`gold.jsonl`), so that every command reads it as it reads a user's. To add one: a file with a
subclass of `World` and a line in `__init__.py`.

Seeds are split before anything is tuned on them: defaults are chosen on the seeds of `tune` and
proved on those of `prove`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal

from worlds.smollm2 import smollm2

Chat = list[dict[str, str]]

START = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
BETWEEN_MESSAGES = timedelta(minutes=3)
AFTER_ANSWER = timedelta(seconds=40)
"""How long after an answer its feedback comes."""


@dataclass(frozen=True)
class Example:
    """A prompt and its right answer; `group` ties examples that are not independent."""

    prompt: Chat
    answer: str
    group: str

    @property
    def chat(self) -> Chat:
        """The prompt with the right answer."""
        return [*self.prompt, {"role": "assistant", "content": self.answer}]


@dataclass(frozen=True)
class Pair:
    """Two answers to a prompt of which people preferred one; `group` ties pairs that are not
    independent."""

    prompt: Chat
    chosen: str
    rejected: str
    group: str


@dataclass(frozen=True)
class Files:
    """Where a world's files lie, and what is known of it beside them.

    A world that is judged by answers has `gold`, the same as `gold_examples`, and `taught`: the
    prompts that were rated with their true answers, as a training on all true labels would have
    them. `sampled_right` is the share of recorded answers that were right. One that is judged by
    preferences has `gold_pairs`, which no file holds. One that is judged by taste has
    `gold_examples` without a right answer, and `score`: how much its person likes an answer that
    ended as its finish reason says.
    """

    base: Path
    traces: Path
    feedback: Path
    gold: Path | None
    taught: list[Example] = field(default_factory=list)
    gold_examples: list[Example] = field(default_factory=list)
    gold_pairs: list[Pair] = field(default_factory=list)
    score: Callable[[str, str], float] | None = None
    sampled_right: float | None = None


class World(ABC):
    """One world. `ratings` is the most feedback that a seed has rows for."""

    name: ClassVar[str]
    tune: ClassVar[tuple[int, ...]] = ()
    prove: ClassVar[tuple[int, ...]] = ()
    tune_ratings: ClassVar[int]
    prove_ratings: ClassVar[int]
    max_new_tokens: ClassVar[int] = 32
    judged_by: ClassVar[Literal["answers", "preferences", "taste"]] = "answers"
    checked: ClassVar[bool] = False
    """Whether its traces come with cases whose checker can say of any answer whether it is right,
    so that methods that answer themselves need no reward model."""

    @abstractmethod
    def base(self, cache: Path) -> Path:
        """The folder of the base, trained into `cache` where it is not there yet."""

    def pretrained_base(self, cache: Path) -> Path:
        """Return the folder of the base that a run on SmolLM2 takes: as it comes, or after a few
        examples of the task."""
        del cache
        return smollm2()

    @abstractmethod
    def write(self, folder: Path, seed: int, ratings: int, base: Path) -> Files:
        """Write the world of `seed` with about `ratings` pieces of feedback into `folder`. Equal
        arguments give equal files."""

    def elsewhere(self) -> list[Example]:
        """Examples of other work that the base can do, to see what a training cost there; empty
        where it can do nothing else."""
        return []

    def right(self, answer: str, example: Example) -> bool:
        """Whether `answer` is right."""
        return answer.strip() == example.answer


@dataclass(frozen=True)
class Exchange:
    """A prompt that came in, what the app answered, and what would have been right."""

    id: str
    session: str
    subject: str
    occurred_at: datetime
    example: Example
    answer: str
    finish_reason: str

    @property
    def is_right(self) -> bool:
        """Whether the app's answer was the right one."""
        return self.answer == self.example.answer


def moment(number: int) -> datetime:
    """When the `number`-th message came in."""
    return START + number * BETWEEN_MESSAGES


def trace_line(exchange: Exchange, model: str, temperature: float) -> dict[str, Any]:
    """An exchange as an app would have recorded it."""
    return {
        "type": "trace",
        "id": exchange.id,
        "session": exchange.session,
        "subject": exchange.subject,
        "occurred_at": stamp(exchange.occurred_at),
        "input": exchange.example.prompt,
        "output": exchange.answer,
        "model": model,
        "served_model": model,
        "finish_reason": exchange.finish_reason,
        "sampling": {"temperature": temperature},
    }


def feedback_line(
    exchange: Exchange, kind: str, value: Any, rater: str, after: timedelta = AFTER_ANSWER
) -> dict[str, Any]:
    """What `rater` said of an exchange."""
    return {
        "type": "feedback",
        "id": f"{exchange.id}-{kind}",
        "target": {"trace": exchange.id},
        "kind": kind,
        "value": value,
        "rater": {"id": rater, "kind": "person"},
        "occurred_at": stamp(exchange.occurred_at + after),
    }


def preference_line(exchanges: Sequence[Exchange], value: int | None, rater: str) -> dict[str, Any]:
    """Return what `rater` said of two answers to a request: the number of the better one, or None
    for a tie."""
    return {
        "type": "feedback",
        "id": f"{exchanges[0].id}-{rater}",
        "targets": [{"trace": exchange.id} for exchange in exchanges],
        "kind": "preference",
        "value": value,
        "rater": {"id": rater, "kind": "person"},
        "occurred_at": stamp(exchanges[0].occurred_at + AFTER_ANSWER),
    }


def compared_exchange(
    number: int, side: str, example: Example, text: str, finish_reason: str
) -> Exchange:
    """Return one of several answers to the request `number`; `side` tells them apart."""
    return Exchange(
        id=f"t-{number:05d}-{side}",
        session=f"s-{number:05d}",
        subject=f"u-{number:05d}",
        occurred_at=moment(number),
        example=example,
        answer=text,
        finish_reason=finish_reason,
    )


def case_line(name: str, example: Example, checker: str) -> dict[str, Any]:
    """A gold case."""
    reference = json.loads(example.answer) if checker == "json_fields" else example.answer
    return {
        "type": "case",
        "id": name,
        "input": example.prompt,
        "reference": reference,
        "checker": checker,
        "group": example.group,
    }


def gold_lines(examples: Iterable[Example], checker: str) -> list[dict[str, Any]]:
    """Return a gold case for each example."""
    return [
        case_line(f"g-{number:04d}", example, checker) for number, example in enumerate(examples)
    ]


def stamp(instant: datetime) -> str:
    """A moment as ISO 8601, in UTC."""
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> Path:
    """JSON lines."""
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


def share(flags: Sequence[bool]) -> float:
    """Of true ones."""
    return sum(flags) / len(flags) if flags else 0.0
