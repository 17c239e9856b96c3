"""Why one trace has the reward that it has, in figures and in words."""

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
from thumbwheel.rewards.combine import PRESETS, Combined, Counting, RewardConfig
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
        """As JSON; a component that has not judged the trace with its present settings has the
        status not_judged."""
        return {
            "trace": self.combined.target_id,
            "reward": self.combined.value,
            "arithmetic": self.config.arithmetic or PRESETS[self.config.preset][0],
            "components": {name: self._part(name) for name in self.config.parts()},
            "not_run": self.not_run,
        }

    def _part(self, name: str) -> dict[str, Any]:
        score, weight = self.combined.scores.get(name), self.config.parts()[name].weight
        if score is None:
            unknown = {
                "weight": weight,
                "value": None,
                "status": "not_judged",
                "outdated": False,
                "counts_as": None,
            }
            return unknown | {"in_decision": False, "evidence": {}, "feedback_ids": []}
        evidence = {key: value for key, value in score.evidence.items() if key != "feedback_ids"}
        given = {
            "weight": weight,
            "value": score.value,
            "status": str(score.status),
            "evidence": evidence,
        }
        counting = Counting(self.config)
        given["outdated"] = name in self.outdated
        given["counts_as"] = counting.values(self.combined.scores)[name]
        given["in_decision"] = score.value is not None and name in counting.left_out(
            self.combined.scores
        )
        return given | {"feedback_ids": list(score.evidence.get("feedback_ids", ()))}

    def to_words(self) -> Iterator[str]:
        """For a person: the reward, how it came about, and every component, those that count first."""
        value = (
            "no reward: nothing that applies has a value"
            if self.combined.value is None
            else f"reward {self.combined.value:.4f}"
        )
        yield f"{self.name}: {value}"
        found = self.as_dict()["components"]
        counting = {
            name: one
            for name, one in found.items()
            if one["counts_as"] is not None and one["weight"]
        }
        if counting:
            above = " + ".join(
                f"{one['weight']:g} x {one['counts_as']:.4g}" for one in counting.values()
            )
            yield f"  = ({above}) / {sum(one['weight'] for one in counting.values()):g}"
        for name in [*counting, *(name for name in found if name not in counting)]:
            yield from _words(name, found[name])


def _words(name: str, one: dict[str, Any]) -> Iterator[str]:
    if one["status"] == "ok":
        counted_elsewhere = (
            ", not in the mean: decision counts what it heard" if one["in_decision"] else ""
        )
        yield f"  {name} (weight {one['weight']:g}): {one['value']:.4f}{counted_elsewhere}"
    elif one["status"] == "not_judged":
        yield (
            f"  {name} (weight {one['weight']:g}): not judged with its present settings; run: "
            "thumbwheel reward run"
        )
    else:
        middle = "" if one["counts_as"] is None else f", counted as {one['counts_as']:g}"
        yield (
            f"  {name} (weight {one['weight']:g}): {one['status'].replace('_', ' ')}{middle}: "
            f"{one['evidence'].get('reason', '')}"
        )
    if one["outdated"]:
        yield "      judged before its feedback or its case changed; run: thumbwheel reward run"
    for key, value in one["evidence"].items():
        if key != "reason":
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"      {key}: {text if len(text) <= LONGEST else text[: LONGEST - 3] + '...'}"
    if one["feedback_ids"]:
        yield f"      feedback: {', '.join(one['feedback_ids'])}"


def explain(ws: Workspace, agent: str, name: str, as_of: datetime | None = None) -> Explanation:
    """The reward of the trace that is called `name` (our id, or that of its source); raises
    NotFound."""
    agent_id = require_agent(ws, agent)
    config = settings(ws, agent)
    parts = components(ws, agent, config)
    with ws.db.read() as connection:
        known = store.named_traces(connection, agent_id, name)
        if len(known) != 1:
            several = ", ".join(f"{trace_id} ({source})" for trace_id, source in known)
            fix = (
                f"Name one of them: {several}"
                if known
                else "Ids stand in what reward list shows, and in the files that were imported"
            )
            raise NotFound(
                f"trace {name!r} of {agent!r}",
                f"there are {len(known)} of that name" if known else "there is none",
                fix,
            )
        combined, outdated = one_reward(connection, agent, config, parts, known[0][0], as_of)
        never_judged = not_run(connection, agent, config, parts, as_of)
        return Explanation(combined, config, outdated, never_judged, name)
