"""`thumbwheel queue`: what people are asked to rate, and what they say."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thumbwheel.capture.trace_filter import TraceFilter
from thumbwheel.capture.trace_options import filters_traces
from thumbwheel.core import present
from thumbwheel.core.config import build, options
from thumbwheel.review.types import (
    AddedItems,
    Batch,
    ListedQueue,
    OrderedQueue,
    Origin,
    QueueConfig,
    QueueReport,
    RatedItem,
    ReturnedItems,
)

if TYPE_CHECKING:
    from thumbwheel.models.types import Agent
    from thumbwheel.review.types import Queue

queue = typer.Typer()

AgentName = Annotated[str, typer.Option("--agent", "-a", help="The agent whose answers are meant.")]
QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="Its name or id.")]
ItemId = Annotated[str, typer.Argument(metavar="ITEM", help="The item, as `queue next` named it.")]
RaterName = Annotated[str, typer.Option(help="Who rates; the ratings are theirs.")]
Key = Annotated[
    str | None,
    typer.Option(
        help="Your name for this request: sent again under it, it changes nothing [default: new]."
    ),
]
Seconds = Annotated[
    float | None, typer.Option(min=0, max=86_400, help="How long the rater looked at it.")
]
RatedAt = Annotated[
    datetime | None, typer.Option(help="When it was rated, if that was before now (UTC).")
]


class ThumbDirection(StrEnum):
    """Which way a thumb points."""

    UP = "up"
    DOWN = "down"


@queue.command("create")
@options(QueueConfig)
@filters_traces
def create_(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Its name.")],
    agent: AgentName,
    of: Annotated[
        Origin,
        typer.Option(
            help="What is rated: traces, comparisons of answers to one prompt, cases that nobody "
            "reviewed, or conflicts between raters."
        ),
    ] = Origin.TRACES,
    conflicts_of: Annotated[
        str | None, typer.Option(help="The queue whose items on which raters differ are asked.")
    ] = None,
    most: Annotated[int, typer.Option(min=1, max=1_000_000, help="Items, at most.")] = 100_000,
    answers: Annotated[int, typer.Option(help="Answers of a comparison, at most.")] = 2,
    replays: Annotated[
        bool, typer.Option("--replays", help="Also answers of replays, which no user got.")
    ] = False,
    *,
    wanted: TraceFilter,
    options: Mapping[str, Any] = {},
) -> present.Answer[ListedQueue]:
    """Make a queue of what people shall rate.

    Each item goes to as many raters as --overlap says, and to nobody twice. Raters open the page
    /rate of the server, or use `queue next` and `queue rate`.

    Example: thumbwheel queue create july --agent support --unrated --labels topic=billing|shipping

    Blind A/B: thumbwheel queue create duel --agent support --of comparisons --overlap 2
    """
    from thumbwheel.models.versions import require_agent
    from thumbwheel.review.queues import QueueSelection, create, require_queue

    config = build(QueueConfig, options, "options")
    with ctx.obj() as ws:
        owner = require_agent(ws, agent)
        differing = None
        if conflicts_of is not None:
            of, differing = Origin.CONFLICTS, require_queue(ws, owner, conflicts_of)
        selection = QueueSelection(Origin(of), wanted, most, answers, replays, differing)
        made_queue = create(ws, owner, name, config, selection)
    return _queue_answer(made_queue, agent)


def _utc(time: datetime | None) -> datetime | None:
    if time is None or time.tzinfo is not None:
        return time
    return time.replace(tzinfo=UTC)


def _queue_answer(shown: Queue, agent: str) -> present.Answer[ListedQueue]:
    content = shown.to_json()
    rows = [(key, _cell(value)) for key, value in content.items() if value not in ("", [], None)]
    return present.page(
        ListedQueue.of(shown), [present.Table(f"queue {shown.name} of {agent}", ("", ""), rows)]
    )


def _cell(value: Any) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


@queue.command("list")
def list_(
    ctx: typer.Context,
    agent: AgentName,
    every: Annotated[bool, typer.Option("--all", help="Closed ones too.")] = False,
) -> present.Answer[Sequence[ListedQueue]]:
    """List the queues of an agent, newest first.

    Example: thumbwheel queue list --agent support
    """
    from thumbwheel.models.versions import require_agent
    from thumbwheel.review.queues import all_queues

    with ctx.obj() as ws:
        queues = [ListedQueue.of(each) for each in all_queues(ws, require_agent(ws, agent), every)]
    columns = {
        "queue": lambda row: row.name,
        "items": lambda row: row.items,
        "done": lambda row: row.done,
        "kind": lambda row: row.kind,
        "order": lambda row: row.order,
        "overlap": lambda row: row.overlap,
        "due": lambda row: row.due,
        "state": lambda row: row.state,
    }
    empty = f"no queues; make one for people to rate: thumbwheel queue create rate --agent {agent}"
    return present.records(queues, f"queues of {agent}", columns, empty=empty)


@queue.command("show")
def show_(ctx: typer.Context, queue: QueueName, agent: AgentName) -> present.Answer[ListedQueue]:
    """Show the settings and the progress of a queue.

    Example: thumbwheel queue show july --agent support
    """
    with ctx.obj() as ws:
        _, shown = _resolved(ws, agent, queue)
    return _queue_answer(shown, agent)


def _resolved(ws: Any, agent: str, name: str) -> tuple[Agent, Queue]:
    from thumbwheel.models.versions import require_agent
    from thumbwheel.review.queues import require_queue

    owner = require_agent(ws, agent)
    return owner, require_queue(ws, owner, name)


@queue.command("raters")
def raters_(ctx: typer.Context, queue: QueueName, agent: AgentName) -> present.Answer[QueueReport]:
    """Show how the raters of a queue do: how much, how fast, how far they agree, and the trend.

    Example: thumbwheel queue raters july --agent support
    """
    from thumbwheel.review.raters import report

    with ctx.obj() as ws:
        _, shown = _resolved(ws, agent, queue)
        result = report(ws, shown)
    return present.page(result, _raters_page(result, shown))


def _raters_page(result: QueueReport, shown: Queue) -> Iterator[present.Part]:
    rows = []
    for rater in result.raters:
        seconds = "" if rater.seconds is None else f"{rater.seconds:.1f} s"
        rows.append((rater.rater, rater.rated, rater.skipped, seconds, _interval(rater.kappa)))
    columns = ("rater", "rated", "skipped", "median", "kappa (95 % interval)")
    yield present.Table(f"raters of {shown.name}", columns, rows)
    weeks = [
        (rater.rater, week.week, week.rated, _share(week.positive), _of(week.agreed, week.compared))
        for rater in result.raters
        for week in rater.weeks
    ]
    yield present.Table("by week", ("rater", "week", "rated", "positive", "agreed"), weeks)
    yield present.Note(
        f"alpha of all {_interval(result.alpha)}; they differ on {len(result.conflicts)} items"
    )


def _interval(figure: Mapping[str, Any] | None) -> str:
    if figure is None or figure["value"] is None:
        return "unknown: too little to tell"
    ends = "" if figure["low"] is None else f" ({figure['low']:.2f} to {figure['high']:.2f})"
    return f"{figure['value']:.2f}{ends}"


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _of(part: int, whole: int) -> str:
    return f"{part} of {whole}" if whole else ""


@queue.command("add")
def add_(
    ctx: typer.Context,
    queue: QueueName,
    traces: Annotated[list[str], typer.Argument(metavar="TRACE...", help="Ids of traces.")],
    agent: AgentName,
    creates: Annotated[
        bool,
        typer.Option(
            "--create", help="Create the queue, with its default settings, if there is none."
        ),
    ] = False,
) -> present.Answer[AddedItems]:
    """Append traces to a queue.

    Example: thumbwheel queue add july trc_0f3k2m8v1 --agent support
    """
    from thumbwheel.models.versions import require_agent
    from thumbwheel.review.queues import add, add_or_create

    with ctx.obj() as ws:
        if creates:
            shown, added = add_or_create(ws, require_agent(ws, agent), queue, traces)
        else:
            owner, shown = _resolved(ws, agent, queue)
            added = add(ws, owner, shown, traces)
    return present.message(AddedItems(added), f"{added} added to {shown.name}")


@queue.command("reorder")
def reorder_(
    ctx: typer.Context, queue: QueueName, agent: AgentName
) -> present.Answer[OrderedQueue]:
    """Put what is left of a queue in order again, by what the ratings have taught since. It matters
    for queues in the order `active`; the rating page asks for it by itself.

    Example: thumbwheel queue reorder july --agent support
    """
    from thumbwheel.review.order import reorder

    with ctx.obj() as ws:
        owner, shown = _resolved(ws, agent, queue)
        rule = reorder(ws, owner, shown)
    return present.message(OrderedQueue(rule), f"{shown.name} is in order: {rule}")


@queue.command("close")
def close_(ctx: typer.Context, queue: QueueName, agent: AgentName) -> present.Answer[ListedQueue]:
    """Give nothing of a queue out any more. What was rated stays.

    Example: thumbwheel queue close july --agent support
    """
    from thumbwheel.review.queues import close

    with ctx.obj() as ws:
        owner, shown = _resolved(ws, agent, queue)
        closed = close(ws, owner, shown)
    return _queue_answer(closed, agent)


@queue.command("next")
def next_(
    ctx: typer.Context,
    queue: QueueName,
    agent: AgentName,
    rater: RaterName,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many to take.")] = 1,
) -> present.Answer[Batch]:
    """Take the next items. They are kept for the rater for a while, and nobody else gets them
    beyond the overlap.

    Of a comparison nobody is told which answer is whose. Example: thumbwheel queue next july
    --agent support --rater anna
    """
    from thumbwheel.review.hand_out import next_items

    with ctx.obj() as ws:
        _, shown = _resolved(ws, agent, queue)
        batch = next_items(ws, shown, rater, limit)
    parts: list[present.Part] = []
    for item in batch.items:
        parts += [f"{message['role']}: {message['text']}" for message in item.chat]
        for letter, answer in zip("ABCDEFGHIJ", item.answers, strict=False):
            title = item.id if len(item.answers) == 1 else f"{item.id} {letter}"
            parts.append(present.Box(title, answer))
    parts.append(present.Note(f"{batch.done} of {batch.total} items are done"))
    return present.page(batch, parts)


@queue.command("return")
def return_(
    ctx: typer.Context,
    queue: QueueName,
    agent: AgentName,
    rater: RaterName,
) -> present.Answer[ReturnedItems]:
    """Have the items again that a rater skipped, unless others took them.

    Example: thumbwheel queue return july --agent support --rater anna
    """
    from thumbwheel.review.hand_out import return_skipped

    with ctx.obj() as ws:
        _, shown = _resolved(ws, agent, queue)
        returned = return_skipped(ws, shown, rater)
    return present.message(ReturnedItems(returned), f"{returned} come again")


@queue.command("rate")
def rate_(
    ctx: typer.Context,
    queue: QueueName,
    item: ItemId,
    agent: AgentName,
    rater: RaterName,
    thumb: Annotated[ThumbDirection | None, typer.Option(help="up or down.")] = None,
    rating: Annotated[float | None, typer.Option(min=1, max=5, help="From 1 to 5.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE of a label of the queue, repeatable.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A tag of the queue, repeatable.")] = None,
    ranking: Annotated[
        str | None, typer.Option(help="Of answers that are compared: B>A, or A=B for a tie.")
    ] = None,
    correction: Annotated[
        str | None, typer.Option(help="The whole text that the answer should have been.")
    ] = None,
    note: Annotated[str | None, typer.Option(help="A remark.")] = None,
    skip: Annotated[bool, typer.Option("--skip", help="Leave it to others.")] = False,
    seconds: Seconds = None,
    rated_at: RatedAt = None,
    key: Key = None,
) -> present.Answer[RatedItem]:
    """Rate an item, or skip it. Rating it again replaces what this rater had said about it.

    Example: thumbwheel queue rate july rit_0f3k2m8v1 --agent support --rater anna --thumb down
    --note "wrong tariff"
    """
    from thumbwheel.core.errors import InputError
    from thumbwheel.review.rate import labels_of, rate
    from thumbwheel.review.rate import skip as skip_item
    from thumbwheel.review.types import LETTERS, RaterVerdict, ranking_of

    with ctx.obj() as ws:
        owner, shown = _resolved(ws, agent, queue)
        groups: tuple[tuple[int, ...], ...] = ()
        if ranking is not None:
            letters = sum(letter in ranking.upper() for letter in LETTERS)
            groups = ranking_of(ranking, letters)
        verdict = RaterVerdict(
            thumb=None
            if thumb is None
            else thumb == ThumbDirection.UP,  # a request brings its text
            rating=rating,
            labels=labels_of(shown, label or []),
            tags=tuple(dict.fromkeys(tag or [])),
            ranking=groups,
            correction=correction,
            note=note or None,
        )
        if skip and not verdict.is_empty:
            raise InputError("--skip", "it is rated at the same time", "Give one of them")
        request = _request(shown, item, rater, key, seconds, rated_at)
        result = skip_item(ws, owner, request) if skip else rate(ws, owner, request, verdict)
    return present.message(result, f"{result.item}: {result.state}")


def _request(
    shown: Queue,
    item: str,
    rater: str,
    key: str | None,
    seconds: float | None = None,
    rated_at: datetime | None = None,
) -> Any:
    from thumbwheel.review.rate import RatingRequest

    return RatingRequest(shown, item, rater, key or uuid.uuid4().hex, _utc(rated_at), seconds)


@queue.command("undo")
def undo_(
    ctx: typer.Context,
    queue: QueueName,
    item: ItemId,
    agent: AgentName,
    rater: RaterName,
    key: Key = None,
) -> present.Answer[RatedItem]:
    """Take back what a rater did with an item: its feedback is retracted, and they hold it again.

    Example: thumbwheel queue undo july rit_0f3k2m8v1 --agent support --rater anna
    """
    from thumbwheel.review.rate import undo

    with ctx.obj() as ws:
        owner, shown = _resolved(ws, agent, queue)
        result = undo(ws, owner, _request(shown, item, rater, key))
    return present.message(result, f"{result.item}: {result.state}")


@queue.command("approve")
def approve_(
    ctx: typer.Context,
    queue: QueueName,
    item: ItemId,
    agent: AgentName,
    rater: RaterName,
    reference: Annotated[
        str | None, typer.Option(help="The right answer [default: the one that is there].")
    ] = None,
    checker: Annotated[
        str | None, typer.Option(help="What compares an answer with it, for example exact_answer.")
    ] = None,
    withdraw: Annotated[
        bool, typer.Option("--undo", help="Take back that the item is gold.")
    ] = False,
    key: Key = None,
) -> present.Answer[RatedItem]:
    """Vouch for an item, as it is or edited: it becomes a gold case, which decides about models and
    is never trained on.

    Example: thumbwheel queue approve gold rit_0f3k2m8v1 --agent support --rater anna --reference 42
    """
    from thumbwheel.review import rate as ratings

    with ctx.obj() as ws:
        owner, shown = _resolved(ws, agent, queue)
        request = _request(shown, item, rater, key)
        if withdraw:
            result = ratings.withdraw(ws, owner, request)
        else:
            result = ratings.approve(ws, owner, request, reference, checker)
    return present.message(result, f"{result.item}: {result.state}")


@queue.command("approve-liked")
def approve_liked_(
    ctx: typer.Context,
    queue: QueueName,
    agent: AgentName,
    rater: RaterName,
    checker: Annotated[
        str | None, typer.Option(help="What compares an answer with the one that was called good.")
    ] = "exact_answer",
) -> present.Answer[list[RatedItem]]:
    """Vouch for every item of a queue that this rater called good: each becomes a gold case.

    Example: thumbwheel queue approve-liked cards --agent widgets --rater anna
    """
    from thumbwheel.review import rate as ratings

    with ctx.obj() as ws:
        owner, shown = _resolved(ws, agent, queue)
        results = ratings.approve_liked(ws, owner, shown, rater, checker)
    return present.message(results, f"{len(results)} items are gold cases")
