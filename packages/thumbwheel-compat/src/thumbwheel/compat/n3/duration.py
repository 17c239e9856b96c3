"""How long a training of both stages would take: counted tokens by the speed of this machine.

The speed is that of past runs of the home over the same base, where there are any, else that of
matrix products, which is measured once and stored. Answers are taken at their full length.
`thumbwheel train ppo --dry-run` measures real steps instead, which takes minutes.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thumbwheel.compat.n3.config import TrainingConfig
from thumbwheel.compat.n3.datasets import FeedbackExample
from thumbwheel.core.config import Home, build

SPEED = "speed.json"
MEASURED_S = 0.3
SHORTEST = 0.01
"""Minutes."""
TRAINING, ANSWERING = 0.4, 0.1
"""Shares of the speed of large products that training and writing answers reach."""
FORWARD, UPDATE, FULL_UPDATE = 2, 4, 6
"""Operations a parameter and token: an answer that is read, a step of an adapter, a step of all
weights (Kaplan et al. 2020)."""


@dataclass(frozen=True)
class Work:
    """Tokens of the two stages."""

    reward: float
    answers: float
    """Prompts and answers of all steps of PPO, once each."""


def expected_minutes(
    config: TrainingConfig,
    rows: Sequence[FeedbackExample],
    cache: Path | None = None,
    seconds_a_token: dict[str, float] | None = None,
) -> float:
    """Estimate the minutes that a reward model and PPO take on these rows.

    `seconds_a_token` has the speed of past runs by method. Raises ModelError for a base that is not
    on this machine.
    """
    from thumbwheel.engine.load import count_parameters
    from thumbwheel.models.base import locate

    _, folder = locate(config.base_model)
    work = _work(config, rows, folder)
    past = seconds_a_token or {}
    parameters = count_parameters(folder)
    speed = operations_a_second(cache or Home.at().cache)
    update = UPDATE if config.use_lora else FULL_UPDATE

    reward = work.reward * past.get("reward", parameters * update / (speed * TRAINING))
    # an answer is written, read by the reference and the judge, and learned from by policy and
    # critic in every epoch
    written = parameters * FORWARD / (speed * ANSWERING)
    read = parameters * 2 * FORWARD / (speed * TRAINING)
    learned = parameters * 2 * update * config.ppo_epochs / (speed * TRAINING)
    policy = work.answers * past.get("ppo", written + read + learned)
    return max(SHORTEST, round((reward + policy) / 60, 2))


def learning_rate(config: TrainingConfig) -> float:
    """Return the learning rate of the policy: the set one, else the one for the base's width."""
    from thumbwheel.models.base import locate
    from thumbwheel.training.algorithms.ppo import Ppo
    from thumbwheel.training.base_defaults import with_base_defaults

    if config.learning_rate is not None:
        return config.learning_rate
    _, folder = locate(config.base_model)
    settings = build(Ppo.Config, {"tuning": "lora" if config.use_lora else "full"}, "ppo")
    rate = with_base_defaults(settings, Ppo, folder).learning_rate
    assert rate is not None  # noqa: S101 - with_base_defaults fills it in
    return rate


def seconds_a_token(runs: Sequence[Any]) -> dict[str, float]:
    """Return method -> median seconds per token of past runs that were not resumed."""
    rates: dict[str, list[float]] = {}
    for run in runs:
        metrics = run.metrics or {}
        steps = metrics.get("steps", 0) / max(1, metrics.get("planned_steps", 1))
        tokens = metrics.get("planned_tokens", 0.0) * steps
        if tokens and metrics.get("seconds") and not metrics.get("resumed"):
            rates.setdefault(run.algorithm, []).append(metrics["seconds"] / tokens)
    return {method: statistics.median(values) for method, values in rates.items()}


def operations_a_second(cache: Path) -> float:
    """Return the stored speed of this machine's matrix products in operations per second; measure
    and store it if none is stored."""
    import torch

    from thumbwheel.core.files import replace

    file = cache / SPEED
    machine = f"{torch.__version__}, {torch.get_num_threads()} threads"
    stored: dict[str, Any] = {}
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        return float(stored[machine])
    except (OSError, ValueError, KeyError, TypeError):
        speed = _measured()
    with suppress(OSError):  # where the cache cannot be written, the next call measures again
        cache.mkdir(parents=True, exist_ok=True)
        replace(file, json.dumps({**stored, machine: speed}))
    return speed


def _measured() -> float:
    import torch

    size = 512
    left, right = torch.rand(size, size), torch.rand(size, size)
    left @ right
    products, started = 0, time.perf_counter()
    while time.perf_counter() - started < MEASURED_S:
        left @ right
        products += 1
    return products * 2 * size**3 / (time.perf_counter() - started)


def _work(config: TrainingConfig, rows: Sequence[FeedbackExample], base: Path) -> Work:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base, trust_remote_code=False)

    def count(texts: Sequence[str], longest: int) -> int:
        if not texts:
            return 0
        encoded = tokenizer(list(texts), truncation=True, max_length=longest)["input_ids"]
        return sum(len(ids) for ids in encoded)

    judge = config.reward_model()
    reward = count([row.text for row in rows], judge.max_length) * judge.num_epochs
    prompts = list(dict.fromkeys(row.prompt for row in rows))
    prompt_length = count(prompts, config.dataset.max_prompt_length) / max(1, len(prompts))
    answers = config.max_steps * config.batch_size * config.gradient_accumulation_steps
    return Work(reward, answers * (prompt_length + config.max_new_tokens))
