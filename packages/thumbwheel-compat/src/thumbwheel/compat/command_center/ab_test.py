"""Two models of Ollama by their names: whom which one answers, and the metrics of each.

In the original the pipeline chose a name for each question. Here a user keeps one, and a metric is
compared with an interval that holds at any moment. `thumbwheel experiment start` does the same for
deployed versions, and moves the alias by itself.
"""

from __future__ import annotations

from typing import Any

from thumbwheel.compat.rlhf_plan.ab_testing import ABTestingFramework
from thumbwheel.core.errors import InputError


class OllamaABTest:
    """`share` of the users get `candidate`, the others `baseline`."""

    def __init__(self, baseline: str, candidate: str, share: float = 0.5) -> None:
        if baseline == candidate or not 0 < share < 1:
            raise InputError(
                f"models {baseline!r} and {candidate!r} at share {share!r}",
                "they have to be two, and both need users",
                "Name the model of today and the tuned one, for example at share 0.5",
            )
        self.baseline, self.candidate = baseline, candidate
        variants = {
            baseline: {"model": baseline, "weight": 1 - share},
            candidate: {"model": candidate, "weight": share},
        }
        self._framework = ABTestingFramework(variants, experiment=f"{baseline}/{candidate}")

    def model_for(self, user_id: str) -> str:
        """Return the model name to ask Ollama for; it is always the same for a user."""
        return self._framework.assign_variant(user_id)

    def record_metric(self, user_id: str, metric_name: str, value: float) -> None:
        """Note a value of the user's model."""
        self._framework.record_metric(self.model_for(user_id), metric_name, value, user_id)

    def metrics(self, level: float = 0.95) -> dict[str, dict[str, Any]]:
        """Return metric -> model -> n, users and mean, and for the candidate its gain with the
        interval `low` to `high`."""
        return self._framework.analyze_results(level)
