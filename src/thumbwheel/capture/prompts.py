"""The versions of an agent's system prompt: those that its recorded calls used, and those that
somebody named.

A version is the text itself: its id is the id of the message that begins the conversations with it,
so a call belongs to its version without anybody marking it. The gateway changes no prompt; an app
that wants a named one asks for it (`GET /api/agents/AGENT/prompts/NAME`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.capture import prompt_store, trace_queries
from thumbwheel.capture.judged import Judged, meaning
from thumbwheel.capture.rows import chain_of
from thumbwheel.core import ids
from thumbwheel.core.errors import InputError, NotFound
from thumbwheel.core.plugins import nearest
from thumbwheel.db.message_chains import read_links, roots
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.importers.fields import content_text
from thumbwheel.models.types import Agent
from thumbwheel.stats.rates import wilson

SYSTEM_ROLES = frozenset({"system", "developer"})
NEWEST = 5_000
"""Traces whose prompts are counted."""
LONGEST_PROMPT, LONGEST_NOTE = 200_000, 2_000
LEVEL = 0.95
SHOWN_DIGITS = 12


@dataclass(frozen=True)
class PromptVersion:
    """A system prompt, and how answers under it were judged."""

    id: str
    """Of its message"""
    text: str
    """The prompt"""
    name: str | None
    """What people call it; several versions may have one name"""
    number: int | None
    """Which one of that name, from 1 on, in the order in which they were stored"""
    note: str
    """What people wrote about it"""
    traces: int
    """Of the newest traces, those with it"""
    good: int
    """Rated answers that more people called good than bad"""
    rated: int
    """Answers that more people called good than bad, or the reverse"""
    low: float | None
    """Lower end of the 95 % interval of the share of good answers"""
    high: float | None
    """Its upper end"""
    first_seen: datetime | None
    """The oldest of those traces"""
    last_seen: datetime | None
    """The newest of them"""

    @property
    def title(self) -> str:
        """Its name and number, as `greeting v2`, else the beginning of its id."""
        return f"{self.name} v{self.number}" if self.name else short_id(self.id)

    @property
    def share(self) -> float | None:
        """Good answers in all rated ones; None without any."""
        return self.good / self.rated if self.rated else None


@dataclass
class _Seen:
    traces: int = 0
    first: datetime | None = None
    last: datetime | None = None
    good: int = 0
    rated: int = 0


def prompt_id(message: Mapping[str, Any]) -> str | None:
    """Return the id of the prompt that a conversation begins with; None if its first message is no
    system prompt."""
    if message["role"] not in SYSTEM_ROLES:
        return None
    return str(next(iter(chain_of([message])))["id"])


def prompts(ws: Workspace, agent: Agent) -> list[PromptVersion]:
    """Return the prompts of the newest traces and the named ones, those seen last first."""
    with ws.db.read() as connection:
        named = {row["hash"]: row for row in prompt_store.named(connection, agent.id)}
        seen, texts = _seen(connection, agent)
    numbers = _numbers(named.values())
    versions = []
    for message_id in {**seen, **named}:
        counts, row = seen.get(message_id, _Seen()), named.get(message_id)
        interval = wilson(counts.good, counts.rated, LEVEL) if counts.rated else None
        versions.append(
            PromptVersion(
                id=message_id,
                text=row["text"] if row else texts[message_id],
                name=row["name"] if row else None,
                number=numbers.get(message_id),
                note=row["note"] if row else "",
                traces=counts.traces,
                good=counts.good,
                rated=counts.rated,
                low=interval.low if interval else None,
                high=interval.high if interval else None,
                first_seen=counts.first,
                last_seen=counts.last,
            )
        )
    oldest = datetime.min.replace(tzinfo=UTC)
    return sorted(versions, key=lambda version: version.last_seen or oldest, reverse=True)


def prompt_of(ws: Workspace, agent: Agent, name: str) -> PromptVersion:
    """Return the newest prompt of this name, or the one with this id. Raises NotFound."""
    versions = prompts(ws, agent)
    of_name = [version for version in versions if version.name == name]
    if of_name:
        return max(of_name, key=lambda version: version.number or 0)
    for version in versions:
        if version.id == name:
            return version
    names = sorted({version.name for version in versions if version.name})
    raise NotFound(
        f"prompt {name!r}",
        f"agent {agent.slug!r} has none of that name",
        f"Known: {', '.join(names) or 'none yet'}.{nearest(name, names)}",
    )


def titles(ws: Workspace, agent: Agent) -> dict[str, str]:
    """Return id -> title, as `greeting v2`, of the named prompts, oldest first."""
    with ws.db.read() as connection:
        return _titles(connection, agent.id)


def _titles(connection: sa.Connection, agent_id: str) -> dict[str, str]:
    named = prompt_store.named(connection, agent_id)
    numbers = _numbers(named)
    return {row["hash"]: f"{row['name']} v{numbers[row['hash']]}" for row in named}


def prompts_of_chats(
    connection: sa.Connection, agent_id: str, chats: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, str]:
    """Return id -> the title of its system prompt, for chats by their ids. A chat without one has
    `none`."""
    named = _titles(connection, agent_id)
    titles_by_chat = {}
    for chat_id, chat in chats.items():
        message_id = prompt_id(chat[0]) if chat else None
        titles_by_chat[chat_id] = "none"
        if message_id is not None:
            titles_by_chat[chat_id] = named.get(message_id, short_id(message_id))
    return titles_by_chat


def short_id(message_id: str) -> str:
    """Return the beginning of a prompt's id, which stands for one without a name."""
    return message_id[:SHOWN_DIGITS]


