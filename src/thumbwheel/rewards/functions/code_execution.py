"""`code_execution`: the code of an answer really runs, in the sandbox; where its task has tests,
they decide.

With tests (reference `{"tests": [asserts], "setup": ..., "entry_point": ..., "check": ...}`) the
value is 1 when all pass. The program is the first code block that defines what is asked, all Python
blocks together, or the answer itself, a whole function or the rest of the one that the prompt
began. Without tests the value is the share of the Python and shell blocks that come to their end;
leaving by exit is not coming to an end, whatever the exit code. Where it is not safe to run code
the score is `blocked`, never 0.
"""

from __future__ import annotations

import ast
import json
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import Field

from thumbwheel.core.config import Config
from thumbwheel.core.python_source import parse_module
from thumbwheel.rewards.fences import Block, blocks
from thumbwheel.rewards.function import LONGEST_ANSWER, Case, JudgementStatus, RewardFunction, Score
from thumbwheel.sandbox.run import run, shared
from thumbwheel.sandbox.types import (
    Limits,
    SandboxJob,
    SandboxOutcome,
    SandboxRefused,
    SandboxResult,
    Tests,
)

PYTHON = frozenset({"", "python", "py", "python3"})
SHELL = frozenset({"bash", "sh", "shell"})
MOST_BLOCKS = 20
SHOWN = 400
SHARE = 0.75
"""Of the seconds that an answer has: what its program gets of them."""


class CodeExecutionConfig(Config):
    """Settings of `code_execution`."""

    limits: Limits = Field(default_factory=Limits)
    """What one program may use."""
    partial: bool = False
    """The share of the tests that pass, instead of all or nothing."""
    trusted_code: bool = False
    """Run as plain processes of this user, without a sandbox. Only for answers whose code you would
    run yourself; it is logged."""


class CodeExecution(RewardFunction[CodeExecutionConfig]):
    Config = CodeExecutionConfig
    case_settings = frozenset({"partial"})
    version = 4
    reads = frozenset({"text", "reference", "prompt"})

    def ready(self, seconds: float) -> CodeExecution:
        """Return the function with its sandbox started and shorter time limits, so that a program
        is ended in time for a verdict and hanging scores 0 like any other fault."""
        limits, most = self.config.limits, SHARE * seconds
        bounds = {
            "wall_seconds": min(limits.wall_seconds, most),
            "cpu_seconds": min(limits.cpu_seconds, max(1, round(most))),
        }
        function = CodeExecution(
            self.config.model_copy(update={"limits": limits.model_copy(update=bounds)})
        )
        with suppress(SandboxRefused):  # which the score will say
            shared(function.config.limits, function.config.trusted_code).warm()
        return function

    def judge(self, case: Case) -> Score:
        return self.score([case])[0]

    def score(self, cases: Sequence[Case]) -> list[Score]:
        """Return one score per case; their programs run side by side, isolated from each other."""
        planned = [self._jobs(case) for case in cases]
        jobs: list[SandboxJob] = []
        for plan in planned:
            if not isinstance(plan, Score):
                jobs += plan
        results = list(run(jobs, self.config.limits, self.config.trusted_code)) if jobs else []
        scores: list[Score] = []
        start = 0
        for plan in planned:
            if isinstance(plan, Score):
                scores.append(plan)
                continue
            scores.append(self._score(results[start : start + len(plan)], plan[0].tests))
            start += len(plan)
        return scores

    def _jobs(self, case: Case) -> list[SandboxJob] | Score:
        if len(case.text) > LONGEST_ANSWER:
            return Score.none(
                JudgementStatus.FAILED,
                f"the answer has {len(case.text)} characters; at most {LONGEST_ANSWER} are judged",
            )
        try:
            tests = tests_of(case)
        except ValueError as error:
            return Score.none(JudgementStatus.FAILED, str(error))
        if tests is not None:
            return [SandboxJob(program(case.text, tests), tests=tests)]
        jobs = [
            SandboxJob(block.code, "shell" if block.language in SHELL else "python")
            for block in blocks(case.text)
            if block.language in PYTHON | SHELL
        ]
        if not jobs:
            return Score.none(
                JudgementStatus.NOT_APPLICABLE, "the answer has no Python or shell block"
            )
        if isinstance(reference_object(case.reference), Mapping | list):
            return Score.none(
                JudgementStatus.NOT_APPLICABLE,
                "the reference holds no tests, and without them every program would be right",
            )
        if len(jobs) > MOST_BLOCKS:
            return Score.none(
                JudgementStatus.FAILED,
                f"the answer has {len(jobs)} blocks of code; at most {MOST_BLOCKS} are run",
            )
        return jobs

    def _score(self, outcomes: list[SandboxResult], tests: Tests | None) -> Score:
        shown = [
            {
                "state": str(outcome.state),
                "detail": outcome.detail[:SHOWN],
                "output": outcome.output[-SHOWN:],
            }
            for outcome in outcomes
        ]
        for outcome in outcomes:
            if outcome.state is SandboxOutcome.BLOCKED:
                return Score.none(JudgementStatus.BLOCKED, outcome.detail)
            if outcome.state is SandboxOutcome.BROKEN:
                return Score.none(JudgementStatus.FAILED, outcome.detail)
        if tests is None:
            return Score(
                sum(outcome.state is SandboxOutcome.DONE for outcome in outcomes) / len(outcomes),
                evidence={"blocks": shown},
            )
        passed = outcomes[0].passed
        share = (
            sum(passed) / len(passed)
            if passed and outcomes[0].state is SandboxOutcome.DONE
            else 0.0
        )
        return Score(
            share if self.config.partial else float(share == 1),
            evidence={"tests": list(passed), **shown[0]},
        )


