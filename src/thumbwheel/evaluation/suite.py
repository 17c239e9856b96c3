"""The contract of a suite: what two sides are asked, and what their replies say about the gain.

A suite is made of the material of one evaluation. It says which of it it can use (`unfit`), what to
ask (`asks`), and makes of the replies of both sides, in the order of the questions, an `Outcome`.
It runs no model and touches no database. To add one: a file in suites/ with a `Suite` subclass, and
a line in that folder's table; `tests/contract/test_evaluation_suites.py` then holds it to this
contract.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from thumbwheel.evaluation.types import (
    Answer,
    Ask,
    Case,
    Changed,
    EvaluationConfig,
    Given,
    Guard,
    Known,
    Measure,
)
from thumbwheel.rewards import function as rewards
from thumbwheel.rewards.checker import OwnerSettings
from thumbwheel.rewards.function import Score

Opinion = Callable[[Sequence[Any], Sequence[Sequence[Answer]]], list[list[float]]]
"""What a reward model says of the answers of several sides to each of these prompts: a list of
scores a side."""
Scorer = Callable[[rewards.RewardFunction[Any], Sequence[rewards.Case]], list[Score]]
"""Scores answers by a function, one each."""


@dataclass(frozen=True)
class Material:
    """What suites may use. `rewards`: the agent's reward functions, by component, and under "" what
    they come to together.

    `opinions`: reward models by name. `optimised`: names among them that the candidate was trained
    against.
    """

    cases: Sequence[Case]
    given: Sequence[Given]
    config: EvaluationConfig
    rewards: Callable[[Sequence[rewards.Case]], Mapping[str, list[Score]]] = lambda cases: {}
    opinions: Mapping[str, Opinion] = field(default_factory=dict)
    optimised: frozenset[str] = frozenset()
    verdicts: Scorer = lambda function, cases: function.score(cases)
    """Asks a model that judges; what it was asked before is known."""
    checkers: OwnerSettings = field(default_factory=dict)
    """What the owner gives the functions that cases name as their checkers."""
    home: str | None = None
    """The home whose secret signs statements about judges."""
    identity: Any = None
    """By what rewards and opinions are known again: settings of the agent's reward, names of reward
    models."""


@dataclass
class SuiteMeasures:
    """What a suite found. `main` gives its main measure at any level of confidence; without any it
    could judge nothing."""

    main: Callable[[float], Measure] | None
    measures: tuple[Measure, ...] = ()
    """Further ones, at the level of the settings."""
    slices: tuple[Measure, ...] = ()
    guards: tuple[Guard, ...] = ()
    examples: tuple[Changed, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    judges: tuple[str, ...] = ()
    """What judged the answers behind the main measure: reward functions, or a reward model."""
    dropped: Counter[str] = field(default_factory=Counter)
    blocked: Counter[str] = field(default_factory=Counter)
    """Reason -> judgements that failed for want of what judges (a server that is down, no sandbox),
    and may succeed another time."""


Replies = Sequence[Any]
"""Answers to an `Ask`, Sums to a `Known`."""


class Suite(ABC):
    """See the module. `fresh`: it judges new answers; `default`: it is run where none is named."""

    name: ClassVar[str]
    fresh: ClassVar[bool] = True
    default: ClassVar[bool] = False
    of_cases: ClassVar[bool] = False
    """It stands on the held-out cases, so that what they stand on is what it stands on."""

    def __init__(self, material: Material) -> None:
        self.material, self.config = material, material.config

    def unfit(self) -> str:
        """Why it cannot be run on this material; empty where it can."""
        return ""

    @abstractmethod
    def asks(self) -> Sequence[Ask | Known]:
        """What both sides are asked."""

    @abstractmethod
    def outcome(self, before: Replies, after: Replies) -> SuiteMeasures:
        """What the replies of both sides say, given in the order of `asks`."""

    def content(self) -> Any:
        """What decides the result besides cases, recorded answers and settings, as a JSON value:
        files that it reads."""
        return None
