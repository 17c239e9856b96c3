"""The contract of a reward function, also called a checker: answers in, one `Score` per answer out.

A function gets data and returns data; it keeps no state, reads no files and asks no model. What it cannot judge is a `Score` with a
status and no value, never an exception, so one hostile answer cannot stop the others. To add one: a file in `functions/` with a
`RewardFunction` subclass, and a line in that folder's table; `tests/contract/test_reward_functions.py` then holds it to this contract.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Generic, TypeVar

from thumbwheel.core.config import Config, build

LONGEST_ANSWER = 200_000
"""Characters; a longer answer is failed before anything reads it."""

DEEPEST_JSON = 64


class Status(StrEnum):
    """What became of one judgement. Only `ok` has a value; the others leave the denominator."""

    OK = "ok"
    NOT_APPLICABLE = "not_applicable"
    PENDING = "pending"
    FAILED = "failed"
    BLOCKED = "blocked"


@dataclass(frozen=True)
class Answer:
    """One answer to judge, with the reference of its case (any JSON value; None where the case has none)."""

    text: str
    reference: Any = None


@dataclass(frozen=True)
class Score:
    """`value` in 0..1 exactly when `status` is ok. `well_formed`: whether the answer has the asked form; None where none was asked."""

    value: float | None
    status: Status = Status.OK
    evidence: Mapping[str, Any] = field(default_factory=dict)
    well_formed: bool | None = None

    def __post_init__(self) -> None:
        if (self.value is not None) != (self.status is Status.OK):
            raise ValueError(f"a score that is {self.status} with the value {self.value!r}")
        if self.value is not None and not (math.isfinite(self.value) and 0 <= self.value <= 1):
            raise ValueError(f"a score of {self.value!r}; scores lie in 0..1")

    @classmethod
    def none(cls, status: Status, reason: str, well_formed: bool | None = None) -> Score:
        """A judgement without a value, and why."""
        return cls(None, status, {"reason": reason}, well_formed)


C = TypeVar("C", bound=Config)


class Unjudgeable(Exception):
    """Raised inside a function for an answer that cannot be judged within its bounds; becomes a failed score."""


class RewardFunction(ABC, Generic[C]):
    """Base of the functions. A subclass names its `Config` and judges one answer, or overrides `score` to judge many at once."""

    Config: ClassVar[type[Config]]

    def __init__(self, config: C) -> None:
        self.config = config

    @classmethod
    def create(cls, settings: Mapping[str, Any] | None = None, where: str = "checker_config") -> RewardFunction[C]:
        """The function with `settings`; raises ConfigError for an unknown key or an impossible value."""
        return cls(build(cls.Config, settings or {}, where))  # type: ignore[arg-type]

    def score(self, answers: Sequence[Answer]) -> list[Score]:
        """One score per answer, in their order."""
        return [self._one(answer) for answer in answers]

    @abstractmethod
    def judge(self, answer: Answer) -> Score:
        """The score of one answer of bounded length; may raise Unjudgeable."""

    def _one(self, answer: Answer) -> Score:
        if len(answer.text) > LONGEST_ANSWER:
            return Score.none(Status.FAILED, f"the answer has {len(answer.text)} characters; at most {LONGEST_ANSWER} are judged")
        try:
            return self.judge(answer)
        except (Unjudgeable, RecursionError, MemoryError, OverflowError) as error:
            return Score.none(Status.FAILED, str(error) or type(error).__name__)
