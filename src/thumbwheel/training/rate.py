"""The learning rate of a LoRA adapter where none was asked for: it follows from the method and the
width of the base.

The optimal rate of an adapter hardly depends on its rank and falls with the width of the model by a
power law (Schulman et al. 2025, "LoRA Without Regret": exponent 0.78 over the Llama family, rates
about ten times those of full fine-tuning). The methods' rates at width 2,000 were tuned at width
256.
"""

from __future__ import annotations

from pathlib import Path

from thumbwheel.training.types import TrainConfig

EXPONENT, WIDTH = 0.78, 2000
FULL = 10
"""An adapter takes so many times the rate of full fine-tuning."""


def rate_for(width: int, at_2000: float) -> float:
    """The rate for a base `width` wide, to two digits.

    >>> rate_for(2000, 5e-4), rate_for(256, 5e-4)
    (0.0005, 0.0025)
    """
    return float(f"{at_2000 * (WIDTH / width) ** EXPONENT:.2g}")


def with_rate(config: TrainConfig, at_2000: float, folder: Path) -> TrainConfig:
    """`config` with the learning rate filled in where it is unset, by the configuration of the base
    in `folder`."""
    if config.learning_rate is not None:
        return config
    from thumbwheel.engine.load import load_config

    width = load_config(folder).get_text_config().hidden_size
    if config.tuning == "full":
        at_2000 = at_2000 / FULL
    return config.model_copy(update={"learning_rate": rate_for(width, at_2000)})
