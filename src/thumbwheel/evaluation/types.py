"""Nouns of this stage: settings, what is judged, what was measured, an evaluation. The gate's own
are in policy.py.

What is stored is a `Config` class, so that its JSON reads back as the same value.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, field_validator

from thumbwheel.core.config import Config
from thumbwheel.models.types import Basis
from thumbwheel.stats.types import Estimate

Message = dict[str, Any]
SUCCESS = "success"
RANKING = "preference accuracy, summed log-probability"
RANKING_PER_TOKEN = "preference accuracy, log-probability per token"
AREA = "good above bad (AUC), summed log-probability"
AREA_PER_TOKEN = "good above bad (AUC), log-probability per token"
NLL, NLL_LIKED, EOS, LENGTH, FORMAT = (
    "nll_good",
    "nll_liked",
    "eos_rate",
    "answer_tokens",
    "format_rate",
)
ANCHOR_NLL, ANCHOR_TASKS = "nll_anchor", "anchor_tasks"


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
    """Tokens of prompt and given answer together; what is over drops the oldest turns, as in
    training."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of the base for both sides."""
    examples: int = Field(default=10, ge=0)
    """How many of the most changed answers are kept."""
    suite: tuple[str, ...] = ()
    """Only these suites. Without any: success, preference, regression and, where references are
    JSON objects, json_agent."""
    reward_model: str | None = None
    """A reward model, as rm1, that scores the fresh answers too (suite reward). It is shown and
    never decides."""
    few_shot: int = Field(default=4, ge=0, le=64)
    """Nearest good training answers that the base is shown in its prompt, to see whether weights
    pay; 0 leaves that out."""
    anchors: str | None = None
    """A YAML file with texts and short tasks of general skill (suite regression), in place of the
    built-in ones."""
    benchmark: str | None = None
    """A YAML file, or a folder of them, with tasks and their checks (suite benchmark)."""
    samples: int = Field(default=5, ge=1, le=200)
    """Programs that are drawn for each task (suite code)."""
    pass_at: int = Field(default=1, ge=1)
    """k of pass@k: the chance that one of k programs passes, estimated without bias from `samples`."""
    temperature: float = Field(default=0.8, ge=0)
    """Temperature of these programs; everything else is answered at 0."""
    judge_url: str | None = None
    """The endpoint of the judging model (suite judge), for example http://127.0.0.1:11434/v1."""
    judge_model: str | None = None
    """The judging model, as its endpoint calls it."""
    judge_agreement: str | None = None
    """The file in which this judge's agreement with people is stated; see thumbwheel label trust."""
    hour_price: float | None = Field(default=None, ge=0)
    """What an hour of the machine costs that serves what has no price of its own, in the same
    currency; so answers get their cost."""
    key_variable: str = "THUMBWHEEL_ENDPOINT_KEY"
    """The environment variable with the key of endpoints; the key itself stands in no settings."""
    parallel: int = Field(default=4, ge=1, le=64)
    """Questions that a server is asked at once."""

    @field_validator("judge_url")
    @classmethod
    def _keeps_no_secret(cls, url: str | None) -> str | None:
        if url is not None and ("@" in url or "?" in url):
            raise ValueError(
                "a name or key in it would be stored; put the key into the variable that "
                "key_variable names"
            )
        return url


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
    """A recorded answer on a held-out prompt. `good`: chosen, corrected or upvoted; `pair` joins
    the two sides of a preference."""

    row_id: str
    group: str
    prompt: list[Message]
    tools: list[dict[str, Any]] | None
    text: str
    good: bool
    pair: str | None = None
    label: bool = False
    finish_reason: str | None = None
    liked: bool = False
    """The app's own answer, and people were content with it; nobody wrote it for them."""


@dataclass(frozen=True)
class Ask:
    """A prompt that a side answers: greedily, or with `samples` drawn answers at a temperature."""

    prompt: list[Message]
    max_new_tokens: int
    samples: int = 1
    temperature: float = 0.0


