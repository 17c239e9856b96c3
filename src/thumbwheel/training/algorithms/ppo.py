"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347) on fresh answers, with a
critic on the same frozen base.

An episode is an answer, an action is a token. What a token earns is -kl_coef * KL(policy || base),
and the last one the judge's score, normalised by its running mean and deviation. The ending token
is learned like the others and nothing comes after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from thumbwheel.engine.rollout import Rollout
from thumbwheel.engine.score import Role, RoleModel, ScoreEngine
from thumbwheel.engine.tree import Example, TreeBatch
from thumbwheel.training import critic
from thumbwheel.training.algorithm import LossOut, Metrics, Parts, mean
from thumbwheel.training.group import KlEstimator, clipped, divergence
from thumbwheel.training.online import (
    AnswerBatch,
    Experience,
    OnlineAlgorithm,
    OnlineConfig,
    Sweep,
    Verdict,
    branches,
    importance,
)
from thumbwheel.training.returns import KlController, Moments, explained_variance, gae, whiten
from thumbwheel.training.types import TrainConfig

if TYPE_CHECKING:
    import torch

POLICY_WANTS = ("logp", "entropy")
CRITIC_WANTS = ("value", "last")


class PpoConfig(OnlineConfig):
    """Settings of ppo."""

    reward_model_defaults: ClassVar[Mapping[str, Any]] = {
        "init_kl_coef": 0.4,
        "kl_target_per_token": 0.05,
    }
    num_generations: int = Field(default=4, ge=1)
    """Answers sampled to each prompt; they are learned from one by one."""
    batch_size: int = Field(default=16, ge=1)
    """Prompts a step."""
    lr_scheduler_type: Literal["cosine", "linear", "constant"] = "linear"
    """How the learning rates fall after the warm-up."""
    num_ppo_epochs: int = Field(default=4, ge=1)
    """Passes over a batch of answers."""
    num_mini_batches: int = Field(default=1, ge=1)
    """Updates a pass; the prompts are shuffled anew for each."""
    critic: Literal["separate", "shared"] = "separate"
    """separate: an adapter of its own, the reward model's to begin with where that fits; shared: a
    head on the policy's trunk, faster."""
    critic_learning_rate: float | None = Field(default=None, gt=0)
    """Peak learning rate of the critic; unset, the policy's."""
    critic_warmup_steps: int = Field(default=2, ge=0)
    """First steps that train the critic alone."""
    adam_epsilon: float = Field(default=1e-5, gt=0)
    """Adam's epsilon: larger than torch's 1e-8, which makes first updates large where gradients are
    small."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount a token."""
    lam: float = Field(default=0.95, ge=0, le=1)
    """Lambda of the advantages."""
    lambda_critic: float | None = Field(default=None, ge=0, le=1)
    """Lambda of the returns that the critic learns; unset, the same. 1 is better for long answers
    (VC-PPO)."""
    cliprange: float = Field(default=0.2, gt=0)
    """Change of a token's probability ratio beyond which nothing more is gained."""
    cliprange_value: float = Field(default=0.2, gt=0)
    """Change of a value in one batch beyond which nothing more is gained, in standard deviations of
    the reward."""
    vf_coef: float = Field(default=0.1, gt=0)
    """Weight of the value loss."""
    whiten_rewards: bool = False
    """Divide the tokens' rewards by their standard deviation over the batch; the mean is left."""
    normalize_reward: bool = True
    """Measure scores from their running mean in running standard deviations."""
    reward_clip: float = Field(default=10.0, gt=0)
    """Most that a score may be, either way, after normalisation."""
    missing_eos_penalty: float = Field(default=1.0, ge=0)
    """Taken from what an answer earns that was cut off, in standard deviations of the reward."""
    truncated: Literal["bootstrap", "score"] = "bootstrap"
    """What else a cut-off answer earns: the critic's opinion of how it would have ended, or the
    score of the text so far."""
    init_kl_coef: float = Field(default=0.2, ge=0)
    """First weight of the KL to the base: standard deviations of the reward a nat. With a reward
    model 0.4."""
    kl_target_per_token: float | None = Field(default=0.1, gt=0)
    """Nats a token that the weight steers the KL towards; unset, the weight stays. With a reward
    model 0.05."""
    kl_horizon: float = Field(default=1000.0, gt=0)
    """Answers over which the weight adapts: n of them change it by at most 0.2 * n / kl_horizon of
    itself."""
    kl_estimator: KlEstimator = "k1"
    """Of the KL that is part of the reward: k1 is unbiased there; k2 and k3 are never negative."""
    early_stop_kl: float | None = Field(default=0.02, gt=0)
    """Nats a token between the policy that sampled and the one that learns; at 1.5 times this the
    rest of the batch is left."""
    ratio_threshold: float = Field(default=10.0, gt=1)
    """An update whose mean probability ratio is above this is not made."""


