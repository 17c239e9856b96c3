"""`regression`: what the model could do before and has to be able to do still, on a frozen set of
anchors: the guard against forgetting.

Anchors are general texts, of which the likelihood a token is measured, and short tasks with a
reference. The built-in set was written for this; name a file of your own with `anchors`. Its
content is part of what a stored result is known by.

    texts: ["Water boils at a lower temperature on a mountain, because ...", ...] tasks: [{prompt:
    "What is 7 times 8? Answer with the number only.", reference: "56", checker: exact_answer}, ...]
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from thumbwheel.core import ids
from thumbwheel.core.config import Config, build
from thumbwheel.core.errors import ConfigError
from thumbwheel.evaluation import compare
from thumbwheel.evaluation.measure import blocked, judge, paired
from thumbwheel.evaluation.suite import Replies, Suite, SuiteMeasures
from thumbwheel.evaluation.types import ANCHOR_NLL, ANCHOR_TASKS, Ask, Case, Known, Measure

UNREAD, UNSOLVED = (
    "a text is too short, or a side gives no log-probabilities",
    "a task could not be judged",
)
LIKELIHOOD, TASKS = "nats a token of general text", "short general tasks solved"


class RegressionTask(Config):
    """A short task."""

    prompt: str
    """What is asked."""
    reference: Any
    """The right answer."""
    checker: str | None = None
    """The reward function that compares; without one, the one for this kind of reference."""
    checker_config: dict[str, Any] = Field(default_factory=dict)
    """Its settings."""


class Anchors(Config):
    """A set of anchors."""

    texts: tuple[str, ...] = ()
    """General text that no feedback is about."""
    tasks: tuple[RegressionTask, ...] = ()
    """Short tasks of general skill."""


class Regression(Suite):
    """See the module."""

    name: ClassVar[str] = "regression"
    default: ClassVar[bool] = True

    def unfit(self) -> str:
        """With an empty set."""
        return "" if self.anchors.texts or self.anchors.tasks else "the set of anchors is empty"

    @cached_property
    def anchors(self) -> Anchors:
        """The frozen set. Raises ConfigError for a file that is none."""
        import yaml

        given = self.config.anchors
        try:
            text = (
                Path(given)
                if given
                else files("thumbwheel.evaluation") / "anchors" / "general.yaml"
            ).read_text(encoding="utf-8")
            found = yaml.safe_load(text)
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise ConfigError(
                f"anchors {given!r}",
                " ".join(str(error).split())[:200],
                "Name a YAML file with texts and tasks",
            ) from None
        if not isinstance(found, dict):
            raise ConfigError(
                f"anchors {given!r}",
                "its top level is no mapping",
                "Write texts: [...] and tasks: [...]",
            )
        return build(Anchors, found, f"anchors {given!r}")

    def content(self) -> Any:
        """The whole set."""
        return self.anchors.model_dump(mode="json")

    @cached_property
    def cases(self) -> list[Case]:
        """The tasks as cases."""
        made = []
        for one in self.anchors.tasks:
            name = ids.fingerprint(one.model_dump(mode="json"))[:16]
            made.append(
                Case(
                    name,
                    name,
                    name,
                    [_user(one.prompt)],
                    one.reference,
                    one.checker,
                    one.checker_config,
                    {},
                )
            )
        return made

    def asks(self) -> list[Known | Ask]:
        """Texts, then tasks."""
        texts: list[Known | Ask] = [Known([], (text,)) for text in self.anchors.texts]
        return texts + [
            Ask(case.prompt, min(self.config.max_new_tokens, 64)) for case in self.cases
        ]

    def outcome(self, before: Replies, after: Replies) -> SuiteMeasures:
        """Texts first; each of the two is a guard."""
        split = len(self.anchors.texts)
        texts: list[tuple[Any, Any]] = list(zip(before[:split], after[:split], strict=True))
        read = [place for place, both in enumerate(texts) if all(both)]
        owner = self.material.checkers
        first, second = (
            judge(self.cases, before[split:], owner),
            judge(self.cases, after[split:], owner),
        )
        solved = list(paired(first, second))
        level = self.config.level

        def likelihood(wanted: float) -> Measure:
            first, second = (
                [-sums[0] / sums[1] for place in read for sums in (texts[place][side][0],)]
                for side in (0, 1)
            )
            return compare.measure(LIKELIHOOD, first, second, read, wanted, None)

        def tasks(wanted: float) -> Measure:
            groups = [self.cases[place].group for place, *_ in solved]
            return compare.measure(
                TASKS, [one for _, one, _ in solved], [one for *_, one in solved], groups, wanted
            )

        guards = [compare.guard(ANCHOR_NLL, likelihood(level))] if read else []
        guards += [compare.guard(ANCHOR_TASKS, tasks(level))] if solved else []
        found = ([likelihood] if read else []) + ([tasks] if solved else [])
        missing = {UNREAD: split - len(read), UNSOLVED: len(self.cases) - len(solved)}
        return SuiteMeasures(
            found[0] if found else None,
            tuple(one(level) for one in found[1:]),
            guards=tuple(guards),
            dropped=Counter({reason: count for reason, count in missing.items() if count}),
            blocked=blocked([*first, *second]),
        )


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}
