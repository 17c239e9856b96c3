"""Messages as they were said. Each is stored once and names the one before it, so a conversation is
read from its end. The database follows the names, because a query for each message would take
minutes for a conversation of thousands."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import sqlalchemy as sa

from thumbwheel.db.batches import batches
from thumbwheel.db.schema import messages

Message = dict[str, Any]
Links = dict[str, tuple[str | None, Message]]
"""Message id -> id of the message before it, and its content."""


def conversations(connection: sa.Connection, last_ids: Collection[str]) -> dict[str, list[Message]]:
    """Return, by the id of its last message, the messages of each conversation, oldest first. A
    conversation with a missing message is left out."""
    links = read_links(connection, sorted(set(last_ids)))
    add_ancestors(connection, links)
    chains = {last_id: chain(links, last_id) for last_id in last_ids}
    return {last_id: messages for last_id, messages in chains.items() if messages}


def conversation(connection: sa.Connection, last_id: str) -> list[Message]:
    """Return the messages up to the one with this id, oldest first; [] if one is missing."""
    return conversations(connection, [last_id]).get(last_id, [])


def read_links(connection: sa.Connection, message_ids: Iterable[str]) -> Links:
    """Return the links of these messages; ids that do not exist are left out."""
    links: Links = {}
    for batch in batches(message_ids):
        query = sa.select(messages).where(messages.c.id.in_(batch))
        for message_id, parent_id, role, content in connection.execute(query):
            links[message_id] = (parent_id, {"role": role, **content})
    return links


def add_ancestors(connection: sa.Connection, links: Links) -> None:
    """Add all ancestors of the messages in `links`."""
    parents = {parent_id for parent_id, _ in links.values() if parent_id is not None}
    before_them: set[str] = set()
    for batch in batches(sorted(parents - links.keys())):
        first = sa.select(messages.c.id, messages.c.parent_id).where(messages.c.id.in_(batch))
        ancestors = first.cte("ancestors", recursive=True)
        before = sa.select(messages.c.id, messages.c.parent_id)
        # without duplicates, so that messages which name each other in a circle end it
        ancestors = ancestors.union(before.where(messages.c.id == ancestors.c.parent_id))
        before_them |= set(connection.execute(sa.select(ancestors.c.id)).scalars())
    links |= read_links(connection, sorted(before_them - links.keys()))


def roots(connection: sa.Connection, last_ids: Collection[str]) -> dict[str, str]:
    """Return, by the id of its last message, the id of the first message of each conversation. A
    conversation with a missing message, or whose links form a cycle, is left out."""
    parents: dict[str, str | None] = {}
    for batch in batches(sorted(set(last_ids))):
        first = sa.select(messages.c.id, messages.c.parent_id).where(messages.c.id.in_(batch))
        ancestors = first.cte("ancestors", recursive=True)
        before = sa.select(messages.c.id, messages.c.parent_id)
        ancestors = ancestors.union(before.where(messages.c.id == ancestors.c.parent_id))
        query = sa.select(ancestors.c.id, ancestors.c.parent_id)
        parents |= {row.id: row.parent_id for row in connection.execute(query)}
    first_ids: dict[str, str] = {}
    for last_id in last_ids:
        message_id, steps = last_id, 0
        while message_id in parents and steps <= len(parents):
            parent_id = parents[message_id]
            if parent_id is None:
                first_ids[last_id] = message_id
                break
            message_id, steps = parent_id, steps + 1
    return first_ids


def chain(links: Links, last_id: str) -> list[Message]:
    """Return the messages up to `last_id`, oldest first; [] if one is missing or their links form a
    cycle."""
    newest_first: list[Message] = []
    message_id: str | None = last_id
    while message_id is not None:
        if message_id not in links or len(newest_first) > len(links):
            return []
        message_id, message = links[message_id]
        newest_first.append(message)
    return newest_first[::-1]
