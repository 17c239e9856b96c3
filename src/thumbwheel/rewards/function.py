"""The contract of a reward function, also called a checker: cases in, one `Score` per case out.

The same functions judge stored traces, fresh answers in training and held-out answers in
evaluation. A function gets data and returns data; it keeps no state and never touches the database.
What it cannot judge is a `Score` with a status and no value, never an exception, so one hostile
answer cannot stop the others. To add one: a file in `functions/` with a `RewardFunction` subclass,
and a line in that folder's table; `tests/contract/test_reward_functions.py` then holds it to this
contract.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Generic, Self, TypeVar

from thumbwheel.core.config import Config, build
from thumbwheel.rewards.types import Statement

LONGEST_ANSWER = 200_000
"""Characters; a longer answer is failed before anything reads it."""

DEEPEST_JSON = 64


class JudgementStatus(StrEnum):
    """What became of one judgement. Only `ok` has a value; the others leave the denominator."""

    OK = "ok"
    NOT_APPLICABLE = "not_applicable"
    PENDING = "pending"
    FAILED = "failed"
    BLOCKED = "blocked"


@dataclass(frozen=True)
class Step:
    """One step of a judged run. `kind` is llm, tool, reasoning, task or decision; what is unknown
    is None, never invented."""

    kind: str
    name: str | None = None
    input: Any = None
    output: Any = None
    status: str = "ok"
    seconds: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(frozen=True)
class Case:
    """One answer to judge, with everything that may count: the run it ended, what was said about
    it, what its task asks.

    `text` is the answer and `reference` that of its task (any JSON value; None where there is
    none); `prompt` are the messages before it, `tools` what the model could call. `steps`, `status`
    and `metadata` are those of the run, `finish` why the answer ended ("stop", "length" or None).
    `feedback` is what was in force about it at `as_of`, in the order in which it was said. `mates`
    are the other answers to the same prompt. `next_turns` are what users wrote after this answer,
    one message for each conversation that went on from it. `target_id` is the stored trace; None
    for a fresh answer.
    """

    text: str
    reference: Any = None
    prompt: Sequence[Mapping[str, Any]] = ()
    tools: Sequence[Mapping[str, Any]] | None = None
    steps: tuple[Step, ...] = ()
    status: str = "ok"
    finish: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    feedback: tuple[Statement, ...] = ()
    mates: tuple[str, ...] = ()
    next_turns: tuple[str, ...] = ()
    occurred_at: datetime | None = None
    as_of: datetime | None = None
    target_id: str | None = None

    @property
    def question(self) -> str:
        """The user's last message before the answer, as text."""
        for message in reversed(self.prompt):
            if message.get("role") == "user":
                content = message.get("content")
                return content if isinstance(content, str) else json.dumps(content, default=str)
        return ""


@dataclass(frozen=True)
class Score:
    """`value` is a finite number exactly when `status` is ok. `well_formed`: whether the answer has
    the asked form; None where none was asked."""

    value: float | None
    status: JudgementStatus = JudgementStatus.OK
    evidence: Mapping[str, Any] = field(default_factory=dict)
    well_formed: bool | None = None

    def __post_init__(self) -> None:
        if (self.value is not None) != (self.status is JudgementStatus.OK):
            raise ValueError(f"a score that is {self.status} with the value {self.value!r}")
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"a score of {self.value!r}; scores are finite")

    @classmethod
    def none(cls, status: JudgementStatus, reason: str, well_formed: bool | None = None) -> Score:
        """Return a score without a value, with the reason."""
        return cls(None, status, {"reason": reason}, well_formed)


def too_long(case: Case) -> Score | None:
    """Return the failed score of an answer that exceeds the bounds, else None; for functions that
    judge many at once."""
    if len(case.text) <= LONGEST_ANSWER:
        return None
    return Score.none(
        JudgementStatus.FAILED,
        f"the answer has {len(case.text)} characters; at most {LONGEST_ANSWER} are judged",
    )


C = TypeVar("C", bound=Config)


