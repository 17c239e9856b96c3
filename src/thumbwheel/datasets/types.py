"""Types of this stage: settings, the evidence of one prompt, the rows of the built-in shapes, a
frozen dataset.

What a build creates by the million is a named tuple, or (rows, which derive from each other) a
dataclass that is not frozen: a frozen one takes five times as long to create.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, field_validator, model_validator, with_config
from typing_extensions import TypedDict

from thumbwheel.core.config import Config
from thumbwheel.importers.types import OWNER_MARKS
from thumbwheel.rewards.types import FeedbackScope, IntervalFigure, LabelConfig, Value

Message = dict[str, Any]
WAITS = "case that waits for feedback"
"""Origin of prompts whose case is judged by later feedback, so that a fresh answer cannot be
checked."""
REWARD = "reward"
"""Kind and origin of rewards of the ledger: computed, though feedback of people may contribute."""
SPLITS = ("train", "dev", "gate")
"""Rows to learn from, rows that stop a training and choose a method, and rows that an evaluation
reads once per candidate."""
HELD_OUT, EXCLUDED = "held out", "excluded"


def owner_mark(metadata: Any) -> str | None:
    """Return HELD_OUT for validation data, which may be in dev and gate only; EXCLUDED for data
    that is neither for training nor for validation; else None."""
    if not isinstance(metadata, dict):
        return None
    training, validation = (metadata.get(name) for name in OWNER_MARKS)
    if validation is True:
        return HELD_OUT
    return EXCLUDED if training is False else None


class PlanConfig(Config):
    """How many rows a method needs, where it is not to be what the method itself says
    (`training/algorithms`). `min`: below, it is not worth training; `fine`: from here on it is
    recommended."""

    sft_min: int | None = Field(default=None, ge=1)
    """Good answers below which sft is not worth training; unset, the method's own number."""
    sft_fine: int | None = Field(default=None, ge=1)
    """Good answers from which sft is recommended; unset, the method's own number."""
    dpo_min: int | None = Field(default=None, ge=1)
    """Pairs below which dpo is not worth training; unset, the method's own number."""
    dpo_fine: int | None = Field(default=None, ge=1)
    """Pairs from which dpo is recommended; unset, the method's own number."""
    kto_min: int | None = Field(default=None, ge=1)
    """Labels below which kto is not worth training; unset, the method's own number."""
    kto_fine: int | None = Field(default=None, ge=1)
    """Labels from which kto is recommended; unset, the method's own number."""
    kto_class: int | None = Field(default=None, ge=1)
    """Labels of the rarer class that kto needs; unset, the method's own number."""
    discordance: float = Field(default=0.3, gt=0, le=1)
    """Share of held-out answers that a new version is assumed to change between right and wrong,
    for the power of the evaluation."""


MOST_TAGS, LONGEST_TAG = 100, 1_000
"""Of opinions that are heard or not."""


