"""Whether deployments answer; start them again, and stop them.

Records and aliases stay as they are. What a target does for that is in targets/. `serve` starts
what does not answer by itself (watch.py), unless a person stopped it; files in the home mark those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from thumbwheel.core.errors import ModelError, ThumbwheelError
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.deploy import remote_token, store
from thumbwheel.deploy.routing import by_id, deployments, require_endpoint, route
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.deploy.types import Deployment, DeploymentState, Health, public_name
from thumbwheel.evaluation.approval import require_approval
from thumbwheel.models import versions
from thumbwheel.models.types import Agent

STOPPED = "stopped"
"""Of the folder of deployments: a file for each that a person stopped."""


def health(deployment: Deployment) -> Health:
    """Return whether a deployment answers now, and if not, why."""
    if deployment.state is not DeploymentState.WARM or deployment.endpoint is None:
        return Health(False, f"it is {deployment.state}")
    if deployment.host is not None:
        return Health(True, f"on host {deployment.host}, whose server watches it")
    return TARGETS.get(deployment.target).health(deployment.endpoint)


def is_stopped(ws: Workspace, deployment: Deployment) -> bool:
    """Return whether a person stopped it, and nobody has started it since."""
    return _mark(ws, deployment).exists()


def _mark(ws: Workspace, deployment: Deployment) -> Path:
    return ws.home.path / store.FOLDER / STOPPED / deployment.id


def ensure_running(ws: Workspace, deployment: Deployment) -> Deployment:
    """Start a deployment that does not answer. The canary is not repeated: the files are verified
    to be the same. One of another host is left to that host's server."""
    if deployment.host is not None:
        return deployment
    _mark(ws, deployment).unlink(missing_ok=True)
    if not health(deployment).alive:
        deployment = _apply_again(ws, deployment)
    else:
        remote_token.share(ws, deployment.target, require_endpoint(deployment))
    agent = Agent.named(deployment.agent)
    for alias in versions.aliases_of(ws, agent):
        serving = route(ws, agent, alias).deployment
        if serving is None or serving.id != deployment.id:
            continue
        # A target that was started again may have lost its own aliases.
        require_approval(ws, versions.by_id(ws, deployment.version_id), alias)
        driver = TARGETS.get(deployment.target)
        driver.point(public_name(deployment.agent, alias), require_endpoint(deployment))
    return deployment


def _apply_again(ws: Workspace, deployment: Deployment) -> Deployment:
    # `serve` imports this module to watch deployments; the libraries of an export are for the
    # process that starts one.
    from thumbwheel.deploy import prepare

    model_version = versions.by_id(ws, deployment.version_id)
    driver = TARGETS.get(deployment.target)
    prepare.require_servable(ws, model_version, None)
    settings = dict(deployment.settings)
    quant = settings.pop("quant", None)
    target_config = ws.settings(driver.Config, f"deploy.{deployment.target}", settings)
    deploy_plan = prepare.plan(ws, model_version, deployment.target, driver.kinds, quant)
    package = prepare.package(ws, model_version, deploy_plan)
    endpoint = driver.apply(replace(package, name=deployment.name), target_config)
    remote_token.share(ws, deployment.target, endpoint)
    ws.db.write(
        lambda connection: store.move_endpoint(connection, ws.home, deployment, endpoint),
        of_agent(Agent.named(deployment.agent).id),
    )
    return by_id(ws, deployment.id)


def _warm_here(ws: Workspace, agent: Agent) -> list[Deployment]:
    """Return the agent's warm deployments that run on this host."""
    rows = deployments(ws, agent)
    return [row for row in rows if row.state is DeploymentState.WARM and row.host is None]


def stop(ws: Workspace, agent: Agent, *, stays: bool = False) -> list[Deployment]:
    """Stop the agent's servers and return the stopped deployments. Aliases and records stay, so
    that `restart` brings them back; `serve` starts them again too, unless `stays` is set."""
    warm = _warm_here(ws, agent)

    def remove(deployment: Deployment) -> None:
        if stays:
            mark = _mark(ws, deployment)
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        TARGETS.get(deployment.target).remove(require_endpoint(deployment))

    for_each(warm, remove)
    return warm


def restart(ws: Workspace, agent: Agent) -> None:
    """Start every warm deployment that does not answer, except deployments of tainted versions."""
    warm = _warm_here(ws, agent)
    startable = [row for row in warm if not row.tainted]
    for_each(startable, lambda deployment: ensure_running(ws, deployment))


def start_again(ws: Workspace, deployment: Deployment) -> None:
    """Start a deployment for `serve`. If somebody stopped it or took it away meanwhile, it does not
    stay."""
    if is_stopped(ws, deployment):
        return
    started = ensure_running(ws, deployment)
    current = by_id(ws, deployment.id)
    if current.state is not DeploymentState.WARM or is_stopped(ws, current):
        TARGETS.get(started.target).remove(require_endpoint(started))


def for_each(rows: Sequence[Deployment], work: Callable[[Deployment], Any]) -> None:
    """Do `work` on all of them, also after one failed. Raises ModelError that names those on which
    it failed."""
    failures: list[tuple[Deployment, ThumbwheelError]] = []
    for deployment in rows:
        try:
            work(deployment)
        except ThumbwheelError as error:
            failures.append((deployment, error))
    if failures:
        what = ", ".join(f"{row.name} on {row.target}" for row, _ in failures)
        why = "; ".join(dict.fromkeys(f"{error.what}: {error.why}" for _, error in failures))
        _, first_error = failures[0]
        succeeded = len(rows) - len(failures)
        raise ModelError(what, why, f"{succeeded} of {len(rows)} are done. {first_error.fix}")
