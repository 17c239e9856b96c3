"""`PolicyVersion`: the trained versions of an agent as rows of the server's table of that name.
Versions themselves live in the home."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from thumbwheel.app.open import opener


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
    """The trained versions of an agent, the newest first; what runs without training (v0) is none.
    Raises NotFound for an unknown agent."""
    from thumbwheel.compat.n3.version_tree import results_of
    from thumbwheel.export.package import exports
    from thumbwheel.models.versions import versions

    policies = []
    with opener(Path(home) if home else None, None, "warning")() as ws:
        for version in reversed(versions(ws, agent_id)):
            if version.run_id is None:
                continue
            exported = exports(ws, version.id)
            results = results_of(ws, version)
            policies.append(
                PolicyVersion(
                    id=version.id,
                    agent_id=agent_id,
                    version=version.name,
                    model_path=str(exported[-1].path) if exported else None,
                    feedback_count=results["feedback_count"],
                    reward_mean=results["final_reward_mean"],
                    reward_std=results["final_reward_std"],
                    created_at=version.recorded_at,
                )
            )
    return policies
