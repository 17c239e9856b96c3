"""The job `deploy`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from thumbwheel.core.config import Config
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.deploy import deploy
from thumbwheel.deploy.routing import by_id
from thumbwheel.deploy.running import ensure_running
from thumbwheel.deploy.switch import promote
from thumbwheel.deploy.types import DeployedVersion, Deployment, DeploymentState
from thumbwheel.jobs import current
from thumbwheel.models import versions
from thumbwheel.models.types import Agent, ModelVersion, Switch

NO_ALIAS = "none"


class DeploySpec(Config):
    """What to serve, and where."""

    version: str
    """v3, an alias, or latest."""
    agent: str
    """The agent."""
    target: str = "embedded"
    """embedded, llamacpp, ollama, vllm or remote."""
    alias: str = "live"
    """The alias to point at it once its canary passed; none only keeps it warm."""
    quant: str | None = None
    """Precision of a GGUF."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Settings of the target."""
    accept: str | None = None
    """Take a failed parity, an inconclusive canary, or a target that could not have answered last
    week's calls: name and reason."""


DEPLOYMENT = "deployment"
"""The note of the deployment that an attempt recorded."""


def run_deploy(ws: Workspace, spec: DeploySpec) -> DeployedVersion:
    """Deploy the version. Steps that an earlier attempt completed are not repeated: a deployment
    that answers is not made anew, and an alias that was moved to it stays where somebody has moved
    it since."""
    version = versions.version(ws, spec.agent, spec.version)
    alias = None if spec.alias == NO_ALIAS else spec.alias
    deployment_id = current.notes().get(DEPLOYMENT)
    if deployment_id is not None:
        earlier = _completed(ws, version, alias, by_id(ws, deployment_id), spec.accept)
        if earlier is not None:
            return earlier
    result = deploy(
        ws,
        version,
        spec.target,
        alias,
        quant=spec.quant,
        settings=spec.set,
        accept=spec.accept,
        on_recorded=lambda new_id: current.note(ws, **{DEPLOYMENT: new_id}),
    )
    return DeployedVersion.of(result.deployment, result.switch)


def _completed(
    ws: Workspace,
    version: ModelVersion,
    alias: str | None,
    deployment: Deployment,
    accept: str | None,
) -> DeployedVersion | None:
    """Complete the remaining steps for the deployment of an earlier attempt; return None if that
    one never answered."""
    if not deployment.is_accepted:
        return None
    is_warm = deployment.state is DeploymentState.WARM
    switch = None if alias is None else _switch_to(ws, version, alias, deployment)
    if switch is None and not is_warm:
        return None
    if is_warm:
        deployment = ensure_running(ws, deployment)
    if switch is None and alias is not None:
        reason = f"deployed on {deployment.target}"
        switch = promote(ws, version, alias, reason=reason, deployment=deployment, accept=accept)
    return DeployedVersion.of(deployment, switch)


def _switch_to(
    ws: Workspace, version: ModelVersion, alias: str, deployment: Deployment
) -> Switch | None:
    """Return the first move of the alias to this deployment, whatever came after it; None if there
    was none."""
    for switch in versions.switches(ws, Agent.named(version.agent), alias):
        if switch.evidence.get("deployment") == deployment.id:
            return switch
    return None
