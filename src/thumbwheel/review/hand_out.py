"""Who gets which item: the next ones for a rater, kept for them for a while.

A rater gets what they hold already before anything new, so that a page which is loaded again goes
on where it was. The answers of a comparison are shown in an order that is drawn for the item and
turned around from rater to rater, so that neither answer gains from its place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import present
from thumbwheel.core.errors import Forbidden, InputError
from thumbwheel.db.message_chains import Message, conversations
from thumbwheel.db.page_content import MOST_CONTENT
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.importers.fields import content_text
from thumbwheel.review import store
from thumbwheel.review.queues import require_open
from thumbwheel.review.types import AssignmentState, Batch, Item, ItemKind, Queue

LONGEST_NAME = 512
FACTS = ("question", "scenario", "fixture", "size", "category", "confidence", "data")
"""Keys of the metadata of an imported widget that its card shows."""


def next_items(
    ws: Workspace, queue: Queue, rater: str, limit: int = 1, now: datetime | None = None
) -> Batch:
    """Hand out the next items to this rater, at most `limit`, and fewer if they are long: the rater
    gets the others next. Raises Conflict for a closed queue,
    Forbidden for a person whom it is not assigned to."""
    require_open(queue)
    time = now or datetime.now(UTC)
    until = time + timedelta(minutes=queue.config.lease_minutes)

    def work(connection: sa.Connection) -> tuple[list[sa.RowMapping], sa.RowMapping | None]:
        require_rater(connection, queue, rater)
        store.release_expired(connection, queue.id, time)
        held = store.leased(connection, queue.id, rater)
        if len(held) < limit:
            _take(connection, queue, rater, limit - len(held), until)
        store.extend_leases(connection, queue.id, rater, until)
        return store.leased(connection, queue.id, rater)[:limit], store.rater(
            connection, queue.id, rater
        )

    assignments, row = ws.db.write(work, of_agent(queue.agent_id))
    with ws.db.read() as connection:
        items = _page(connection, queue, assignments)
        (current,) = store.queues(connection, queue.agent_id, queue.id)
        skipped = store.count_skipped(connection, queue.id, rater)
    return Batch(items, row["rated"] if row else 0, skipped, current.done, current.items)


def return_skipped(ws: Workspace, queue: Queue, rater: str) -> int:
    """Give the rater the items that they skipped again, unless others took them; return how many.
    Raises Conflict for a closed queue, Forbidden for a person whom it is not assigned to."""
    require_open(queue)

    def work(connection: sa.Connection) -> int:
        require_rater(connection, queue, rater)
        skipped = store.count_skipped(connection, queue.id, rater)
        store.return_skipped(connection, queue.id, rater)
        return skipped

    return ws.db.write(work, of_agent(queue.agent_id))


def require_rater(connection: sa.Connection, queue: Queue, rater: str) -> None:
    """Make sure that the rater may rate in the queue. Raises InputError for an invalid name,
    Forbidden if the queue is assigned to others."""
    if not rater.strip() or len(rater) > LONGEST_NAME:
        raise InputError(
            f"rater {rater[:80]!r}", f"a name has 1 to {LONGEST_NAME} characters", "Give another"
        )
    if queue.config.raters and rater not in queue.config.raters:
        raise Forbidden(
            f"rater {rater!r}",
            f"queue {queue.name!r} is assigned to {', '.join(queue.config.raters)}",
            "Ask whoever made the queue, or rate in another one",
        )
    if store.rater(connection, queue.id, rater) is None:
        store.add_rater(connection, queue.id, rater)


def _take(connection: sa.Connection, queue: Queue, rater: str, limit: int, until: datetime) -> None:
    row = store.rater(connection, queue.id, rater)
    frontier = -1 if row is None else row["frontier"]
    items = store.free_items(connection, queue.id, rater, frontier, limit)
    for item in items:
        assignment = {
            "item_id": item["id"],
            "rater": rater,
            "queue_id": queue.id,
            "state": AssignmentState.LEASED.value,
            "shown": _shown(connection, queue, item),
            "action": None,
            "leased_until": until,
        }
        store.set_assignment(connection, assignment)
        store.change_item(connection, item["id"], free=-1)
    if len(items) == limit:
        frontier = items[-1]["rank"]
    else:
        frontier = max(frontier, store.last_rank(connection, queue.id))
    store.set_frontier(connection, queue.id, rater, frontier)


def _shown(connection: sa.Connection, queue: Queue, item: sa.RowMapping) -> list[int]:
    """Return the positions of an item's answers in the order in which the next rater sees them."""
    if queue.kind is not ItemKind.COMPARISON:
        return [0]
    targets = store.targets_of(connection, [item["id"]])[item["id"]]

    def drawn(position: int) -> bytes:
        return sha256(f"{item['id']}:{position}".encode()).digest()

    positions = sorted(range(len(targets)), key=drawn)
    raters_before = queue.config.overlap - item["free"]
    if raters_before % 2:
        positions.reverse()
    return positions


