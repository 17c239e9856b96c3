"""The reward classes of the agent's RL pipeline over our reward functions. Each turns a trace into
a `RewardResult`.

A reward that does not apply has no score and does not count in the mean of the `RewardEngine`.
`RewardEngine(arithmetic="isaa")` keeps the old arithmetic, in which it counts as a middle value.
Code runs in the sandbox; without one, the result says so and has no score.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from thumbwheel.compat.isaa.tracefile import ExecutionTrace, line_of
from thumbwheel.core.errors import InputError
from thumbwheel.rewards.combine import group_normalised, weighted_mean
from thumbwheel.rewards.function import Case, JudgementStatus, RewardFunction, Score, Step
from thumbwheel.rewards.functions import FUNCTIONS
from thumbwheel.rewards.presets import ARITHMETICS

GOOD = 0.6
"""The combined reward from which an answer is labelled good."""
HISTORY = 10_000
"""Rewards that an engine remembers."""
PATTERN_MATCHES = 5
"""Matches of one forbidden pattern that count."""


@dataclass
class RewardResult:
    """`score` is between 0 and 1, or None where there is none: `error` or `details["reason"]` then
    says why."""

    score: float | None
    is_binary: bool = False
    details: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    def to_binary(self, threshold: float = 0.5) -> int | None:
        """Return 1 from the threshold on, else 0; None without a score."""
        return None if self.score is None else int(self.score >= threshold)


class BaseReward(ABC):
    """A reward of your own: a name, a weight, and `compute`."""

    name: str = "base_reward"
    weight: float = 1.0
    is_binary: bool = False

    @abstractmethod
    def compute(self, trace: ExecutionTrace) -> RewardResult: ...

    def __call__(self, trace: ExecutionTrace) -> RewardResult:
        return self.compute(trace)


class FunctionReward(BaseReward):
    """A reward that one of our functions computes; `settings` are that function's."""

    function: ClassVar[str]

    def __init__(self, **settings: Any) -> None:
        function = FUNCTIONS.get(self.function)
        self._function: RewardFunction[Any] = function.create(settings, f"settings of {self.name}")

    def compute(self, trace: ExecutionTrace) -> RewardResult:
        (score,) = self._function.score([case_of(trace)])
        return result_of(score)


class CodeExecutionReward(FunctionReward):
    """The share of the Python and shell blocks of the answer that run to their end, each within
    `timeout` seconds, in the sandbox."""

    name, function, weight = "code_execution", "code_execution", 2.0

    def __init__(self, timeout: float = 30, sandbox: bool = True) -> None:
        if not sandbox:
            raise InputError(
                "CodeExecutionReward(sandbox=False)",
                "code of a model never runs without the sandbox here",
                "Leave it out; `thumbwheel sandbox check` says whether this machine has one",
            )
        super().__init__(limits={"wall_seconds": timeout})


class SyntaxValidationReward(FunctionReward):
    """The share of the code blocks that parse. Languages without a grammar here do not count."""

    name, function = "syntax_validation", "syntax"


class ToolSuccessReward(FunctionReward):
    """The share of the tool calls that succeeded."""

    name, function, weight = "tool_success", "tool_success", 2.0


class TaskCompletionReward(FunctionReward):
    """The share of the tasks that were completed, less failures."""

    name, function, weight = "task_completion", "task_completion", 1.5


class EfficiencyReward(FunctionReward):
    """How little of three budgets was used."""

    name, function, weight = "efficiency", "efficiency", 0.5

    def __init__(
        self, max_tokens: int = 2000, max_tool_calls: int = 10, max_reasoning_steps: int = 15
    ) -> None:
        super().__init__(tokens=max_tokens, calls=max_tool_calls, steps=max_reasoning_steps)


