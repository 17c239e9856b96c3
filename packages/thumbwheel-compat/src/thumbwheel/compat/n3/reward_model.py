"""`RewardModel` and `RewardModelHead` of the n3 server: modules that give one number for an
answer.

A trained one comes from `thumbwheel train reward`, whose folder is its truth: `score` reads an
answer as the training did. `forward` reads token ids, as theirs does. A folder that is saved holds
both forms: ours (an adapter with its head and reward.json), and theirs (`reward_files`).

One that was put together learns from batches of token ids (`module_training`), with its dropout.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from thumbwheel.compat.n3.config import RewardModelConfig, with_lora
from thumbwheel.compat.n3.datasets import FeedbackExample
from thumbwheel.compat.n3.reward_files import (
    CARD,
    CONFIG,
    HEAD,
    TRUNK,
    add_their_files,
    write_config,
)
from thumbwheel.compat.n3.torch_module import TorchModule
from thumbwheel.compat.reward_model import SavedRewardModel
from thumbwheel.core.errors import Conflict, DataError, ModelError

if TYPE_CHECKING:
    import torch

    from thumbwheel.engine.reward_model import RewardModel as Scorer


class RewardModelHead(TorchModule):
    """One number from the hidden state of the last token that counts."""

    def __init__(self, hidden_size: int, dropout: float = 0.1) -> None:
        from torch import nn

        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(hidden_size, 1)
        super().__init__(dropout=self.dropout, linear=self.linear)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return scores [rows] from hidden states [rows, tokens, width]; without a mask every token
        counts."""
        import torch

        if attention_mask is None:
            last = hidden_states[:, -1]
        else:
            places = torch.arange(hidden_states.shape[1], device=hidden_states.device)
            last_place = (attention_mask.to(places) * places).argmax(dim=1)
            last = hidden_states[torch.arange(len(last_place)), last_place]
        scores: torch.Tensor = self.linear(self.dropout(last)).squeeze(-1)
        return scores


