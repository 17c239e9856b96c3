"""`PolicyModel`: a language model with a value head, as theirs prepares it for PPO.

`RLHFTrainer.train` needs none of it: there policy and critic are two adapters on one base.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thumbwheel.compat.n3.config import TrainingConfig, with_lora
from thumbwheel.compat.n3.torch_module import TorchModule

if TYPE_CHECKING:
    import torch


class PolicyModel(TorchModule):
    """`pretrained_model` answers, with a LoRA adapter where `use_lora` is on; `v_head` gives the
    value of every token."""

    def __init__(self, model: Any, config: TrainingConfig) -> None:
        from torch import nn

        width = model.config.get_text_config().hidden_size
        self.pretrained_model = with_lora(model, config, "CAUSAL_LM") if config.use_lora else model
        self.v_head = nn.Linear(width, 1)
        nn.init.zeros_(self.v_head.weight)
        nn.init.zeros_(self.v_head.bias)
        super().__init__(pretrained_model=self.pretrained_model, v_head=self.v_head)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, None, torch.Tensor]:
        """Return (logits [rows, tokens, words], no loss, values [rows, tokens])."""
        output = self.pretrained_model(
            input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True
        )
        values: torch.Tensor = self.v_head(output.hidden_states[-1]).squeeze(-1)
        return output.logits, None, values

    def generate(self, *arguments: Any, **settings: Any) -> Any:
        """Generate answers as the language model does."""
        return self.pretrained_model.generate(*arguments, **settings)
