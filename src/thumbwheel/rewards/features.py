"""Features of a case for the classifier of traces: numbers about the run and the answer, the hashed
words of the answer, and optionally an embedding of the answer.

Nothing here reads feedback: a label must not predict itself. Unknown tokens or seconds are 0, next
to a number that says whether they are known. To add a number: a line in NUMBERS; classifiers fitted
before name other features and refuse to judge.
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
        """Count the steps of a kind."""
        return sum(step.kind == kind for step in self.case.steps)

    def share(self, test: Callable[[str], bool]) -> float:
        """Return the share of characters that pass `test`; 0 for an empty text."""
        return sum(map(test, self.text)) / len(self.text) if self.text else 0.0

    def failed_tools(self) -> float:
        """Return the share of tool calls that failed; 0 without calls."""
        calls = [step.status != "ok" for step in self.case.steps if step.kind == "tool"]
        return sum(calls) / len(calls) if calls else 0.0

    def echo(self) -> float:
        """Return the share of the question's words that also occur in the answer; 0 without
        words."""
        return len(self.asked & set(self.words)) / len(self.asked) if self.asked else 0.0


NUMBERS: Mapping[str, Callable[[_CaseView], float]] = {
    "log characters": lambda view: math.log1p(len(view.case.text)),
    "log words": lambda view: math.log1p(len(view.words)),
    "log lines": lambda view: math.log1p(view.text.count("\n")),
    "digits": lambda view: view.share(str.isdigit),
    "capitals": lambda view: view.share(str.isupper),
    "distinct words": lambda view: len(set(view.words)) / len(view.words) if view.words else 0.0,
    "code block": lambda view: float("```" in view.text),
    "log question words": lambda view: math.log1p(len(view.asked)),
    "echo of the question": lambda view: view.echo(),
    "ends with a question": lambda view: float(view.text.rstrip().endswith("?")),
    "log model calls": lambda view: math.log1p(view.steps("llm")),
    "log tool calls": lambda view: math.log1p(view.steps("tool")),
    "failed tool calls": lambda view: view.failed_tools(),
    "log reasoning steps": lambda view: math.log1p(view.steps("reasoning")),
    "log tasks": lambda view: math.log1p(view.steps("task")),
    "log tokens": lambda view: math.log1p(view.tokens or 0),
    "tokens known": lambda view: float(view.tokens is not None),
    "log seconds": lambda view: math.log1p(max(0.0, view.seconds or 0.0)),
    "seconds known": lambda view: float(view.seconds is not None),
    "run went well": lambda view: float(view.case.status == "ok"),
    "cut off": lambda view: float(view.case.finish == "length"),
}


def features(case: Case, embedder: Embedder | None = None) -> Features:
    """Return the features of one case, with the embedding of `embedder` if it is given."""
    text = case.text[:LONGEST]
    words = WORD.findall(text.casefold())

    # the words of the last question
    from_user = [message.get("content") for message in case.prompt if message.get("role") == "user"]
    question = from_user[-1] if from_user else None
    asked: set[str] = set()
    if isinstance(question, str):
        asked = set(WORD.findall(question[:LONGEST].casefold()))

    # what the run took, where it is known
    counts: list[int] = []
    for step in case.steps:
        tokens_of_step = (step.prompt_tokens, step.completion_tokens)
        counts += (count for count in tokens_of_step if count is not None)
    times = [step.seconds for step in case.steps if step.seconds is not None]

    view = _CaseView(
        case,
        text,
        words,
        asked,
        tokens=sum(counts) if counts else None,
        seconds=math.fsum(times) if times else None,
    )
    tools = [f"tool:{step.name}:{step.status}" for step in case.steps if step.kind == "tool"]
    numbers = np.array([number(view) for number in NUMBERS.values()])
    row = Features(numbers, hashed([*words, *tools]))
    return row if embedder is None else replace(row, meaning=embedder.embed(text))


def hashed(words: Sequence[str]) -> dict[int, float]:
    """Hash the words into a sparse vector of length 1: each word adds 1 + log(count) with its sign
    to its column. It uses crc32, which is the same everywhere, unlike Python's hash."""
    values: dict[int, float] = {}
    for word, count in Counter(words).items():
        code = zlib.crc32(word.encode("utf-8", "surrogatepass"))
        column = code % WORDS
        sign = 1 if code & 0x80000000 else -1
        values[column] = values.get(column, 0.0) + sign * (1 + math.log(count))
    length = math.sqrt(math.fsum(value * value for value in values.values()))
    if not length:
        return {}
    return {column: value / length for column, value in sorted(values.items())}
