"""What raters say about items: rate, skip, take back, and make gold.

A verdict becomes ordinary feedback of its rater, in the same transaction in which the item is
marked. Each request carries a key that the client made: sent again, it changes nothing and gets the
same answer. Rating an item again replaces what the rater had said about it. A rating that comes
after its lease has ended is taken all the same: nothing that a person did is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from pydantic import ValidationError

from thumbwheel.capture.cases import withdraw_review
from thumbwheel.capture.feedback import check_text, save_records
from thumbwheel.capture.ingest import scope_under
from thumbwheel.capture.trace_queries import by_metadata
from thumbwheel.core import ids
from thumbwheel.core.errors import Conflict, DataError, InputError, NotFound
from thumbwheel.db.feedback_in_force import USER
from thumbwheel.db.message_chains import conversation
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.importers.types import (
    AnyRecord,
    CaseRecord,
    FeedbackRecord,
    Rater,
    TargetRef,
    explain,
)
from thumbwheel.models.types import Agent
from thumbwheel.review import store
from thumbwheel.review.hand_out import require_rater
from thumbwheel.review.types import (
    CARD,
    CARD_OF,
    MOVES,
    SOURCE,
    AssignmentState,
    ItemKind,
    Queue,
    RatedItem,
    RaterVerdict,
)

RATE, SKIP, UNDO, APPROVE, WITHDRAW = "rate", "skip", "undo", "approve", "withdraw"
OLDEST = timedelta(days=30)
"""How long ago a rating may have been given that arrives now."""
LONGEST_KEY = 200


@dataclass(frozen=True)
class RatingRequest:
    """Who does something to an item, under which key."""

    queue: Queue
    item: str
    rater: str
    key: str
    rated_at: datetime | None = None
    """When, by the rater's clock; it may arrive later."""
    seconds: float | None = None
    """How long they looked at it."""

    @property
    def action_id(self) -> str:
        """The id of what was done under this key."""
        return ids.derived("rac", self.queue.id, self.rater, self.key)

    def time(self, now: datetime) -> datetime:
        """Return when the rating was done: `rated_at` if it is plausible, else `now`."""
        if self.rated_at is None or not now - OLDEST <= self.rated_at <= now:
            return now
        return self.rated_at


@dataclass
class _Change:
    """A request while it is carried out, inside the writer's transaction."""

    ws: Workspace
    connection: sa.Connection
    agent: Agent
    request: RatingRequest
    kind: str
    now: datetime
    item: Mapping[str, Any] = field(default_factory=dict)
    assignment: dict[str, Any] | None = None

    @property
    def before(self) -> AssignmentState:
        """What the rater had to do with the item."""
        if self.assignment is None:
            return AssignmentState.EXPIRED
        return AssignmentState(self.assignment["state"])


def rate(ws: Workspace, agent: Agent, request: RatingRequest, verdict: RaterVerdict) -> RatedItem:
    """Store a verdict. Raises InputError for one that the queue does not ask for, NotFound for an
    item that is not there (any more)."""
    _check_verdict(request.queue, verdict)

    def work(change: _Change) -> list[str]:
        retracted = _retract(change)
        records = list(_records(change, verdict))
        feedback_ids = _save(change, [*retracted, *records])[len(retracted) :]
        _settle(change, AssignmentState.RATED)
        return feedback_ids

    return _carried_out(ws, agent, request, RATE, verdict.to_json(), work)


def skip(ws: Workspace, agent: Agent, request: RatingRequest) -> RatedItem:
    """Leave an item to others."""

    def work(change: _Change) -> list[str]:
        _settle(change, AssignmentState.SKIPPED)
        return []

    return _carried_out(ws, agent, request, SKIP, {}, work)