def store_prompt(
    ws: Workspace, agent: Agent, name: str, text: str, note: str = ""
) -> PromptVersion:
    """Store a prompt as the newest version of this name, and return it. A text that is stored
    already gets this name and note. Raises InputError."""
    ids.slug(name, "prompt")
    if not text.strip() or len(text) > LONGEST_PROMPT:
        why = "it is empty" if not text.strip() else f"it has over {LONGEST_PROMPT:,} characters"
        raise InputError("the text of the prompt", why, "Give the system prompt itself")
    if len(note) > LONGEST_NOTE:
        raise InputError("the note", f"it has over {LONGEST_NOTE:,} characters", "Shorten it")
    message_id = prompt_id({"role": "system", "content": text})
    assert message_id is not None  # noqa: S101 - the role is that of a prompt
    values = {"hash": message_id, "name": name, "text": text, "note": note.strip()}
    ws.db.write(
        lambda connection: prompt_store.store(connection, agent.id, values), of_agent(agent.id)
    )
    return prompt_of(ws, agent, message_id)


def _numbers(named: Iterable[sa.RowMapping]) -> dict[str, int]:
    """Return message id -> its number among the prompts of its name, oldest first."""
    counted: Counter[str] = Counter()
    numbers = {}
    for row in named:
        counted[row["name"]] += 1
        numbers[row["hash"]] = counted[row["name"]]
    return numbers


def _seen(connection: sa.Connection, agent: Agent) -> tuple[dict[str, _Seen], dict[str, str]]:
    """Return (message id -> its counts, message id -> text) of the prompts of the newest traces."""
    rows = prompt_store.newest_traces(connection, agent.id, NEWEST)
    first_messages = roots(connection, {row.input_id for row in rows})
    texts = {}
    for message_id, (_, message) in read_links(connection, set(first_messages.values())).items():
        if message["role"] in SYSTEM_ROLES:
            texts[message_id] = content_text(message.get("content")) or ""
    prompt_by_trace = {}
    seen: dict[str, _Seen] = defaultdict(_Seen)
    for row in rows:
        first_id = first_messages.get(row.input_id)
        if first_id is None or first_id not in texts:
            continue
        prompt_by_trace[row.id] = first_id
        counts, when = seen[first_id], row.occurred_at or row.recorded_at
        counts.traces += 1
        counts.first = min(counts.first or when, when)
        counts.last = max(counts.last or when, when)
    by_trace = trace_queries.judgements(
        connection, agent.id, [*prompt_by_trace], replays=False, is_brief=True
    )
    for trace_id, judgements in by_trace.items():
        balance = 0
        for judgement in judgements:
            verdict = meaning(dict(judgement))
            if verdict is not None:
                balance += 1 if verdict is Judged.GOOD else -1
        if balance:
            seen[prompt_by_trace[trace_id]].good += balance > 0
            seen[prompt_by_trace[trace_id]].rated += 1
    return dict(seen), texts
