"""Nouns of this stage: settings, what is judged, what was measured, an evaluation, the gate's inputs, policy and decision.

What is stored is a `Config` class, so that its JSON reads back as the same value.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from thumbwheel.core.config import Config
from thumbwheel.models.types import Basis

Message = dict[str, Any]
SUCCESS = "success"
RANKING = "preference accuracy, summed log-probability"
RANKING_PER_TOKEN = "preference accuracy, log-probability per token"
AREA = "good above bad (AUC), summed log-probability"
AREA_PER_TOKEN = "good above bad (AUC), log-probability per token"
NLL, EOS, LENGTH, FORMAT = "nll_good", "eos_rate", "answer_tokens", "format_rate"


class EvaluationConfig(Config):
    """How a candidate is measured; the incumbent is measured in exactly the same way."""

    level: float = Field(default=0.95, gt=0.5, lt=1)
    """Confidence level of every interval."""
    max_new_tokens: int = Field(default=256, ge=1)
    """Longest fresh answer; an answer that is cut off there has not ended."""
    batch_size: int = Field(default=64, ge=1)
    """Prompts that are answered together."""
    token_budget: int = Field(default=4096, ge=64)
    """Tokens that are scored at once; a memory setting only."""
    max_length: int = Field(default=1024, ge=8)
    """Tokens of prompt and given answer together; what is over drops the oldest turns, as in training."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the base for both sides."""
    examples: int = Field(default=10, ge=0)
    """How many of the most changed answers are kept."""
    reward_model: str | None = None
    """A reward model, as rm1, that scores the fresh answers too. It is shown and never decides."""


@dataclass(frozen=True)
class Case:
    """An input with what judges an answer. `group` is the cluster of the interval."""

    id: str
    group: str
    prompt_id: str
    prompt: list[Message]
    reference: Any
    checker: str | None
    checker_config: dict[str, Any] | None
    slices: dict[str, str]


@dataclass(frozen=True)
class Given:
    """A recorded answer on a held-out prompt. `good`: chosen, corrected or upvoted; `pair` joins the two sides of a preference."""

    row_id: str
    group: str
    prompt: list[Message]
    tools: list[dict[str, Any]] | None
    text: str
    good: bool
    pair: str | None = None
    label: bool = False
    finish_reason: str | None = None


@dataclass(frozen=True)
class Judged:
    """One fresh answer of one side. `value` is None where no side could be judged."""

    text: str
    value: float | None
    well_formed: bool | None
    ended: bool
    tokens: int
    evidence: dict[str, Any]


class Measure(Config):
    """One measure before and after on the same items; the interval is that of the gain, clustered by group."""

    name: str
    before: float
    after: float
    gain: float
    low: float
    high: float
    level: float
    n: int
    clusters: int
    changed: int


class Guard(Config):
    """A measure that must not get worse; `before` and `after` are None where there was nothing to measure (n = 0)."""

    name: str
    before: float | None
    after: float | None
    n: int


class Changed(Config):
    """One of the most changed answers."""

    case: str
    prompt: str
    reference: Any
    before: str
    after: str
    value_before: float
    value_after: float


class Evaluation(Config):
    """A candidate against what it was compared with, as stored."""

    id: str
    agent: str
    candidate_id: str
    candidate: str
    against_id: str
    against: str
    basis: Basis
    """What the cases stand on: reviewed by the owner (gold), or imported and rated (feedback)."""
    fresh: bool
    """Whether the primary measure is the success of fresh generations; otherwise recorded answers were only ranked."""
    primary: Measure
    gate_low: float
    """Lower end of the primary gain at the level that this read of the held-out rows leaves (see gate.py)."""
    preferences: tuple[Measure, ...]
    opinions: tuple[Measure, ...] = ()
    """Mean scores of fresh answers by reward models, in their own units."""
    guards: tuple[Guard, ...]
    slices: tuple[Measure, ...]
    examples: tuple[Changed, ...]
    reads: int
    """Which read of held-out rows this is for the candidate: 1, unless it was evaluated before on other rows."""
    detectable: float | None
    """The smallest gain that so many cases with so many changes show four times out of five."""
    dropped: dict[str, int]
    notes: tuple[str, ...]
    rows: str
    """Fingerprint of the rows that were read."""
    key: str
    """Fingerprint of everything that the result follows from; the same key is the same evaluation."""
    config: EvaluationConfig


class Verdict(StrEnum):
    """What the gate may say."""

    APPROVED = "approved"
    CANARY = "approved_for_canary"
    REJECTED = "rejected"


class GatePolicy(Config):
    """What a candidate must show. Margins say how much worse a guard may get."""

    min_cases: int = Field(default=30, ge=2)
    """Fewest groups of cases (or ranked pairs) on which anything is decided."""
    min_guard: int = Field(default=20, ge=1)
    """A guard measured on fewer items neither passes nor fails; it is named as not measured."""
    margin_nll: float = Field(default=0.3, ge=0)
    """Nats a token by which recorded good answers may become less likely."""
    margin_eos: float = Field(default=0.02, ge=0, le=1)
    """Drop in the share of answers that end by themselves."""
    margin_format: float = Field(default=0.02, ge=0, le=1)
    """Drop in the share of well-formed answers."""
    max_growth: float = Field(default=2.0, ge=1)
    """Factor by which answers may get longer, or shorter."""


class GateInputs(Config):
    """All that a decision depends on besides the policy."""

    basis: Basis
    fresh: bool
    measure: str
    before: float
    after: float
    gain: float
    low: float
    """Lower end of the interval of the gain, at `level`."""
    level: float
    clusters: int
    reads: int
    guards: tuple[Guard, ...]
    tainted: bool = False


class Decision(Config):
    """The verdict with its reasons, in words."""

    verdict: Verdict
    reasons: tuple[str, ...]


class StoredDecision(Config):
    """A decision with everything that it was made from."""

    id: str
    version_id: str
    evaluation_id: str
    decision: Decision
    inputs: GateInputs
    policy: GatePolicy


class DevScore(Config):
    """How one version did on the dev rows. A value is None where there was nothing to measure."""

    version: str
    success: float | None
    """Share of judged dev prompts whose fresh answer is in line with the feedback."""
    success_n: int
    nll: float | None
    """Nats a token of known good answers."""
    nll_n: int
    preference: float | None
    """Good above bad by log-probability per token: area under the curve over all judged answers of the dev rows."""
    preference_n: int
    eos_rate: float | None


class DevComparison(Config):
    """Versions on the same dev rows; `best` is None where none is better than the base."""

    base: DevScore
    scores: tuple[DevScore, ...]
    best: str | None
    reasons: tuple[str, ...]
