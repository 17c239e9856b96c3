"""Labels of answers by persons alone, and which answers belong together."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import sqlalchemy as sa

from thumbwheel.models.types import Agent
from thumbwheel.rewards import feedback_queries
from thumbwheel.rewards.aggregate import judge
from thumbwheel.rewards.types import LabelConfig

if TYPE_CHECKING:
    pass


def person_labels(connection: sa.Connection, agent: Agent) -> dict[str, bool]:
    """Return trace -> whether persons call it good; traces without a decision are left out."""
    rule = LabelConfig()
    machines = feedback_queries.machine_raters(connection, agent.id)
    labels = {}
    for trace_id, statements in groupby(
        feedback_queries.statements(connection, agent.id, None), key=itemgetter(0)
    ):
        verdict = judge(
            trace_id,
            [statement for _, statement in statements if statement.rater_id not in machines],
            rule,
        )
        if verdict.good is not None:
            labels[trace_id] = verdict.good
    return labels


def groups_of(
    connection: sa.Connection, agent: Agent, trace_ids: Collection[str]
) -> dict[str, tuple[str, str]]:
    """Return trace -> (its prompt, its group) of these traces."""
    rows = feedback_queries.groups(connection, agent.id, trace_ids)
    groups = group_of(rows)
    return {trace_id: (prompt_id, groups[trace_id]) for trace_id, prompt_id, _ in rows}


def group_of(places: Iterable[tuple[str, str, str | None]]) -> dict[str, str]:
    """Return trace -> its group, from (trace, prompt, session): traces that share a prompt or a
    session, also through others, are one group.

    >>> group_of([("t1", "p1", "s1"), ("t2", "p1", "s2"), ("t3", "p3", "s2"), ("t4", "p4", None)])
    {'t1': 'p1', 't2': 'p1', 't3': 'p1', 't4': 'p4'}
    """
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = name = parent[parent[name]]
        return name

    rows = list(places)
    for _, prompt, session in rows:
        if session is not None:
            first, second = sorted((root(prompt), root(session)))
            parent[second] = first
    return {trace: root(prompt) for trace, prompt, _ in rows}
