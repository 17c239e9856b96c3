"""Metrics for the dashboards that people have: transformers' own reporters, told where the logs of
a run belong.

To add a dashboard that transformers reports to, add its name to DASHBOARDS (types.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from thumbwheel.core.errors import ConfigError

if TYPE_CHECKING:
    from transformers import TrainerCallback

PROJECT = "thumbwheel"


def reporters(names: Sequence[str], run: Path) -> list[TrainerCallback]:
    """Return a reporter for each of `names`; TensorBoard's logs go to the folder of the run unless
    TENSORBOARD_LOGGING_DIR names another.

    Raises ConfigError for one whose package is missing.
    """
    if not names:
        return []
    from transformers.integrations.integration_utils import get_reporting_integration_callbacks

    os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(run / "tensorboard"))
    os.environ.setdefault("WANDB_PROJECT", PROJECT)
    callbacks = []
    for name in names:
        (reporter,) = get_reporting_integration_callbacks([name])
        try:
            callbacks.append(reporter())
        except (RuntimeError, ImportError) as error:
            raise ConfigError(
                f"report_to {name!r}",
                " ".join(str(error).split()),
                f"Install it: pip install {name}",
            ) from None
    return callbacks
