"""Types of this stage: settings, cases, questions and answers, measures, guards, an evaluation.

Whatever is stored is a `Config` class, so that its JSON reads back as the same value. The gate's
types are in policy.py.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, field_validator

from thumbwheel.core.config import Config
from thumbwheel.models.types import Agent, Basis
from thumbwheel.stats.types import Estimate

Message = dict[str, Any]

# Names of measures and guards, as they are stored.
SUCCESS = "success"
RANKING = "preference accuracy, summed log-probability"
RANKING_PER_TOKEN = "preference accuracy, log-probability per token"
AREA = "good above bad (AUC), summed log-probability"
AREA_PER_TOKEN = "good above bad (AUC), log-probability per token"
NLL = "nll_good"
NLL_LIKED = "nll_liked"
EOS = "eos_rate"
LENGTH = "answer_tokens"
FORMAT = "format_rate"
ANCHOR_NLL = "nll_anchor"
ANCHOR_TASKS = "anchor_tasks"


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
    """k of pass@k: the chance that one of k programs passes, estimated without bias from
    `samples`."""
    temperature: float = Field(default=0.8, ge=0)
    """Temperature of these programs; everything else is answered at 0."""
    judge_url: str | None = None
    """The endpoint of the judging model (suite judge), for example http://127.0.0.1:11434/v1."""
    judge_model: str | None = None
    """The judging model, as its endpoint calls it."""
    judge_agreement: str | None = None
    """The file that states this judge's agreement with people; see thumbwheel label trust."""
    hour_price: float | None = Field(default=None, ge=0)
    """What an hour of the machine costs that serves what has no price of its own, in the same
    currency; so answers get their cost."""
    key_variable: str = "THUMBWHEEL_ENDPOINT_KEY"
    """The environment variable with the key of endpoints; settings never hold the key itself."""
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
class HeldOutCase:
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
class RecordedAnswer:
    """A recorded answer to a held-out prompt. `good`: chosen, corrected or upvoted. `pair` is the
    id that the two answers of a preference share. `label`: it was labelled by itself."""

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
    """The app itself gave this answer, and people liked it; no person wrote it."""


@dataclass(frozen=True)
class Ask:
    """A prompt to answer: greedily, or with `samples` answers drawn at a temperature."""

    prompt: list[Message]
    max_new_tokens: int
    samples: int = 1
    temperature: float = 0.0


@dataclass(frozen=True)
class AskLikelihood:
    """Texts whose log-probability after `prompt` is asked for; with an empty prompt, that of one
    text by itself."""

    prompt: list[Message]
    texts: tuple[str, ...]
    tools: list[dict[str, Any]] | None = None
    finish: tuple[str | None, ...] = ()
    """The finish reason of each text, where it is known: one that was cut off gets no end token."""


@dataclass(frozen=True)
class ModelAnswer:
    """One answer of a responder. Tokens and seconds are None where they were not counted, `ids`
    where the server does not return tokens.

    For a model in this process, `seconds` is the answer's share of the time of its batch.
    """

    text: str
    finish: str
    tokens: int | None
    prompt_tokens: int | None = None
    seconds: float | None = None
    ids: tuple[int, ...] | None = None
    busy: float | None = None
    """Machine seconds: this answer's share where several are answered at once."""


Answers = tuple[ModelAnswer, ...]
"""The reply to one `Ask`: as many answers as were asked for; empty where there is no answer."""
Sums = tuple[tuple[float, int], ...]
"""The reply to one `AskLikelihood`: (summed log-probability, tokens) of each text; empty where they
do not fit the model."""


@dataclass(frozen=True)
class JudgedAnswer:
    """A fresh answer with its checker's judgement. `value` is None where it could not be judged."""

    text: str
    value: float | None
    well_formed: bool | None
    ended: bool
    tokens: int | None
    evidence: dict[str, Any]


