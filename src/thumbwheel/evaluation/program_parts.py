"""Runs the programs of an evaluation in the sandboxes of several hosts: fifty of them are a part of
its job (jobs/parts.py).

Another host takes no part if its owner's settings for `code_execution` are others, or if it may run
no code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from thumbwheel.core import ids, log
from thumbwheel.core.errors import Conflict
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.measure import blocked
from thumbwheel.evaluation.suite import Scorer
from thumbwheel.jobs.part_types import PartHandler, PartOutcome
from thumbwheel.jobs.parts import has_helpers, share
from thumbwheel.rewards import ledger
from thumbwheel.rewards.checker import checker
from thumbwheel.rewards.component import resolve_paths
from thumbwheel.rewards.function import Case, JudgementStatus, RewardFunction, Score

PROGRAMS = "programs"
"""The kind of these parts."""
CHECKER = "code_execution"
PROGRAMS_A_PART = 50


def program_scorer(ws: Workspace, agent: str) -> Scorer:
    """Return what runs the programs of an agent's evaluation, with the help of other hosts if there
    is any."""

    def score(function: RewardFunction[Any], cases: Sequence[Case]) -> list[Score]:
        size = PROGRAMS_A_PART if has_helpers(ws) else max(1, len(cases))
        chunks = [cases[start : start + size] for start in range(0, len(cases), size)]
        settings = function.config.model_dump(mode="json", include=set(function.case_settings))
        common = {"agent": agent, "settings": settings, "identity": _identity(function)}

        def spec_of(index: int) -> dict[str, Any]:
            return {**common, "cases": [_case_to_json(case) for case in chunks[index]]}

        def do(index: int) -> PartOutcome:
            return PartOutcome(_to_json(function.score(chunks[index])))

        with log.progress("programs in the sandbox", len(cases), "programs") as advance:

            def advance_by_chunk(index: int) -> None:
                advance(len(chunks[index]))

            results = share(ws, PROGRAMS, len(chunks), spec_of, do, advance_by_chunk)
        return [_from_json(fields) for result in results for fields in result]

    return score


@contextmanager
def running(ws: Workspace) -> Iterator[PartHandler]:
    """Yield what runs the programs of a part, on a host that helps."""

    def run(spec: dict[str, Any]) -> PartOutcome:
        agent = spec["agent"]
        owner = resolve_paths(ws, agent, ledger.settings(ws, agent).checkers)
        function = checker(CHECKER, spec["settings"], None, f"an evaluation of {agent!r}", owner)
        if _identity(function) != spec["identity"]:
            raise Conflict(
                f"the programs of {agent!r}",
                "this host would judge otherwise: its settings or its version are others",
                f"Give every host the same rewards.checkers.{CHECKER}",
            )
        scores = function.score([Case(**fields) for fields in spec["cases"]])
        for reason in blocked(scores):
            raise Conflict(
                f"the programs of {agent!r}",
                f"this host may not run code: {reason}",
                "See what is missing here: thumbwheel doctor",
            )
        return PartOutcome(_to_json(scores))

    yield run


def _identity(function: RewardFunction[Any]) -> str:
    return ids.fingerprint([type(function).__name__, function.version, function.identity()])


def _case_to_json(case: Case) -> dict[str, Any]:
    return {"text": case.text, "reference": case.reference, "prompt": [*case.prompt]}


def _to_json(scores: Sequence[Score]) -> list[dict[str, Any]]:
    return [
        {
            "value": score.value,
            "status": str(score.status),
            "evidence": dict(score.evidence),
            "well_formed": score.well_formed,
        }
        for score in scores
    ]


def _from_json(fields: dict[str, Any]) -> Score:
    return Score(**{**fields, "status": JudgementStatus(fields["status"])})