def undo(ws: Workspace, agent: Agent, request: RatingRequest) -> RatedItem:
    """Undo the rater's last action on the item, which they then hold again. Raises Conflict if
    there is nothing to undo, the item was approved, or another rater has taken a skipped item
    meanwhile."""

    def work(change: _Change) -> list[str]:
        if change.before not in (AssignmentState.RATED, AssignmentState.SKIPPED):
            raise Conflict(
                f"item {request.item!r}",
                f"rater {request.rater!r} has neither rated nor skipped it",
                "There is nothing to take back",
            )
        earlier = _last_action(change)
        if earlier is not None and earlier["kind"] == APPROVE:
            raise Conflict(
                f"item {request.item!r}", "it was approved", "Withdraw that: queue approve --undo"
            )
        if change.before is AssignmentState.SKIPPED and change.item["free"] <= 0:
            raise Conflict(
                f"item {request.item!r}", "somebody else has it by now", "Rate another one"
            )
        feedback_ids = _save(change, _retract(change))
        _settle(change, AssignmentState.LEASED)
        return feedback_ids

    return _carried_out(ws, agent, request, UNDO, {}, work)


def approve(
    ws: Workspace,
    agent: Agent,
    request: RatingRequest,
    reference: str | None = None,
    checker: str | None = None,
) -> RatedItem:
    """Vouch for an item, with its own or another reference: it becomes a gold case. Raises
    InputError for a comparison, and for an item that cannot be a case."""
    if request.queue.kind is ItemKind.COMPARISON:
        raise InputError(
            f"item {request.item!r}",
            "a comparison cannot become a case",
            "Approve answers or cases",
        )

    def work(change: _Change) -> list[str]:
        record = _case(change, reference, checker)
        case_ids = _save(change, [record], reviewer=request.rater)
        _settle(change, AssignmentState.RATED)
        return case_ids

    content = {"reference": reference, "checker": checker}
    stated = {name: value for name, value in content.items() if value is not None}
    return _carried_out(ws, agent, request, APPROVE, stated, work)


def approve_liked(
    ws: Workspace, agent: Agent, queue: Queue, rater: str, checker: str | None = None
) -> list[RatedItem]:
    """Vouch for every item that this rater called good: each becomes a gold case. Repeating it
    changes nothing. An app may rate in any name, so only ratings from a user's own session or from
    the sender of this request count. Raises DataError if there is none, InputError for a queue of
    comparisons."""
    with ws.db.read() as connection:
        liked = {
            row.item_id: row.feedback
            for row in store.current_ratings(connection, queue.id)
            if row.rater == rater and (row.content or {}).get("thumb") is True
        }
        feedback_ids = [
            feedback_id for ids_of_item in liked.values() for feedback_id in ids_of_item
        ]
        senders = store.senders_of(connection, feedback_ids)
    vouched = [
        item
        for item, ids_of_item in liked.items()
        if all(_is_known(ws, senders.get(feedback_id)) for feedback_id in ids_of_item)
    ]
    if not vouched:
        why = f"rater {rater!r} has called nothing in it good"
        if liked:
            why += ", and what an app says in that name makes nothing gold"
        raise DataError(
            f"queue {queue.name!r}",
            why,
            "Review it first: thumbwheel queue next, queue rate, or the page Rate",
        )
    results = []
    for item in vouched:
        request = RatingRequest(queue, item, rater, f"approve-liked:{item}")
        results.append(approve(ws, agent, request, None, checker))
    return results


def withdraw(ws: Workspace, agent: Agent, request: RatingRequest) -> RatedItem:
    """Take back that the item is gold. Raises Conflict if the rater did not make it gold."""

    def work(change: _Change) -> list[str]:
        earlier = _last_action(change)
        if earlier is None or earlier["kind"] != APPROVE:
            raise Conflict(
                f"item {request.item!r}",
                f"{request.rater!r} did not approve it",
                "There is nothing to take back",
            )
        for case_id in earlier["feedback"]:
            withdraw_review(change.connection, case_id)
        _settle(change, AssignmentState.LEASED)
        return []

    return _carried_out(ws, agent, request, WITHDRAW, {}, work)