class Ppo(OnlineAlgorithm[PpoConfig]):
    """Clipped policy and value losses, each a mean over the tokens of the update: policy + vf_coef
    * value."""

    name: ClassVar[str] = "ppo"
    title: ClassVar[str] = "PPO"
    rate: ClassVar[float] = 1e-4
    regularizer_setting: ClassVar[str | None] = "init_kl_coef"
    Config: ClassVar[type[TrainConfig]] = PpoConfig

    def __init__(self, config: PpoConfig) -> None:
        super().__init__(config)
        self._moments = Moments()
        self._kl = KlController(config.init_kl_coef, config.kl_target_per_token, config.kl_horizon)
        self._batches = 0
        self._from_reward_model = False

    @property
    def _warming(self) -> bool:
        """Whether the batch at work is one of those that train the critic alone."""
        return self._batches <= self.config.critic_warmup_steps

    def begin(self, parts: Parts) -> None:
        """Add the critic to the engine."""
        engine = parts.engine
        if self.config.critic == "shared":
            critic_model = critic.shared(engine)
        else:
            critic_model = critic.separate(engine, parts.reward_model, self.config.seed)
        self._from_reward_model = bool(critic_model.head.weight.any())
        engine.add(Role.CRITIC, critic_model)
        self._critic_model: RoleModel = engine.role_model(Role.CRITIC)
        self._policy = engine.parameters_of(Role.POLICY)
        policy_ids = {id(parameter) for parameter in self._policy}
        self._critic = [
            parameter
            for parameter in engine.parameters_of(Role.CRITIC)
            if id(parameter) not in policy_ids
        ]
        critic.train(self._critic)

    def groups(self, engine: ScoreEngine) -> list[dict[str, Any]]:
        """Return the parameter groups of policy and critic, each with its learning rate."""
        config = self.config
        return [
            {"params": self._policy, "eps": config.adam_epsilon},
            {
                "params": self._critic,
                "eps": config.adam_epsilon,
                "lr": config.critic_learning_rate or config.peak_rate,
            },
        ]

    def passes(self, step: int) -> int:
        return self.config.num_ppo_epochs

    def minibatch(self, examples: int) -> int:
        """Return the number of prompts of one mini-batch: `num_mini_batches` equal shares, rounded
        up."""
        return -(-examples // self.config.num_mini_batches)

    def verdict(self, metrics: Mapping[str, float]) -> Verdict:
        """Return "skip" for an update whose ratios are absurd, "leave" for a batch that the policy
        has moved away from, else "update"."""
        config = self.config
        if metrics.get("val/ratio", 1.0) > config.ratio_threshold:
            return "skip"
        kl = metrics.get("policy/approxkl_avg", 0.0)
        if config.early_stop_kl is not None and kl > 1.5 * config.early_stop_kl:
            return "leave"
        return "update"

    def experience(self, collected: AnswerBatch, score: Sweep) -> Experience:
        """Return old log-probs, values, returns and whitened advantages of every token."""
        import torch

        judged = judged_answers(collected)
        examples, rollouts, scores = judged.examples, judged.rollouts, judged.scores
        if not examples:
            return Experience([])
        self._moments.add(scores)
        if self._batches == 0 and self._from_reward_model:
            opinions = score.several(examples, Role.CRITIC, "last")["last"]
            self._rescale_critic(torch.cat(opinions).tolist())
        self._begin_batch()

        # r_t = -kl_coef * KL_t, and the score on the last token of every answer.
        logp, entropy, values, last_values = self._score_tokens(examples, score)
        reference = torch.cat(score(examples, Role.REF)).to(logp)
        rewards = -self._kl.coefficient * divergence(self.config.kl_estimator, logp, reference)
        lengths = [len(rollout.ids) for rollout in rollouts]
        last_tokens = torch.tensor(lengths).cumsum(0) - 1
        final_rewards = rewards.new_tensor(
            [
                self._final_reward(rollout, answer_score)
                for rollout, answer_score in zip(rollouts, scores, strict=True)
            ]
        )
        rewards[last_tokens.to(rewards.device)] += final_rewards
        if self.config.whiten_rewards:
            rewards /= rewards.std(correction=0) + 1e-8

        # Nothing follows an answer that ended; a cut-off one goes on as the critic expects.
        goes_on = values.new_tensor([self._bootstrapped(rollout) for rollout in rollouts])
        next_values = last_values * goes_on
        config = self.config
        advantages = gae(rewards, values, next_values, lengths, config.gamma, config.lam)
        returns = values + advantages
        if config.lambda_critic is not None:
            returns = values + gae(
                rewards, values, next_values, lengths, config.gamma, config.lambda_critic
            )
        tokens = {
            "old": logp,
            "values": values,
            "returns": returns,
            "advantages": whiten(advantages),
        }

        kl_sum = float((logp - reference).sum())
        kl = float((logp - reference).mean())
        metrics = {
            "kl": kl,
            "kl_coef": self._kl.coefficient,
            "entropy": float(entropy.mean()),
            "objective/scores": sum(map(self._normalised, scores)) / len(scores),
            "objective/non_score_reward": -self._kl.coefficient * kl_sum / len(rollouts),
            "val/explained_variance": explained_variance(values, returns),
        }
        self._kl.update(kl, len(rollouts))

        if collected.off_policy:
            weights, ratio_metrics = importance(logp, rollouts, config.importance_cap)
            tokens["advantages"] = tokens["advantages"] * weights
            metrics = metrics | ratio_metrics
        sizes = [sum(len(branch.ids) for branch in example.branches) for example in examples]
        by_example = {name: list(torch.split(flat, sizes)) for name, flat in tokens.items()}
        return Experience(examples, by_example, metrics)

    def _rescale_critic(self, opinions: Sequence[float]) -> None:
        """Rescale a critic that began as the reward model to the unit of the rewards; `opinions`
        are its values of the first answers. A reward model may score in logits but reward in
        probabilities, or be one judge of several."""
        current = Moments()
        current.add(opinions)
        target = Moments(variance=1.0) if self.config.normalize_reward else self._moments
        critic.rescale(self._critic_model, current, target)

    def _begin_batch(self) -> None:
        self._batches += 1
        if self.config.critic == "shared":
            # The head's gradient reaches the trunk, which is the policy's.
            for parameter in self._policy:
                parameter.requires_grad_(not self._warming)

    def _score_tokens(
        self, examples: Sequence[Example], score: Sweep
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (log-prob, entropy, value) of every token and the value after the last token of
        every answer."""
        import torch

        if self.config.critic == "shared":
            scores = score.several(examples, Role.CRITIC, *POLICY_WANTS, *CRITIC_WANTS)
        else:
            scores = score.several(examples, Role.POLICY, *POLICY_WANTS)
            scores |= score.several(examples, Role.CRITIC, *CRITIC_WANTS)
        logp, entropy, value, last = (
            torch.cat(scores[name]) for name in (*POLICY_WANTS, *CRITIC_WANTS)
        )
        return logp, entropy, value, last

    def _normalised(self, score: float) -> float:
        clip = self.config.reward_clip
        if self.config.normalize_reward:
            return self._moments.normalised(score, clip)
        return min(max(score, -clip), clip)

    def _bootstrapped(self, rollout: Rollout) -> bool:
        return rollout.finish == "length" and self.config.truncated == "bootstrap"

    def _final_reward(self, rollout: Rollout, score: float) -> float:
        """Return the reward on the last token of an answer, without its KL penalty."""
        reward = 0.0 if self._bootstrapped(rollout) else self._normalised(score)
        if rollout.finish == "length":
            reward -= self.config.missing_eos_penalty
        return reward

    def loss(
        self,
        engine: ScoreEngine,
        batch: TreeBatch,
        values: Mapping[str, torch.Tensor],
        whole: Mapping[str, torch.Tensor],
    ) -> LossOut:
        """Return the share of one micro-batch in the loss, and its metrics; while the critic warms
        up, only the value loss counts."""
        logp, value = self._scores(engine, batch)
        # What was sampled is kept on the CPU.
        values = {name: tensor.to(value) for name, tensor in values.items()}
        n_tokens = len(whole["old"])
        loss, metrics = self._value_loss(value, values, n_tokens)
        if logp is not None:
            policy_loss, policy_metrics = self._policy_loss(logp, values, n_tokens)
            loss = policy_loss + loss
            metrics = metrics | policy_metrics
        return LossOut(loss, metrics)

    def _scores(
        self, engine: ScoreEngine, batch: TreeBatch
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        wants = frozenset({"value"}) if self._warming else frozenset({"logp", "value"})
        if self.config.critic == "shared":
            scores = engine.score(batch, Role.CRITIC, outputs=wants, grad=True)
            return scores.logp, scores.value
        logp = None if self._warming else engine.score(batch, Role.POLICY, grad=True).logp
        return logp, engine.score(batch, Role.CRITIC, outputs=frozenset({"value"}), grad=True).value

    def _policy_loss(
        self, logp: torch.Tensor, values: Mapping[str, torch.Tensor], n_tokens: int
    ) -> tuple[torch.Tensor, Metrics]:
        epsilon = self.config.cliprange
        ratio = (logp - values["old"]).exp()
        losses = clipped(ratio, values["advantages"], epsilon, epsilon)
        ratio = ratio.detach()
        is_clipped = ((ratio - 1).abs() > epsilon).to(ratio)
        return losses.sum() / n_tokens, {
            "loss/policy_avg": mean(losses),
            "policy/approxkl_avg": mean(divergence("k3", values["old"], logp.detach())),
            "policy/clipfrac_avg": mean(is_clipped),
            "val/ratio": mean(ratio),
        }

    def _value_loss(
        self, value: torch.Tensor, values: Mapping[str, torch.Tensor], n_tokens: int
    ) -> tuple[torch.Tensor, Metrics]:
        import torch

        old, returns, epsilon = values["values"], values["returns"], self.config.cliprange_value
        value_clipped = old + (value - old).clamp(-epsilon, epsilon)
        losses = torch.maximum((value - returns) ** 2, (value_clipped - returns) ** 2) / 2
        is_clipped = ((value.detach() - old).abs() > epsilon).to(value)
        return self.config.vf_coef * losses.sum() / n_tokens, {
            "loss/value_avg": mean(losses),
            "val/clipfrac_avg": mean(is_clipped),
        }

    def state(self) -> dict[str, Any]:
        """Return the critic's weights, the reward's moments, the KL coefficient and the number of
        batches."""
        weights = [parameter.detach().cpu().clone() for parameter in self._critic]
        return {
            "critic": weights,
            "moments": self._moments.state(),
            "kl_coef": self._kl.coefficient,
            "batches": self._batches,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        for parameter, weights in zip(self._critic, state["critic"], strict=True):
            parameter.data.copy_(weights)
        self._moments.restore(state["moments"])
        self._kl.coefficient, self._batches = state["kl_coef"], state["batches"]


@dataclass
class JudgedAnswers:
    """What is learned from: `rollouts` and the judge's `scores` are in the order of the branches
    of `examples`."""

    examples: list[Example] = field(default_factory=list)
    rollouts: list[Rollout] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)


def judged_answers(collected: AnswerBatch) -> JudgedAnswers:
    """Return the answers that have a reward and at least one token."""
    judged = JudgedAnswers()
    groups = zip(collected.tasks, collected.rollouts, collected.values, strict=True)
    for task, rollouts, values in groups:
        rollouts_of_task: list[Rollout] = []
        for rollout, value in zip(rollouts, values, strict=True):
            if value is not None and rollout.ids:
                rollouts_of_task.append(rollout)
                judged.scores.append(value)
        if rollouts_of_task:
            example = Example(task.prompt, branches(rollouts_of_task), task.group)
            judged.examples.append(example)
            judged.rollouts += rollouts_of_task
    return judged
