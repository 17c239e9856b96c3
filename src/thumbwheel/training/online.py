"""Methods that learn from their own fresh answers: sample, judge, turn into advantages, update. One
step is one collected batch.

Lives here: the contract of such a method, `OnlineAlgorithm`, its settings, and what passes between
it and the steps (online_step.py). Sampling is the engine's (rollout.py, sampler.py), judging
judge.py's, stopping a run that games its reward guard.py's. A reward belongs to the text that
earned it: only answers sampled here are credited, with what was found about them here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from thumbwheel.core.errors import DataError
from thumbwheel.engine.endpoint import LOADS_ADAPTERS, LogProbs, Server
from thumbwheel.engine.rollout import SOURCES, Rollout
from thumbwheel.engine.tree import Branch, Example
from thumbwheel.training.algorithm import LossOut, Method, Parts, Prepared, Row
from thumbwheel.training.memory import branch_by_branch
from thumbwheel.training.types import Metric, RewardDrivenConfig

if TYPE_CHECKING:
    import torch

    from thumbwheel.engine.prompt import PromptBuilder
    from thumbwheel.engine.score import Role, ScoreEngine
    from thumbwheel.engine.tree import TreeBatch
    from thumbwheel.training.judge import Reward


class OnlineConfig(RewardDrivenConfig):
    """What methods that sample share. A step takes `batch_size` prompts and `num_generations`
    answers to each."""

    reward_model_defaults: ClassVar[Mapping[str, Any]] = {}
    """Other defaults for runs with a reward model: it is wrong about answers unlike those that it
    learned from, so stay near the base."""

    batch_size: int = Field(default=8, ge=1)
    """Prompts a step."""
    num_generations: int = Field(default=8, ge=1)
    """Answers sampled to each prompt."""
    max_completion_length: int = Field(default=128, ge=1)
    """Most tokens of an answer."""
    temperature: float = Field(default=1.0, gt=0)
    """Of sampling; log-probabilities are taken at the same temperature."""
    top_k: int = Field(default=0, ge=0)
    """Sample among so many tokens only; 0 takes all. Log-probabilities stay those of the whole
    distribution, so a cut is not corrected."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample among the likeliest tokens of this mass only; 1 takes all."""
    rollouts: str = "local"
    """Who answers: local, the policy itself, or endpoint, a server. Dev answers are always the
    policy's own."""
    endpoint_url: tuple[str, ...] = ()
    """Of OpenAI-compatible servers, as http://127.0.0.1:8000/v1, which share out the prompts; their
    key is read from THUMBWHEEL_ENDPOINT_KEY."""
    endpoint_model: str | None = None
    """The model's name there. It has to have this base's vocabulary."""
    endpoint_adapters: str | None = None
    """A folder that the servers read under the same path: each step's adapter is written there, and
    every server loads it; unset, they answer with what they serve."""
    max_lag: int = Field(default=0, ge=0)
    """Steps by which the adapter of an answer from a server may be older; the answers of a server
    with an older one are refused."""
    endpoint_server: Server = "vllm"
    """What serves, which decides how it is asked for plain sampling and for token ids."""
    endpoint_logprobs: LogProbs = "raw"
    """Its log-probabilities: raw at temperature 1, processed as sampled, or none, where it serves
    the very policy that is trained."""
    importance_cap: float = Field(default=3.0, ge=1)
    """Most that a token of an answer from elsewhere counts: its probability here over the one
    there, cut off at this."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer, besides the model's own turn-end tokens."""
    reward_functions: tuple[str, ...] = ("checker",)
    """What judges: checker (the row's own), a reward function of the table, or "module:function";
    "=2" behind it is its weight."""
    reward_settings: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Settings of functions of the table that judge here, by name, as {length: {most: 60}}."""
    reward_model: str | None = None
    """A trained reward model that judges too, as rm1 or a folder."""
    reward_model_weight: float = Field(default=1.0, gt=0)
    """Its weight beside the functions."""
    reward_timeout: float = Field(default=10.0, gt=0)
    """Seconds in which a function must have judged an answer; later is a failure of the function,
    which gives no reward. A program of an answer is ended before that, and is wrong."""
    reward_workers: int = Field(default=2, ge=1)
    """Processes that run reward functions beside the model."""
    metric_for_best_model: Metric = "reward"
    """The dev metric that decides which checkpoint is best."""
    eval_prompts: int = Field(default=256, ge=1)
    """Dev prompts answered greedily at an evaluation."""
    kl_budget: float | None = Field(default=None, gt=0)
    """Nats a token by which the policy may leave the base before the run ends with what it has;
    unset, no limit."""
    curriculum: bool = False
    """Take prompts from easy to hard, by how well they are answered; where recorded answers do not
    say that of every prompt, it costs a first pass of four answers to each."""
    length_creep: float | None = Field(default=3.0, gt=1)
    """The run ends when answers are so many times as long as the base's without a better dev
    reward."""
    held_out: tuple[str, ...] = ()
    """Reward functions that are watched on dev answers and never optimised; the run ends when one
    falls, or gains nothing over four evaluations, while the reward rises."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_with_reward_model(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("reward_model"):
            return {**cls.reward_model_defaults, **values}
        return values

    @model_validator(mode="after")
    def _room_for_a_prompt(self) -> Self:
        if self.max_completion_length >= self.max_length:
            raise ValueError(
                f"max_completion_length ({self.max_completion_length}) leaves no room in "
                f"max_length ({self.max_length})"
            )
        return self

    @model_validator(mode="after")
    def _ranks_sample_alone(self) -> Self:
        if self.shard_base:
            raise ValueError(
                "shard_base is given, and a method that samples needs the whole base in each "
                "rank: train without it"
            )
        return self

    @model_validator(mode="after")
    def _endpoint_is_used(self) -> Self:
        for name in ("endpoint_url", "endpoint_adapters", "max_lag"):
            if getattr(self, name) and self.rollouts != "endpoint":
                raise ValueError(
                    f"{name} is given and rollouts is {self.rollouts}, so it would not be "
                    "used: set rollouts to endpoint"
                )
        return self

    @model_validator(mode="after")
    def _servers_take_adapters(self) -> Self:
        if self.endpoint_adapters is not None and self.endpoint_server not in LOADS_ADAPTERS:
            raise ValueError(
                f"endpoint_adapters is given, and {self.endpoint_server} loads no adapter while "
                "it runs: use vLLM or the embedded server (endpoint_server: vllm)"
            )
        if self.endpoint_adapters is not None and not Path(self.endpoint_adapters).is_absolute():
            raise ValueError(
                f"endpoint_adapters {self.endpoint_adapters!r} is relative, and servers read the "
                "folder from elsewhere: give its whole path"
            )
        if self.max_lag and self.endpoint_adapters is None:
            raise ValueError("max_lag is given, and servers get no adapters: set endpoint_adapters")
        if self.max_lag and self.endpoint_logprobs == "none":
            raise ValueError(
                "endpoint_logprobs none says that servers have the policy itself, and with max_lag "
                "they may have an older one: leave one of them out"
            )
        return self

    @field_validator("endpoint_url", mode="before")
    @classmethod
    def _one_url_is_a_list(cls, urls: Any) -> Any:
        if urls is None:
            return ()
        return (urls,) if isinstance(urls, str) else urls

    @field_validator("endpoint_url")
    @classmethod
    def _every_url_once(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        distinct = {url.rstrip("/") for url in urls}
        if len(distinct) < len(urls):
            raise ValueError("a server is named twice")
        return urls

    @field_validator("rollouts")
    @classmethod
    def _source_exists(cls, name: str) -> str:
        if name not in SOURCES.names():
            raise ValueError(f"known are {', '.join(SOURCES.names())}")
        return name


C = TypeVar("C", bound=OnlineConfig)
Verdict = Literal["update", "skip", "leave"]


@dataclass(frozen=True, eq=False)
class RolloutPrompt:
    """A prompt to answer; `row` is what judges need, `number` its index among the prepared rows."""

    prompt: tuple[int, ...]
    row: Row
    group: str
    number: int


@dataclass(frozen=True)
class AnswerBatch:
    """A batch of answers with what they earned, both [task][answer]; `off_policy` ones were drawn
    from another distribution."""

    tasks: Sequence[RolloutPrompt]
    rollouts: Sequence[Sequence[Rollout]]
    rewards: Sequence[Sequence[Reward]]
    off_policy: bool = False

    @property
    def values(self) -> list[list[float | None]]:
        """[task][answer] the rewards as numbers; None where no judge had one."""
        return [[reward.value for reward in group] for group in self.rewards]

    def replaced(self, task_numbers: Sequence[int], others: AnswerBatch) -> AnswerBatch:
        """Return a copy in which the answers to these tasks are exchanged for those of `others`,
        for each task where one of the new answers has a reward."""
        rollouts, rewards = list(self.rollouts), list(self.rewards)
        for number, new_rollouts, new_rewards in zip(
            task_numbers, others.rollouts, others.rewards, strict=True
        ):
            if any(reward.value is not None for reward in new_rewards):
                rollouts[number], rewards[number] = new_rollouts, new_rewards
        return replace(self, rollouts=rollouts, rewards=rewards)


@dataclass
class Experience:
    """What is learned from: branch b of example i is an answer; `tokens` has, by name, a flat
    [targets] tensor for every example.

    Answers without any value from a judge are no part of it.
    """

    examples: list[Example]
    tokens: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    def for_batch(self, batch: TreeBatch) -> dict[str, torch.Tensor]:
        """Return name -> [M], in the order of the targets of `batch`, which was planned from these
        examples."""
        import torch

        device = batch.input_ids.device
        return {
            name: torch.cat([values[number] for number in batch.example_ids]).to(device)
            for name, values in self.tokens.items()
        }

    def select(self, numbers: Sequence[int]) -> Experience:
        """Return the experience of the examples with these numbers; metrics are left out."""
        tokens = {
            name: [values[number] for number in numbers] for name, values in self.tokens.items()
        }
        return Experience([self.examples[number] for number in numbers], tokens)

    def divided(self) -> Experience:
        """Return the same experience with one example per branch; metrics are left out."""
        tokens: dict[str, list[torch.Tensor]] = {name: [] for name in self.tokens}
        for number, example in enumerate(self.examples):
            lengths = [len(branch.ids) for branch in example.branches]
            for name, values in self.tokens.items():
                tokens[name] += values[number].split(lengths)
        return Experience(branch_by_branch(self.examples), tokens)


class Sweep(Protocol):
    """Scores examples without gradient, through the same plan and kernels as the update does."""

    def __call__(self, examples: Sequence[Example], role: Role) -> list[torch.Tensor]:
        """Return, for every example, its log-probs [targets]."""

    def several(
        self, examples: Sequence[Example], role: Role, *wants: str
    ) -> dict[str, list[torch.Tensor]]:
        """Return, for each of `wants`, the flat values of every example: [targets], or [branches]
        for `last`."""


class OnlineAlgorithm(Method[C]):
    """A method over fresh answers to `prompts`."""

    needs = "prompts"

    @classmethod
    def judged_split(cls, config: C) -> str | None:
        """Return "dev" if a reward model judges (judge_check.py), else None."""
        return "dev" if config.reward_model else None

    def prepare(self, rows: Iterable[Row], builder: PromptBuilder) -> Prepared:
        """Return one task per row that something can judge and whose prompt fits, with drops
        counted."""
        prepared = Prepared()
        room = self.config.max_length - self.config.max_completion_length
        for number, row in enumerate(rows):
            if not self._can_be_judged(row):
                reason = "neither a checker nor a reference, and nothing else judges"
                prepared.dropped[reason] += 1
                continue
            try:
                ids = tuple(builder.prompt(row["prompt"], row.get("tools")))
            except DataError as error:
                prepared.dropped[f"{error.what}: {error.why}"] += 1
                continue
            if len(ids) > room:
                reason = f"prompt longer than max_length less max_completion_length ({room} tokens)"
                prepared.dropped[reason] += 1
                continue
            task = RolloutPrompt(ids, row, str(row["group"]), len(prepared.items))
            prepared.items.append(task)
            prepared.rows.append(number)
            prepared.tokens += len(ids)
        return prepared

    def _can_be_judged(self, row: Row) -> bool:
        if self.config.reward_model is not None:
            return True
        names = [name.partition("=")[0] for name in self.config.reward_functions]
        if any(name != "checker" for name in names):
            return True
        return row.get("checker") is not None or row.get("reference") is not None

    @abstractmethod
    def experience(self, collected: AnswerBatch, score: Sweep) -> Experience:
        """Compute advantages and whatever else the loss needs from a collected batch, without
        gradient."""

    @abstractmethod
    def loss(
        self,
        engine: ScoreEngine,
        batch: TreeBatch,
        values: Mapping[str, torch.Tensor],
        whole: Mapping[str, torch.Tensor],
    ) -> LossOut:
        """Return the share of one micro-batch in the loss, with metrics: `values` are its tokens',
        `whole` those of all tokens of the update, for denominators."""

    def tasks_to_resample(self, collected: AnswerBatch, attempt: int) -> list[int]:
        """Return the numbers of the tasks that have to be answered anew; called with `attempt` 1,
        2, ... until there are none."""
        return []

    def passes(self, step: int) -> int:
        """Return the number of passes over the batch of `step`."""
        return 1

    def minibatch(self, examples: int) -> int:
        """Return the number of examples per update."""
        return examples

    def verdict(self, metrics: Mapping[str, float]) -> Verdict:
        """Decide about an update whose gradients are in place and that gave these metrics: make it,
        skip it, or leave the batch."""
        return "update"

    def groups(self, engine: ScoreEngine) -> list[dict[str, Any]]:
        """Return the parameter groups of the optimiser; an empty list means one group of everything
        that trains."""
        return []

    def begin(self, parts: Parts) -> None:
        """Add further roles to the engine before the optimiser is made."""

    def state(self) -> dict[str, Any]:
        """Return the state that the method itself keeps between steps."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`."""


def branches(rollouts: Sequence[Rollout]) -> tuple[Branch, ...]:
    """Return answers as branches: every sampled token is a target, the final one included."""
    return tuple(Branch(rollout.ids) for rollout in rollouts)


def importance(
    logp: torch.Tensor, rollouts: Sequence[Rollout], cap: float
) -> tuple[torch.Tensor, dict[str, float]]:
    """Return ([targets] how much likelier each token is by `logp` than where it was sampled, at
    most `cap`; metrics of these ratios).

    Truncated importance sampling as TRL 1.16's token_truncate: an advantage is multiplied by it.
    """
    sampled: list[float] = []
    for rollout in rollouts:
        sampled += rollout.logps or ()
    ratio = (logp - logp.new_tensor(sampled)).exp().clamp(max=cap)
    prefix = "sampling/importance_sampling_ratio"
    return ratio, {
        f"{prefix}/min": float(ratio.min()),
        f"{prefix}/mean": float(ratio.mean()),
        f"{prefix}/max": float(ratio.max()),
    }
