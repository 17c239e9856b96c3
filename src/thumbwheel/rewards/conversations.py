"""Which message a user wrote after a recorded answer.

An app that sends the whole conversation names it itself: a later prompt of the agent holds this
prompt, this answer and the message. Where a prompt is a single message, the next run of the same
session has it. A later run with the same prompt is another answer to it, not the next turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.importers.fields import content_text
from thumbwheel.rewards import store

MOST = 8
"""Messages that are read after one answer, where many conversations went on from it."""


def next_turns(
    connection: sa.Connection,
    agent_id: str,
    rows: Sequence[sa.RowMapping],
    as_of: datetime | None,
) -> dict[str, tuple[str, ...]]:
    """Return trace id -> the messages that users wrote after its answer, in the order of the texts;
    traces after which nothing came are left out. `rows` are rows of `store.stored`."""
    answered = [row for row in rows if row["output"]]
    turns = _by_history(connection, agent_id, answered, as_of)
    unknown = [row for row in answered if row["id"] not in turns and row["session_id"]]
    if unknown:
        turns |= _by_session(connection, agent_id, unknown, as_of)
    return turns


def _by_history(
    connection: sa.Connection,
    agent_id: str,
    rows: Sequence[sa.RowMapping],
    as_of: datetime | None,
) -> dict[str, tuple[str, ...]]:
    """Find the next turns in later prompts that contain the answer."""
    prompt_ids = {row["input_id"] for row in rows}
    following: dict[tuple[str, str], list[tuple[str, str | None]]] = defaultdict(list)
    for later in store.continuations(connection, agent_id, prompt_ids, as_of):
        answer, message = _text(later.answer), _text(later.following)
        if message.strip():
            following[later.asked, answer.strip()].append((message, later.session_id))
    turns = {}
    for row in rows:
        messages = set()
        for message, session_id in following.get((row["input_id"], row["output"].strip()), ()):
            # many people may have met the same answer: a session says whose conversation it is
            if row["session_id"] in (None, session_id):
                messages.add(message)
        if messages:
            turns[row["id"]] = tuple(sorted(messages)[:MOST])
    return turns


def _by_session(
    connection: sa.Connection,
    agent_id: str,
    rows: Sequence[sa.RowMapping],
    as_of: datetime | None,
) -> dict[str, tuple[str, ...]]:
    """Find the next turn in the next run of the session."""
    by_session: dict[str, list[Any]] = defaultdict(list)
    session_ids = {row["session_id"] for row in rows}
    for turn in store.session_turns(connection, agent_id, session_ids, as_of):
        by_session[turn.session_id].append(turn)
    turns: dict[str, tuple[str, ...]] = {}
    for row in rows:
        message = _message_after(row, by_session[row["session_id"]])
        if message:
            turns[row["id"]] = (message,)
    return turns


def _message_after(row: sa.RowMapping, session: Sequence[Any]) -> str | None:
    """Return the user's message of the first run of `session` after this one, or None if it is not
    a message about this answer."""
    if row["occurred_at"] is None or all(turn.id != row["id"] for turn in session):
        return None
    for turn in session:
        if turn.occurred_at <= row["occurred_at"] or turn.input_id == row["input_id"]:
            continue
        if turn.role != "user":
            return None
        # a history that ends in another answer belongs to another branch of the conversation
        has_history = turn.role_before == "assistant"
        if has_history and _text(turn.content_before).strip() != row["output"].strip():
            return None
        return _text(turn.content).strip() or None
    return None


def _text(content: Any) -> str:
    return content_text(content.get("content") if isinstance(content, dict) else content) or ""
