"""`regression`: the guard against forgetting. On a frozen set of anchors, the model has to be able
to do what it could do before.

Anchors are general texts, of which the likelihood a token is measured, and short tasks with a
reference. There is a built-in set; `anchors` names a file with another one. The content of the set
is part of the key of an evaluation.

    texts: ["Water boils at a lower temperature on a mountain, because ...", ...]
    tasks:
      - prompt: "What is 7 times 8? Answer with the number only."
        reference: "56"
        checker: exact_answer
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
from thumbwheel.evaluation.types import (
    ANCHOR_NLL,
    ANCHOR_TASKS,
    Ask,
    AskLikelihood,
    HeldOutCase,
    Measure,
    Sums,
)

UNREAD = "a text is too short, or a side gives no log-probabilities"
UNSOLVED = "a task could not be judged"
LIKELIHOOD = "nats a token of general text"
TASKS = "short general tasks solved"
LONGEST_ANSWER = 64
"""Tokens of an answer to a task."""


class RegressionTask(Config):
    """A short task."""

    prompt: str
    """What is asked."""
    reference: Any
    """The right answer."""
    checker: str | None = None
    """The reward function that compares. Unset, the default for this kind of reference."""
    checker_config: dict[str, Any] = Field(default_factory=dict)
    """Its settings."""


class Anchors(Config):
    """A set of anchors."""

    texts: tuple[str, ...] = ()
    """General text that no feedback is about."""
    tasks: tuple[RegressionTask, ...] = ()
    """Short tasks of general skill."""


class RegressionSuite(Suite):
    name: ClassVar[str] = "regression"
    default: ClassVar[bool] = True

    def unfit(self) -> str:
        return "" if self.anchors.texts or self.anchors.tasks else "the set of anchors is empty"

    @cached_property
    def anchors(self) -> Anchors:
        """The frozen set. Raises ConfigError for a file that cannot be read as one."""
        import yaml

        what = f"anchors {self.config.anchors!r}"
        built_in = files("thumbwheel.evaluation") / "anchors" / "general.yaml"
        file = Path(self.config.anchors) if self.config.anchors else built_in
        try:
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(what, reason, "Name a YAML file with texts and tasks") from None
        if not isinstance(content, dict):
            fix = "Write texts: [...] and tasks: [...]"
            raise ConfigError(what, "its top level is not a mapping", fix)
        return build(Anchors, content, what)

    def content(self) -> Any:
        """Return the whole set as a JSON value."""
        return self.anchors.model_dump(mode="json")

    @cached_property
    def cases(self) -> list[HeldOutCase]:
        """The tasks as cases."""
        cases = []
        for task in self.anchors.tasks:
            name = ids.fingerprint(task.model_dump(mode="json"))[:16]
            case = HeldOutCase(
                id=name,
                group=name,
                prompt_id=name,
                prompt=[{"role": "user", "content": task.prompt}],
                reference=task.reference,
                checker=task.checker,
                checker_config=task.checker_config,
                slices={},
            )
            cases.append(case)
        return cases

    def asks(self) -> list[AskLikelihood | Ask]:
        """Return texts, then tasks."""
        longest = min(self.config.max_new_tokens, LONGEST_ANSWER)
        texts = [AskLikelihood([], (text,)) for text in self.anchors.texts]
        tasks = [Ask(case.prompt, longest) for case in self.cases]
        return [*texts, *tasks]

    def outcome(self, before: Replies, after: Replies) -> SuiteMeasures:
        """Measure the likelihood of texts first, then the tasks solved; both are guards."""
        texts = len(self.anchors.texts)
        read = []
        nll_before = []
        nll_after = []
        for index, (first, second) in enumerate(zip(before[:texts], after[:texts], strict=True)):
            if first and second:
                read.append(index)
                nll_before.append(_nats_a_token(first))
                nll_after.append(_nats_a_token(second))
        judged_before = judge(self.cases, before[texts:], self.context.checkers)
        judged_after = judge(self.cases, after[texts:], self.context.checkers)
        solved = list(paired(judged_before, judged_after))
        groups = [self.cases[value.index].group for value in solved]

        def likelihood(level: float) -> Measure:
            return compare.measure(LIKELIHOOD, nll_before, nll_after, read, level, None)

        def tasks(level: float) -> Measure:
            values_before = [value.before for value in solved]
            values_after = [value.after for value in solved]
            return compare.measure(TASKS, values_before, values_after, groups, level)

        level = self.config.level
        measures = []
        guards = []
        if read:
            measures.append(likelihood)
            guards.append(compare.guard(ANCHOR_NLL, likelihood(level)))
        if solved:
            measures.append(tasks)
            guards.append(compare.guard(ANCHOR_TASKS, tasks(level)))
        dropped = Counter({UNREAD: texts - len(read), UNSOLVED: len(self.cases) - len(solved)})
        return SuiteMeasures(
            measures[0] if measures else None,
            tuple(measure(level) for measure in measures[1:]),
            guards=tuple(guards),
            dropped=+dropped,  # without zeros
            blocked=blocked([*judged_before, *judged_after]),
        )


def _nats_a_token(sums: Sums) -> float:
    ((log_probability, tokens),) = sums
    return -log_probability / tokens