class DatasetConfig(Config):
    """How evidence becomes rows and how rows are split."""

    salt: str = "thumbwheel"
    """Salt of the split. Another salt is another split: what was held out before may then be
    trained on."""
    dev: float = Field(default=0.1, ge=0, lt=1)
    """Share of groups for early stopping and the choice of a method."""
    gate: float = Field(default=0.1, ge=0, lt=1)
    """Share of groups that is read once per candidate, by the evaluation."""
    siblings: int = Field(default=5, ge=0, le=1000)
    """Most pairs of a better and a worse answer to the same prompt that nobody compared, per
    prompt; 0 takes none."""
    margin: float | None = Field(default=0.25, gt=0, le=1)
    """Two answers whose numbers lie more than this part of their scale apart are better and worse;
    null asks for one good and one bad."""
    labels_from_corrections: bool = True
    """A correction also makes two labels: the edit desirable, the original undesirable."""
    chats_from_preferences: bool = False
    """Answers that were only preferred to another one count as good answers; better than another is
    not yet good."""
    prompts_from_traces: bool = True
    """Prompts without a case are rows of `prompts` too; answers to them need a judge without a
    reference, such as a reward model."""
    correction_weight: float = Field(default=2.0, gt=0)
    """Weight of an edit among good answers: it says what is right, where a thumb says only that
    this was not wrong."""
    desirable_weight: float | None = Field(default=None, gt=0)
    """Class weight of good labels; unset, it is fitted to the training rows."""
    undesirable_weight: float | None = Field(default=None, gt=0)
    """Class weight of bad labels; unset, it is fitted to the training rows."""
    balance: Literal["weights", "downsample"] = "weights"
    """How unequal classes of labels are made equal in training: by class weights, or by leaving
    rows of the larger class out."""
    normalise: Literal["none", "range", "quantiles"] = "none"
    """Scores from -1 to 1, fitted on the training rows: their whole range, or from their 5th to
    their 95th percentile (the rest is cut)."""
    sample: float = Field(default=1.0, gt=0, le=1)
    """Share of prompts that are used at all, chosen by a hash."""
    limit: int | None = Field(default=None, ge=1)
    """Most training rows, chosen by a hash."""
    per_prompt: int | None = Field(default=None, ge=1)
    """Most rows of one prompt, chosen by a hash."""
    per_subject: int | None = Field(default=None, ge=1)
    """Most rows of one subject in each split, chosen by a hash."""
    min_reward: float | None = None
    """Answers with a number below this one (on its own scale) are left out, with their corrections
    and comparisons. Unset by default: the worst answers teach most. A thumb or another verdict is
    no number: where it contradicts a computed one, the answer stays."""
    require_feedback: bool = False
    """Only answers that a person said something about, and prompts with such an answer; a reward
    that a program stored is not enough."""
    allow: tuple[str, ...] = ()
    """Health checks whose errors do not stop the build."""
    checked: int = Field(default=20_000, ge=0)
    """Rows of each split whose texts a build checks, chosen by a hash; `dataset health` reads all
    of them."""
    since: datetime | None = None
    """Only feedback that was given at this time or later is heard."""
    until: datetime | None = None
    """Only feedback that was given before this time is heard."""
    recent_days: float | None = Field(default=None, gt=0, le=36_500)
    """Only feedback of the last so many days is heard, from midnight (UTC) on. Where what is right
    changes with time, what people said before outvotes what they say now. Unset, all of it is."""
    per_rater: int | None = Field(default=None, ge=1)
    """Most statements of one named rater that are heard, chosen by a hash."""
    tag: tuple[str, ...] = ()
    """Only opinions with one of these tags are heard, as perfect."""
    without_tag: tuple[str, ...] = ()
    """Opinions with one of these tags are not heard, as data-mismatch."""
    min_confidence: float | None = Field(default=None, ge=0, le=1)
    """Opinions about what the app was less sure of are not heard; what has no confidence counts."""
    reward: Literal["feedback", "ledger"] = "feedback"
    """What says how good an answer is: what people said about it, or the combined reward of the
    ledger (thumbwheel reward run)."""
    label: LabelConfig = LabelConfig()
    """How raw feedback becomes good, bad or neither."""
    plan: PlanConfig = PlanConfig()
    """How many rows a method needs."""

    def resolved(self, now: datetime) -> DatasetConfig:
        """Replace `recent_days` by a time, the same for all builds of a day."""
        if self.recent_days is None:
            return self
        moment = now.astimezone(UTC) - timedelta(days=self.recent_days)
        midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
        since = midnight if self.since is None else max(self.since, midnight)
        return self.model_copy(update={"since": since, "recent_days": None})

    def scope(self, first: str | None = None, last: str | None = None) -> FeedbackScope:
        """Return the scope of the feedback that counts, about the prompts from the id `first` to
        before `last`."""
        return FeedbackScope(
            self.since,
            self.until,
            self.per_rater,
            first,
            last,
            rewarded=self.reward == "ledger",
            tags=self.tag,
            without_tags=self.without_tag,
            min_confidence=self.min_confidence,
        )

    @field_validator("tag", "without_tag")
    @classmethod
    def _can_be_searched(cls, tags: tuple[str, ...]) -> tuple[str, ...]:
        # databases refuse longer patterns, and more conditions
        if len(tags) > MOST_TAGS or any(len(tag) > LONGEST_TAG for tag in tags):
            raise ValueError(f"at most {MOST_TAGS} tags of at most {LONGEST_TAG} characters")
        return tags

    @field_validator("since", "until")
    @classmethod
    def _in_utc(cls, value: datetime | None) -> datetime | None:
        """Read a time without a zone as one of UTC."""
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value

    @model_validator(mode="after")
    def _leave_something(self) -> DatasetConfig:
        if self.dev + self.gate >= 1:
            raise ValueError(f"dev ({self.dev}) and gate ({self.gate}) leave nothing to train on")
        if self.reward == "ledger" and self.margin is None:
            raise ValueError("pairs by the rewards of the ledger need a margin")
        return self