class FormatComplianceReward(FunctionReward):
    """Whether the answer is free of XML tags, outside of its code.

    With `forbidden_patterns`, regular expressions, it is whether none of these matches anywhere in
    the answer: each match takes 0.1, all of them 0.5 at most, and of one pattern five count.
    """

    name, function = "format_compliance", "format_compliance"

    def __init__(self, forbidden_patterns: Sequence[str] | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.forbidden_patterns = [re.compile(pattern) for pattern in forbidden_patterns or ()]

    def compute(self, trace: ExecutionTrace) -> RewardResult:
        if not self.forbidden_patterns:
            return super().compute(trace)
        violations: list[str] = []
        for pattern in self.forbidden_patterns:
            matches = pattern.finditer(trace.final_response)
            violations += [match[0] for match in islice(matches, PATTERN_MATCHES)]
        deduction = min(0.5, 0.1 * len(violations))
        details = {"violations": violations, "violation_count": len(violations)}
        return RewardResult(1 - deduction, not violations, details)


class LearnedReward(BaseReward):
    """How much a run is like the ones that people labelled good, by the tools they used and how
    often these succeeded.

    `model_path` is a JSON file of patterns ({"positive": [...], "negative": [...]}), as the old
    pipeline wrote it. `thumbwheel label learn` fits a better judge on the same labels and says how
    good it is.
    """

    name = "learned_reward"
    NEAR = 0.2
    """How far a success rate may be from a pattern's and still match it."""
    FREQUENT = 3
    """Calls from which a tool is a pattern."""

    def __init__(self, model_path: str | Path | None = None) -> None:
        self.model_path = Path(model_path) if model_path else None
        self.patterns: dict[str, list[dict[str, Any]]] = {"positive": [], "negative": []}
        if self.model_path and self.model_path.exists():
            self.patterns = _patterns(self.model_path)

    def save_patterns(self) -> None:
        """Write the patterns to `model_path`; without one they stay in memory."""
        if self.model_path is None:
            return
        self.model_path.parent.mkdir(parents=True, exist_ok=True)
        self.model_path.write_text(json.dumps(self.patterns, indent=2) + "\n", encoding="utf-8")

    def learn_from_traces(self, traces: Sequence[ExecutionTrace], min_examples: int = 10) -> None:
        """Take the patterns of the labelled runs; raises InputError with fewer than `min_examples`
        of either label."""
        good = [trace for trace in traces if trace.label is True]
        bad = [trace for trace in traces if trace.label is False]
        if min(len(good), len(bad)) < min_examples:
            raise InputError(
                f"{len(good)} good and {len(bad)} bad runs",
                f"at least {min_examples} of each are needed",
                "Label more: TraceCollector.label_trace",
            )
        self.patterns = {"positive": self._extract(good), "negative": self._extract(bad)}
        self.save_patterns()

    def compute(self, trace: ExecutionTrace) -> RewardResult:
        """Return the share of the matching patterns that belong to good runs; no score if none
        matches."""
        positive = sum(self._match(trace, pattern) for pattern in self.patterns["positive"])
        negative = sum(self._match(trace, pattern) for pattern in self.patterns["negative"])
        details = {"positive_match": positive, "negative_match": negative}
        if positive + negative == 0:
            return RewardResult(None, details=details | {"reason": "no learned pattern matches"})
        return RewardResult(positive / (positive + negative), details=details)

    def _extract(self, traces: Sequence[ExecutionTrace]) -> list[dict[str, Any]]:
        calls: Counter[str] = Counter()
        for trace in traces:
            calls.update(call.tool_name for call in trace.tool_calls)
        patterns: list[dict[str, Any]] = []
        for tool, count in calls.items():
            if count >= self.FREQUENT:
                frequency = count / len(traces)
                patterns.append({"type": "tool_usage", "tool": tool, "frequency": frequency})
        rates = [_success_rate(trace) for trace in traces if trace.tool_calls]
        if rates:
            patterns.append({"type": "success_rate", "avg": sum(rates) / len(rates)})
        return patterns

    def _match(self, trace: ExecutionTrace, pattern: Mapping[str, Any]) -> float:
        if pattern["type"] == "tool_usage":
            calls = sum(call.tool_name == pattern["tool"] for call in trace.tool_calls)
            return float(calls * pattern["frequency"])
        if not trace.tool_calls:
            return 0.0
        distance = abs(_success_rate(trace) - pattern["avg"])
        return 1 - distance if distance < self.NEAR else 0.0


class RewardEngine:
    """Several rewards as one number.

    `arithmetic`: "applicable" leaves out what has no score; "isaa" counts it as the old pipeline
    did (a middle, a failure as 0).
    """

    def __init__(
        self, rewards: Sequence[BaseReward] | None = None, *, arithmetic: str = "applicable"
    ) -> None:
        self.rewards = list(rewards) if rewards is not None else default_rewards(arithmetic)
        self.arithmetic = arithmetic
        self.reward_history: deque[float | None] = deque(maxlen=HISTORY)
        """The last combined rewards that were asked for."""

    def compute_all(self, trace: ExecutionTrace) -> dict[str, RewardResult]:
        """Return every reward by name. A reward that raises has its error and no score."""
        results: dict[str, RewardResult] = {}
        for reward in self.rewards:
            try:
                results[reward.name] = reward.compute(trace)
            except Exception as error:  # noqa: BLE001 - a user's reward must not end the others
                results[reward.name] = RewardResult(None, error=f"{type(error).__name__}: {error}")
        return results

    def compute_combined(self, trace: ExecutionTrace) -> float | None:
        """Return the weighted mean; None if no reward has a score."""
        combined = self._combined(self.compute_all(trace))
        self.reward_history.append(combined)
        return combined

    def compute_for_group(self, traces: Sequence[ExecutionTrace]) -> list[float | None]:
        """Return the group-normalised rewards of runs of one prompt (population deviation); None
        for a run without a reward."""
        return group_normalised([self.compute_combined(trace) for trace in traces])

    def get_binary_label(self, trace: ExecutionTrace, threshold: float = GOOD) -> bool | None:
        """Return whether the combined reward reaches `threshold`; None if there is no reward."""
        combined = self.compute_combined(trace)
        return None if combined is None else combined >= threshold

    def summary(self, trace: ExecutionTrace) -> str:
        """Return a text with one line for each reward and one for the combined reward."""
        results = self.compute_all(trace)
        combined = self._combined(results)
        lines = [f"{name}: {_shown(result)}" for name, result in results.items()]
        if combined is None:
            lines.append("combined: no reward")
        else:
            verdict = "good" if combined >= GOOD else "bad"
            lines.append(f"combined: {combined:.3f}, {verdict}")
        return "\n".join(lines)

    def _combined(self, results: Mapping[str, RewardResult]) -> float | None:
        weights = {reward.name: reward.weight for reward in self.rewards}
        count = ARITHMETICS.get(self.arithmetic)
        values = {name: count(name, _score_of(result)) for name, result in results.items()}
        return weighted_mean(values, weights)


def default_rewards(arithmetic: str) -> list[BaseReward]:
    """Return the six rewards of the default engine."""
    return [
        CodeExecutionReward(),
        SyntaxValidationReward(),
        ToolSuccessReward(compatible=arithmetic == "isaa"),
        TaskCompletionReward(),
        EfficiencyReward(),
        FormatComplianceReward(),
    ]


def case_of(trace: ExecutionTrace) -> Case:
    """Return a recorded run as a case of Thumbwheel's reward functions."""
    line = line_of(trace)
    steps = []
    for step in line["steps"]:
        tokens = step.get("tokens") or {}
        steps.append(
            Step(
                kind=step["kind"],
                name=step.get("name"),
                input=step.get("input"),
                output=step.get("output"),
                status=step.get("status", "ok"),
                prompt_tokens=tokens.get("prompt"),
                completion_tokens=tokens.get("completion"),
            )
        )
    return Case(
        text=trace.final_response,
        prompt=[{"role": "user", "content": trace.user_query}],
        steps=tuple(steps),
        status=trace.status,
        metadata=line.get("metadata", {}),
    )


def result_of(score: Score) -> RewardResult:
    details = dict(score.evidence)
    reason = details.get("reason")
    is_failure = score.status in (JudgementStatus.FAILED, JudgementStatus.BLOCKED)
    return RewardResult(
        score.value, score.value in (0.0, 1.0), details, str(reason) if is_failure else None
    )


def _score_of(result: RewardResult) -> Score:
    if result.score is not None:
        return Score(result.score)
    return Score.none(
        JudgementStatus.FAILED if result.error else JudgementStatus.NOT_APPLICABLE,
        result.error or "no score",
    )


def _shown(result: RewardResult) -> str:
    if result.score is not None:
        return f"{result.score:.3f}"
    return result.error or str(result.details.get("reason", "does not apply"))


def _patterns(path: Path) -> dict[str, list[dict[str, Any]]]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        patterns = {}
        for name in ("positive", "negative"):
            patterns[name] = [dict(pattern) for pattern in document[name]]
            for pattern in patterns[name]:
                key = "frequency" if pattern["type"] == "tool_usage" else "avg"
                float(pattern[key])  # raises for what is no number
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"it holds no learned patterns ({type(error).__name__}: {error})"
        raise InputError(
            f"file {str(path)!r}", why, "Learn them: LearnedReward(path).learn_from_traces(traces)"
        ) from None
    return patterns


def _success_rate(trace: ExecutionTrace) -> float:
    return sum(call.success for call in trace.tool_calls) / len(trace.tool_calls)
