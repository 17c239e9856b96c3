"""Judges the recorded answers of an agent on several hosts: each range of its prompts is a part of
the job (jobs/parts.py).

Another host has the same traces, and its own settings, models and sandbox. It takes no part if one
of its components has another version. What it cannot judge, without a sandbox or with a judge that
is down, the host of the job judges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from thumbwheel.core.errors import Conflict
from thumbwheel.core.log import Advance
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs.part_types import PartHandler, PartOutcome
from thumbwheel.jobs.parts import has_helpers, share
from thumbwheel.models.types import Agent
from thumbwheel.rewards import feedback_queries, ledger
from thumbwheel.rewards.component import Component, components
from thumbwheel.rewards.function import JudgementStatus
from thumbwheel.rewards.ledger import LedgerReport
from thumbwheel.rewards.types import EVERY_PROMPT, PromptRange

SCORES = "scores"
"""The kind of these parts."""
TRACES_A_PART = 500
"""About how many traces a part has."""
MOST_PARTS = 200


def judge_ranges(
    ws: Workspace,
    agent: Agent,
    parts: Sequence[Component],
    as_of: datetime | None,
    retry: bool,
    advance: Advance,
) -> LedgerReport:
    """Judge everything not yet judged, with the help of other hosts if there is any; see
    `ledger.run`."""
    ranges, n_traces = [EVERY_PROMPT], 0
    if has_helpers(ws):
        with ws.db.read() as connection:
            n_traces = feedback_queries.trace_count(connection, agent.id, as_of)
            n_ranges = min(MOST_PARTS, n_traces // TRACES_A_PART)
            ranges = feedback_queries.prompt_ranges(connection, agent.id, n_ranges)
    is_shared = len(ranges) > 1
    versions = {part.name: part.version for part in parts}
    common: dict[str, Any] = {"agent": agent.slug, "components": versions, "retry": retry}
    common["as_of"] = as_of.isoformat() if as_of else None

    def spec_of(index: int) -> dict[str, Any]:
        return {**common, **ranges[index]._asdict()}

    def do(index: int) -> PartOutcome:
        report = ledger.run(
            ws,
            agent,
            parts,
            as_of=as_of,
            retry=retry,
            prompts=ranges[index],
            advance=None if is_shared else advance,
        )
        return PartOutcome(report.to_json())

    def advance_by_part(index: int) -> None:
        if is_shared:
            advance(n_traces / len(ranges))

    whole = LedgerReport()
    for counts in share(ws, SCORES, len(ranges), spec_of, do, advance_by_part):
        whole.add_json(counts)
    return whole


@contextmanager
def judging(ws: Workspace) -> Iterator[PartHandler]:
    """Yield what judges the traces of a part, on a host that helps."""

    def judge(spec: dict[str, Any]) -> PartOutcome:
        agent = Agent.named(spec["agent"])
        names = list(spec["components"])
        parts = components(ws, agent.slug, ledger.settings(ws, agent.slug), names)
        versions = {part.name: part.version for part in parts}
        if versions != spec["components"]:
            raise Conflict(
                f"the reward of {agent.slug!r}",
                "this host would judge otherwise: its settings, functions or models are others",
                "Give every host the same section `rewards` of the settings",
            )
        report = ledger.run(
            ws,
            agent,
            parts,
            as_of=datetime.fromisoformat(spec["as_of"]) if spec["as_of"] else None,
            retry=spec["retry"],
            prompts=PromptRange(spec["first"], spec["last"]),
        )
        for (name, status, reason), _ in report.reasons.most_common():
            if status == JudgementStatus.BLOCKED:
                raise Conflict(
                    f"component {name!r} of {agent.slug!r}",
                    f"it cannot judge on this host: {reason}",
                    "See what is missing here: thumbwheel doctor",
                )
        return PartOutcome(report.to_json())

    yield judge
