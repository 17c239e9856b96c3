"""GRPO in double precision against the formula written out answer by answer over the plain model:
losses and gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_grpo_parity import Recorded

from tests.models.tiny_models import tiny_base
from tests.training_rows import assembled, logps, plain_rows, shake
from thumbwheel.training.group import SCALE_FLOOR

TEMPERATURE = 0.7
DIVISORS = {
    "dapo": lambda length, answers, tokens: tokens,
    "grpo": lambda length, answers, tokens: answers * length,
    "dr_grpo": lambda length, answers, tokens: answers * 12,
}


def by_hand(assembly: Any, batch: Any, old: Any, reference: Any) -> Any:
    import torch

    config, total = assembly.config, 0.0
    answers = [parameter for group in batch.rollouts for parameter in group]
    tokens = sum(len(answer.ids) for answer in answers)
    for task, group, values in zip(batch.tasks, batch.rollouts, batch.values, strict=True):
        rewards = torch.tensor(values, dtype=torch.float64)
        for parameter, reward in zip(group, rewards, strict=True):
            advantage = (reward - rewards.mean()) / (rewards.std() + SCALE_FLOOR)
            now = logps(assembly.model, task.prompt, parameter.ids, TEMPERATURE)
            ratio = torch.exp(now - old[parameter])
            gap = now - reference[parameter]
            distance = {
                "k1": ratio * gap,
                "k2": ratio.detach() * gap**2 / 2,
                "k3": ratio * (torch.exp(-gap) - 1 + gap),
            }
            losses = -torch.minimum(
                ratio * advantage, ratio.clamp(1 - config.epsilon, 1 + config.epsilon) * advantage
            )
            losses = losses + config.beta * distance[config.kl_estimator]
            total = (
                total
                + (
                    losses / DIVISORS[config.loss_type](len(parameter.ids), len(answers), tokens)
                ).sum()
            )
    return total


@pytest.mark.parametrize(
    ("loss_type", "estimator"), [("dapo", "k1"), ("grpo", "k2"), ("dr_grpo", "k3")]
)
def test_policy_old_policy_and_base_apart(tmp_path: Path, loss_type: str, estimator: str) -> None:
    """GPT-2, because the norms of Qwen and Llama always compute in single precision."""
    import torch

    base = tiny_base(tmp_path / "base", "gpt2")

    assembly = assembled(
        "grpo",
        base,
        tmp_path,
        plain_rows("prompts", 4),
        loss_type=loss_type,
        kl_estimator=estimator,
        beta=0.3,
        num_iterations=2,
        temperature=TEMPERATURE,
        max_completion_length=12,
        token_budget=100,
        reward_functions=("reward_functions:spoken",),
    )
    assembly.model.double()
    steps = assembly.runner
    steps.source = Recorded(assembly.builder.tokenizer.eos_token_id)
    shake(assembly.model, seed=1)
    batch = steps.collect(assembly.train.items, 4, steps._sampling(0))
    steps.close()
    experience = assembly.method.experience(batch, steps._sweep)
    answers = [
        (task.prompt, parameter)
        for task, group in zip(batch.tasks, batch.rollouts, strict=True)
        for parameter in group
    ]
    with torch.no_grad():
        old = {
            answer: logps(assembly.model, prompt, answer.ids, TEMPERATURE)
            for prompt, answer in answers
        }
        with assembly.model.disable_adapter():
            reference = {
                answer: logps(assembly.model, prompt, answer.ids, TEMPERATURE)
                for prompt, answer in answers
            }
    shake(assembly.model, seed=2)
    trained = [parameter for parameter in assembly.model.parameters() if parameter.requires_grad]
    loss, metrics, _ = steps._gradients(experience)
    engine_gradient = torch.cat([parameter.grad.flatten() for parameter in trained])
    assembly.model.zero_grad()
    expected = by_hand(assembly, batch, old, reference)
    torch.autograd.backward(expected)
    gradient = torch.cat([parameter.grad.flatten() for parameter in trained])
    assert engine_gradient.dtype == torch.float64 and metrics["clip_ratio/region_mean"] > 0.1
    assert loss == pytest.approx(float(expected.detach()), rel=1e-9)
    assert float((engine_gradient - gradient).norm() / gradient.norm()) < 1e-9
