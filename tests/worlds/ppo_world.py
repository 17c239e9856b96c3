"""PPO at work on a tiny model without a loop: an engine whose policy is not its base, a sweep, and
answers made up token by token."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.training_rows import shake
from thumbwheel.engine.load import LoraSettings, attach_lora, load_base
from thumbwheel.engine.prompt import PromptBuilder
from thumbwheel.engine.rollout import Rollout
from thumbwheel.engine.score import Role, ScoreEngine
from thumbwheel.engine.tree import plan
from thumbwheel.training.algorithm import Metrics, Parts
from thumbwheel.training.algorithms.ppo import Ppo, PpoConfig
from thumbwheel.training.judge import Reward
from thumbwheel.training.memory import Budget
from thumbwheel.training.online import AnswerBatch, Experience, RolloutPrompt
from thumbwheel.training.online_step import EngineSweep
from thumbwheel.training.step import means

Answer = tuple[int, str, float | None]
"""Tokens, finish, score."""
BATCH: tuple[tuple[Answer, ...], ...] = (
    ((4, "stop", 1.0), (6, "length", 0.2), (1, "stop", -0.5)),
    ((3, "stop", 0.4),),
    ((5, "length", 2.0), (2, "stop", 0.0)),
)


@dataclass
class PpoWorld:
    method: Ppo
    engine: ScoreEngine
    builder: PromptBuilder
    sweep: EngineSweep
    config: PpoConfig = field(init=False)

    def __post_init__(self) -> None:
        self.config = self.method.config

    def experience(self, collected: AnswerBatch) -> Experience:
        return self.method.experience(collected, self.sweep)

    def loss(
        self, parts: Experience, budget: int | None = None, backward: bool = False
    ) -> tuple[float, dict[str, float]]:
        """(loss, metrics) of one update on all of it; with `backward`, gradients are in place."""
        import torch

        whole = {name: torch.cat(values) for name, values in parts.tokens.items()}
        total, metrics = 0.0, list[Metrics]()
        for batch in plan(parts.examples, budget or self.config.token_budget, self.engine.layout):
            out = self.method.loss(self.engine, batch, parts.for_batch(batch), whole)
            if backward:
                out.loss.backward()
            total += float(out.loss.detach())
            metrics.append(out.metrics)
        return total, means(metrics)


def parts_of(
    base: Path, config: PpoConfig, dtype: Any = "float32", reward_model: Path | None = None
) -> Parts:
    """An engine over `base` with a new adapter, at the temperature of sampling."""
    model, tokenizer = load_base(str(base), dtype)
    adapted, _ = attach_lora(
        model, LoraSettings(rank=config.lora_r, alpha=config.lora_alpha), seed=config.seed
    )
    engine = ScoreEngine(adapted)
    engine.temperature = config.temperature
    return Parts(engine, PromptBuilder(tokenizer), base / "unused.db", reward_model)


def config_of(**changes: Any) -> PpoConfig:
    """Small, and without a warm-up of the critic unless asked for."""
    return PpoConfig(
        **{"learning_rate": 1e-3, "critic_warmup_steps": 0, "lora_r": 4, "lora_alpha": 8} | changes
    )


def world(base: Path, dtype: Any = "float32", shaken: float = 0.1, **changes: Any) -> PpoWorld:
    """Policy and critic with random adapters of this scale (0: as they start)."""
    config = config_of(**changes)
    method, parts = Ppo(config), parts_of(base, config, dtype)
    method.begin(parts)
    if shaken:
        shake(parts.engine.model, scale=shaken)
        shake(parts.engine.role_model(Role.CRITIC).head, seed=6)
    return PpoWorld(
        method,
        parts.engine,
        parts.builder,
        EngineSweep(parts.engine, Budget(parts.engine, config.token_budget)),
    )


def answers(
    world: PpoWorld, batch: Sequence[Sequence[Answer]] = BATCH, seed: int = 0
) -> AnswerBatch:
    """Random tokens of these lengths; an answer that stopped ends with the end token."""
    chance, tokenizer = random.Random(seed), world.builder.tokenizer
    tasks, rollouts, rewards = [], [], []
    for number, several in enumerate(batch):
        row = {
            "prompt": [
                {"role": "user", "content": f"Question {number}: add {chance.randrange(100)}"}
            ],
            "group": f"g{number}",
        }
        tasks.append(
            RolloutPrompt(tuple(world.builder.prompt(row["prompt"])), row, f"g{number}", number)
        )
        ppo = []
        for length, finish, _ in several:
            ids = [chance.randrange(10, len(tokenizer)) for _ in range(length)]
            ids[-1:] = [tokenizer.eos_token_id] if finish == "stop" else ids[-1:]
            ppo.append(
                Rollout(tuple(ids), None, finish, tokenizer.decode(ids, skip_special_tokens=True))
            )
        rollouts.append(ppo)
        rewards.append([Reward(score, {}, {}, None) for _, _, score in several])
    return AnswerBatch(tasks, rollouts, rewards)


def flat(parts: Experience, name: str) -> Any:
    """One of its tensors over all tokens."""
    import torch

    return torch.cat(parts.tokens[name])
