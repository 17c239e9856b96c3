"""PPO against a straight-line loop: plain padded Hugging Face forwards, GAE in plain Python, losses
as the papers write them.

Twenty updates (five batches, two passes, two minibatches each) with random non-zero adapters of
policy and critic: losses and gradients.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.tiny_models import tiny_base
from tests.worlds.ppo_world import PpoWorld, answers, world
from thumbwheel.engine.score import Role
from thumbwheel.training.online import AnswerBatch

BATCHES, PASSES = 5, 2


class Straight:
    """The same start as `world`, nothing of its code: PEFT's own switches, one padded batch, no
    tree."""

    def __init__(self, start: PpoWorld, shared: bool) -> None:
        self.config, self.shared = start.config, shared
        self.model = copy.deepcopy(start.engine.model)
        for layer in self.model.modules():
            layer.__dict__.pop("forward", None)  # PEFT's own arithmetic again
        self.head = copy.deepcopy(start.engine.role_model(Role.CRITIC).head)
        self.policy = [
            parameter for name, parameter in self.model.named_parameters() if ".default." in name
        ]
        policy_ids = [
            parameter for name, parameter in self.model.named_parameters() if ".critic." in name
        ]
        self.critic = [*policy_ids, *self.head.parameters()]
        self.beta, self.scores = self.config.init_kl_coef, list[float]()

    def forward(self, rows: list[tuple[list[int], list[int]]], who: str | None) -> tuple[Any, Any]:
        """(log-probs, values with the one behind the end) of each answer, as lists of tensors."""
        longest = max(len(prompt) + len(ids) for prompt, ids in rows)
        ids = torch.tensor(
            [
                prompt + answer + [0] * (longest - len(prompt) - len(answer))
                for prompt, answer in rows
            ]
        )
        mask = torch.tensor(
            [[1] * (len(p) + len(a)) + [0] * (longest - len(p) - len(a)) for p, a in rows]
        )
        if who is None:
            with self.model.disable_adapter():
                out = self.model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        else:
            self.model.set_adapter(who)
            for parameter in (*self.policy, *self.critic):
                parameter.requires_grad_(True)  # PEFT's switches take it away
            out = self.model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        logs = (out.logits / self.config.temperature).log_softmax(-1)
        worth = self.head(out.hidden_states[-1])[..., 0]
        logps, values = [], []
        for row, (prompt, answer) in enumerate(rows):
            positions = torch.arange(len(answer)) + len(prompt) - 1
            logps.append(logs[row, positions, torch.tensor(answer)])
            values.append(worth[row, len(prompt) - 1 : len(prompt) + len(answer)])
        return logps, values

    @property
    def critic_adapter(self) -> str:
        return "default" if self.shared else "critic"

    def prepare(self, collected: AnswerBatch) -> list[list[dict[str, Any]]]:
        """[task][answer] everything known about an answer before the updates."""
        config = self.config
        tasks = [
            [
                {
                    "row": (list(task.prompt), list(rollout.ids)),
                    "cut": rollout.finish == "length",
                    "score": reward.value,
                }
                for rollout, reward in zip(rollouts, rewards, strict=True)
            ]
            for task, rollouts, rewards in zip(
                collected.tasks, collected.rollouts, collected.rewards, strict=True
            )
        ]
        every = [answer for task in tasks for answer in task]
        rows = [answer["row"] for answer in every]
        with torch.no_grad():
            old, _ = self.forward(rows, "default")
            reference, _ = self.forward(rows, None)
            _, values = self.forward(rows, self.critic_adapter)
        self.scores += [answer["score"] for answer in every]
        mean = sum(self.scores) / len(self.scores)
        deviation = math.sqrt(sum((score - mean) ** 2 for score in self.scores) / len(self.scores))
        for answer, logp, base, worth in zip(every, old, reference, values, strict=True):
            kl = [float(a) - float(b) for a, b in zip(logp, base, strict=True)]
            rewards = [-self.beta * k for k in kl]
            if answer["cut"]:
                rewards[-1] -= config.missing_eos_penalty
                behind = float(worth[-1])
            else:
                rewards[-1] += max(-10.0, min(10.0, (answer["score"] - mean) / deviation))
                behind = 0.0
            worth = [float(v) for v in worth[:-1]]
            advantages = []
            for t in range(len(rewards)):
                total, decay = 0.0, 1.0
                for s in range(t, len(rewards)):
                    after = worth[s + 1] if s + 1 < len(rewards) else behind
                    total += decay * (rewards[s] + config.gamma * after - worth[s])
                    decay *= config.gamma * config.lam
                advantages.append(total)
            answer |= {"old": logp, "kl": kl, "values": worth, "advantages": advantages}
            answer["returns"] = [a + v for a, v in zip(advantages, worth, strict=True)]
        flat = [a for answer in every for a in answer["advantages"]]
        centre = sum(flat) / len(flat)
        scale = math.sqrt(sum((a - centre) ** 2 for a in flat) / len(flat) + 1e-8)
        for answer in every:
            answer["advantages"] = [(a - centre) / scale for a in answer["advantages"]]
        kl = sum(sum(answer["kl"]) for answer in every) / len(flat)
        self.beta *= (
            1
            + max(-0.2, min(0.2, kl / config.kl_target_per_token - 1))
            * len(every)
            / config.kl_horizon
        )
        return tasks

    def loss(self, every: list[dict[str, Any]]) -> Any:
        rows = [answer["row"] for answer in every]
        logps, _ = self.forward(rows, "default")
        _, values = self.forward(rows, self.critic_adapter)
        policy, value, tokens = 0.0, 0.0, 0
        for answer, logp, worth in zip(every, logps, values, strict=True):
            for t, advantage in enumerate(answer["advantages"]):
                ratio = (logp[t] - answer["old"][t]).exp()
                policy = policy + torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
                old, goal = answer["values"][t], answer["returns"][t]
                near = old + (worth[t] - old).clamp(-0.2, 0.2)
                value = value + 0.5 * torch.max((worth[t] - goal) ** 2, (near - goal) ** 2)
                tokens += 1
        return policy / tokens + 0.1 * value / tokens


def optimizer(policy: list[Any], critic: list[Any], config: Any) -> Any:
    eps = config.adam_epsilon
    return torch.optim.AdamW(
        [{"params": policy, "eps": eps}, {"params": critic, "eps": eps, "lr": 3e-3}],
        lr=config.learning_rate,
        weight_decay=0.0,
    )


def trained_parameters(trained: Any) -> list[Any]:
    """One clipped update; the gradients that it was made with."""
    for group in trained.param_groups:
        torch.nn.utils.clip_grad_norm_(group["params"], 1.0)
    gradients = [
        parameter.grad.clone()
        for group in trained.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    trained.step()
    trained.zero_grad(set_to_none=True)
    return gradients


@pytest.mark.slow
@pytest.mark.parametrize("critic", ["separate", "shared"])
@pytest.mark.parametrize(
    ("family", "dtype", "near"),
    [("gpt2", "float64", (1e-9, 1e-9)), ("qwen2", "float32", (5e-6, 1e-4))],
)
def test_twenty_updates_equal_a_straight_line_loop(
    critic: str, family: str, dtype: str, near: tuple[float, float], tmp_path: Path
) -> None:
    """GPT-2 in double precision: the norms of the Llama family round to single precision in any
    dtype."""
    near_loss, near_gradient = near
    base = tiny_base(tmp_path, family, initializer_range=0.1)
    changes = {
        "temperature": 0.7,
        "critic": critic,
        "kl_horizon": 50.0,
        "token_budget": 64,
        "learning_rate": 3e-3,
    }
    ours = world(base, dtype, **changes)
    plain = Straight(ours, critic == "shared")
    groups = ours.method.groups(ours.engine)
    left, right = (
        optimizer(p, c, ours.config)
        for p, c in ((groups[0]["params"], groups[1]["params"]), (plain.policy, plain.critic))
    )
    updates, clip = 0, 0.0
    for number in range(BATCHES):
        collected = answers(ours, seed=number)
        experience = ours.experience(collected)
        prepared = plain.prepare(collected)
        assert experience.metrics["kl"] != 0
        for members in ([0, 2], [1]) * PASSES:
            part = copy.copy(experience)
            part.examples = [experience.examples[index] for index in members]
            part.tokens = {
                name: [values[index] for index in members]
                for name, values in experience.tokens.items()
            }
            loss, metrics = ours.loss(part, backward=True)
            expected = plain.loss([example for index in members for example in prepared[index]])
            expected.backward()
            assert loss == pytest.approx(float(expected.detach()), abs=near_loss, rel=near_loss)
            learned_adapters, wanted = trained_parameters(left), trained_parameters(right)
            floor = 1e-3 * math.hypot(
                *(float(gradient.norm()) for gradient in wanted)
            )  # a bias is a sum of terms that cancel: it rounds as they do
            for gradient, other in zip(learned_adapters, wanted, strict=True):
                assert float((gradient - other).norm()) <= near_gradient * (
                    float(other.norm()) + floor
                )
            updates += 1
            clip = max(clip, metrics["policy/clipfrac_avg"])
    assert updates == 20
    assert clip > 0.02  # old and new policy differ enough for the clipping to matter
    assert ours.method.state()["kl_coef"] == pytest.approx(plain.beta, rel=near_loss)
