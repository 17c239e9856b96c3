"""Whether a target could have answered what an agent's apps asked last week.

Asked before a version becomes live. What the live deployment cannot do either does not count: its
calls fail already.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from thumbwheel.capture.call_feature import CallFeature
from thumbwheel.capture.recorded_use import recent_calls
from thumbwheel.core.clock import utc_now
from thumbwheel.core.errors import Conflict
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.routing import route
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.deploy.types import Deployment
from thumbwheel.models.types import LIVE, Agent, ModelVersion

DAYS = 7
"""Days whose calls are looked at."""


def misfits(
    ws: Workspace, agent: Agent, target: str, deployment: Deployment | None = None
) -> list[str]:
    """Return remarks on features and lengths of last week's calls that the target cannot serve,
    each with its share of the calls. Lengths are compared if `deployment` is known."""
    live = route(ws, agent, LIVE).deployment
    lacking = lacks(target) - (lacks(live.target) if live else frozenset())
    context = context_of(deployment)
    if not lacking and context is None:
        return []
    calls = recent_calls(ws, agent, utc_now() - timedelta(days=DAYS))
    remarks = []
    for feature in CallFeature:
        count = sum(feature in call.features for call in calls)
        if feature in lacking and count:
            remarks.append(
                f"{_share(count, len(calls))} of last week's calls used {feature}, which this "
                "target cannot"
            )
    if context is not None:
        count = sum(call.tokens is not None and call.tokens > context for call in calls)
        if count:
            remarks.append(
                f"{_share(count, len(calls))} of last week's calls had more tokens than its "
                f"context of {context:,}"
            )
    return remarks


def require_fit(
    ws: Workspace,
    model_version: ModelVersion,
    target: str,
    deployment: Deployment | None = None,
) -> None:
    """Raise Conflict if the target could not have answered last week's calls."""
    agent = Agent.named(model_version.agent)
    remarks = misfits(ws, agent, target, deployment)
    if not remarks:
        return
    command = f"thumbwheel deploy {model_version.name} --agent {agent.slug} --target {target}"
    if deployment is not None:
        command = f"thumbwheel promote {model_version.name} --agent {agent.slug}"
    others = ", ".join(_able(remarks, ws, agent, target))
    choice = f"Choose a target that can ({others})" if others else "Change these calls"
    raise Conflict(
        f"{model_version.label} on {target}",
        "; ".join(remarks),
        f'{choice}, or go on all the same: {command} --accept "your name: why"',
    )


def _able(remarks: list[str], ws: Workspace, agent: Agent, target: str) -> Iterable[str]:
    """Yield the built-in targets that could have answered more of the calls."""
    for name in TARGETS.names():
        if name not in (target, "remote") and len(misfits(ws, agent, name)) < len(remarks):
            yield name


def lacks(target: str) -> frozenset[CallFeature]:
    """Return the features that a target lacks. A target of another package that declares none lacks
    none."""
    if target not in TARGETS.names():
        return frozenset()
    lacking: frozenset[CallFeature] = getattr(TARGETS.get(target), "lacks", frozenset())
    return lacking


def context_of(deployment: Deployment | None) -> int | None:
    """Return how many tokens prompt and answer of a deployment may have; None if its target does
    not record it."""
    if deployment is None or deployment.endpoint is None:
        return None
    context = deployment.endpoint.details.get("context")
    return context if isinstance(context, int) else None


def _share(count: int, total: int) -> str:
    """Return a share in percent, and of few in their number.

    >>> _share(18, 100), _share(1, 400)
    ('18 %', '1')
    """
    share = round(100 * count / total)
    return f"{share} %" if share else str(count)