class JudgedText(NamedTuple):
    """One distinct text that answered a prompt, with all its judgements; equal texts of several
    traces are one answer.

    `good` and `strength` follow the rule over all its votes; being the text of an edit is a vote
    for it. `origin` names the winning vote: upvote, downvote, rating, score, label, outcome, or
    correction where an edit is the only vote. `corrected`: somebody edited it. `value` is the mean
    of the numbers that it was given; `logps` are the captured log-probabilities of `token_ids`.
    """

    text: str
    good: bool | None
    strength: float
    conflict: bool
    origin: str
    corrected: bool
    group: str
    feedback_ids: tuple[str, ...]
    trace_ids: tuple[str, ...]
    subject_ids: tuple[str, ...]
    finish_reason: str | None = None
    token_ids: tuple[int, ...] | None = None
    value: Value | None = None
    logps: tuple[float, ...] | None = None
    automatic: bool = False
    """Only checkers and models called it good or bad; `value` has a flag of its own."""
    withheld: frozenset[str] = frozenset()
    """What it lost because only checkers and models said it: WITHHELD_JUDGEMENT, WITHHELD_VALUE."""
    prompt: list[Message] | None = None
    """What it answered, if that is not the prompt of its evidence: runs of one task have different
    users and tool results."""

    @property
    def by_people(self) -> bool:
        """Whether people called it good or bad themselves; a combined reward is computed, even if
        feedback of people contributed to it."""
        return self.good is not None and not self.automatic and self.origin != REWARD


MACHINES = "only checkers or models judged it: not for the gate"

WITHHELD_JUDGEMENT, WITHHELD_VALUE = "judgement", "value"


class Edge(NamedTuple):
    """Answer `better` is better than answer `worse` (positions in the evidence), by a correction or
    a preference."""

    better: int
    worse: int
    origin: str
    strength: float
    feedback_ids: tuple[str, ...]
    automatic: bool = False


@dataclass(frozen=True)
class JudgingCase:
    """What is needed to judge a fresh answer to a prompt."""

    id: str
    prompt_id: str
    reference: Any
    checker: str | None
    checker_config: dict[str, Any] | None


class Asked(NamedTuple):
    """A trace that asked a prompt, whatever its answer."""

    group: str
    trace_id: str
    subject_id: str | None


class Evidence(NamedTuple):
    """All usable evidence about one prompt. Every answer, case and trace belongs to `split`; no
    case is gold."""

    prompt_id: str
    prompt: list[Message]
    tools: list[dict[str, Any]] | None
    split: str
    answers: tuple[JudgedText, ...]
    edges: tuple[Edge, ...]
    cases: tuple[JudgingCase, ...] = ()
    asked: tuple[Asked, ...] = ()
    task: str | None = None
    """The task of runs of several steps, which makes them comparable across their prompts."""
    withheld_edges: int = 0
    """Comparisons and corrections left out of the gate because only checkers and models made
    them."""

    @property
    def success(self) -> float | None:
        """How well the recorded answers did, from 0 to 1: the mean of their numbers, or of good (1)
        and bad (0); None without either."""
        values = []
        for answer in self.answers:
            if answer.value:
                values.append(answer.value.unit)
            elif answer.good is not None:
                values.append(float(answer.good))
        return sum(values) / len(values) if values else None

    @property
    def liked(self) -> JudgedText | None:
        """A text that somebody wrote as a correction, else the answer that people most clearly
        called good; None without either."""

        def clearness(answer: JudgedText) -> tuple[bool, float, str]:
            return answer.origin == "correction", answer.strength, answer.text

        good = [
            answer
            for answer in self.answers
            if answer.good and answer.by_people and not answer.corrected and not answer.conflict
        ]
        return max(good, key=clearness, default=None)


class Drop(NamedTuple):
    """Evidence that became no row, and why."""

    reason: str
    rows: int = 1
    """How many it would have been."""


@dataclass
class Tally:
    """Counters of reading evidence: what was dropped and why, and how often raters disagreed."""

    drops: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)


@dataclass(kw_only=True, slots=True)
class Row:
    """The fields of every row. `weight` is final: the strength of the evidence and, for labels, the
    class weight.

    `group` is the unit that a confidence interval counts: the session, else the prompt. `prompt` is
    a list of chat messages.
    """

    row_id: str
    group: str
    split: str
    prompt: list[Message]
    tools: list[dict[str, Any]] | None
    weight: float
    origin: str
    feedback_ids: list[str]
    trace_ids: list[str]
    subject_ids: list[str]


@dataclass(kw_only=True, slots=True)
class ChatRow(Row):
    """A prompt and a good answer. `token_ids` are those captured with the answer, if any."""

    completion: str
    finish_reason: str | None
    token_ids: list[int] | None


@dataclass(kw_only=True, slots=True)
class PairRow(Row):
    """A prompt, the better answer and the worse one, each with its finish reason if captured."""

    chosen: str
    rejected: str
    chosen_finish: str | None = None
    rejected_finish: str | None = None


@dataclass(kw_only=True, slots=True)
class LabelRow(Row):
    """A prompt, one answer, and whether it is desirable."""

    completion: str
    label: bool
    finish_reason: str | None = None


@dataclass(kw_only=True, slots=True)
class ScoredRow(Row):
    """A prompt, one answer, and a number: `value` on `scale` [lowest, highest], one for all rows of
    a dataset; higher is better."""

    completion: str
    value: float
    scale: list[float]
    finish_reason: str | None = None


