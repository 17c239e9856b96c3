"""Judges the recorded answers of an agent into the ledger, and counts what became of them, as JSON:
what the command, the job and the route `reward run` give."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from thumbwheel.capture.types import Unreadable, parse_time
from thumbwheel.core import log
from thumbwheel.core.errors import InputError
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.versions import require_agent
from thumbwheel.rewards import ledger
from thumbwheel.rewards.component import components
from thumbwheel.rewards.ledger import Report
from thumbwheel.rewards.ledger_stats import missing_values


def judge_traces(
    ws: Workspace,
    agent: str,
    only: Collection[str] = (),
    as_of: str | None = None,
    retry: bool = False,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Judge what the ledger has not, by all components or `only` these; the counts."""
    learner = require_agent(ws, agent)
    parts = components(ws, agent, ledger.settings(ws, agent), only)
    time = instant(as_of)
    with log.progress(f"judge {agent}", ledger.count(ws, learner, time), "traces") as advance:
        report = ledger.run(
            ws, learner, parts, as_of=time, retry=retry, dry_run=dry_run, advance=advance
        )
    return _as_dict(report) | {"agent": agent, "dry_run": dry_run}


def judge_pending(ws: Workspace, agent: str, dry_run: bool = False) -> dict[str, Any]:
    """Judge what could not be judged before; the counts, and what still waits."""
    counts = judge_traces(ws, agent, retry=True, dry_run=dry_run)
    return counts | {"waiting": missing_values(ws, agent)}


def _as_dict(report: Report) -> dict[str, Any]:
    components: Mapping[str, Any] = {
        name: {
            "judged": report.judged[name],
            "stood": report.standing[name],
            "statuses": {
                status: count for (part, status), count in report.statuses.items() if part == name
            },
        }
        for name in report.standing
    }
    reasons = [
        {"component": name, "status": status, "reason": why, "count": n}
        for (name, status, why), n in report.reasons.most_common()
    ]
    return {
        "traces": report.traces,
        "rewarded": report.rewarded,
        "components": components,
        "reasons": reasons,
    }


def instant(text: str | None) -> datetime | None:
    """The time that `--as-of` names; raises InputError."""
    try:
        return None if text is None else parse_time(text)
    except Unreadable as error:
        raise InputError(f"--as-of {text!r}", str(error), "Give a day or a time") from None
