"""What people are told of an agent: decisions that wait, failed jobs, versions that lost their
traffic, answers that got worse, and deployments that do not answer.

A notice says what happened and where to look. It quotes no text of people or models.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta

from thumbwheel.capture.recent import quality
from thumbwheel.db.workspace import Workspace
from thumbwheel.experiments import controller
from thumbwheel.experiments.types import State
from thumbwheel.loop.attention import Down, failed_jobs
from thumbwheel.loop.decision_card import decision_card
from thumbwheel.loop.inbox import decisions
from thumbwheel.models.types import Agent
from thumbwheel.notify.types import Notice

JOB_KIND = "notify"
"""The kind of the jobs that send notices; their failures are no notices."""
RECENT = timedelta(days=7)
"""For how long something that happened is a notice."""


def notices(ws: Workspace, agent: Agent, down: Down, now: datetime) -> list[Notice]:
    """Return all current notices about the agent, newest first."""
    current = [
        *_decisions(ws, agent),
        *_failed_jobs(ws, agent, now),
        *_stop_losses(ws, agent, now),
        *_regressions(ws, agent, now),
        *_dead_deployments(agent, down, now),
    ]
    return sorted(current, key=lambda notice: notice.occurred_at, reverse=True)


def _decisions(ws: Workspace, agent: Agent) -> Iterator[Notice]:
    for pending in decisions(ws, agent):
        card = decision_card(ws, pending)
        yield Notice(
            f"decision {pending.id}",
            "decision",
            agent.slug,
            f"{agent.slug}: {card.question}",
            card.summary,
            f"/agents/{agent.slug}",
            pending.recorded_at,
        )


def _failed_jobs(ws: Workspace, agent: Agent, now: datetime) -> Iterator[Notice]:
    for job in failed_jobs(ws, agent, now):
        if job.kind == JOB_KIND:
            continue
        yield Notice(
            f"failed job {job.id} {job.attempts}",
            "failed_job",
            agent.slug,
            f"{agent.slug}: {job.kind} failed",
            f"Job {job.id} failed. Its page says why, and can try it again.",
            f"/jobs/{job.id}",
            job.ended_at or job.recorded_at,
        )


def _stop_losses(ws: Workspace, agent: Agent, now: datetime) -> Iterator[Notice]:
    for experiment in controller.experiments_of(ws, agent):
        ended_at = experiment.ended_at
        if experiment.state is not State.LOST or ended_at is None or ended_at < now - RECENT:
            continue
        losers = " and ".join(arm.name for arm in experiment.plan.treatments)
        control = experiment.plan.control.name
        yield Notice(
            f"stop-loss {experiment.id}",
            "stop_loss",
            agent.slug,
            f"{agent.slug}: {losers} lost against {control}",
            f"People found it worse, so {control} answers everybody again.",
            f"/agents/{agent.slug}/experiments/{experiment.id}",
            ended_at,
        )


def _regressions(ws: Workspace, agent: Agent, now: datetime) -> Iterator[Notice]:
    fall = quality(ws, agent, now).fall()
    if fall is None:
        return
    before, after = fall
    yield Notice(
        f"regression {after.week}",
        "regression",
        agent.slug,
        f"{agent.slug}: answers got worse",
        f"In the week of {after.week:%d %b} people found {100 * after.share:.0f} % of "
        f"{after.rated} rated answers good, in the week of {before.week:%d %b} "
        f"{100 * before.share:.0f} % of {before.rated}. That is more than chance.",
        f"/agents/{agent.slug}",
        _midnight(after.week),
    )


def _dead_deployments(agent: Agent, down: Down, now: datetime) -> Iterator[Notice]:
    """Yield a notice for each dead deployment; its key changes once a day."""
    today = now.astimezone(UTC).date()
    for slug, version in sorted(down):
        if slug != agent.slug:
            continue
        yield Notice(
            f"dead deployment {slug} {version} {today}",
            "dead_deployment",
            slug,
            f"{slug}: {version} does not answer",
            f"Calls go to {version}, and it does not answer. The page of deployments says why.",
            f"/agents/{slug}/deployments",
            now,
        )


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