class RewardModel(TorchModule):
    """A model of transformers with a head; with `use_lora` only an adapter and the head learn.

    `folder` is where a trained one lies, None for one that was only put together. `validation` has
    the errors of a trained one (mse, mae).
    """

    def __init__(self, base_model: Any, config: RewardModelConfig) -> None:
        if config.use_lora:
            base_model = with_lora(base_model, config, "FEATURE_EXTRACTION")
        self._assemble(base_model, config)

    def _assemble(self, trunk: Any, config: RewardModelConfig) -> None:
        """Put a trunk that has its adapter and a new head together."""
        self.config = config
        self.base_model = trunk
        self.reward_head = RewardModelHead(trunk.config.get_text_config().hidden_size)
        self.folder: Path | None = None
        self.validation: dict[str, Any] = {}
        self._saved: SavedRewardModel | None = None
        super().__init__(base_model=trunk, reward_head=self.reward_head.module)
        self.to(_device(config.device))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return scores [rows] from token ids and mask [rows, tokens], padded on the right."""
        output = self.base_model(input_ids=input_ids, attention_mask=attention_mask)
        if hasattr(output, "logits"):  # of an encoder, which has a head of its own
            logits: torch.Tensor = output.logits
            return logits[:, 0]
        scores: torch.Tensor = self.reward_head(output.last_hidden_state, attention_mask)
        return scores

    def train_reward_model(
        self, train_loader: Iterable[Any], val_loader: Iterable[Any] | None = None
    ) -> dict[str, list[float]]:
        """Fit this module to the `score` of batches of a DataLoader, by squared error.

        Returns the means of each epoch: train_loss, train_mae, val_loss, val_mae. Only `forward`
        reads it afterwards; `thumbwheel train reward` makes one that can judge a training. Raises
        DataError for a loader without batches, Conflict for a model that was trained there.
        """
        from thumbwheel.compat.n3.module_training import fit

        if self.folder is not None:
            raise Conflict(
                f"the reward model in {str(self.folder)!r}",
                "it is trained, and its folder would no longer be what it is",
                "Put a new one together: RewardModel(base_model, config)",
            )
        return fit(self, self.config, train_loader, val_loader)

    @classmethod
    def trained(cls, folder: str | Path, device: str = "auto") -> Self:
        """Open what `thumbwheel train reward` wrote; raises ModelError for a folder that is
        none."""
        from thumbwheel.engine.forward import is_encoder
        from thumbwheel.engine.load import adapter_base, load_adapter, load_scorer
        from thumbwheel.engine.reward_model import RewardModelCard

        path = Path(folder)
        card, base = RewardModelCard.read(path), adapter_base(path)
        classifier, _ = load_scorer(base, local_only=True)
        adapted = load_adapter(classifier, path).requires_grad_(False)
        classifier = adapted.get_base_model()
        settings = json.loads((path / "adapter_config.json").read_text(encoding="utf-8"))
        is_lora = settings["peft_type"] == "LORA"
        config = RewardModelConfig(
            base_model=base,
            use_lora=is_lora,
            lora_r=settings["r"] if is_lora else 8,
            lora_alpha=settings["lora_alpha"] if is_lora else 32,
            lora_dropout=settings.get("lora_dropout", 0.0),
            max_length=card.max_length,
            device=device,
        )
        if is_encoder(classifier.config):
            model = cls._assembled(classifier, config)
        else:
            trunk = getattr(classifier, classifier.base_model_prefix)
            head = classifier.score.modules_to_save["default"]
            model = cls._assembled(trunk, config, head)
        model.folder = path
        return model

    @classmethod
    def _assembled(cls, trunk: Any, config: RewardModelConfig, head: Any = None) -> Self:
        """Return a model whose trunk has its adapter already."""
        import torch

        model = cls.__new__(cls)
        model._assemble(trunk, config)
        if head is not None:
            with torch.no_grad():
                model.reward_head.linear.weight.copy_(head.weight)
                model.reward_head.linear.bias.zero_()
        return model.eval()

    @classmethod
    def load_pretrained(cls, path: str | Path, device: str = "auto") -> Self:
        """Read a folder of `save_pretrained`, here or in their system; raises ModelError for a
        folder that is none."""
        import torch
        from transformers import AutoModel

        from thumbwheel.models.base import locate

        folder = Path(path)
        if (folder / CARD).is_file():
            return cls.trained(folder, device)
        try:
            values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            config = RewardModelConfig(
                base_model=values["base_model"],
                use_lora=values["use_lora"],
                lora_r=values["lora_r"],
                lora_alpha=values["lora_alpha"],
                lora_dropout=values.get("lora_dropout", 0.0),
                device=device,
            )
            state = torch.load(folder / HEAD, map_location="cpu", weights_only=True)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(
                f"reward model {str(folder)!r}",
                f"it cannot be read ({type(error).__name__}: {error})",
                "Name a folder that save_pretrained wrote",
            ) from None
        if config.use_lora:
            _, base = locate(config.base_model)
            trunk = _with_stored_adapter(
                AutoModel.from_pretrained(base, trust_remote_code=False), folder / TRUNK
            )
        else:
            trunk = AutoModel.from_pretrained(
                folder / TRUNK, use_safetensors=True, trust_remote_code=False
            )
        model = cls._assembled(trunk, config)
        model.reward_head.load_state_dict(state)
        return model

    def save_pretrained(self, path: str | Path) -> None:
        """Write a new folder in both forms; one that was only put together in theirs alone."""
        import torch

        target = Path(path)
        if target.exists() and any(target.iterdir()):
            raise Conflict(
                f"folder {str(target)!r}", "it already contains files", "Name a new folder"
            )
        if self.folder is not None:
            shutil.copytree(self.folder, target, dirs_exist_ok=True)
            if not (target / HEAD).exists():
                add_their_files(target, self.config.lora_dropout)
            return
        target.mkdir(parents=True, exist_ok=True)
        self.base_model.save_pretrained(target / TRUNK)
        torch.save(self.reward_head.state_dict(), target / HEAD)
        write_config(target, self.config, self.reward_head.linear.in_features)

    def score(self, prompt: str, response: str) -> float:
        """Return the score of an answer, read as in training. Raises DataError for an answer that
        is longer than the model reads."""
        value = self.scores([FeedbackExample(prompt, response, 0.0)])[0]
        if value != value:
            raise DataError(
                "an answer",
                "it is longer than the reward model can read",
                "Train with a larger max_length",
            )
        return value

    def scores(self, examples: Iterable[FeedbackExample]) -> list[float]:
        """Return the score of each answer; nan for one that is too long."""
        from thumbwheel.engine.reward_model import RewardInput

        answers = [
            RewardInput([{"role": "user", "content": example.prompt}], example.response)
            for example in examples
        ]
        return self._scorer().score(answers)

    def _scorer(self) -> Scorer:
        if self.folder is None:
            raise Conflict("RewardModel", "it has not been trained", "Call train_reward_model")
        if self._saved is None:
            self._saved = SavedRewardModel(self.folder, self.config.device)
        return self._saved.scorer()


def _device(name: str) -> str:
    from thumbwheel.core.hardware import device

    return device() if name == "auto" else name


def _with_stored_adapter(trunk: Any, folder: Path) -> Any:
    """Return the trunk with a stored adapter; its task type does not matter, as the head is
    Thumbwheel's."""
    from peft import PeftConfig, PeftModel

    settings: Any = PeftConfig.from_pretrained(str(folder))
    settings.task_type = None
    return PeftModel.from_pretrained(trunk, str(folder), config=settings)
