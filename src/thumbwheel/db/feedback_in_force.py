"""Which feedback stands, for every stage that reads feedback: who speaks, who may take back what,
and what the newest word is.

A statement is taken back or replaced by its rater, in the source that it came from, and by the
owner with a command. A line of a file that names somebody else's statement changes nothing, in
whatever order the two arrive.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.db.schema import feedback, feedback_targets

OWNER = "cli"
"""The source of what the owner typed. No file may claim it."""
UNNAMED = "unnamed:"
"""How the speaker of feedback that names no rater begins."""
BY_CONTENT = "sha256:"
"""How the name of a trace begins that its source gave none (`Record.identified` of capture)."""
STATED_AT = sa.func.coalesce(
    feedback.c.occurred_at, feedback.c.recorded_at, type_=feedback.c.recorded_at.type
)
"""When it was said; when it was recorded, where nobody knows that."""


def speaker(target_name: sa.ColumnElement[str] | None = None) -> sa.ColumnElement[str]:
    """Who speaks about the target of this name: the rater, else the source, which is one voice
    about a run that has a name.

    A text that has no name of its own may have been met by anybody: without rater and time, each
    statement about it is a voice.
    """
    named = sa.func.coalesce(feedback.c.rater_id, UNNAMED + feedback.c.source)
    if target_name is None:
        return named
    lone = (
        feedback.c.rater_id.is_(None)
        & feedback.c.occurred_at.is_(None)
        & target_name.startswith(BY_CONTENT)
    )
    return sa.case((lone, UNNAMED + feedback.c.id), else_=named)


def superseded_and_retracted(
    agent_id: str, as_of: datetime | None = None
) -> tuple[sa.Select[Any], sa.Select[Any]]:
    """Two queries for the ids of feedback that something recorded by `as_of` (default: now)
    supersedes, and retracts."""
    later, earlier = feedback.alias("later"), feedback.alias("earlier")
    by_owner = later.c.source == OWNER
    by_rater = sa.and_(
        later.c.source == earlier.c.source,
        later.c.rater_id.is_not_distinct_from(earlier.c.rater_id),
    )
    own: list[sa.ColumnElement[bool]] = [later.c.agent_id == agent_id, sa.or_(by_owner, by_rater)]
    if as_of is not None:
        own.append(later.c.recorded_at <= as_of)
    superseding, retracting = (
        sa.select(earlier.c.id).join(later, column == earlier.c.id).where(*own)
        for column in (later.c.supersedes, later.c.retracts)
    )
    return superseding, retracting


def in_force(agent_id: str, as_of: datetime | None = None) -> sa.ColumnElement[bool]:
    """Condition on feedback that is known to be the agent's: recorded by `as_of`, and nothing
    recorded by then replaces or retracts it.

    What was superseded stays out even when its successor is withdrawn: who takes back their last
    word has no word.
    """
    own: list[sa.ColumnElement[bool]] = [
        feedback.c.retracts.is_(None),
        *(feedback.c.id.not_in(query) for query in superseded_and_retracted(agent_id, as_of)),
    ]
    if as_of is not None:
        own.append(feedback.c.recorded_at <= as_of)
    return sa.and_(*own)


def newest_words(agent_id: str, as_of: datetime | None = None) -> sa.Select[Any]:
    """A query for the ids of feedback in force, of each speaker the newest of a kind and name about
    the same thing.

    Several preferences and comments of one speaker stand beside each other: they are about other
    things each time.
    """
    target = feedback_targets.c
    slot = [
        speaker(target.external_id),
        feedback.c.kind,
        sa.func.coalesce(feedback.c.name, ""),
        sa.case((feedback.c.kind.in_(("preference", "comment")), feedback.c.id), else_=""),
        target.kind,
        target.source,
        target.external_id,
        sa.func.coalesce(target.step, -1),
    ]
    place = sa.func.rank().over(partition_by=slot, order_by=STATED_AT.desc()).label("place")
    aimed = sa.and_(target.feedback_id == feedback.c.id, target.position == 0)
    ranked = (
        sa.select(feedback.c.id, place)
        .select_from(feedback.outerjoin(feedback_targets, aimed))
        .where(feedback.c.agent_id == agent_id, in_force(agent_id, as_of))
        .subquery()
    )
    return sa.select(ranked.c.id).where(ranked.c.place == 1)