@dataclass(frozen=True)
class Known:
    """Texts of which a side says how likely it finds them after `prompt`; without a prompt they
    stand alone."""

    prompt: list[Message]
    texts: tuple[str, ...]
    tools: list[dict[str, Any]] | None = None
    finish: tuple[str | None, ...] = ()
    """Why each ended, where that is known: one that was cut off gets no end token."""


@dataclass(frozen=True)
class Answer:
    """What a side answered. Tokens and seconds are None where nobody counted them; `ids` where the
    tokens are not ours to see.

    Of a model in this process `seconds` is its part of the batch that it was answered in.
    """

    text: str
    finish: str
    tokens: int | None
    prompt_tokens: int | None = None
    seconds: float | None = None
    ids: tuple[int, ...] | None = None
    busy: float | None = None
    """Seconds of the machine: its part of them where several are answered at once."""


Answers = tuple[Answer, ...]
"""To one `Ask`: as many as were asked for; none where the side has no answer."""
Sums = tuple[tuple[float, int], ...]
"""To one `Known`: of each text the summed log-probability and the number of tokens; none where it
does not fit the model."""


@dataclass(frozen=True)
class Judged:
    """One fresh answer of one side. `value` is None where no side could be judged."""

    text: str
    value: float | None
    well_formed: bool | None
    ended: bool
    tokens: int | None
    evidence: dict[str, Any]


class Spread(Config):
    """What the interval of a difference follows from at any level; see `stats.types.Estimate`.
    `limit`: its largest possible size."""

    centre: float
    error: float | None
    degrees: float
    limit: float | None
    drawn: float = 1.0
    units: tuple[tuple[float, float, int], ...] = ()

    @classmethod
    def of(cls, known: Estimate) -> Spread:
        """As it is stored: no limit is None."""
        limit = None if math.isinf(known.limit) else known.limit
        return cls(
            centre=known.centre,
            error=known.error,
            degrees=known.degrees,
            limit=limit,
            drawn=known.drawn,
            units=known.units,
        )

    def around(self, change: float) -> Estimate:
        """The estimate of a change, as it was; without a limit its intervals end at the largest
        number."""
        limit = sys.float_info.max if self.limit is None else self.limit
        return Estimate(
            change, self.centre, self.error, self.degrees, limit, self.drawn, self.units
        )


class Measure(Config):
    """One measure before and after on the same items; the interval is that of the gain, clustered
    by group."""

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
    spread: Spread
    """What its interval is at other levels."""
    p: float | None = None
    """How likely a difference at least as large is without any true one."""
    adjusted: float | None = None
    """The same after Holm's correction over all suites of the evaluation, or over all slices of the
    primary measure."""


class Guard(Config):
    """A measure that must not get worse; `before` and `after` are None where there was nothing to
    measure (n = 0)."""

    name: str
    before: float | None
    after: float | None
    n: int
    clusters: int | None = None
    """Groups of these items; None where every item is one."""
    low: float | None = None
    """Lower end of the interval of after - before, clustered by group; None where there is none."""
    high: float | None = None
    """Upper end."""
    spread: Spread | None = None
    """What that interval is at other levels."""
    chance: float | None = None
    """What a uniform guess over the vocabulary gets, of guards in nats a token; None where that is
    not known."""


class Changed(Config):
    """One of the most changed answers."""

    case: str
    prompt: str
    reference: Any
    before: str
    after: str
    value_before: float
    value_after: float


class SuiteResult(Config):
    """What one suite found. The first of `measures` is its main one; `details` are figures of its
    own."""

    name: str
    measures: tuple[Measure, ...]
    slices: tuple[Measure, ...] = ()
    details: dict[str, Any] = Field(default_factory=dict)
    dropped: dict[str, int] = Field(default_factory=dict)