class Unjudgeable(Exception):
    """Raised inside a function for an answer that cannot be judged within its bounds; becomes a
    failed score."""


class RewardFunction(ABC, Generic[C]):
    """Base of the functions. A subclass names its `Config` and judges one case, or overrides
    `score` to judge many at once."""

    Config: ClassVar[type[Config]]
    replaces: ClassVar[frozenset[str]] = frozenset()
    """Functions that judge by statements that this one judges by too; where it has a value, they
    leave the mean."""
    version: ClassVar[int] = 1
    """Raised when the same case would get another score; what an older one judged is then judged
    again."""
    low: ClassVar[float] = 0.0
    high: ClassVar[float] = 1.0
    """Scores lie between them, both included."""
    reads: ClassVar[frozenset[str]] = frozenset({"text", "reference"})
    """Fields of `Case` that a score depends on: where none of them has changed, a stored score
    stands."""
    case_settings: ClassVar[frozenset[str]] = frozenset()
    """Settings that a case may bring in its `checker_config`; none unless they are named here.
    Cases come in files of strangers: what lowers safety, names an address, a variable, a model or a
    path, or raises a limit is never named here. The owner sets it under `rewards.checkers`."""

    weak: ClassVar[bool] = False
    """Whether it guesses from what nobody meant as a verdict. Such a score counts only where no
    person judged, and never in a row that an evaluation reads."""

    def __init__(self, config: C) -> None:
        self.config = config

    @classmethod
    def create(
        cls, settings: Mapping[str, Any] | None = None, where: str = "checker_config"
    ) -> Self:
        """Create the function with `settings`. Raises ConfigError for an unknown key or an
        impossible value."""
        return cls(build(cls.Config, settings or {}, where))  # type: ignore[arg-type]

    def ready(self, seconds: float) -> RewardFunction[C]:
        """Return a function that can judge an answer within `seconds`: what it needs is started,
        and its own limits end earlier."""
        return self

    def may_not_gate(self) -> str | None:
        """Return why its verdicts may not decide on a version, or None if they may."""
        return None

    def identity(self) -> Any:
        """Return what determines scores besides name and version, as a JSON value: the settings,
        and the content of any file that a setting names."""
        return self.config.model_dump(mode="json")

    def inputs(self, case: Case) -> Mapping[str, Any]:
        """Return the parts of `case` that a score depends on: the fields in `reads`; an override
        returns the parts of them that its function uses."""
        return {name: getattr(case, name) for name in sorted(self.reads)}

    def score(self, cases: Sequence[Case]) -> list[Score]:
        """Return one score per case, in order."""
        return [self._score_one(case) for case in cases]

    @abstractmethod
    def judge(self, case: Case) -> Score:
        """Return the score of one case whose answer is of bounded length; may raise Unjudgeable."""

    def _score_one(self, case: Case) -> Score:
        if (refused := too_long(case)) is not None:
            return refused
        try:
            score = self.judge(case)
        except Unjudgeable as error:
            return Score.none(JudgementStatus.FAILED, str(error))
        except Exception as error:  # noqa: BLE001 - a function that raises is a recorded failure, never the end of the others
            return Score.none(JudgementStatus.FAILED, f"{type(error).__name__}: {error}")
        if score.value is not None and not self.low <= score.value <= self.high:
            return Score.none(
                JudgementStatus.FAILED,
                f"it gave {score.value:g}; its scores lie in {self.low:g}..{self.high:g}",
            )
        return score


class BatchRewardFunction(RewardFunction[C]):
    """Base of functions that judge many cases at once, as a model does."""

    def score(self, cases: Sequence[Case]) -> list[Score]:
        refusals = [too_long(case) for case in cases]
        bounded = [case for case, refusal in zip(cases, refusals, strict=True) if refusal is None]
        scores = iter(self.judge_all(bounded))
        return [refusal or next(scores) for refusal in refusals]

    def judge(self, case: Case) -> Score:
        return self.score([case])[0]

    @abstractmethod
    def judge_all(self, cases: Sequence[Case]) -> list[Score]:
        """Return one score per case, whose answers are of bounded length; never raises."""
