"""What a classifier of traces sees of a case: numbers about the run and the answer, the words of
the answer, hashed, and where it was asked to, an embedding of the answer.

Nothing here reads feedback: a label must not be among what predicts it. What is unknown (tokens,
seconds) is 0 beside a number that says whether it is known. To add a number: a line in NUMBERS;
classifiers that were fitted before name theirs and refuse to judge.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from thumbwheel.rewards.function import Case

if TYPE_CHECKING:
    from thumbwheel.engine.embed import Embedder

WORDS = 4096
"""Places that words are hashed to."""
LONGEST = 20_000
"""Characters of an answer that are read."""
WORD = re.compile(r"\w+", re.UNICODE)
READS = frozenset({"text", "prompt", "steps", "status", "finish"})


@dataclass(frozen=True)
class Features:
    """`numbers` in the order of NUMBERS; `words`: place -> value, of length 1 as a vector;
    `meaning`: the embedding, empty without one."""

    numbers: NDArray[np.float64]
    words: Mapping[int, float]
    meaning: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class _CaseView:
    """A case with what several numbers need."""

    case: Case
    text: str
    words: list[str]
    asked: set[str]
    tokens: int | None
    seconds: float | None

    def steps(self, kind: str) -> int:
        """How many of a kind."""
        return sum(step.kind == kind for step in self.case.steps)

    def share(self, test: Callable[[str], bool]) -> float:
        """Of the characters."""
        return sum(map(test, self.text)) / len(self.text) if self.text else 0.0

    def failed_tools(self) -> float:
        """Share of the tool calls."""
        calls = [step.status != "ok" for step in self.case.steps if step.kind == "tool"]
        return sum(calls) / len(calls) if calls else 0.0

    def echo(self) -> float:
        """Share of the question's words that the answer takes up."""
        return len(self.asked & set(self.words)) / len(self.asked) if self.asked else 0.0


NUMBERS: Mapping[str, Callable[[_CaseView], float]] = {
    "log characters": lambda one: math.log1p(len(one.case.text)),
    "log words": lambda one: math.log1p(len(one.words)),
    "log lines": lambda one: math.log1p(one.text.count("\n")),
    "digits": lambda one: one.share(str.isdigit),
    "capitals": lambda one: one.share(str.isupper),
    "distinct words": lambda one: len(set(one.words)) / len(one.words) if one.words else 0.0,
    "code block": lambda one: float("```" in one.text),
    "log question words": lambda one: math.log1p(len(one.asked)),
    "echo of the question": lambda one: one.echo(),
    "ends with a question": lambda one: float(one.text.rstrip().endswith("?")),
    "log model calls": lambda one: math.log1p(one.steps("llm")),
    "log tool calls": lambda one: math.log1p(one.steps("tool")),
    "failed tool calls": lambda one: one.failed_tools(),
    "log reasoning steps": lambda one: math.log1p(one.steps("reasoning")),
    "log tasks": lambda one: math.log1p(one.steps("task")),
    "log tokens": lambda one: math.log1p(one.tokens or 0),
    "tokens known": lambda one: float(one.tokens is not None),
    "log seconds": lambda one: math.log1p(max(0.0, one.seconds or 0.0)),
    "seconds known": lambda one: float(one.seconds is not None),
    "run went well": lambda one: float(one.case.status == "ok"),
    "cut off": lambda one: float(one.case.finish == "length"),
}


def features(case: Case, embedder: Embedder | None = None) -> Features:
    """Of one case, with the embedding of `embedder`."""
    text = case.text[:LONGEST]
    words = WORD.findall(text.casefold())
    last = next(
        (one.get("content") for one in reversed(case.prompt) if one.get("role") == "user"), None
    )
    asked = set(WORD.findall(last[:LONGEST].casefold())) if isinstance(last, str) else set[str]()
    counts = [one.prompt_tokens for one in case.steps] + [
        one.completion_tokens for one in case.steps
    ]
    tokens = (
        sum(count for count in counts if count is not None)
        if any(count is not None for count in counts)
        else None
    )
    times = [one.seconds for one in case.steps if one.seconds is not None]
    view = _CaseView(case, text, words, asked, tokens, math.fsum(times) if times else None)
    named = [f"tool:{one.name}:{one.status}" for one in case.steps if one.kind == "tool"]
    found = Features(
        np.array([number(view) for number in NUMBERS.values()]), hashed([*words, *named])
    )
    return found if embedder is None else replace(found, meaning=embedder.embed(text))


def hashed(words: Sequence[str]) -> dict[int, float]:
    """Each word at its place with its sign, 1 + log of how often; the whole of length 1. The same
    everywhere: crc32, not Python's hash."""
    values: dict[int, float] = {}
    for word, count in Counter(words).items():
        code = zlib.crc32(word.encode("utf-8", "surrogatepass"))
        column, sign = code % WORDS, 1 if code & 0x80000000 else -1
        values[column] = values.get(column, 0.0) + sign * (1 + math.log(count))
    length = math.sqrt(math.fsum(value * value for value in values.values()))
    return {column: value / length for column, value in sorted(values.items())} if length else {}