def tests_of(case: Case) -> Tests | None:
    """Return the tests of the reference, which may be JSON in a text, or None if it has none.
    Raises ValueError for tests that cannot be read."""
    reference = reference_object(case.reference)
    if not isinstance(reference, Mapping) or not (reference.get("tests") or reference.get("check")):
        return None
    tests, setup, check, entry = (
        reference.get("tests") or [],
        reference.get("setup") or "",
        reference.get("check"),
        reference.get("entry_point"),
    )
    if (
        isinstance(tests, str)
        or not all(isinstance(test, str) for test in tests)
        or not isinstance(setup, str)
    ):
        raise ValueError(
            "the reference's tests are no list of assert statements, or its setup is no text"
        )
    if not isinstance(entry, str | None):
        raise ValueError(f"the reference's entry_point {str(entry)[:80]!r} is no name")
    if check and not (isinstance(check, str) and isinstance(entry, str)):
        raise ValueError(
            "the reference has a check and does not name the entry_point that it is for"
        )
    head = prompt_code(case.prompt, entry) if check else ""
    return Tests(() if check else tuple(tests), setup, check or None, entry, head)


def reference_object(reference: Any) -> Any:
    """Return the reference, or the object or array that a text contains; None for any other
    text."""
    if not isinstance(reference, str):
        return reference
    try:
        value = json.loads(reference)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def prompt_code(prompt: Sequence[Mapping[str, Any]], entry_point: Any) -> str:
    """Return the code in the last user message of the prompt, up to and including the head of the
    requested function; "" if there is none."""
    text = next(
        (message.get("content") for message in reversed(prompt) if message.get("role") == "user"),
        None,
    )
    if not isinstance(text, str):
        return ""
    for code in [*(block.code for block in blocks(text)), text]:
        if f"def {entry_point}" in code and parses(code):
            return code.rstrip() + "\n"
    return ""


def program(text: str, tests: Tests) -> str:
    """Return the program of an answer: its code blocks, else the answer itself, joined to the head
    that the prompt began."""
    fenced = [block for block in blocks(text) if block.language in PYTHON]
    code = _main_code(fenced, tests) if fenced else text
    if not tests.head:
        return code
    if tests.entry_point in defined_names(code):
        return f"{tests.head}\n\n{code}"
    indented = next((line for line in code.split("\n") if line.strip()), "").startswith((" ", "\t"))
    rest = code if indented else textwrap.indent(code, "    ")
    return tests.head + rest


def _main_code(fenced: list[Block], tests: Tests) -> str:
    joined = "\n\n".join(block.code for block in fenced)
    if len(fenced) == 1 or parses(joined):
        return joined
    fitting = [
        block.code
        for block in fenced
        if parses(block.code)
        and (tests.entry_point is None or tests.entry_point in defined_names(block.code))
    ]
    return fitting[0] if fitting else fenced[0].code


def defined_names(code: str) -> set[str]:
    """Return the functions and classes at the top of a program; empty if it cannot be parsed."""
    try:
        return {
            node.name
            for node in parse_module(code).body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        }
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return set()


def parses(code: str) -> bool:
    """Return whether `code` is valid Python."""
    try:
        parse_module(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True
