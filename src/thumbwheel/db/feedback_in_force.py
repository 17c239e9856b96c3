"""Which feedback is in force: who gave it, who may retract it, and which statement is the newest.

A statement can be retracted or replaced by its rater, in the source that it came from and by the
same sender, and by the owner with a command. A rater is a name that whoever sends it may claim; the
sender is known. So a line that names somebody else's statement changes nothing, whichever of the
two arrives first, and no newer word of another sender replaces one. A user who is logged in takes
back their own words of every source.

A collector's word comes twice, through the inbox and in the collector's file: it counts once. The
file never replaces what the home's app sent itself.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.db.schema import (
    api_keys,
    feedback,
    feedback_targets,
    quarantined_feedback,
    quarantines,
    users,
)
from thumbwheel.db.workspace import IMPORTED, OWNER_OF_HOME

OWNER = "cli"
"""The source of what the owner typed. No file may claim it."""
UNNAMED = "unnamed:"
"""Prefix of the speaker of feedback that names no rater."""
BY_SENDER = " by "
"""Between the rater and the sender of a speaker."""
USER = "usr_"
"""Prefix of the senders that are users who are logged in."""
BY_CONTENT = "sha256:"
"""Prefix of the name of a trace whose source gave it none (`Record.identified` of capture)."""
RELEASED = "released"
"""State of a quarantine whose feedback counts again."""
STATED_AT = sa.func.coalesce(
    feedback.c.occurred_at, feedback.c.recorded_at, type_=feedback.c.recorded_at.type
)
"""When the feedback was given; when it was recorded, if that is unknown."""


def speaker(target_name: sa.ColumnElement[str] | None = None) -> sa.ColumnElement[str]:
    """Return an expression for the speaker about the target of this name: the rater, else the
    source, which counts as one speaker about a trace that has a name.

    A trace named by its content may have been seen by anybody, so without rater and time each
    statement about it counts as a speaker of its own.
    """
    rater = sa.func.coalesce(feedback.c.rater_id, UNNAMED + feedback.c.source)
    is_known = feedback.c.sender.not_in((IMPORTED, OWNER_OF_HOME))  # not so where there is none
    named = rater + sa.case((is_known, BY_SENDER + feedback.c.sender), else_="")
    if target_name is None:
        return named
    lone = (
        feedback.c.rater_id.is_(None)
        & feedback.c.occurred_at.is_(None)
        & target_name.startswith(BY_CONTENT)
    )
    return sa.case((lone, UNNAMED + feedback.c.id), else_=named)


def is_imported() -> sa.ColumnElement[bool]:
    """Return the condition that feedback came from a file or another server, or was stored before
    senders were recorded. Such feedback does not replace feedback that an app with access to the
    home sent."""
    return sa.func.coalesce(feedback.c.sender, IMPORTED) == IMPORTED


def sender_name() -> sa.ColumnElement[str]:
    """Return an expression for the sender of feedback: the name of the user or key, else the id."""
    named = sa.func.coalesce(
        sa.select(users.c.name).where(users.c.id == feedback.c.sender).scalar_subquery(),
        sa.select(api_keys.c.name).where(api_keys.c.id == feedback.c.sender).scalar_subquery(),
        feedback.c.sender,
    )
    return named.label("sender_name")


def superseded_and_retracted(
    agent_id: str, as_of: datetime | None = None, among: sa.Select[Any] | None = None
) -> tuple[sa.Select[Any], sa.Select[Any]]:
    """Return two queries for ids of feedback: superseded, and retracted, by feedback recorded by
    `as_of` (default: now). `among`, a query for ids, limits the feedback to check (default:
    all)."""
    later, earlier = feedback.alias("later"), feedback.alias("earlier")
    is_owner = sa.or_(later.c.sender.is_(None), later.c.sender == OWNER_OF_HOME)
    by_owner = sa.and_(later.c.source == OWNER, is_owner)
    is_sender = sa.or_(is_owner, earlier.c.sender.is_(None), later.c.sender == earlier.c.sender)
    by_rater = sa.and_(
        later.c.source == earlier.c.source,
        later.c.rater_id.is_not_distinct_from(earlier.c.rater_id),
        is_sender,
    )
    by_user = sa.and_(
        later.c.sender == earlier.c.sender, later.c.sender.startswith(USER, autoescape=True)
    )
    of_agent = later.c.agent_id == agent_id
    if among is not None:
        of_agent = later.c.agent_id.concat("") == agent_id  # as in `newest_words`
    conditions: list[sa.ColumnElement[bool]] = [of_agent, sa.or_(by_owner, by_rater, by_user)]
    if as_of is not None:
        conditions.append(later.c.recorded_at <= as_of)
    if among is not None:
        conditions.append(earlier.c.id.in_(among))

    def named_in(column: sa.ColumnElement[Any]) -> sa.Select[Any]:
        return sa.select(earlier.c.id).join(later, column == earlier.c.id).where(*conditions)

    return named_in(later.c.supersedes), named_in(later.c.retracts)


def in_force(
    agent_id: str, as_of: datetime | None = None, among: sa.Select[Any] | None = None
) -> sa.ColumnElement[bool]:
    """Return the condition that feedback of the agent is in force: it retracts nothing, was
    recorded by `as_of`, was not quarantined at that time, and is not superseded or retracted by
    feedback recorded by then.

    Superseded feedback stays out even if its successor is retracted: a rater who takes back their
    last statement has said nothing.
    """
    conditions: list[sa.ColumnElement[bool]] = [
        feedback.c.retracts.is_(None),
        feedback.c.id.not_in(held(agent_id, as_of)),
        *(
            feedback.c.id.not_in(query)
            for query in superseded_and_retracted(agent_id, as_of, among)
        ),
    ]
    if as_of is not None:
        conditions.append(feedback.c.recorded_at <= as_of)
    return sa.and_(*conditions)


def held(agent_id: str, as_of: datetime | None = None) -> sa.Select[Any]:
    """Return a query for the ids of feedback that a quarantine holds at `as_of` (default: now), or
    that was discarded."""
    conditions = [quarantines.c.agent_id == agent_id]
    if as_of is None:
        conditions.append(quarantines.c.state != RELEASED)
    else:
        conditions.append(quarantines.c.recorded_at <= as_of)
        still = sa.or_(quarantines.c.decided_at.is_(None), quarantines.c.decided_at > as_of)
        conditions.append(sa.or_(quarantines.c.state != RELEASED, still))
    return (
        sa.select(quarantined_feedback.c.feedback_id)
        .join(quarantines, quarantines.c.id == quarantined_feedback.c.quarantine_id)
        .where(*conditions)
    )


def newest_words(
    agent_id: str, as_of: datetime | None = None, among: sa.Select[Any] | None = None
) -> sa.Select[Any]:
    """Return a query for the ids of the feedback that counts: in force, and each speaker's newest
    of a kind and name about the same target. `among`, a query for ids, limits the work to all
    feedback about some targets.

    All preferences and comments of a speaker count: each is about something else.
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
    # of equal times the later import wins: a row may change while its own time does not
    newest_first = is_imported().asc(), STATED_AT.desc(), feedback.c.recorded_at.desc()
    rank = sa.func.rank().over(partition_by=slot, order_by=newest_first).label("rank")
    aimed = sa.and_(target.feedback_id == feedback.c.id, target.position == 0)
    statements = (
        sa.select(feedback.c.id, rank)
        .select_from(feedback.outerjoin(feedback_targets, aimed))
        .where(in_force(agent_id, as_of, among))
    )
    if among is None:
        statements = statements.where(feedback.c.agent_id == agent_id)
    else:
        # as an expression, which has no index: SQLite would go through all of the agent's otherwise
        of_agent = feedback.c.agent_id.concat("") == agent_id
        statements = statements.where(of_agent, feedback.c.id.in_(among))
    ranked = statements.subquery()
    return sa.select(ranked.c.id).where(ranked.c.rank == 1)