def _carried_out(
    ws: Workspace,
    agent: Agent,
    request: RatingRequest,
    kind: str,
    content: dict[str, Any],
    work: Any,
) -> RatedItem:
    """Do `work` once for the key of the request."""
    if not 1 <= len(request.key) <= LONGEST_KEY:
        raise InputError(
            f"--key {request.key[:40]!r}", f"a key has 1 to {LONGEST_KEY} characters", "Shorten it"
        )
    fingerprint = ids.fingerprint([kind, request.item, content])
    now = datetime.now(UTC)

    def write(connection: sa.Connection) -> RatedItem:
        earlier = store.action(connection, request.action_id)
        if earlier is not None:
            if earlier["fingerprint"] != fingerprint:
                raise InputError(
                    f"--key {request.key!r}",
                    "something else was done under it",
                    "Take a new key for each rating",
                )
            return _replayed(connection, earlier)
        change = _Change(ws, connection, agent, request, kind, now)
        _look_up(change)
        feedback_ids = work(change)
        stored = dict(content)
        if request.seconds is not None:
            stored["seconds"] = request.seconds
        store.add_action(
            connection,
            {
                "id": request.action_id,
                "queue_id": request.queue.id,
                "item_id": change.item["id"],
                "rater": request.rater,
                "kind": kind,
                "content": stored,
                "feedback": feedback_ids,
                "fingerprint": fingerprint,
                "recorded_at": now,
            },
        )
        state = change.assignment["state"] if change.assignment else ""
        return RatedItem(change.item["id"], state, feedback_ids, replayed=False)

    return ws.db.write(write, of_agent(agent.id))


def _replayed(connection: sa.Connection, action: sa.RowMapping) -> RatedItem:
    assignment = store.assignment(connection, action["item_id"], action["rater"])
    state = assignment["state"] if assignment else ""
    return RatedItem(action["item_id"], state, action["feedback"], replayed=True)


def _look_up(change: _Change) -> None:
    request = change.request
    item = store.item(change.connection, request.queue.id, request.item)
    if item is None:
        raise NotFound(
            f"item {request.item!r}",
            f"queue {request.queue.name!r} has none of that id; what it was about may be erased",
            "Go on with the next item",
        )
    require_rater(change.connection, request.queue, request.rater)
    change.item = dict(item)
    row = store.assignment(change.connection, item["id"], request.rater)
    change.assignment = None if row is None else dict(row)


def _settle(change: _Change, state: AssignmentState) -> None:
    """Move the rater's assignment, and count."""
    connection, queue, item = change.connection, change.request.queue, change.item
    before = change.before
    if state not in MOVES[before]:
        raise Conflict(
            f"item {item['id']!r}",
            f"{change.request.rater!r} has {before} it, so it cannot be {state}",
            "Take that back first: thumbwheel queue undo",
        )
    has_rated, rates = before is AssignmentState.RATED, state is AssignmentState.RATED
    holding = (AssignmentState.LEASED, AssignmentState.RATED)
    # who holds or rated an item takes one of its places
    free = (before in holding) - (state in holding)
    store.change_item(connection, item["id"], free=free, done=rates - has_rated)
    if free > 0:
        store.move_frontiers(connection, queue.id, item["rank"] - 1)
    was_done = item["done"] >= queue.config.overlap
    is_done = item["done"] + rates - has_rated >= queue.config.overlap
    store.count_items(connection, queue.id, 0, is_done - was_done)
    store.count_rating(connection, queue.id, change.request.rater, rates - has_rated)
    until = change.now + timedelta(minutes=queue.config.lease_minutes)
    shown = list(range(len(_targets(change))))
    if change.assignment is not None:
        shown = change.assignment["shown"]
    assignment = {
        "item_id": item["id"],
        "rater": change.request.rater,
        "queue_id": queue.id,
        "state": state.value,
        "shown": shown,
        "action": change.request.action_id,
        "leased_until": until,
    }
    store.set_assignment(connection, assignment)
    change.assignment = assignment


def _last_action(change: _Change) -> sa.RowMapping | None:
    if change.assignment is None or change.assignment["action"] is None:
        return None
    return store.action(change.connection, change.assignment["action"])


def _retract(change: _Change) -> list[AnyRecord]:
    """Return records that retract the rater's earlier verdict on the item; empty if there is none.
    An app may have rated in a user's name before the user did: that stays the app's statement."""
    earlier = _last_action(change)
    if earlier is None or change.before is not AssignmentState.RATED or earlier["kind"] != RATE:
        return []
    action_id = change.request.action_id
    sender = change.ws.sender
    senders = store.senders_of(change.connection, earlier["feedback"])
    records: list[AnyRecord] = []
    for number, feedback_id in enumerate(earlier["feedback"]):
        if sender.startswith(USER) and senders.get(feedback_id) != sender:
            continue
        records.append(
            FeedbackRecord(
                id=f"{action_id}:retract:{number}",
                kind="comment",
                value="",
                targets=[],
                retracts=feedback_id,
                rater=Rater(id=change.request.rater),
                occurred_at=change.request.time(change.now),
            )
        )
    return records


