"""Explains the reward of one trace, as JSON and in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from thumbwheel.core.errors import NotFound
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.versions import require_agent
from thumbwheel.rewards import store
from thumbwheel.rewards.combine import Combined, ComponentValues, RewardConfig
from thumbwheel.rewards.component import components
from thumbwheel.rewards.ledger import not_run, one_reward, settings

LONGEST = 160
"""Characters of a piece of evidence in words."""


@dataclass(frozen=True)
class Explanation:
    """The reward of a trace with the settings that made it."""

    combined: Combined
    config: RewardConfig
    outdated: frozenset[str]
    """Components that judged the trace before its feedback or its case changed."""
    not_run: list[str]
    """Components with a weight that have never judged anything with their present settings."""
    name: str
    """What the caller called the trace."""

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation for JSON; a component that has not judged the trace with its
        present settings has the status not_judged."""
        return {
            "trace": self.combined.target_id,
            "reward": self.combined.value,
            "arithmetic": self.config.arithmetic_name,
            "components": {name: self._part(name) for name in self.config.parts()},
            "not_run": self.not_run,
        }

    def _part(self, name: str) -> dict[str, Any]:
        weight = self.config.parts()[name].weight
        score = self.combined.scores.get(name)
        if score is None:
            return {
                "weight": weight,
                "value": None,
                "status": "not_judged",
                "outdated": False,
                "counts_as": None,
                "in_decision": False,
                "evidence": {},
                "feedback_ids": [],
            }
        evidence = {key: value for key, value in score.evidence.items() if key != "feedback_ids"}
        values = ComponentValues(self.config)
        left_out = values.left_out(self.combined.scores)
        return {
            "weight": weight,
            "value": score.value,
            "status": str(score.status),
            "evidence": evidence,
            "outdated": name in self.outdated,
            "counts_as": values.values(self.combined.scores)[name],
            "in_decision": score.value is not None and name in left_out,
            "feedback_ids": list(score.evidence.get("feedback_ids", ())),
        }

    def to_words(self) -> Iterator[str]:
        """Yield lines for a person: the reward, how it is computed, and every component; those that
        count come first."""
        if self.combined.value is None:
            yield f"{self.name}: no reward: nothing that applies has a value"
        else:
            yield f"{self.name}: reward {self.combined.value:.4f}"
        parts = self.as_dict()["components"]
        counting: dict[str, Any] = {}
        others: dict[str, Any] = {}
        for name, part in parts.items():
            counts = part["counts_as"] is not None and part["weight"]
            (counting if counts else others)[name] = part
        if counting:
            terms = [f"{part['weight']:g} x {part['counts_as']:.4g}" for part in counting.values()]
            total = sum(part["weight"] for part in counting.values())
            yield f"  = ({' + '.join(terms)}) / {total:g}"
        for name, part in {**counting, **others}.items():
            yield from _words(name, part)


def _words(name: str, part: dict[str, Any]) -> Iterator[str]:
    title = f"  {name} (weight {part['weight']:g})"
    if part["status"] == "ok":
        elsewhere = ", not in the mean: decision counts what it heard"
        yield f"{title}: {part['value']:.4f}{elsewhere if part['in_decision'] else ''}"
    elif part["status"] == "not_judged":
        yield f"{title}: not judged with its present settings; run: thumbwheel reward run"
    else:
        status = part["status"].replace("_", " ")
        middle = "" if part["counts_as"] is None else f", counted as {part['counts_as']:g}"
        yield f"{title}: {status}{middle}: {part['evidence'].get('reason', '')}"
    if part["outdated"]:
        yield "      judged before its feedback or its case changed; run: thumbwheel reward run"
    for key, value in part["evidence"].items():
        if key != "reason":
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            shown = text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
            yield f"      {key}: {shown}"
    if part["feedback_ids"]:
        yield f"      feedback: {', '.join(part['feedback_ids'])}"


def explain(ws: Workspace, agent: str, name: str, as_of: datetime | None = None) -> Explanation:
    """Explain the reward of the trace called `name` (its id here or in its source). Raises
    NotFound."""
    learner = require_agent(ws, agent)
    config = settings(ws, agent)
    parts = components(ws, agent, config)
    with ws.db.read() as connection:
        traces = store.named_traces(connection, learner.id, name)
        if len(traces) != 1:
            raise _not_single(agent, name, traces)
        trace_id, _ = traces[0]
        combined, outdated = one_reward(connection, learner, config, parts, trace_id, as_of)
        never_judged = not_run(connection, learner, config, parts, as_of)
        return Explanation(combined, config, outdated, never_judged, name)


def _not_single(agent: str, name: str, traces: list[tuple[str, str]]) -> NotFound:
    if traces:
        several = ", ".join(f"{trace_id} ({source})" for trace_id, source in traces)
        why, fix = f"there are {len(traces)} of that name", f"Name one of them: {several}"
    else:
        why = "there is none"
        fix = "Ids are in what reward list shows, and in the files that were imported"
    return NotFound(f"trace {name!r} of {agent!r}", why, fix)
