"""`tool_success`: the part of the tool calls of a run that really succeeded, by their status and by
what the tools answered.

A call failed when its status is none of `SUCCEEDED`, when its answer is an object that reports an
error, or a text that begins like one. A run without tool calls has no score: nothing is known about
tools there. With `compatible` another arithmetic applies, which a preset may ask for: a tenth more
for tools that suit the words of the question, and a middle for runs without any tool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.core.config import Config
from thumbwheel.rewards.function import Case, JudgementStatus, RewardFunction, Score, Step

SUCCEEDED = frozenset({"ok", "success", "succeeded", "completed", "complete", "done"})
"""Statuses of a step that went well, in lower case."""
NEEDS_TOOLS = (
    "search",
    "find",
    "look up",
    "execute",
    "run",
    "create file",
    "write to",
    "read from",
    "calculate",
    "fetch",
    "download",
    "check",
    "analyze",
)
SUITS = {
    "search": ("search", "find", "look"),
    "file": ("file", "read", "write", "create"),
    "execute": ("run", "execute", "shell"),
    "web": ("fetch", "download", "url", "http"),
}
"""Part of a tool's name -> words of a question that it suits."""
BONUS = 0.1
UNUSED, MISSED = 0.5, 0.3
"""What `compatible` gives a run without tools: where the question needs none, and where it seems
to."""


class ToolSuccessConfig(Config):
    """Settings of `tool_success`."""

    tools: tuple[str, ...] = ()
    """Only calls of these tools count [default: all]."""
    error_starts: tuple[str, ...] = ("error", "traceback (most recent call last)", "exception:")
    """An answer of a tool that begins with one of these is a failure, whatever its status says; in
    lower case."""
    compatible: bool = False
    """A tenth more for tools that suit the question, and a value for runs without any tool."""


class ToolSuccess(RewardFunction[ToolSuccessConfig]):
    Config = ToolSuccessConfig
    case_settings = frozenset({"compatible", "error_starts", "tools"})
    reads = frozenset({"steps", "prompt"})

    def inputs(self, case: Case) -> Mapping[str, Any]:
        """Return the tool calls, and the prompt if `compatible`."""
        calls = tuple(step for step in case.steps if step.kind == "tool")
        return {"steps": calls, **({"prompt": case.prompt} if self.config.compatible else {})}

    def judge(self, case: Case) -> Score:
        """Return a score from 0, all failed, to 1, none failed; evidence: how many failed, which
        and why."""
        calls = [step for step in case.steps if step.kind == "tool"]
        if self.config.tools:
            calls = [call for call in calls if call.name in self.config.tools]
        question = case.question.casefold() if self.config.compatible else ""
        if not calls:
            if self.config.compatible:
                needs_tools = any(word in question for word in NEEDS_TOOLS)
                return Score(MISSED if needs_tools else UNUSED, evidence={"calls": 0})
            return Score.none(JudgementStatus.NOT_APPLICABLE, "the run called no tool")
        failures: list[dict[str, Any]] = []
        for call in calls:
            why = self._failure(call)
            if why is not None:
                failures.append({"tool": call.name, "why": why})
        value = 1 - len(failures) / len(calls)
        if self.config.compatible:
            suitable = sum(suits(call.name or "", question) for call in calls)
            value = min(1.0, value + BONUS * suitable / len(calls))
        evidence = {"calls": len(calls), "failed": len(failures), "failures": failures[:20]}
        return Score(value, evidence=evidence)

    def _failure(self, step: Step) -> str | None:
        if step.status.casefold() not in SUCCEEDED:
            return f"its status is {step.status!r}"
        if isinstance(step.output, Mapping):
            return reported(step.output)
        if not isinstance(step.output, str):
            return None
        start = step.output[:200].lstrip().casefold()
        if start.startswith(self.config.error_starts):
            return f"its answer begins with {start[:60]!r}"
        return None


def reported(output: Mapping[str, Any]) -> str | None:
    """Return the error that an object reports, as the usual protocols spell it, or None."""
    for key in ("error", "isError", "is_error"):
        if output.get(key):
            return f"its answer reports {key}: {str(output[key])[:60]}"
    return (
        "its answer says success: false"
        if output.get("success") is False or output.get("ok") is False
        else None
    )


def suits(tool: str, question: str) -> bool:
    """Return whether the question has a word that the tool's name suits."""
    for part, words in SUITS.items():
        if part in tool.casefold() and any(word in question for word in words):
            return True
    return False