def _is_known(ws: Workspace, sender: str | None) -> bool:
    """Return whether a rating names its true rater: a user's session names nobody else, and the
    sender of this request vouches for what they said themselves. Older ratings have no sender."""
    return sender is None or sender == ws.sender or sender.startswith(USER)


def _targets(change: _Change) -> list[sa.RowMapping]:
    item_id = change.item["id"]
    return store.targets_of(change.connection, [item_id])[item_id]


def _records(change: _Change, verdict: RaterVerdict) -> Iterator[AnyRecord]:
    """Yield the verdict as feedback. A note goes with its first record."""
    note = verdict.note
    if verdict.ranking:
        shown = _target_refs(change)
        ranking = [list(group) for group in verdict.ranking]
        yield _feedback(change, "preference", {"ranking": ranking}, shown, comment=note)
        return
    target = _target_refs(change)
    others = _of_same_card(change)
    if others is not None and verdict.thumb is not None:
        yield from _card_thumbs(change, verdict, [*target, *others])
        return
    signals: list[tuple[str, str | None, Any]] = []
    if verdict.thumb is not None:
        signals.append(("thumb", None, verdict.thumb))
    if verdict.rating is not None:
        signals.append(("rating", None, verdict.rating))
    if verdict.correction is not None:
        signals.append(("correction", None, verdict.correction))
    signals += [("label", name, value) for name, value in verdict.labels]
    signals += [("label", tag, True) for tag in verdict.tags]
    if not signals:
        signals.append(("comment", None, note))
        note = None
    for kind, name, value in signals:
        # tags are labels of the answer, and stand with the opinion too: filters look there
        tags = verdict.tags if kind in ("thumb", "rating") else ()
        yield _feedback(change, kind, value, target, name=name, comment=note, tags=tags)
        note = None


def _card_thumbs(
    change: _Change, verdict: RaterVerdict, targets: Sequence[TargetRef]
) -> Iterator[AnyRecord]:
    """Yield a thumb about everything that a card stands for, each with the tags and the note, as
    apps send it."""
    for number, target in enumerate(targets):
        record = _feedback(
            change, "thumb", verdict.thumb, [target], comment=verdict.note, tags=verdict.tags
        )
        if number:
            record = record.model_copy(update={"id": f"{record.id}:{number}"})
        yield record


def _of_same_card(change: _Change) -> list[TargetRef] | None:
    """Return the other traces that the item's card stands for; None if the item is no card."""
    (first, *_) = _targets(change)
    if first["trace_id"] is None:
        return None
    trace = store.trace_rows(change.connection, [first["trace_id"]])[first["trace_id"]]
    card = (trace["metadata"] or {}).get(CARD)
    if card is None:
        return None
    others = by_metadata(change.connection, change.agent.id, trace["source"], CARD_OF, [str(card)])
    return [
        TargetRef(kind="trace", id=other["external_id"], source=other["source"]) for other in others
    ]


def _target_refs(change: _Change) -> list[TargetRef]:
    """Return the item's traces in the order in which the rater saw them."""
    targets = _targets(change)
    trace_ids = [target["trace_id"] for target in targets]
    shown = list(range(len(targets)))
    if change.assignment is not None:
        shown = change.assignment["shown"]
    traces = store.trace_rows(change.connection, trace_ids)
    references = []
    for position in shown:
        trace = traces[trace_ids[position]]
        references.append(TargetRef(kind="trace", id=trace["external_id"], source=trace["source"]))
    return references


