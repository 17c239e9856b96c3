"""The training methods, one file each. To add one: its file here and its line below; the contract
tests then run over it. The data plan and a turn of the wheel go through them in
this order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thumbwheel.core.plugins import VariantTable

if TYPE_CHECKING:
    from thumbwheel.training.algorithm import Method

ALGORITHMS: VariantTable[type[Method[Any]]] = VariantTable(
    "algorithm",
    "thumbwheel.algorithms",
    {
        "sft": "thumbwheel.training.algorithms.sft:Sft",
        "kto": "thumbwheel.training.algorithms.kto:Kto",
        "dpo": "thumbwheel.training.algorithms.dpo:Dpo",
        "reward": "thumbwheel.training.algorithms.reward:RewardMethod",
        "grpo": "thumbwheel.training.algorithms.grpo:Grpo",
        "grpo_offline": "thumbwheel.training.algorithms.grpo_offline:GrpoOffline",
        "ppo": "thumbwheel.training.algorithms.ppo:Ppo",
    },
)