class Spread(Config):
    """The spread of a difference, from which its interval at any level follows; see
    `stats.types.Estimate`. `limit`: the largest possible difference."""

    centre: float
    """The difference itself."""
    error: float | None
    """Its standard error; null where it is not known."""
    degrees: float
    """Degrees of freedom of the t distribution."""
    limit: float | None
    """Largest possible difference; null if there is none."""
    drawn: float = 1.0
    """Factor by which `centre` is pulled towards zero."""
    units: tuple[tuple[float, float, int], ...] = ()
    """Total, size and count of the clusters of graded values; empty for right or wrong."""

    @classmethod
    def of(cls, estimate: Estimate) -> Spread:
        """Return the spread of `estimate` in a form that JSON can hold: an infinite limit is
        None."""
        limit = None if math.isinf(estimate.limit) else estimate.limit
        return cls(
            centre=estimate.centre,
            error=estimate.error,
            degrees=estimate.degrees,
            limit=limit,
            drawn=estimate.drawn,
            units=estimate.units,
        )

    def around(self, change: float) -> Estimate:
        """Return the estimate of `change` with this spread. Without a limit, its intervals end at
        the largest float."""
        limit = sys.float_info.max if self.limit is None else self.limit
        return Estimate(
            change, self.centre, self.error, self.degrees, limit, self.drawn, self.units
        )


class Measure(Config):
    """One measure before and after on the same items; the interval is that of the gain, clustered
    by group."""

    name: str
    """Name of the measure."""
    before: float
    """Value of what ran until then."""
    after: float
    """Value of the candidate on the same items."""
    gain: float
    """after - before."""
    low: float
    """Lower end of the gain's interval."""
    high: float
    """Upper end of the gain's interval."""
    level: float
    """Confidence level of the interval."""
    n: int
    """Items."""
    clusters: int
    """Groups of items; the interval counts these, not the items."""
    changed: int
    """Items on which the two differ."""
    spread: Spread
    """Gives the interval at other levels."""
    p: float | None = None
    """p value of the gain."""
    adjusted: float | None = None
    """p after Holm's correction over all suites of the evaluation, or over all slices of the
    primary measure."""


class Guard(Config):
    """A measure that must not get worse; `before` and `after` are None where there was nothing to
    measure (n = 0)."""

    name: str
    """Name of the guard."""
    before: float | None
    """Value of what ran until then; null where nothing was measured."""
    after: float | None
    """Value of the candidate; null where nothing was measured."""
    n: int
    """Items that it was measured on."""
    clusters: int | None = None
    """Groups of these items; None where every item is a group."""
    low: float | None = None
    """Lower end of the interval of after - before, clustered by group; None where there is none."""
    high: float | None = None
    """Upper end."""
    spread: Spread | None = None
    """Gives the interval at other levels."""
    chance: float | None = None
    """For guards in nats a token: the value of a uniform guess over the vocabulary, where it is
    known."""


class ChangedAnswer(Config):
    """A case whose answer changed, with both answers."""

    case: str
    """Id of the case."""
    prompt: str
    """What was asked."""
    reference: Any
    """The right answer: a text or a JSON value."""
    before: str
    """Answer of what ran until then."""
    after: str
    """Answer of the candidate."""
    value_before: float
    """How good the answer before is, from 0 to 1."""
    value_after: float
    """How good the candidate's answer is, from 0 to 1."""


class SuiteResult(Config):
    """The result of one suite. The first of `measures` is its main one; `details` are figures that
    only this suite has."""

    name: str
    """Name of the suite."""
    measures: tuple[Measure, ...]
    """Its measures; the first one is its main one."""
    slices: tuple[Measure, ...] = ()
    """The main measure on parts of the cases."""
    details: dict[str, Any] = Field(default_factory=dict)
    """Figures that only this suite has."""
    dropped: dict[str, int] = Field(default_factory=dict)
    """Reason -> items that were left out."""


class Serving(Config):
    """Quality, tokens, time and price of one responder's answers; None where it was not counted."""

    side: str
    """Version whose answers they are, or how it was served."""
    success: float
    """Share of right answers, as far as they were judged."""
    answers: int
    """Answers that were counted."""
    tokens: float | None
    """Mean tokens of an answer."""
    seconds: float | None
    """Median seconds of an answer; measured in batches where the model runs in this process."""
    slowest: float | None
    """95th percentile of the seconds of an answer."""
    cost: float | None
    """Price of 1,000 answers: by the endpoint's token prices, else by machine time and
    `hour_price`."""