@dataclass(kw_only=True, slots=True)
class PromptRow(Row):
    """A prompt to be answered afresh, and what judges an answer: reference, checker and its
    settings, null if there are none."""

    reference: Any
    checker: str | None
    checker_config: dict[str, Any] | None
    case_id: str | None
    success: float | None = None
    """How well recorded answers to it did, from 0 to 1; null if none was judged. For curricula."""
    liked: str | None = None
    """A recorded answer that people wrote or called good, for guards. Not a reference: others may
    be right too."""


@dataclass(kw_only=True, slots=True)
class GroupRow(Row):
    """A prompt with at least two recorded answers, and how good each is from 0 to 1.

    `prompts`, one for each answer, is set if several runs of one task are compared, each with a
    history of its own; `prompt` is then that of the first. `finish_reasons`, `token_ids` and
    `logps` (of the token ids, by the model that answered) are null if not captured.
    """

    completions: list[str]
    values: list[float]
    finish_reasons: list[str | None]
    token_ids: list[list[int] | None]
    logps: list[list[float] | None]
    success: float | None = None
    prompts: list[list[Message]] | None = None


@dataclass(frozen=True)
class Dataset:
    """A frozen dataset. `manifest` has: files (split -> sha256), counts, drops, notes, origins,
    health, rule, config, watermark."""

    id: str
    """Id of the dataset, made from its content: equal rows give an equal id."""
    agent: str
    """Agent whose feedback it is made of."""
    shape: str
    """Shape of its rows: chats, pairs, labels, scored, prompts or groups."""
    fingerprint: str
    """Hash of rows and settings."""
    manifest: dict[str, Any]
    """Files by split with their hashes, counts, what was left out and why, origins, health,
    settings."""
    recorded_at: datetime
    """When it was frozen (UTC)."""

    @property
    def counts(self) -> dict[str, int]:
        """split -> rows."""
        return dict(self.manifest["counts"])


@dataclass(frozen=True)
class BuiltDataset(Dataset):
    """A dataset that was just built, or was there already."""

    why: list[str] | None = None
    """How its shape was chosen; None where it was asked for by its shape."""


@dataclass(frozen=True)
class ListedDataset(Dataset):
    """A dataset in the list of an agent's."""

    stale: int = 0
    """Rows whose evidence has changed since it was built."""


@dataclass(frozen=True)
class ShownDataset(ListedDataset):
    """A dataset with some of its rows."""

    rows: list[Any] = field(default_factory=list)
    """As the shape has them."""


@dataclass(frozen=True)
class Finding:
    """The result of one check. `rows` are the ids of the first of the `count` rows concerned."""

    check: str
    """Name of the check."""
    verdict: str
    """ok, warning or error; an error stops a build unless the settings allow it."""
    text: str
    """What was found, in words."""
    count: int = 0
    """Rows concerned."""
    rows: tuple[str, ...] = ()
    """Ids of the first of them."""


@dataclass(frozen=True)
class DatasetHealth:
    """Whether a dataset is fit for training."""

    id: str
    """Id of the dataset."""
    findings: list[Finding]
    """Results of the checks, one each."""


@dataclass(frozen=True)
class ExportedDataset:
    """A dataset that was written into a folder."""

    id: str
    path: Path
    format: str
    counts: dict[str, int]
    """Split -> rows."""


@with_config(use_attribute_docstrings=True)
class CalibrationRows(TypedDict):
    """The rows that a calibration was fitted on."""

    split: str
    """Always `train`."""
    rows: int
    """Judged answers with a reading."""
    salt: str
    """Of the splits' draw."""


@with_config(use_attribute_docstrings=True)
class CalibrationReport(TypedDict):
    """How well a calibration predicts verdicts on dev rows. Figures are null without rows."""

    rows: int
    """Dev rows."""
    groups: int
    """Prompts or sessions that they belong to."""
    majority: float | None
    """Accuracy of always predicting the more frequent verdict."""
    accuracy: float | None
    """Share of verdicts that the calibrated chances predict."""
    brier: float | None
    """Brier score; smaller is better."""
    brier_of_the_share: float | None
    """Brier score of predicting the share of good ones for all."""
    gain: IntervalFigure | None
    """Accuracy above that of the more frequent verdict."""


@with_config(use_attribute_docstrings=True)
class StoredCalibration(TypedDict):
    """What people's verdicts say that users' next messages are worth."""

    calibration: str
    """Hash of its document."""
    agent: str
    """Whose answers were judged."""
    kind: str
    """Kind of the document."""
    counts: dict[str, list[int]]
    """Reading of the next message -> good and bad verdicts of people."""
    classifier: str
    """Who read the messages: the rules, or the model that was asked."""
    fitted_on: CalibrationRows
    """The rows that the counts are of."""
    report: CalibrationReport
    """How well it predicts verdicts on other rows."""
