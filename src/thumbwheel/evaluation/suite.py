"""The contract of a suite: what both responders are asked, and what their replies say of the gain.

A suite is created with the context of one evaluation. It says whether it applies (`unfit`) and what
to ask (`asks`), and computes its measures from the replies (`outcome`). It runs no model and
touches no database. To add one: a file in suites/ with a `Suite` subclass, and a line in that
folder's table; `tests/contract/test_evaluation_suites.py` then holds it to this contract.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from thumbwheel.evaluation.types import (
    Ask,
    AskLikelihood,
    ChangedAnswer,
    EvaluationConfig,
    Guard,
    HeldOutCase,
    Measure,
    ModelAnswer,
    RecordedAnswer,
)
from thumbwheel.rewards import function as rewards
from thumbwheel.rewards.checker import OwnerSettings
from thumbwheel.rewards.function import Score

RewardModelScorer = Callable[[Sequence[Any], Sequence[Sequence[ModelAnswer]]], list[list[float]]]
"""Scores the answers of several responders to the prompts: a list of scores for each responder."""
Scorer = Callable[[rewards.RewardFunction[Any], Sequence[rewards.Case]], list[Score]]
"""Scores answers by a function, one score each."""


@dataclass(frozen=True)
class SuiteContext:
    """What the suites of one evaluation may use."""

    cases: Sequence[HeldOutCase]
    recorded_answers: Sequence[RecordedAnswer]
    config: EvaluationConfig
    rewards: Callable[[Sequence[rewards.Case]], Mapping[str, list[Score]]] = lambda cases: {}
    """Scores by the agent's reward functions: component -> scores, and under "" the combined
    reward."""
    reward_models: Mapping[str, RewardModelScorer] = field(default_factory=dict)
    """By name."""
    optimised: frozenset[str] = frozenset()
    """Judges and reward models that the candidate was trained against."""
    score_by_judge: Scorer = lambda function, cases: function.score(cases)
    """Asks a judging model; its verdicts are stored and not asked for again."""
    run_programs: Scorer = lambda function, cases: function.score(cases)
    """Runs programs in the sandbox; in a cluster other hosts help."""
    checkers: OwnerSettings = field(default_factory=dict)
    """The owner's settings for the reward functions that cases name as their checkers."""
    home: str | None = None
    """The home whose secret signs statements about judges."""
    identity: Any = None
    """What identifies rewards and reward models in the key of an evaluation."""


@dataclass
class SuiteMeasures:
    """The result of a suite. `main` gives its main measure at any level of confidence; None where
    it could judge nothing."""

    main: Callable[[float], Measure] | None
    measures: tuple[Measure, ...] = ()
    """Further measures, at the level of the settings."""
    slices: tuple[Measure, ...] = ()
    guards: tuple[Guard, ...] = ()
    examples: tuple[ChangedAnswer, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    judges: tuple[str, ...] = ()
    """Reward functions, or the reward model, that judged the answers behind the main measure."""
    dropped: Counter[str] = field(default_factory=Counter)
    blocked: Counter[str] = field(default_factory=Counter)
    """Reason -> judgements that failed because what judges was not available (a server that is
    down, no sandbox), and may succeed another time."""


Replies = Sequence[Any]
"""Answers to an `Ask`, Sums to an `AskLikelihood`."""


class Suite(ABC):
    """One way to compare two responders."""

    name: ClassVar[str]
    fresh: ClassVar[bool] = True
    """It judges fresh answers."""
    default: ClassVar[bool] = False
    """It runs where no suite is named."""
    of_cases: ClassVar[bool] = False
    """It asks the held-out cases, so that its basis is theirs."""

    def __init__(self, context: SuiteContext) -> None:
        self.context, self.config = context, context.config

    def unfit(self) -> str:
        """Return why the suite does not apply in this context, or "" if it does."""
        return ""

    def cannot_judge(self) -> str:
        """Return why the suite could give no measure, whatever the answers are, or "" if it could.
        Called before the first answer."""
        return ""

    @abstractmethod
    def asks(self) -> Sequence[Ask | AskLikelihood]:
        """Return the questions for both responders."""

    @abstractmethod
    def outcome(self, before: Replies, after: Replies) -> SuiteMeasures:
        """Return the measures, from the replies of incumbent and candidate in the order of
        `asks`."""

    def content(self) -> Any:
        """Return, as a JSON value, everything that the result depends on besides cases, recorded
        answers and settings: files that it reads, versions of checkers."""
        return None
