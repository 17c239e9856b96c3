"""The page of a replay: recorded answers beside those of a version, and a vote between the two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from secrets import randbits
from typing import Any, Literal

from pydantic import Field

from thumbwheel.core.config import Config
from thumbwheel.evaluation.replay_types import ReplayedTrace
from thumbwheel.evaluation.trace_replay import show_replay
from thumbwheel.server.pages.page import PageRequest

AT_ONCE = 25
"""Pairs of answers on a page."""


class ReplayQuery(Config):
    """Which pairs are shown, and how."""

    show: Literal["all", "different", "open"] = "all"
    """All pairs, those that differ, or those without a vote"""
    names: Literal["hidden", "shown"] = "hidden"
    """Whether a reader learns only after the vote which answer is the new one"""
    skip: int = Field(default=0, ge=0)
    """Pairs before those that are shown"""


@dataclass(frozen=True)
class Side:
    """One of two answers beside each other."""

    answer: Literal["recorded", "replayed"]
    trace: str
    name: str
    """Who answered, as people read it."""
    text: str


def load_replay(asked: PageRequest) -> Mapping[str, Any]:
    """Load a part of a replay. Sides are drawn anew for each reader if the names are hidden."""
    query = asked.parsed(ReplayQuery)
    slug = asked.agent.slug
    replay = show_replay(asked.ws, asked.agent, asked.parts["replay"])
    may_rate = asked.principal.may("rate", slug)
    is_blind = may_rate and query.names == "hidden"
    chosen = [trace for trace in replay.traces if _is_shown(trace, query.show)]
    pairs = []
    for trace in chosen[query.skip : query.skip + AT_ONCE]:
        is_hidden = is_blind and not trace.is_equal and not trace.votes
        recorded_name = "recorded"
        if trace.answered_by:
            recorded_name = f"recorded, {trace.answered_by}"
        sides = [
            Side("recorded", trace.recorded, recorded_name, trace.before),
            Side("replayed", trace.replayed, replay.version, trace.after),
        ]
        if is_hidden and randbits(1):
            sides.reverse()
        pairs.append({"trace": trace, "sides": sides, "is_hidden": is_hidden})
    return {
        "title": f"Replay by {replay.version}",
        "replay": replay,
        "pairs": pairs,
        "query": query,
        "parameters": asked.query,
        "count": len(chosen),
        "at_once": AT_ONCE,
        "rater": asked.rater,
        "may_rate": may_rate,
    }


def _is_shown(trace: ReplayedTrace, show: str) -> bool:
    if show == "different":
        return not trace.is_equal
    if show == "open":
        return not trace.is_equal and not trace.votes
    return True
