"""Settings that follow from the base, where they were not given: the learning rate of an adapter,
the fewest steps, and how much a run holds the general skill that the base brings.

The optimal rate of an adapter hardly depends on its rank and falls with the width of the model by a
power law (Schulman et al. 2025, "LoRA Without Regret": exponent 0.78 over the Llama family, rates
about ten times those of full fine-tuning). The methods' rates at width 2,000 were tuned at width
256, on bases with a vocabulary of at most 4,096 tokens that had learned one task. They hold for
such bases alone. Any other is taken for a pretrained model, which has general skill to lose; its
rates, steps and the weight of its replay were chosen on one tuning seed of SmolLM2-135M-Instruct,
and proved for sft on two others (docs/results/pretrained-steps-4.json, -5.json): half the rate in
twice the steps learned more of the task and kept all general skill that the gate measures.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.training.types import TrainConfig

if TYPE_CHECKING:
    from thumbwheel.training.algorithm import Method

EXPONENT, WIDTH = 0.78, 2000
FULL = 10
"""An adapter takes so many times the rate of full fine-tuning."""
PRETRAINED_WIDTH, PRETRAINED_VOCABULARY = 512, 16_384
"""A base that is as wide, or has as many tokens, is taken for a pretrained one. Nobody gives a
model of one task so many tokens, and the rates of small bases were not tried on wider ones."""
REPLAY_WEIGHT = 10.0
"""Weight of the replay on a pretrained base."""


def is_pretrained(width: int, vocabulary: int) -> bool:
    """Return whether a base of this width and so many tokens has general skill from pretraining."""
    return width >= PRETRAINED_WIDTH or vocabulary >= PRETRAINED_VOCABULARY


def width_and_vocabulary(folder: Path) -> tuple[int, int]:
    """Return how wide the base in `folder` is, and how many tokens it has. Where its configuration
    does not say both itself, transformers is asked, which takes four seconds to load."""
    try:
        content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        text = content.get("text_config", content)
        width, vocabulary = text["hidden_size"], text["vocab_size"]
    except (OSError, ValueError, AttributeError, LookupError, TypeError):
        width = vocabulary = None
    if type(width) is int and type(vocabulary) is int:
        return width, vocabulary
    from thumbwheel.engine.load import load_config

    text_config = load_config(folder).get_text_config()
    return text_config.hidden_size, text_config.vocab_size


def rate_for(width: int, at_2000: float) -> float:
    """Return the learning rate for a base `width` wide, to two digits.

    >>> rate_for(2000, 5e-4), rate_for(256, 5e-4)
    (0.0005, 0.0025)
    """
    return float(f"{at_2000 * (WIDTH / width) ** EXPONENT:.2g}")


def with_base_defaults(config: TrainConfig, method: type[Method[Any]], folder: Path) -> TrainConfig:
    """Return `config` with unset learning rate, fewest steps and replay weight filled in, by the
    configuration of the base in `folder`."""
    if None not in (config.learning_rate, config.min_steps, config.replay_weight):
        return config
    from thumbwheel.training.algorithm import Algorithm

    width, vocabulary = width_and_vocabulary(folder)
    pretrained = is_pretrained(width, vocabulary)
    at_2000 = (pretrained and method.pretrained_rate) or method.rate
    fewest_steps = (pretrained and method.pretrained_fewest_steps) or method.fewest_steps
    if config.tuning == "full":
        at_2000 = at_2000 / FULL
    replays = pretrained and issubclass(method, Algorithm) and not method.produces_reward_model
    defaults = {
        "learning_rate": rate_for(width, at_2000),
        "min_steps": fewest_steps,
        "replay_weight": REPLAY_WEIGHT if replays else 0.0,
    }
    unset = {name: value for name, value in defaults.items() if getattr(config, name) is None}
    return config.model_copy(update=unset)
