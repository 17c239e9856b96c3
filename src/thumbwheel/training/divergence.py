"""Sees a run go wrong: numbers that are none, a loss that runs away, answers that collapse. It says
the reason; the loop stops.

The measure is the run's own start: the adapter begins as a zero change, so the first evaluation is
the base.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

WINDOW = 10
"""Steps whose mean loss is compared."""
GUARDED_RATES = {
    "format_rate": "have the format of good answers",
    "eos_rate": "come to an end",
    "liked_rate": "are ones that people liked",
}
"""Shares of fresh greedy answers to dev prompts that training must not lower, by metric."""


class DivergenceMonitor:
    """`collapse_nll`: nats a token by which good dev answers may become less likely than under the
    base."""

    def __init__(self, collapse_nll: float) -> None:
        self._collapse_nll = collapse_nll
        self._first: list[float] = []
        self._last: list[float] = []
        self._base: dict[str, float] = {}

    def state(self) -> dict[str, Any]:
        return {"first": self._first, "last": self._last, "base": self._base}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._first, self._last = list(state["first"]), list(state["last"])
        self._base = dict(state["base"])

    def step(self, loss: float, grad_norm: float) -> str | None:
        """Return the reason to stop after this step's loss and gradient, before they change the
        adapter, or None if all is well."""
        if not math.isfinite(loss) or not math.isfinite(grad_norm):
            return (
                f"the loss or its gradient is no number any more (loss {loss}, gradient norm "
                f"{grad_norm})"
            )
        if len(self._first) < WINDOW:
            self._first.append(loss)
        self._last = [*self._last, loss][-WINDOW:]
        first, last = sum(self._first) / len(self._first), sum(self._last) / len(self._last)
        if len(self._last) == WINDOW and last > 3 * abs(first) + 1:
            return (
                f"the loss diverged: {last:.3g} on average over the last {WINDOW} steps, "
                f"{first:.3g} over the first"
            )
        return None

    def start(self, metrics: Mapping[str, float]) -> None:
        """Record the evaluation of the base, before the first step."""
        self._base = dict(metrics)

    def evaluation(self, metrics: Mapping[str, float]) -> str | None:
        """Return the reason to stop after an evaluation of the dev rows, or None if all is well."""
        if not math.isfinite(metrics["loss"]):
            return f"the dev loss is no number any more ({metrics['loss']})"
        if fallen := collapse(self._base, metrics):
            return fallen
        before, now = self._base.get("nll/good"), metrics.get("nll/good")
        if before is not None and now is not None and now > before + self._collapse_nll:
            return (
                f"good answers became unlikely: {now:.2f} nats a token on the dev rows, "
                f"{before:.2f} under the base"
            )
        return None


def collapse(base: Mapping[str, float], now: Mapping[str, float]) -> str | None:
    """Return a reason to stop if the share of fresh greedy answers that end, have the format of
    good ones or are what people liked fell to half of the base's or less, else None."""
    for name, meaning in GUARDED_RATES.items():
        before, after = base.get(name), now.get(name)
        if before is not None and after is not None and before >= 0.25 and after <= before / 2:
            return (
                f"the answers collapsed: {after:.0%} of fresh greedy answers to dev prompts "
                f"{meaning}, {before:.0%} under the base"
            )
    return None
