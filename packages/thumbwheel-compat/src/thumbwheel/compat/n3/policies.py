"""`PolicyVersion`: the trained versions of an agent as rows of the server's table of that name.
Versions themselves live in the home."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from thumbwheel.compat.script_home import open_home
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import ModelVersion


@dataclass(frozen=True)
class PolicyVersion:
    """One trained version. `model_path` is where it was exported last; what a run does not know is
    null."""

    id: str
    agent_id: str
    version: str
    model_path: str | None
    feedback_count: int
    reward_mean: float | None
    reward_std: float | None
    created_at: datetime

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"created_at": self.created_at.isoformat()}


def list_policy_versions(agent_id: str, *, home: str | Path | None = None) -> list[PolicyVersion]:
    """Return the trained versions of an agent, the newest first; v0, which runs without training,
    is not among them. Raises NotFound for an unknown agent."""
    with open_home(home) as ws:
        return policy_versions(ws, agent_id)


def policy_versions(ws: Workspace, agent_id: str) -> list[PolicyVersion]:
    """Return the same as `list_policy_versions` for an open home."""
    from thumbwheel.models.versions import require_agent, versions

    trained = [version for version in versions(ws, require_agent(ws, agent_id)) if version.run_id]
    return [policy_version(ws, version) for version in reversed(trained)]


def policy_version(ws: Workspace, version: ModelVersion) -> PolicyVersion:
    """Return the row of a trained version."""
    from thumbwheel.compat.n3.version_tree import results_of
    from thumbwheel.export.package import exports

    exported = exports(ws, version)
    results = results_of(ws, version)
    return PolicyVersion(
        id=version.id,
        agent_id=version.agent,
        version=version.name,
        model_path=str(exported[-1].path) if exported else None,
        feedback_count=results["feedback_count"],
        reward_mean=results["final_reward_mean"],
        reward_std=results["final_reward_std"],
        created_at=version.recorded_at,
    )
