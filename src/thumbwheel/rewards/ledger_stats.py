"""Statistics of the ledger: components and rewards of an agent, the effect of other weights, and
missing values. Nothing here runs a reward function.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from thumbwheel.core.config import build
from thumbwheel.core.errors import InputError, NotFound
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.versions import require_agent
from thumbwheel.rewards import feedback_queries, store
from thumbwheel.rewards.combine import Combined, RewardConfig
from thumbwheel.rewards.component import Component, components
from thumbwheel.rewards.function import JudgementStatus, Score
from thumbwheel.rewards.ledger import Version, not_run, rewards, scores, settings
from thumbwheel.rewards.types import MissingValue


@dataclass
class RunningStats:
    """Count, sum, least and greatest of a stream of numbers."""

    n: int = 0
    total: float = 0.0
    least: float = math.inf
    most: float = -math.inf

    def add(self, value: float) -> None:
        self.n, self.total = self.n + 1, self.total + value
        self.least, self.most = min(self.least, value), max(self.most, value)

    def as_dict(self) -> dict[str, Any]:
        """Return n, mean, least and most; the last three are None without numbers."""
        if not self.n:
            return {"n": 0, "mean": None, "least": None, "most": None}
        return {
            "n": self.n,
            "mean": self.total / self.n,
            "least": self.least,
            "most": self.most,
        }


def reward_summary(
    ws: Workspace, agent: str, as_of: datetime | None = None, lowest: int = 0
) -> dict[str, Any]:
    """Return components (weight, statuses, mean) and the combined reward of `agent`, with the
    `lowest` traces."""
    learner = require_agent(ws, agent)
    config = settings(ws, agent)
    parts = components(ws, agent, config)
    statuses: dict[str, Counter[str]] = defaultdict(Counter)
    means: dict[str, RunningStats] = defaultdict(RunningStats)
    reward_stats, good, worst = RunningStats(), 0, list[tuple[float, str]]()
    with ws.db.read() as connection:
        traces = feedback_queries.trace_count(connection, learner.id, as_of)
        never_judged = not_run(connection, learner, config, parts, as_of) if traces else []
        for combined in rewards(connection, learner, config, parts, as_of):
            for name, score in combined.scores.items():
                statuses[name][str(score.status)] += 1
                if score.value is not None:
                    means[name].add(score.value)
            if combined.value is not None:
                reward_stats.add(combined.value)
                good += combined.value >= config.good_from
                _keep_lowest(worst, combined, lowest)
        own_names = store.own_names(connection, [trace for _, trace in worst])
    weights = {name: part.weight for name, part in config.parts().items()}
    component_figures = {
        part.name: {
            "weight": weights[part.name],
            "mean": means[part.name].as_dict()["mean"],
            "statuses": dict(statuses[part.name]),
            "not_judged": traces - statuses[part.name].total(),
        }
        for part in parts
    }
    shown = [
        {"trace": trace, "external_id": own_names.get(trace), "reward": -value}
        for value, trace in sorted(worst, reverse=True)
    ]
    reward = reward_stats.as_dict() | {"good": good, "good_from": config.good_from}
    return {
        "agent": agent,
        "traces": traces,
        "components": component_figures,
        "reward": reward,
        "not_run": never_judged,
        "lowest": shown,
    }


def _keep_lowest(worst: list[tuple[float, str]], combined: Combined, most: int) -> None:
    assert combined.value is not None  # noqa: S101 - narrows the type; the caller has checked it
    if len(worst) < most:
        heapq.heappush(worst, (-combined.value, combined.target_id))
    elif most:
        heapq.heappushpop(worst, (-combined.value, combined.target_id))


def reweigh(
    ws: Workspace, agent: str, weights: Mapping[str, float], preset: str | None = None
) -> dict[str, Any]:
    """Return how other weights would change the rewards in the ledger. Raises InputError for an
    impossible weight.

    `yaml` are the settings that keep them: the reward is combined when it is read, so nothing has
    to be run for it.
    """
    learner = require_agent(ws, agent)
    before = settings(ws, agent)
    after = _reweighed(before, agent, weights, preset)
    parts = components(ws, agent, before)
    other_parts = components(ws, agent, after)
    old, new = RunningStats(), RunningStats()
    counts: Counter[str] = Counter()
    with ws.db.read() as connection:
        missing = not_run(connection, learner, after, other_parts)
        missing_before = not_run(connection, learner, before, parts)
        for _, by_version in scores(connection, learner, [*parts, *other_parts]):
            was = before.combine(_by_name(by_version, parts))
            now = after.combine(_by_name(by_version, other_parts))
            counts["changed"] += was != now
            for value, figures in ((was, old), (now, new)):
                if value is not None:
                    figures.add(value)
            if was is not None and now is not None:
                counts["now_good"] += was < before.good_from <= now
                counts["no_longer_good"] += now < before.good_from <= was
    change: dict[str, Any] = {key: counts[key] for key in ("changed", "now_good", "no_longer_good")}
    change |= {
        "not_run": missing_before,
        "not_run_yet": missing,
        "yaml": _yaml(agent, weights, preset),
    }
    return {
        "agent": agent,
        "before": old.as_dict(),
        "after": new.as_dict(),
        **change,
    }


def _by_name(by_version: Mapping[Version, Score], parts: Sequence[Component]) -> dict[str, Score]:
    return {
        part.name: by_version[part.name, part.version]
        for part in parts
        if (part.name, part.version) in by_version
    }


def _reweighed(
    config: RewardConfig, agent: str, weights: Mapping[str, float], preset: str | None
) -> RewardConfig:
    base = config
    if preset is not None:
        changed = {**config.model_dump(), "preset": preset, "arithmetic": None}
        base = build(RewardConfig, changed, "--preset")
    present = base.parts()
    for name, weight in weights.items():
        if name not in present:
            raise NotFound(
                f"component {name!r}",
                f"the reward of {agent!r} has none",
                f"It has: {', '.join(present)}",
            )
        if not (math.isfinite(weight) and weight >= 0):
            raise InputError(
                f"weight {weight!r} of {name!r}",
                "a weight is a number from 0 on",
                "Give --weight NAME=NUMBER",
            )
    changed = {
        name: present[name].model_copy(update={"weight": weight})
        for name, weight in weights.items()
    }
    return base.model_copy(update={"components": {**base.components, **changed}})


def _yaml(agent: str, weights: Mapping[str, float], preset: str | None) -> str:
    import yaml

    agent_settings: dict[str, Any] = {}
    if preset is not None:
        agent_settings["preset"] = preset
    if weights:
        weighted = {name: {"weight": weight} for name, weight in weights.items()}
        agent_settings["components"] = weighted
    section = {"rewards": {"agents": {agent: agent_settings}}}
    return str(yaml.safe_dump(section, sort_keys=False))


def missing_values(ws: Workspace, agent: str) -> list[MissingValue]:
    """Return the current scores without a value (pending, blocked, failed) that may still get one,
    counted by component and reason."""
    agent_id = require_agent(ws, agent).id
    versions = {part.name: part.version for part in components(ws, agent, settings(ws, agent))}
    with ws.db.read() as connection:
        rows = store.reasons(connection, agent_id)
    waiting = (JudgementStatus.PENDING, JudgementStatus.BLOCKED, JudgementStatus.FAILED)
    missing = []
    for row in rows:
        in_use = versions.get(row["component"]) == row["component_version"]
        if in_use and row["status"] in waiting:
            missing.append(
                MissingValue(row["component"], row["status"], row["count"], row["reason"])
            )
    return missing
