"""`preference`: how likely each side finds recorded answers, response tokens only, and whether it
ranks the good above the bad.

Pairs where there are any, otherwise labels; summed log-probability first, per token beside it. The
likelihood of good answers is a guard, and so is that of the app's own answers that people liked:
what the model could do before, on this agent's own traffic.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import ClassVar

from thumbwheel.core import ids
from thumbwheel.evaluation import compare
from thumbwheel.evaluation.compare import Logged
from thumbwheel.evaluation.suite import Replies, Suite, SuiteMeasures
from thumbwheel.evaluation.types import Given, Known


class Preference(Suite):
    """See the module."""

    name: ClassVar[str] = "preference"
    fresh: ClassVar[bool] = False
    default: ClassVar[bool] = True

    def unfit(self) -> str:
        """Without recorded answers."""
        return "" if self.material.given else "no recorded answer is held out"

    @cached_property
    def prompts(self) -> list[list[Given]]:
        """The recorded answers of each prompt, so that it is computed once for all of them."""
        found: dict[str, list[Given]] = {}
        for row in self.material.given:
            found.setdefault(ids.canonical([row.prompt, row.tools]), []).append(row)
        return list(found.values())

    def asks(self) -> list[Known]:
        """One question a prompt."""
        return [
            Known(
                same[0].prompt,
                tuple(row.text for row in same),
                same[0].tools,
                tuple(row.finish_reason for row in same),
            )
            for same in self.prompts
        ]

    def outcome(self, before: Replies, after: Replies) -> SuiteMeasures:
        """Accuracy over pairs or the area under the curve over labels."""
        logged, refused = [], 0
        for same, first, second in zip(self.prompts, before, after, strict=True):
            if not first or not second:
                refused += len(same)
                continue
            logged += [
                Logged(row, x[0], y[0], x[1]) for row, x, y in zip(same, first, second, strict=True)
            ]
        dropped = Counter({"recorded answer does not fit the model": refused} if refused else {})
        level = self.config.level
        guards = (compare.nll_guard(logged, level), compare.liked_guard(logged, level))
        measures = compare.preferences(logged, level)
        if not measures:
            return SuiteMeasures(None, guards=guards, dropped=dropped)
        return SuiteMeasures(
            lambda wanted: compare.preferences(logged, wanted)[0],
            measures[1:],
            guards=guards,
            dropped=dropped,
        )
