"""`known_place`: how many fresh answers to the held-out cases name a place that the kennel has."""

from __future__ import annotations

from typing import ClassVar

from kennel.reward import KnownPlace

from thumbwheel.evaluation import compare
from thumbwheel.evaluation.suite import Replies, Suite, SuiteMeasures
from thumbwheel.evaluation.types import Ask, Measure
from thumbwheel.rewards.function import Case as Answered

MEASURE = "names a known place"


class KnownPlaces(Suite):
    """Both sides are asked the cases; the reward function of this package judges them."""

    name: ClassVar[str] = "known_place"
    default: ClassVar[bool] = True
    of_cases: ClassVar[bool] = True

    def unfit(self) -> str:
        """Cases are needed."""
        return "" if self.context.cases else "there is no held-out case"

    def asks(self) -> list[Ask]:
        """The prompt of each case."""
        return [Ask(case.prompt, self.config.max_new_tokens) for case in self.context.cases]

    def outcome(self, before: Replies, after: Replies) -> SuiteMeasures:
        """The share of answers that name a known place, over the cases that both sides answered."""
        first: list[float] = []
        second: list[float] = []
        groups: list[str] = []
        values = zip(self._values(before), self._values(after), strict=True)
        for case, (value_before, value_after) in zip(self.context.cases, values, strict=True):
            if value_before is not None and value_after is not None:
                first.append(value_before)
                second.append(value_after)
                groups.append(case.group)
        if not groups:
            return SuiteMeasures(None)

        def main(level: float) -> Measure:
            return compare.measure(MEASURE, first, second, groups, level)

        return SuiteMeasures(main, judges=("known_place",))

    def _values(self, replies: Replies) -> list[float | None]:
        answered = [Answered(reply[0].text if reply else "") for reply in replies]
        return [score.value for score in KnownPlace.create({}).score(answered)]

    def content(self) -> list[str]:
        """The places that count."""
        return list(KnownPlace.create({}).config.places)
