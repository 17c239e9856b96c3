"""The answer of `GET /api/training/ab-test`, on the decisions that were really made.

The registry of the original names each version with a relative weight. Its defects are not
repeated: a mean of 0 is a value, a decision without a reward has none, an OVERRIDDEN one counts as
not accepted and an IGNORED one as neither, and a version is only called better where an interval
that holds at any moment says so (`comparison.decided`). Traffic itself is shared by `thumbwheel
experiment start`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from thumbwheel.compat.ocd.decisions import load_training_decisions
from thumbwheel.compat.ocd.records import DecisionRecord
from thumbwheel.stats.sequential import Difference, Sample

ALPHA = 0.05
FEWEST = 100
"""Rewarded decisions of each version without which nothing is decided."""
UNKNOWN = "unknown"


def get_ab_test(
    agent_type: str,
    registry: Sequence[Mapping[str, Any]] = (),
    *,
    source: str | Path | None = None,
) -> dict[str, Any]:
    """Compare the versions of an agent. `registry`: {version, weight, description} of each; the
    others are compared with the first one. Versions that it lacks follow, by name.

    Raises InputError for an unknown agent and for a source that cannot be read.
    """
    decisions = load_training_decisions(agent_type, None, False, False, None, None, source=source)
    return ab_test(agent_type, decisions, registry)


def ab_test(
    agent_type: str,
    decisions: Sequence[DecisionRecord],
    registry: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Compare the versions as `get_ab_test` does, by these decisions."""
    by_version: dict[str, list[DecisionRecord]] = {str(row["version"]): [] for row in registry}
    for decision in sorted(decisions, key=lambda row: row.model_version or UNKNOWN):
        by_version.setdefault(decision.model_version or UNKNOWN, []).append(decision)
    described = {str(row["version"]): row for row in registry}
    versions = []
    for name, rows in by_version.items():
        entry = described.get(name, {})
        versions.append(
            {
                "version": name,
                "description": entry.get("description", ""),
                "weight": entry.get("weight"),
                "stats": _stats(rows),
            }
        )
    rewards = [row.reward for row in decisions if row.reward is not None]
    return {
        "agentType": agent_type,
        "abTestingEnabled": len(registry) > 1,
        "totalDecisions": len(decisions),
        "overallAvgReward": fmean(rewards) if rewards else None,
        "versions": versions,
        "comparison": {
            "bestReward": _best(versions, "avgReward"),
            "bestAcceptanceRate": _best(versions, "acceptanceRate"),
            "mostDecisions": _best(versions, "totalDecisions"),
            "decided": _decided(by_version),
        },
    }


def _stats(rows: Sequence[DecisionRecord]) -> dict[str, Any]:
    rewards = [row.reward for row in rows if row.reward is not None]
    confidences = [row.confidence for row in rows if row.confidence is not None]
    feedback = Counter(row.user_feedback for row in rows if row.user_feedback is not None)
    judged = sum(feedback.values())
    # an ignored decision was neither accepted nor rejected
    decided = judged - feedback["IGNORED"]
    return {
        "totalDecisions": len(rows),
        "decisionsWithReward": len(rewards),
        "decisionsWithFeedback": judged,
        "avgReward": fmean(rewards) if rewards else None,
        "avgConfidence": fmean(confidences) if confidences else None,
        "acceptanceRate": feedback["CONFIRMED"] / decided if decided else None,
        "feedbackBreakdown": dict(feedback),
    }


def _best(versions: Sequence[Mapping[str, Any]], figure: str) -> str | None:
    """Return the version with the highest figure; None if no version has it."""
    measured = [row for row in versions if row["stats"][figure] is not None]
    if not measured:
        return None
    return str(max(measured, key=lambda row: row["stats"][figure])["version"])


def _decided(by_version: Mapping[str, Sequence[DecisionRecord]]) -> str | None:
    """Return the version whose mean reward is known to be above the first version's, the best one
    if there are several; None if nothing is known."""
    samples = {}
    for name, rows in by_version.items():
        samples[name] = Sample.of(
            np.array([row.reward for row in rows if row.reward is not None], float)
        )
    names = list(samples)
    better = {}
    for name in names[1:]:
        if min(samples[name].n, samples[names[0]].n) < FEWEST:
            continue
        difference = Difference.between(samples[names[0]], samples[name])
        if difference.interval(ALPHA / (len(names) - 1)).low > 0:
            better[name] = difference.value
    return max(better, key=lambda name: better[name]) if better else None