class Serving(Config):
    """What answers of one side cost, next to how good they were; None where nobody counted."""

    side: str
    success: float
    answers: int
    tokens: float | None
    """Mean tokens of an answer."""
    seconds: float | None
    """Median seconds of an answer; in batches where the model runs in this process."""
    slowest: float | None
    """The 95th percentile of them."""
    cost: float | None
    """Price of 1,000 answers: by the endpoint's price of tokens, else by the time that they took
    and the price of an hour."""


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
    """Whether the primary measure is the success of fresh generations; otherwise recorded answers
    were only ranked."""
    primary: Measure
    preferences: tuple[Measure, ...]
    opinions: tuple[Measure, ...] = ()
    """Mean scores of fresh answers by reward models, in their own units."""
    suites: tuple[SuiteResult, ...] = ()
    """Everything that was measured, by suite."""
    prompting: Measure | None = None
    """The primary measure of the candidate against its base with good training answers in the
    prompt; before is the base."""
    serving: tuple[Serving, ...] = ()
    """Before and after side by side: quality, tokens, seconds, price."""
    guards: tuple[Guard, ...]
    slices: tuple[Measure, ...]
    examples: tuple[Changed, ...]
    reads: int
    """Which look at its held-out rows this is, counted over all candidates of the agent
    (spending.py)."""
    read: tuple[str, ...] = ()
    """Keyed hashes of the prompts behind the primary measure."""
    sides: tuple[str, ...] = ()
    """What answered before and after: the fingerprints of the two sides."""
    form: str | None = None
    """How the candidate was served (responders.py); None is as it was trained, or the endpoint that it
    is."""
    against_form: str | None = None
    """How the other one was served."""
    blocked: dict[str, int] = Field(default_factory=dict)
    """Reason -> judgements behind the primary measure and the guards that failed for want of what
    judges (a server, a sandbox)."""
    suite: str | None = None
    """The suite of the primary measure."""
    judges: tuple[str, ...] = ()
    """What judged the answers behind the primary measure: names of reward functions, or of a reward
    model."""
    detectable: float | None
    """The smallest gain that so many cases with so many changes show four times out of five."""
    dropped: dict[str, int]
    notes: tuple[str, ...]
    aside: str = ""
    """Why the gate does not decide on it: something else was asked than whether the version should
    follow what runs today."""
    limit: str = ""
    """What keeps it from more than a canary."""
    rows: str
    """Fingerprint of the rows that were read."""
    key: str
    """Fingerprint of everything that the result follows from; the same key is the same evaluation."""
    config: EvaluationConfig
    weights: str | None = None
    """Fingerprint of the candidate's base and adapter files, as they were measured."""
    signature: str | None = None
    """Keyed hash over all else, with the home's key (signing.py)."""

    @property
    def weights_pay(self) -> str:
        """Whether the trained weights beat the same feedback as a prompt, in words; empty where
        that was not compared."""
        return "" if self.prompting is None else weights_pay(self.candidate, self.prompting)


def weights_pay(candidate: str, prompting: Measure) -> str:
    """What the comparison with a prompt says: the weights pay where the gain over it is known to
    lie above zero."""
    gain = f"{prompting.gain:+.1%}, {prompting.low:+.1%} to {prompting.high:+.1%}"
    facts = (
        f"{candidate} succeeds in {prompting.after:.1%}, its base with examples in the prompt in "
        f"{prompting.before:.1%} ({gain})"
    )
    if prompting.low > 0:
        return f"the weights pay: {facts}"
    advice = (
        "use the prompt"
        if prompting.gain <= 0
        else "use the prompt, which is cheaper to change, or collect more cases"
    )
    return f"the weights do not clearly beat a prompt: {facts}; {advice}"


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
    """Good above bad by log-probability per token: area under the curve over all judged answers of
    the dev rows."""
    preference_n: int
    eos_rate: float | None


class DevComparison(Config):
    """Versions on the same dev rows; `best` is None where none is better than the base."""

    base: DevScore
    scores: tuple[DevScore, ...]
    best: str | None
    reasons: tuple[str, ...]
