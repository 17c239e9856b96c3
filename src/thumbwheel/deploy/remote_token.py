"""How the servers of a home's other hosts may ask a model server of this one: they need its token,
which its own host keeps in a file. Where the host has an address, the token is among the sealed
keys of the cluster, too."""

from __future__ import annotations

from pathlib import Path

from thumbwheel.core import key_files
from thumbwheel.core.errors import ModelError
from thumbwheel.core.home_paths import portable
from thumbwheel.db.cluster import TOKENS
from thumbwheel.db.hosts import folder_id
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.deploy.types import Deployment, Endpoint

PLACE, REACHABLE = "place", "is_reachable"
"""The details of an endpoint that name the folder of its server, and whether it listens on all
addresses of its host."""


def share(ws: Workspace, target: str, endpoint: Endpoint) -> None:
    """Let the other hosts of the home ask the server of this endpoint, if they reach this host."""
    if not ws.is_shared or not endpoint.details.get(REACHABLE):
        return
    token = TARGETS.get(target).secret(endpoint)
    if token is not None:
        key_files.write(_path(ws, folder_id(ws.home), endpoint), token)


def token_of(ws: Workspace, deployment: Deployment) -> str | None:
    """Return the token of a deployment on another host, None if it needs none. Raises ModelError if
    that host does not share it."""
    endpoint = deployment.endpoint
    if endpoint is None or PLACE not in endpoint.details:
        return None
    token = key_files.read(_path(ws, str(deployment.folder), endpoint))
    if token is None:
        raise ModelError(
            f"{deployment.name} on {deployment.target}",
            f"host {deployment.host} does not share the token of its server",
            f"Run there: thumbwheel deployments --agent {deployment.agent} --restart",
        )
    return token.decode()


def _path(ws: Workspace, folder: str, endpoint: Endpoint) -> Path:
    """Return the name of a token: by its host, and the folder of the server there."""
    path = str(portable(str(endpoint.details[PLACE]), ws.home.path))
    return ws.home.path / TOKENS / f"{folder}.{path.partition('/')[2].replace('/', '.')}"
