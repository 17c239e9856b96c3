"""Nouns of this stage: the settings that every algorithm shares, what a run is told, its states and
what it hands back.

A method's own settings live beside the method. Names are those of Hugging Face and TRL wherever
they have one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from thumbwheel.core.config import Config
from thumbwheel.core.hardware import Machine

Metric = Literal[
    "loss",
    "nll/good",
    "ratio/good",
    "rewards/margins",
    "rewards/accuracies",
    "reward",
    "accuracy",
    "mae",
]
"""Dev metrics by which a checkpoint may be chosen."""

JUDGED = "judged"
"""A run's name for rows that nothing is trained on: they tell how reliable the raters, or a reward
model, are."""
JUDGED_SHAPE = "labels"
"""The shape of those rows."""
DASHBOARDS = ("tensorboard", "trackio", "wandb")


class TrainingSwitch(Config):
    """Whether anything is trained in this home at all."""

    enabled: bool = True
    """False: no run starts or goes on, whoever asks for it; recording, importing and evaluating are
    not touched."""


class TrainConfig(Config):
    """What all algorithms share. Rows are counted per optimiser step; memory is bounded by
    `token_budget`, which changes no result."""

    min_rows: int = Field(default=10, ge=1)
    """Fewest training rows that a run begins with; for one method set it as train.kto.min_rows."""
    learning_rate: float | None = Field(default=None, gt=0)
    """Peak learning rate of the adapter; unset, the method's rate for the base: lower for wider
    models, and lower for pretrained ones than for small ones that learned one task."""
    replay_weight: float | None = Field(default=None, ge=0)
    """Weight of the divergence from the base on its own answers to general questions, which methods
    of recorded answers hold down beside the rows so that general skill stays; unset, by what the
    base is: 0 for a small one that learned one task, 10 for a pretrained one."""
    batch_size: int = Field(default=16, ge=1)
    """Rows an optimiser step."""
    num_train_epochs: float = Field(default=4.0, gt=0)
    """Passes over the training rows; sft and kto make more over few rows (min_steps)."""
    min_steps: int | None = Field(default=None, ge=1)
    """Fewest optimiser steps: over few rows there are more epochs than num_train_epochs, up to 16;
    unset, the method's number for the base: 50 for sft and kto, 100 for sft on a pretrained base,
    1 for other methods."""
    max_steps: int | None = Field(default=None, ge=1)
    """Optimiser steps; overrides the epochs and min_steps."""
    warmup_ratio: float = Field(default=0.1, ge=0, lt=1)
    """Share of the steps in which the learning rate rises."""
    lr_scheduler_type: Literal["cosine", "linear", "constant"] = "cosine"
    """How the learning rate falls after the warm-up."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's weight decay of the adapter."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """The gradient's norm is clipped to this."""
    max_length: int = Field(default=1024, ge=8)
    """Tokens of prompt and answer together; what is over drops the oldest turns, never a part of an
    answer."""
    preset: Literal[
        "auto",
        "cpu",
        "small_gpu",
        "default",
        "high_quality",
        "quick_test",
        "ryzen",
        "apple_silicon",
    ] = "auto"
    """Settings by name (see `thumbwheel hardware`); auto fits memory and speed to the machine
    and changes no result."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute; auto takes a GPU where there is one."""
    ranks: int = Field(default=1, ge=1)
    """Processes that share out each step: one for each GPU, or parts of the processor. Each holds
    the whole base, and the result is the same."""
    shard_base: bool = False
    """With several ranks, each holds a part of the base's layers while it trains, and fetches the
    others' parts layer by layer: less memory, more time. The whole base has to fit once, while it
    is loaded."""
    memory_limit_gb: float | None = Field(default=None, gt=0)
    """The most memory that the run may take, with all its ranks; unset, what is available when it
    starts."""
    token_budget: int = Field(default=1536, ge=64)
    """Tokens computed at once, over all threads; a memory setting only. A GPU computes more at once
    where they fit, up to a whole step."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: half as fast again, for models that do not
    fit otherwise."""
    seed: int = Field(default=42, ge=0)
    """Decides the adapter's start and the order of the rows."""
    eval_steps: int | None = Field(default=None, ge=1)
    """Steps between two evaluations on the dev rows; without it ten times a run, or less often
    where that would take more than eval_budget."""
    eval_budget: float = Field(default=0.15, gt=0, le=1)
    """Most of the run's tokens that evaluations on the dev rows take, where a trained token counts
    three times. Over it there are fewer evaluations, then fewer rows: 64 at least, always the same
    ones of a dataset. 1 evaluates all rows."""
    early_stopping_patience: int | None = Field(default=None, ge=1)
    """Stop after so many evaluations, and so many tenths of the run, without a better evaluation,
    and keep the best checkpoint; needs dev rows. Unset, the learning rate falls to its end: weights
    from before that are worse than the dev rows can tell."""
    load_best_model_at_end: bool = False
    """Keep the checkpoint that metric_for_best_model calls best. Otherwise a run that reaches its
    end keeps its last weights, unless the dev rows show beyond noise that an earlier checkpoint was
    better."""
    metric_for_best_model: Metric = "loss"
    """The dev metric that compares the checkpoints with each other and with the base."""
    require_gain: bool = True
    """End as nothing learned, without a result, where what is kept is no better on the dev rows
    than the base, or where a reward model judges no better than the base does."""
    save_steps: int | None = Field(default=None, ge=1)
    """Steps between two checkpoints, besides the best and the last one; without it as often as an
    evaluation."""
    save_minutes: float = Field(default=10.0, gt=0)
    """A checkpoint at the latest after so many minutes."""
    save_total_limit: int = Field(default=2, ge=1)
    """Checkpoints that are kept besides the best one."""
    logging_steps: int = Field(default=1, ge=1)
    """Every how many steps a line of metrics is written."""
    tuning: Literal["lora", "full"] = "lora"
    """lora trains a small adapter; full trains every layer between embeddings and head, for small
    models: about eight times the memory of the base, and an adapter as large as the base."""
    lora_r: int = Field(default=16, ge=1)
    """Rank of the adapter."""
    lora_alpha: int = Field(default=32, ge=1)
    """Scale of the adapter: its product is multiplied by alpha / r."""
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of an adapter's inputs that is left out at random while gradients are computed;
    references and measurements have none."""
    use_rslora: bool = False
    """Multiply by alpha / sqrt(r) instead, which keeps the scale at high ranks."""
    lora_targets: str = "all-linear"
    """Modules that get an adapter: all-linear, or names separated by commas."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the base; auto takes bfloat16 where the machine has it and the model is large
    enough to gain."""
    quantization: Literal["none", "nf4", "int8"] = "none"
    """Hold the frozen base in 4 or 8 bits (QLoRA): less memory, another base than the one that is
    served unquantised."""
    continue_from: str | None = None
    """Version whose adapter to start from, as v3; unset, the base. The reference is the base either
    way; a reward model has none."""
    probe_prompts: int = Field(default=12, ge=0)
    """Dev prompts answered greedily at every evaluation to see a collapse; 0 switches it off."""
    probe_tokens: int = Field(default=128, ge=1)
    """Most tokens of such an answer."""
    collapse_nll: float = Field(default=1.0, gt=0)
    """Nats a token by which good dev answers may become less likely than under the base before the
    run stops itself."""
    report_to: tuple[str, ...] = ()
    """Dashboards that are told the metrics as well: tensorboard, trackio, wandb. Each has a package
    of its name to install; TensorBoard's logs lie in the folder of the run."""
    callbacks: tuple[str, ...] = ()
    """Further transformers.TrainerCallback classes, each as "module:Class"."""

    @field_validator("report_to")
    @classmethod
    def _dashboards(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := set(value) - set(DASHBOARDS):
            raise ValueError(
                f"no dashboard {', '.join(sorted(unknown))}; known: {', '.join(DASHBOARDS)}"
            )
        return value

    @model_validator(mode="after")
    def _full_from_the_base(self) -> TrainConfig:
        if self.tuning == "full" and (
            self.quantization != "none"
            or self.dtype == "bfloat16"
            or self.continue_from is not None
        ):
            raise ValueError(
                "tuning full trains float32 weights from the base: leave quantization, dtype and "
                "continue_from as they are"
            )
        return self

    @model_validator(mode="after")
    def _shards_are_plain_and_frozen(self) -> TrainConfig:
        if self.shard_base and (self.quantization != "none" or self.tuning == "full"):
            raise ValueError(
                "shard_base shares out a frozen base of plain numbers: leave quantization and "
                "tuning as they are, or train without it"
            )
        return self

    @property
    def peak_rate(self) -> float:
        """The learning rate, which whoever puts a run together has filled in (base_defaults.py)."""
        if self.learning_rate is None:
            raise ValueError("the learning rate is not filled in")
        return self.learning_rate

    @property
    def evaluation_interval(self) -> int:
        """The steps between two evaluations, which whoever puts a run together has filled in
        (assemble.py)."""
        if self.eval_steps is None:
            raise ValueError("the steps between two evaluations are not filled in")
        return self.eval_steps


class RewardDrivenConfig(TrainConfig):
    """What methods share that push answers apart by their rewards, fresh or recorded: they can get
    worse the longer they run."""

    early_stopping_patience: int | None = Field(default=4, ge=1)
    """Stop after so many evaluations, and so many tenths of the run, without a better evaluation;
    needs dev rows."""
    load_best_model_at_end: bool = True
    """Keep the checkpoint that metric_for_best_model calls best: what is learned from rewards can
    fall apart late."""


class RunState(StrEnum):
    """`stopped` can be resumed; `failed` can too where a checkpoint exists and its cause is gone.
    `nothing_learned` ended as `finished` does, and made nothing, because no dev figure was better
    than that of the base."""

    RUNNING = "running"
    FINISHED = "finished"
    NOTHING_LEARNED = "nothing_learned"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class RunSpec:
    """What the child process is told, as spec.json in the run's folder."""

    run_id: str
    agent: str
    algorithm: str
    base: str
    """Folder or hub id, as it was given."""
    folder: str
    """Where its files are."""
    base_fingerprint: str
    config: Mapping[str, Any]
    blobs: str
    """Folder of the home's artifacts, where the dataset's files are."""
    shape: str
    """The shape of the dataset."""
    files: Mapping[str, str]
    """Split -> sha256 of its file: `train` and `dev`, never the gate's, and where judgements are
    weighed `judged`, whose rows are of shape `labels`. A resumed run meets the same rows."""
    reference_cache: str
    """Path of the home's cache of reference log-probs."""
    reward_model: str | None = None
    """Folder of the reward model that judges, where one was named."""
    start: str | None = None
    """Folder of the adapter to start from, where a version was named."""
    checkers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the owner gives the reward functions that rows name as their checkers."""
    raters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Id of a row of `judged` -> the raters who judged that answer; other rows do not count."""
    judged_dataset: str | None = None
    """Id of the dataset that `judged` belongs to: the run descends from it, too."""
    template: Mapping[str, Any] | None = None
    """The settings of the chat template, with the day that a template with a date shows. A run from
    before there were any used the template as it is."""


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint that is whole in the bucket of the home."""

    run_id: str
    fence: int
    step: int
    files: Mapping[str, str]
    """Name -> sha256."""


@dataclass(frozen=True)
class Status:
    """How the child stands, as status.json in the run's folder; `error` = class, what, why, fix."""

    state: RunState
    step: int = 0
    reason: str | None = None
    error: Mapping[str, str] | None = None
    result: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Run:
    """One training run, as recorded in the database."""

    id: str
    """Id of the run."""
    agent: str
    """Agent whose model learns."""
    algorithm: str
    """Method of the run."""
    dataset_id: str
    """Dataset that it trains on."""
    base: str
    """Base model."""
    base_fingerprint: str | None
    """Hash of the base's weights."""
    config: Mapping[str, Any]
    """Settings that it runs with."""
    state: RunState
    """State of the run."""
    reason: str | None
    """Why it is in this state; null where there is nothing to say."""
    metrics: Mapping[str, Any] | None
    """Figures at its end; null before."""
    recorded_at: datetime | None = None
    """When it began; None for one that no row has."""
    ended_at: datetime | None = None
    """When it ended (UTC); null before."""
    folder: str | None = None
    """The folder of the home (db/hosts.py) in which it was begun, where its checkpoints are."""
    beat: int | None = None
    """How many signs of life it has given, in a home with many hosts."""

    @property
    def has_ended(self) -> bool:
        """Whether nobody trains it."""
        return self.state is not RunState.RUNNING


@dataclass(frozen=True)
class RunNote:
    """What people wrote about a run."""

    text: str
    """The note"""
    tags: Sequence[str]
    """Words by which runs are found again"""


@dataclass(frozen=True)
class ListedRun(Run):
    """A run of the list."""

    version: str | None = None
    """The version that it gave, as `v3`; None if it gave none or goes on."""
    activity: str | None = None
    """What it does now, in words; None once it has ended."""
    note: str = ""
    """What people wrote about it."""
    tags: Sequence[str] = ()
    """Words by which it is found again."""


@dataclass(frozen=True)
class ComparedValues:
    """A result or a setting of the runs that are compared."""

    name: str
    """Its name."""
    values: Sequence[Any]
    """Its value in each run; null where a run has none."""

    @property
    def differs(self) -> bool:
        """Whether the runs do not all have the same value."""
        return any(value != self.values[0] for value in self.values)


@dataclass(frozen=True)
class RunComparison:
    """Several runs beside each other."""

    runs: Sequence[ListedRun]
    """The runs; values are in their order."""
    results: Sequence[ComparedValues]
    """What they came to."""
    settings: Sequence[ComparedValues]
    """Settings that differ; method, base and dataset are among them."""
    same: Sequence[ComparedValues]
    """Settings that are the same in all runs."""


@dataclass(frozen=True)
class RunFiles:
    """The files of a run's folder, which are deleted with it."""

    checkpoints: int
    """Saved steps"""
    size: int
    """Bytes of all files"""


@dataclass(frozen=True)
class RunResult:
    """What `train` hands back; `version_id` and `version` (as `v3`) are those of the candidate of a
    finished run. One that learned nothing has none."""

    run_id: str
    """Id of the run."""
    state: RunState
    """How it ended: finished, nothing_learned, stopped or failed."""
    reason: str | None
    """Why it ended so; null where there is nothing to say."""
    metrics: Mapping[str, Any]
    """Figures at its end."""
    version_id: str | None = None
    """Id of the candidate; null where nothing was learned."""
    version: str | None = None
    """Name of the candidate (v3); null where nothing was learned."""
    reward_model: str | None = None
    """As `rm1`, of a method that judges."""


@dataclass(frozen=True)
class EvaluationPlan:
    """How much of a run its evaluations on the dev rows are, counted in tokens (dev_budget.py)."""

    dev_rows: int
    """Rows of each evaluation; a run reads the same ones from begin to end"""
    of: int
    """Dev rows that could be read"""
    eval_steps: int
    """Steps between two evaluations"""
    evaluations: int
    """All of the run, with that of the base; 0 without dev rows"""
    share: float
    """Part of the run's tokens, a trained token counted three times"""
    budget: float
    """The setting eval_budget"""

    def in_words(self) -> str:
        """Return the plan as one sentence.

        >>> EvaluationPlan(80, 300, 5, 6, 0.14, 0.15).in_words()
        'dev rows: 80 of 300, to be evaluated 6 times, about 14 % of the run (eval_budget 15 %)'
        """
        if not self.evaluations:
            return "dev rows: none, so nothing is evaluated"
        rows = f"all {self.of}" if self.dev_rows == self.of else f"{self.dev_rows} of {self.of}"
        budget = f"eval_budget {100 * self.budget:.0f} %"
        if self.share > self.budget:
            budget += "; fewer would not tell whether anything was learned"
        return (
            f"dev rows: {rows}, to be evaluated {self.evaluations} times, "
            f"about {100 * self.share:.0f} % of the run ({budget})"
        )


@dataclass(frozen=True)
class DryRun:
    """What a run would do. Time and memory come from a trial of its first steps on this machine."""

    algorithm: str
    """Method that would be trained."""
    dataset_id: str
    """Dataset that it would train on."""
    preset: str
    """Preset of the settings for this machine."""
    rows: int
    """Training rows."""
    dev_rows: int
    """Rows for early stopping."""
    evaluation: EvaluationPlan
    """How often they are measured, and how many of them"""
    dropped: Mapping[str, int]
    """Reason -> rows that the method leaves out."""
    notes: Mapping[str, int]
    """Remark -> rows that it is about."""
    tokens: int
    """Tokens of the training rows."""
    scored_tokens: int
    """Tokens that the loss is computed on."""
    steps: int
    """Optimiser steps."""
    token_budget: int
    """Tokens that are computed at once."""
    changes: Sequence[str]
    """What was changed to make the run fit into memory."""
    matched_modules: int
    """Modules that get an adapter."""
    trainable_parameters: int
    """Parameters that are trained."""
    dtype: str
    """Precision of the base."""
    layout: str
    """Whether rows share prompts in trees, or are padded."""
    minutes: float
    """How long it would take on this machine."""
    past_runs: int
    """Runs of this home whose speed is in `minutes`."""
    memory_gb: Mapping[str, float]
    """By what holds it, and the `peak` that they add up to; empty where it cannot be measured."""
    disk_gb: float
    """Of checkpoints and the result."""
    held_out_rows: int
    """Rows that an evaluation would read."""
    detectable_gain: float | None
    """The smallest gain that an evaluation on these rows shows with 80 % probability; None where it
    decides nothing."""
    detectable_gain_of: Literal["answers", "AUC"]
    """It is a share of the answers, where 30 % of them differ, or one of how well good answers are
    ranked above bad ones."""
    probed_steps: int
    """Steps that were tried to measure speed and memory."""
    scores: Mapping[str, Any] | None = None
    """Count, mean, deviation, least and most of the dataset's numbers; None where it has none."""


@dataclass(frozen=True)
class ShownMachine(Machine):
    """A machine with what a person asks about it."""

    disk_free_gb: float | None
    """Free on the disk of the home."""
    comfortable_base: str
    """Parameters of the largest base that is comfortable here."""


@dataclass(frozen=True)
class Hardware:
    """This machine, and what the presets choose on it."""

    machine: ShownMachine
    auto: str
    """The preset that `auto` looks at."""
    presets: Mapping[str, Mapping[str, Any]]
    """Preset -> its settings here."""


class Sameness(StrEnum):
    """How far a second training came out like the first one."""

    BITWISE = "bitwise"
    WITHIN_TOLERANCE = "within tolerance"
    DIFFERENT = "different"


@dataclass(frozen=True)
class EnvironmentChange:
    """A thing that is not as it was: its value then and now."""

    name: str
    """Package, machine or setting that is different."""
    then: Annotated[Any, Field(description="Its value when the run was trained.")]
    now: Annotated[Any, Field(description="Its value now.")]


@dataclass(frozen=True)
class Reproduction:
    """What training a run again gave."""

    run_id: str
    """Id of the run that was trained again."""
    sameness: Sameness
    """How near the second training came to the first."""
    differences: list[EnvironmentChange]
    """What was different about packages, machine and batches."""
    weights_distance: float | None
    """Norm of the difference of the two adapters over the norm of the first; None where the run
    made none."""
    loss_distance: float | None
    """Largest relative difference of the training losses at one step; None without a common
    step."""
    tolerance: float
    """Largest distance that counts as the same."""
    state_then: RunState
    """How the first run ended."""
    state_now: RunState
    """How the second run ended."""
    reasons: list[str] = field(default_factory=list)
    """Why it is not the same, one sentence each."""
