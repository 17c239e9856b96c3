"""Judges the recorded answers of an agent into the ledger, and counts what became of them: what the
command, the job and the route `reward run` give."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from thumbwheel.core import log
from thumbwheel.core.errors import InputError
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers.types import Unreadable, parse_time
from thumbwheel.models.versions import require_agent
from thumbwheel.rewards import ledger
from thumbwheel.rewards.component import components
from thumbwheel.rewards.judge_parts import judge_ranges
from thumbwheel.rewards.ledger import LedgerReport
from thumbwheel.rewards.ledger_stats import missing_values
from thumbwheel.rewards.types import JudgedComponent, JudgeReport, MissingValue, PendingReport


def judge_traces(
    ws: Workspace,
    agent: str,
    only: Collection[str] = (),
    as_of: str | None = None,
    retry: bool = False,
    dry_run: bool = False,
) -> JudgeReport:
    """Judge everything that the ledger has not judged, by all components or `only` these; return
    the counts."""
    learner = require_agent(ws, agent)
    parts = components(ws, agent, ledger.settings(ws, agent), only)
    time = instant(as_of)
    with log.progress(f"judge {agent}", ledger.count(ws, learner, time), "traces") as advance:
        if dry_run:
            report = ledger.run(
                ws, learner, parts, as_of=time, retry=retry, dry_run=True, advance=advance
            )
        else:
            report = judge_ranges(ws, learner, parts, time, retry, advance)
    return _report(report, agent, dry_run)


def judge_pending(ws: Workspace, agent: str, dry_run: bool = False) -> PendingReport:
    """Judge again what could not be judged before; return the counts, and the scores still
    missing."""
    counts = judge_traces(ws, agent, retry=True, dry_run=dry_run)
    return PendingReport(**vars(counts), waiting=missing_values(ws, agent))


def _report(report: LedgerReport, agent: str, dry_run: bool) -> JudgeReport:
    components = {}
    for name in report.standing:
        statuses = {
            status: count for (part, status), count in report.statuses.items() if part == name
        }
        components[name] = JudgedComponent(report.judged[name], report.standing[name], statuses)
    reasons = [
        MissingValue(name, status, count, why)
        for (name, status, why), count in report.reasons.most_common()
    ]
    return JudgeReport(report.traces, report.rewarded, components, reasons, agent, dry_run)


def instant(text: str | None) -> datetime | None:
    """Return the time that `--as-of` names, or None without one. Raises InputError."""
    try:
        return None if text is None else parse_time(text)
    except Unreadable as error:
        raise InputError(f"--as-of {text!r}", str(error), "Give a day or a time") from None
