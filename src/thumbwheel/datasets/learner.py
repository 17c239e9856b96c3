"""What the data plan has to know of a training method. The methods say it themselves
(training/algorithm.py); whoever asks for a plan hands it in, for this stage does not know them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from thumbwheel.datasets.types import PlanConfig


@dataclass(frozen=True)
class Enough:
    """How much feedback a method needs, counted in `rows` of its shape ("pairs").

    With less than `minimum`, or less than `each_label` of either label, it is not worth training;
    from `ready` on it is recommended without reserve.
    """

    rows: str
    minimum: int
    ready: int
    each_label: int = 0

    def by_settings(self, method: str, config: PlanConfig) -> Enough:
        """Apply the settings `dataset.plan.METHOD_...` over these numbers."""
        settings = {
            "minimum": getattr(config, f"{method}_min", None),
            "ready": getattr(config, f"{method}_fine", None),
            "each_label": getattr(config, f"{method}_class", None),
        }
        return replace(self, **{key: value for key, value in settings.items() if value is not None})


@dataclass(frozen=True)
class Learner:
    """A training method as far as its data go.

    Of `shapes`, those that it can learn from, the one with the most training rows is taken, the
    first of equals. Without `enough` the plan does not judge whether it is worth training.
    """

    name: str
    title: str
    shapes: tuple[str, ...]
    enough: Enough | None = None