class Evaluation(Config):
    """A candidate compared with the incumbent, as stored."""

    id: str
    """Id of the evaluation."""
    agent: str
    """Agent of the candidate."""
    candidate_id: str
    """Id of the version that was judged."""
    candidate: str
    """Its name (v3)."""
    against_id: str
    """Id of the version that it was compared with."""
    against: str
    """Name of that version."""
    basis: Basis
    """Where the cases come from: reviewed by the owner (gold), or imported and rated (feedback)."""
    fresh: bool
    """Whether the primary measure judges fresh answers; otherwise recorded answers were only
    ranked."""
    primary: Measure
    """The measure that decides."""
    preferences: tuple[Measure, ...]
    """How well each model ranks answers that people preferred."""
    opinions: tuple[Measure, ...] = ()
    """Mean scores of fresh answers by reward models, in each model's units."""
    suites: tuple[SuiteResult, ...] = ()
    """All measures, by suite."""
    prompting: Measure | None = None
    """The primary measure of the candidate against its base with good training answers in the
    prompt; before is the base."""
    serving: tuple[Serving, ...] = ()
    """Incumbent, then candidate: quality, tokens, seconds, price."""
    guards: tuple[Guard, ...]
    """Measures that must not get worse."""
    slices: tuple[Measure, ...]
    """The primary measure on parts of the cases."""
    examples: tuple[ChangedAnswer, ...]
    """The answers that changed most."""
    reads: int
    """Which look at its held-out rows this is, counted over all candidates of the agent
    (spending.py)."""
    read: tuple[str, ...] = ()
    """Keyed hashes of the prompts behind the primary measure."""
    sides: tuple[str, ...] = ()
    """Fingerprints of the two responders, incumbent first."""
    form: str | None = None
    """How the candidate was served (responders.py); None: as trained, or as its endpoint."""
    against_form: str | None = None
    """How the incumbent was served."""
    blocked: dict[str, int] = Field(default_factory=dict)
    """Reason -> judgements behind the primary measure and the guards that failed because a server
    or a sandbox was not available."""
    suite: str | None = None
    """The suite of the primary measure."""
    judges: tuple[str, ...] = ()
    """Reward functions, or the reward model, that judged the answers behind the primary measure."""
    detectable: float | None
    """The smallest true gain that is detected four times out of five with this many cases."""
    dropped: dict[str, int]
    """Reason -> cases that were left out."""
    notes: tuple[str, ...]
    """Remarks about the comparison."""
    aside: str = ""
    """Why the gate does not decide on it: it does not compare the version as trained with what runs
    today, with all guards."""
    limit: str = ""
    """Why the gate approves it for a canary at most."""
    rows: str
    """Fingerprint of the rows that were read."""
    key: str
    """Fingerprint of all that the result depends on; equal keys mean the same evaluation."""
    config: EvaluationConfig
    """Settings that it was made with."""
    weights: str | None = None
    """Fingerprint of the candidate's base and adapter files, as they were measured."""
    signature: str | None = None
    """Keyed hash over all else, with the home's key (signing.py)."""

    @property
    def agent_id(self) -> str:
        """The id of the candidate's agent."""
        return Agent.named(self.agent).id

    @property
    def weights_pay(self) -> str:
        """Whether the trained weights beat the same feedback as a prompt, in words; empty where
        they were not compared."""
        return "" if self.prompting is None else weights_pay(self.candidate, self.prompting)


def weights_pay(candidate: str, prompting: Measure) -> str:
    """Describe whether the weights pay: the interval of their gain over a prompt has to lie above
    zero."""
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
    """One version's figures on the dev rows. A value is None where there was nothing to measure."""

    version: str
    success: float | None
    """Share of judged dev prompts whose fresh answer agrees with the feedback."""
    success_n: int
    nll: float | None
    """Nats a token of known good answers."""
    nll_n: int
    preference: float | None
    """Area under the ROC curve of good above bad answers, by log-probability per token."""
    preference_n: int
    eos_rate: float | None


class DevComparison(Config):
    """Versions on the same dev rows; `best` is None where none is better than the base."""

    base: DevScore
    scores: tuple[DevScore, ...]
    best: str | None
    reasons: tuple[str, ...]
