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
from thumbwheel.rewards.fences import Block, blocks
from thumbwheel.rewards.function import LONGEST_ANSWER, Case, RewardFunction, Score, Status
from thumbwheel.sandbox.run import run, shared
from thumbwheel.sandbox.types import Job, Limits, Refused, SandboxResult, State, Tests

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
    """See the module."""

    Config = CodeExecutionConfig
    case_settings = frozenset({"partial"})
    version = 4
    reads = frozenset({"text", "reference", "prompt"})

    def ready(self, seconds: float) -> CodeExecution:
        """With a sandbox that is up; a program is ended in time for a verdict, so that to hang is 0
        like any other fault."""
        limits, most = self.config.limits, SHARE * seconds
        bounds = {
            "wall_seconds": min(limits.wall_seconds, most),
            "cpu_seconds": min(limits.cpu_seconds, max(1, round(most))),
        }
        found = CodeExecution(
            self.config.model_copy(update={"limits": limits.model_copy(update=bounds)})
        )
        with suppress(Refused):  # which the score will say
            shared(found.config.limits, found.config.trusted_code).warm()
        return found

    def judge(self, case: Case) -> Score:
        """The score of one case."""
        return self.score([case])[0]

    def score(self, cases: Sequence[Case]) -> list[Score]:
        """One score per case; their programs run side by side, apart from each other."""
        jobs = [self._jobs(case) for case in cases]
        flat = [job for some in jobs if not isinstance(some, Score) for job in some]
        outcomes = iter(run(flat, self.config.limits, self.config.trusted_code) if flat else ())
        return [
            some
            if isinstance(some, Score)
            else self._score([next(outcomes) for _ in some], some[0].tests)
            for some in jobs
        ]

    def _jobs(self, case: Case) -> list[Job] | Score:
        if len(case.text) > LONGEST_ANSWER:
            return Score.none(
                Status.FAILED,
                f"the answer has {len(case.text)} characters; at most {LONGEST_ANSWER} are judged",
            )
        try:
            tests = asked(case)
        except ValueError as error:
            return Score.none(Status.FAILED, str(error))
        if tests is not None:
            return [Job(program(case.text, tests), tests=tests)]
        found = [
            Job(one.code, "shell" if one.language in SHELL else "python")
            for one in blocks(case.text)
            if one.language in PYTHON | SHELL
        ]
        if not found:
            return Score.none(Status.NOT_APPLICABLE, "the answer has no Python or shell block")
        if isinstance(opened(case.reference), Mapping | list):
            return Score.none(
                Status.NOT_APPLICABLE,
                "the reference holds no tests, and without them every program would be right",
            )
        if len(found) > MOST_BLOCKS:
            return Score.none(
                Status.FAILED,
                f"the answer has {len(found)} blocks of code; at most {MOST_BLOCKS} are run",
            )
        return found

    def _score(self, outcomes: list[SandboxResult], tests: Tests | None) -> Score:
        shown = [
            {"state": str(one.state), "detail": one.detail[:SHOWN], "output": one.output[-SHOWN:]}
            for one in outcomes
        ]
        for one in outcomes:
            if one.state is State.BLOCKED:
                return Score.none(Status.BLOCKED, one.detail)
            if one.state is State.BROKEN:
                return Score.none(Status.FAILED, one.detail)
        if tests is None:
            return Score(
                sum(one.state is State.DONE for one in outcomes) / len(outcomes),
                evidence={"blocks": shown},
            )
        passed = outcomes[0].passed
        share = sum(passed) / len(passed) if passed and outcomes[0].state is State.DONE else 0.0
        return Score(
            share if self.config.partial else float(share == 1),
            evidence={"tests": list(passed), **shown[0]},
        )


def asked(case: Case) -> Tests | None:
    """The tests of the reference, which may be JSON in a text; None where it holds none. Raises
    ValueError for ones that cannot be read."""
    given = opened(case.reference)
    if not isinstance(given, Mapping) or not (given.get("tests") or given.get("check")):
        return None
    tests, setup, check, entry = (
        given.get("tests") or [],
        given.get("setup") or "",
        given.get("check"),
        given.get("entry_point"),
    )
    if (
        isinstance(tests, str)
        or not all(isinstance(one, str) for one in tests)
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
    head = begun(case.prompt, entry) if check else ""
    return Tests(() if check else tuple(tests), setup, check or None, entry, head)


def opened(reference: Any) -> Any:
    """The reference, or the object that a text holds; None for any other text."""
    if not isinstance(reference, str):
        return reference
    try:
        found = json.loads(reference)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None


def begun(prompt: Sequence[Mapping[str, Any]], entry_point: Any) -> str:
    """The code that the last message of the prompt holds: up to and with the head of the asked
    function; "" where it has none."""
    text = next(
        (message.get("content") for message in reversed(prompt) if message.get("role") == "user"),
        None,
    )
    if not isinstance(text, str):
        return ""
    for one in [*(found.code for found in blocks(text)), text]:
        if f"def {entry_point}" in one and parses(one):
            return one.rstrip() + "\n"
    return ""


def program(text: str, tests: Tests) -> str:
    """The program of an answer: what its code blocks hold, else the answer itself, joined to the
    head that the prompt began."""
    fenced = [one for one in blocks(text) if one.language in PYTHON]
    code = _chosen(fenced, tests) if fenced else text
    if not tests.head:
        return code
    if tests.entry_point in defined(code):
        return f"{tests.head}\n\n{code}"
    indented = next((line for line in code.split("\n") if line.strip()), "").startswith((" ", "\t"))
    rest = code if indented else textwrap.indent(code, "    ")
    return tests.head + rest


def _chosen(fenced: list[Block], tests: Tests) -> str:
    joined = "\n\n".join(one.code for one in fenced)
    if len(fenced) == 1 or parses(joined):
        return joined
    fitting = [
        one.code
        for one in fenced
        if parses(one.code)
        and (tests.entry_point is None or tests.entry_point in defined(one.code))
    ]
    return fitting[0] if fitting else fenced[0].code


def defined(code: str) -> set[str]:
    """Functions at the top of a program; none where it cannot be parsed."""
    try:
        return {
            one.name
            for one in ast.parse(code).body
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        }
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return set()


def parses(code: str) -> bool:
    """Whether it is Python."""
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True