def _feedback(
    change: _Change,
    kind: Any,
    value: Any,
    targets: list[TargetRef],
    *,
    name: str | None = None,
    comment: str | None = None,
    tags: Sequence[str] = (),
) -> FeedbackRecord:
    request = change.request
    metadata: dict[str, Any] = {"queue": request.queue.name, "item": change.item["id"]}
    if tags:
        metadata["tags"] = list(tags)
    if request.seconds is not None:
        metadata["seconds"] = request.seconds
    try:
        return FeedbackRecord(
            id=f"{request.action_id}:{kind}" + (f":{name}" if name else ""),
            kind=kind,
            name=name,
            value=value,
            targets=targets,
            rater=Rater(id=request.rater),
            occurred_at=request.time(change.now),
            comment=comment,
            metadata=metadata,
        )
    except ValidationError as error:
        raise InputError(f"{kind} {value!r}"[:200], explain(error), "Correct it") from None


def _case(change: _Change, reference: str | None, checker: str | None) -> CaseRecord:
    """Return the gold case that an item becomes."""
    (target,) = _targets(change)
    if target["case_id"] is None:
        trace = store.trace_rows(change.connection, [target["trace_id"]])[target["trace_id"]]
        fields = {
            "id": f"{change.item['id']}:{ids.fingerprint([reference, checker])[:12]}",
            "input": conversation(change.connection, trace["input_id"]),
            "reference": trace["output"] if reference is None else reference,
            "checker": checker,
        }
    else:
        case = store.case_rows(change.connection, [target["case_id"]])[target["case_id"]]
        fields = {
            "id": case["external_id"],
            "source": case["source"],
            "input": conversation(change.connection, case["input_id"]),
            "reference": case["reference"],
            "checker": case["checker"],
            "checker_config": case["checker_config"],
            "group": case["group_key"],
            "slices": case["slices"],
        }
        if reference is not None or checker is not None:
            # an edited case is a new one; the case that it comes from stays as it was
            fields["id"] = f"{change.item['id']}:{ids.fingerprint([reference, checker])[:12]}"
            fields["source"] = SOURCE
            fields["reference"] = case["reference"] if reference is None else reference
            fields["checker"] = case["checker"] if checker is None else checker
    stated = {name: value for name, value in fields.items() if value is not None}
    try:
        return CaseRecord.model_validate(stated)
    except ValidationError as error:
        raise InputError("case", explain(error), "Give a reference, a checker, or both") from None


def _save(change: _Change, records: Sequence[AnyRecord], reviewer: str | None = None) -> list[str]:
    if not records:
        return []
    for record in records:
        check_text(record)
    scope = scope_under(change.ws, change.agent.id, change.agent.slug, SOURCE, reviewer)
    return save_records(change.connection, scope, records)


def _check_verdict(queue: Queue, verdict: RaterVerdict) -> None:
    """Raise InputError for a verdict that the queue does not ask for."""
    if verdict.is_empty:
        raise InputError(
            "the rating", "it says nothing", "Give a thumb, a rating, a label, a note, or skip it"
        )
    if (queue.kind is ItemKind.COMPARISON) != bool(verdict.ranking):
        asked = "a ranking" if queue.kind is ItemKind.COMPARISON else "no ranking"
        raise InputError("the rating", f"queue {queue.name!r} asks for {asked}", "Correct it")
    if verdict.ranking and verdict.correction is not None:
        raise InputError("the rating", "a comparison has no answer to correct", "Leave it out")
    if queue.kind is ItemKind.CASE:
        raise InputError(
            "the rating",
            f"the items of queue {queue.name!r} are cases",
            "Approve a case, or skip it",
        )
    unknown_tags = [tag for tag in verdict.tags if tag not in queue.config.tags]
    if unknown_tags:
        raise InputError(
            f"tag {unknown_tags[0]!r}",
            "the queue has no such tag",
            f"Known: {', '.join(queue.config.tags) or 'none'}",
        )


def labels_of(queue: Queue, texts: Sequence[str]) -> tuple[tuple[str, str | bool], ...]:
    """Parse labels as raters write them, NAME=VALUE. Raises InputError for a label or value that
    the queue does not have."""
    schemas = {schema.name: schema for schema in queue.config.schemas}
    labels: dict[str, str | bool] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in schemas:
            raise InputError(
                f"label {name!r}",
                "the queue asks for no such label",
                f"Known: {', '.join(schemas) or 'none'}",
            )
        labels[name] = schemas[name].value_of(value or "true")
    return tuple(labels.items())
