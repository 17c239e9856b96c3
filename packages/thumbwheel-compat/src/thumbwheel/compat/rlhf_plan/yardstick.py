"""What the cycles of a learner are measured by: the same held-out queries and the same judge for
all of them.

Both are those of the first cycle and stay in the home. So the judge of a later cycle is the
incumbent's and not the one that the new assistant was trained to please, and a higher mean is a
better assistant and no other ruler. A held-out query stays held out, because the split goes by a
hash.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from thumbwheel.core.errors import DataError, ModelError
from thumbwheel.core.files import replace
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import ModelVersion
from thumbwheel.stats import paired

NAME = "continuous-learning.json"


@dataclass(frozen=True)
class Yardstick:
    """Prompts, and the name of the reward model that judges answers to them."""

    judge: str
    prompts: list[list[dict[str, Any]]]


@dataclass(frozen=True)
class Measured:
    """Rewards from 0 to 1 of the answers of the base and of the assistant, one a prompt."""

    before: Sequence[float]
    after: Sequence[float]

    def gain_interval(self) -> tuple[float, float] | None:
        """Return the ends of the mean gain with 95 % confidence; None below two prompts."""
        if len(self.after) < 2:
            return None
        comparison = paired.compare(self.before, self.after)
        return comparison.low, comparison.high

    def to_dict(self) -> dict[str, Any]:
        return {
            "average_reward": fmean(self.after),
            "base_average_reward": fmean(self.before),
            "gain_interval": self.gain_interval(),
            "test_samples": len(self.after),
        }


def yardstick(ws: Workspace, version: ModelVersion) -> Yardstick:
    """Return the stored yardstick; if there is none, make and store the one of this version. Raises
    DataError if nothing is held out, ModelError if there is no reward model."""
    from thumbwheel.evaluation.rows import gate_rows
    from thumbwheel.models import reward_models

    file = ws.home.reports / NAME
    if file.is_file():
        return Yardstick(**json.loads(file.read_text(encoding="utf-8")))
    prompts: dict[str, list[dict[str, Any]]] = {}
    for answer in gate_rows(ws, version).recorded_answers:
        prompts.setdefault(json.dumps(answer.prompt), answer.prompt)
    if not prompts:
        raise DataError(
            f"version {version.name!r}",
            "no held-out answer could be judged",
            "Collect more feedback",
        )
    judges = reward_models.reward_models(ws, version.agent)
    if not judges:
        raise ModelError(version.label, "no reward model can judge it", "Train one first")
    first = Yardstick(judges[-1].name, list(prompts.values()))
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace(file, json.dumps(asdict(first), ensure_ascii=False))
    return first


def measure(ws: Workspace, version: ModelVersion) -> Measured:
    """Ask the version and its base the queries of the yardstick, greedily, and judge the answers; a
    query whose answer is longer than the judge reads counts for neither."""
    from thumbwheel.core.hardware import device
    from thumbwheel.engine.reward_model import RewardInput, RewardModel
    from thumbwheel.evaluation.responder import ask
    from thumbwheel.evaluation.responders import Responders, base_of
    from thumbwheel.evaluation.types import Ask, EvaluationConfig
    from thumbwheel.models import reward_models

    ruler = yardstick(ws, version)
    config = ws.settings(EvaluationConfig, "evaluation")
    record = reward_models.find(ws, version.agent, ruler.judge)
    judge = RewardModel.load(reward_models.folder(ws, record), device=device())
    asks = [Ask(prompt, config.max_new_tokens) for prompt in ruler.prompts]
    responders = Responders(ws, config, (), version, base_of(ws, version))
    rewards = []
    try:
        for responder in responders.both:
            answers = ask(ws, version.agent_id, responder, asks, "answers")
            groups = []
            for prompt, reply in zip(ruler.prompts, answers, strict=True):
                groups.append([RewardInput(prompt, reply[0].text, reply[0].finish)])
            rewards.append([value for (value,) in judge.training_rewards(groups)])
    finally:
        responders.close()
    before: list[float] = []
    after: list[float] = []
    for first, second in zip(*rewards, strict=True):
        if math.isfinite(first) and math.isfinite(second):
            before.append(first)
            after.append(second)
    if not after:
        raise DataError(
            f"version {version.name!r}",
            "every answer is longer than the judge can read",
            "Train the reward model with a larger max_length",
        )
    return Measured(before, after)