def _page(
    connection: sa.Connection, queue: Queue, assignments: Sequence[sa.RowMapping]
) -> list[Item]:
    """Return the first items as the rater sees them, as many as a page has room for."""
    total = 0
    page: list[Item] = []
    for assignment in assignments:
        for item in _contents(connection, queue, [assignment]):
            total += len(present.json_text(item.to_json(), indent=None))
            if page and total > MOST_CONTENT:
                return page
            page.append(item)
    return page


def _contents(
    connection: sa.Connection, queue: Queue, assignments: Sequence[sa.RowMapping]
) -> list[Item]:
    """Return the items as the rater sees them."""
    targets = store.targets_of(connection, [row["item_id"] for row in assignments])
    all_targets = [target for rows in targets.values() for target in rows]
    trace_ids = {target["trace_id"] for target in all_targets if target["trace_id"]}
    case_ids = {target["case_id"] for target in all_targets if target["case_id"]}
    traces = store.trace_rows(connection, trace_ids)
    cases = store.case_rows(connection, case_ids)
    steps: dict[str, list[sa.RowMapping]] = {}
    if queue.kind is ItemKind.ANSWER:
        steps = store.step_rows(connection, trace_ids)
    inputs = {row["input_id"] for row in (*traces.values(), *cases.values())}
    chats = conversations(connection, inputs)
    items = []
    for assignment in assignments:
        item_targets = targets.get(assignment["item_id"])
        if item_targets is None:  # erased since it was handed out
            continue
        if queue.kind is ItemKind.CASE:
            case = cases[item_targets[0]["case_id"]]
            reference = case["reference"]
            text = reference if isinstance(reference, str) else _json(reference)
            items.append(
                Item(assignment["item_id"], queue.kind, _chat(chats[case["input_id"]]), [text])
            )
            continue
        order = assignment["shown"]
        shown = [traces[item_targets[position]["trace_id"]] for position in order]
        first = shown[0]
        items.append(
            Item(
                id=assignment["item_id"],
                kind=queue.kind,
                chat=_chat(chats.get(first["input_id"], [])),
                answers=[row["output"] or "" for row in shown],
                steps=[_step(step) for step in steps.get(first["id"], ())],
                facts=_facts(first["metadata"]) if queue.kind is ItemKind.ANSWER else {},
            )
        )
    return items


def _chat(messages: Sequence[Message]) -> list[dict[str, Any]]:
    chat = []
    for message in messages:
        text = content_text(message.get("content")) or ""
        entry = {"role": message["role"], "text": text}
        if message.get("tool_calls"):
            entry["text"] = "\n".join(part for part in (text, _json(message["tool_calls"])) if part)
        chat.append(entry)
    return chat


def _step(step: sa.RowMapping) -> dict[str, Any]:
    return {
        "kind": step["kind"],
        "name": step["name"],
        "input": _json(step["input"]),
        "output": _json(step["output"]),
        "status": step["status"],
    }


def _facts(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    facts = {}
    for name in FACTS:
        value = (metadata or {}).get(name)
        if value is not None:
            facts[name] = value if isinstance(value, str) else _json(value)
    return facts


def _json(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, indent=1)
