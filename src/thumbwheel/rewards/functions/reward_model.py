"""`reward_model`: what a trained reward model says, from 0 to 1.

A regression model's place between the ends of its scale (cut off at the ends); for the others the
logistic function of their output: the chance of being good after classification, and after training
on pairs a number in which only the order means something. Needs the extra `train`: without it, and
without the model, every score is blocked, with the reason.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core.config import Config
from thumbwheel.core.errors import MissingExtra, ModelError, ThumbwheelError
from thumbwheel.rewards.function import BatchRewardFunction, Case, JudgementStatus, Score

CARD = "reward.json"

if TYPE_CHECKING:
    from thumbwheel.engine.reward_model import RewardModel as Model


class RewardModelSettings(Config):
    """Settings of `reward_model`."""

    model: str
    """The reward model: a folder with its reward.json; in the ledger also rm1, rm2, ... or latest,
    of the same agent."""
    device: str = "cpu"
    """Where it runs, as torch names it."""


class RewardModelFunction(BatchRewardFunction[RewardModelSettings]):
    Config = RewardModelSettings
    reads = frozenset({"text", "prompt", "finish", "tools"})

    def __init__(self, config: RewardModelSettings) -> None:
        super().__init__(config)
        self._loaded: Model | None = None

    def identity(self) -> Any:
        """Return the hash of each file of the folder, wherever it lies."""
        folder = Path(self.config.model)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return {
            path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
        }

    def judge_all(self, cases: Sequence[Case]) -> list[Score]:
        try:
            model = self._loaded = self._loaded or self._load()
        except ThumbwheelError as error:
            return [Score.none(JudgementStatus.BLOCKED, str(error)) for _ in cases]
        from thumbwheel.engine.reward_model import RewardInput

        outputs = model.score(
            [
                RewardInput(
                    [dict(message) for message in case.prompt], case.text, case.finish, case.tools
                )
                for case in cases
            ]
        )
        return [self._as_score(model, value) for value in outputs]

    def _load(self) -> Model:
        if not (Path(self.config.model) / CARD).is_file():
            raise ModelError(
                f"reward model {self.config.model!r}",
                f"there is no {CARD} in that folder",
                "Name one that was trained",
            )
        try:
            import peft  # noqa: F401 - the first thing that is missing names the extra
            import torch  # noqa: F401
        except ImportError as error:
            raise MissingExtra.of(
                "reward function 'reward_model'", error.name or "torch", "train"
            ) from None
        from thumbwheel.engine.reward_model import RewardModel as Loaded

        return Loaded.load(Path(self.config.model), device=self.config.device)

    def _as_score(self, model: Model, value: float) -> Score:
        if math.isnan(value):
            return Score.none(
                JudgementStatus.FAILED,
                f"prompt and answer are longer than the model reads ({model.card.max_length} "
                "tokens)",
            )
        evidence: dict[str, Any] = {"output": value, "loss_type": model.card.loss_type}
        if model.scale is not None:
            return Score(
                min(1.0, max(0.0, (value + 1) / 2)),
                evidence=evidence | {"raw": model.scale.raw(value)},
            )
        return Score(0.5 * (1 + math.tanh(value / 2)), evidence=evidence)
