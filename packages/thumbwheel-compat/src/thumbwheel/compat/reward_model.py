"""A trained reward model as a folder of files: the base of the systems' `RewardModel` classes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Self

from thumbwheel.core.errors import Conflict

if TYPE_CHECKING:
    from thumbwheel.engine.reward_model import RewardModel as Scorer


class SavedRewardModel:
    """The reward model in `folder`, loaded when it is first needed."""

    def __init__(self, folder: str | Path, device: str = "auto") -> None:
        self.folder = Path(folder)
        self.device = device
        self._scorer: Scorer | None = None

    @classmethod
    def load_pretrained(cls, path: str | Path, device: str = "auto") -> Self:
        """Return the reward model of a folder. Raises ModelError if the folder contains none."""
        model = cls(path, device)
        model.scorer()
        return model

    def save_pretrained(self, path: str | Path) -> None:
        """Copy its files (safetensors and JSON only) into a new folder."""
        target = Path(path)
        if target.exists() and any(target.iterdir()):
            raise Conflict(
                f"folder {str(target)!r}", "it already contains files", "Name a new folder"
            )
        shutil.copytree(self.folder, target, dirs_exist_ok=True)

    def scorer(self) -> Scorer:
        if self._scorer is None:
            from thumbwheel.core.hardware import device
            from thumbwheel.engine.reward_model import RewardModel as Scorer

            chosen = device() if self.device == "auto" else self.device
            self._scorer = Scorer.load(self.folder, device=chosen)
        return self._scorer
