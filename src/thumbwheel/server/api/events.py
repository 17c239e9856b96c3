"""Events of jobs, runs and decisions: as a JSON list, or as server-sent events that go on.

Each event has an id, and a client that comes back says which was the last that it got
(`Last-Event-ID`): the stream goes on behind it, from the database, whichever process serves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import Field
from starlette.types import Receive, Scope, Send

from thumbwheel.access.gate import AccessGate
from thumbwheel.access.needs import Need, needs
from thumbwheel.access.problem import problem
from thumbwheel.access.route import AGENT
from thumbwheel.access.types import Principal
from thumbwheel.access.work_shares import in_thread_turn
from thumbwheel.app.job_paths import shown_event
from thumbwheel.core import present
from thumbwheel.core.errors import Busy, Forbidden, InputError, NotFound
from thumbwheel.core.field_words import describe_fields
from thumbwheel.core.ids import slug_of
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.decision_log import decisions_after
from thumbwheel.jobs import queue
from thumbwheel.models.versions import require_agent
from thumbwheel.server.api.bodies import BoundedRoute
from thumbwheel.server.api.job_access import visible_job
from thumbwheel.server.api.parameters import NO_NUL
from thumbwheel.training.curves import RunCurves, StepRange, curves
from thumbwheel.training.live import RunProgress, progress_of
from thumbwheel.training.train import metrics_after, run_of, runs

STREAM = "text/event-stream"
LOOK_EVERY = 0.25
"""Seconds between two looks for new events."""
QUIET = 15.0
"""Seconds without an event after which a comment keeps the connection open."""
AT_ONCE = 1000
"""Events of one look, and of a list."""
MOST_POINTS = 40_000
"""Of all runs of one answer, for each metric."""
MOST_RUNS = 200
"""Runs whose curves one request asks for."""
END = "end"
"""The event after the last one."""

AgentName = Annotated[
    str, Path(pattern=NO_NUL, min_length=1, max_length=400, description="The agent.")
]
JobId = Annotated[
    str, Path(pattern=NO_NUL, min_length=1, max_length=400, description="The id of the job.")
]
RunId = Annotated[
    str, Path(pattern=NO_NUL, min_length=1, max_length=400, description="The id of the run.")
]
LastEvent = Annotated[
    str | None,
    Header(
        alias="last-event-id",
        pattern=NO_NUL,
        max_length=400,
        description="The last event that the client got; it wins over `after`.",
    ),
]
FirstStep = Annotated[int | None, Query(ge=0, le=2**53, description="Only from this step on.")]
LastStep = Annotated[int | None, Query(ge=0, le=2**53, description="Only up to this step.")]
After = Annotated[str | None, Query(description="Only what came after this event.", pattern=NO_NUL)]


@dataclass(frozen=True)
class ServerEvent:
    """Something that happened."""

    id: str
    """Id of the event, for the header `Last-Event-ID`."""
    kind: str
    """Kind of the event, such as progress, log, metrics or decision."""
    content: Annotated[Any, Field(description="What the kind of event says, as an object.")]


@dataclass(frozen=True)
class News:
    """What happened since a client looked last."""

    events: Sequence[ServerEvent]
    is_last: bool
    """Whether nothing comes any more."""


Look = Callable[[str | None], News]
"""Gives what came after the event with this id; from the beginning without one."""


class BoundedStream(StreamingResponse):
    """A stream of events; 429 where the key or user has too many open."""

    def __init__(
        self, request: Request, events: AsyncIterator[bytes], headers: Mapping[str, str]
    ) -> None:
        super().__init__(events, 200, headers, STREAM)
        self._gate: AccessGate = request.app.state.gate
        self._principal: Principal = request.state.principal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events (ASGI)."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self._gate.limits.waiting(self._principal))
            except Busy as error:
                await problem(error)(scope, receive, send)
                return
            await super().__call__(scope, receive, send)


async def answer(request: Request, look: Look, after: str | None) -> Response:
    """Return the events as a stream if the client accepts one, else the events so far as a list.
    Raises whatever the first call of `look` raises."""
    first = await in_thread_turn(look, after)
    if STREAM in request.headers.get("accept", ""):
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return BoundedStream(request, _stream(request, look, first, after), headers)
    rows = [asdict(event) for event in first.events]
    return Response(present.json_text(rows, indent=None), media_type="application/json")


async def _stream(
    request: Request, look: Look, news: News, after: str | None
) -> AsyncIterator[bytes]:
    leaving = getattr(request.app.state, "leaving", None)
    quiet_since = time.monotonic()
    while True:
        for event in news.events:
            yield _bytes(event)
            after, quiet_since = event.id, time.monotonic()
        if news.is_last and not news.events:
            yield f"event: {END}\ndata: {{}}\n\n".encode()
            return
        if leaving is not None and leaving.is_set():
            return  # the client comes back, with the id of the last event
        if not news.events:
            await asyncio.sleep(LOOK_EVERY)
        if time.monotonic() - quiet_since > QUIET:
            yield b": still here\n\n"
            quiet_since = time.monotonic()
        need: Need = request.state.need
        if not need.is_still_met(request):
            return  # a client that comes back is told why
        try:
            news = await run_in_threadpool(look, after)
        except (Forbidden, NotFound):
            return


def _bytes(event: ServerEvent) -> bytes:
    data = present.json_text(event.content, indent=None)
    return f"id: {event.id}\nevent: {event.kind}\ndata: {data}\n\n".encode("utf-8", "replace")


def number_of(after: str | None) -> int:
    """Return the number of an event; 0 for None. Raises InputError."""
    if after is None:
        return 0
    if not after.isascii() or not after.isdecimal() or len(after) > 15:
        raise InputError(f"event {after!r}", "it is not the number of an event", "Leave it out")
    return int(after)


def _different(names: Sequence[str], points: int) -> list[str]:
    """Return each of the named runs once. Raises InputError if so many points of each are too
    many."""
    different = list(dict.fromkeys(names))
    if len(different) * points > MOST_POINTS:
        raise InputError(
            f"{len(different)} runs with {points:,} points each",
            f"one answer has at most {MOST_POINTS:,} points a metric",
            "Ask for fewer points, or for fewer runs at a time",
        )
    return different


def router() -> APIRouter:
    """Return the router for the events and the list of runs."""
    describe_fields(RunProgress)
    routes = APIRouter(route_class=BoundedRoute)

    @routes.get(
        "/api/jobs/{job}/events",
        operation_id="jobs.events",
        dependencies=[needs("read", by_row=True)],
        response_class=Response,
        responses=_documented(ServerEvent, STREAMED),
        tags=["jobs"],
    )
    async def job_events(
        request: Request, job: JobId, after: After = None, last: LastEvent = None
    ) -> Response:
        """Stream the states, the progress and the lines of a job."""
        ws: Workspace = request.app.state.workspace

        def look(after: str | None) -> News:
            number = number_of(after)
            principal = request.state.principal
            current = visible_job(principal, "read", ws, job)
            owns_home = principal.may("own", None)
            rows = [
                shown_event(ws, row, owns_home)
                for row in queue.events(ws, current.id, number, AT_ONCE)
            ]
            events = [ServerEvent(str(row.number), row.kind, row.content) for row in rows]
            return News(events, current.has_ended)

        return await answer(request, look, last or after)

    @routes.get(
        f"{AGENT}/curves",
        operation_id="runs.curves",
        dependencies=[needs("read")],
        response_class=Response,
        responses=_documented(RunCurves, {}),
        tags=["train"],
    )
    def run_curves(
        request: Request,
        agent: AgentName,
        run: Annotated[
            list[str], Query(min_length=1, max_length=MOST_RUNS, description="The ids of the runs.")
        ],
        metric: Annotated[
            list[str] | None, Query(description="Only these metrics; all of them without any.")
        ] = None,
        points: Annotated[
            int, Query(ge=10, le=2000, description="Most points of a curve; more are thinned out.")
        ] = 200,
        first: FirstStep = None,
        last: LastStep = None,
    ) -> Response:
        """Return the metrics of several runs as curves of at most so many points each, from the
        step `first` to the step `last`."""
        ws: Workspace = request.app.state.workspace
        different = _different(run, points)
        learner = require_agent(ws, slug_of(agent))
        by_id = {recorded.id: recorded for recorded in runs(ws, learner)}
        rows = []
        for run_id in different:
            recorded = by_id.get(run_id) or run_of(ws, learner, run_id)
            shown = curves(ws, recorded, points, metric or (), StepRange(first, last))
            rows.append(asdict(shown))
        return Response(present.json_text(rows, indent=None), media_type="application/json")

    @routes.get(
        f"{AGENT}/runs/{{run}}/metrics",
        operation_id="runs.metrics",
        dependencies=[needs("read")],
        response_class=Response,
        responses=_documented(ServerEvent, STREAMED),
        tags=["train"],
    )
    async def run_metrics(
        request: Request, agent: AgentName, run: RunId, after: After = None, last: LastEvent = None
    ) -> Response:
        """Stream the steps and evaluations of a run, while it trains."""
        ws: Workspace = request.app.state.workspace

        def look(after: str | None) -> News:
            recorded = run_of(ws, require_agent(ws, slug_of(agent)), run)
            lines = metrics_after(ws, recorded, number_of(after), AT_ONCE)
            events = [ServerEvent(str(number), "metrics", line) for number, line in lines]
            return News(events, recorded.has_ended)

        return await answer(request, look, last or after)

    @routes.get(
        f"{AGENT}/runs/{{run}}/progress",
        operation_id="runs.progress",
        dependencies=[needs("read")],
        tags=["train"],
    )
    def run_progress(request: Request, agent: AgentName, run: RunId) -> RunProgress:
        """Return where a run is: its step, its work in words, its speed, memory and processors."""
        ws: Workspace = request.app.state.workspace
        return progress_of(ws, run_of(ws, require_agent(ws, slug_of(agent)), run))

    @routes.get(
        f"{AGENT}/decisions",
        operation_id="decisions.list",
        dependencies=[needs("read")],
        response_class=Response,
        responses=_documented(ServerEvent, STREAMED),
        tags=["gate"],
    )
    async def list_decisions(
        request: Request, agent: AgentName, after: After = None, last: LastEvent = None
    ) -> Response:
        """List the gate's decisions about an agent's versions, oldest first."""
        ws: Workspace = request.app.state.workspace

        def look(after: str | None) -> News:
            learner = require_agent(ws, slug_of(agent))
            rows = decisions_after(ws, learner, after, AT_ONCE)
            return News([ServerEvent(row["id"], "decision", row) for row in rows], False)

        return await answer(request, look, last or after)

    return routes


STREAMED: Mapping[str, Any] = {STREAM: {"schema": {"type": "string"}}}


def _documented(row: Any, further: Mapping[str, Any]) -> dict[int | str, dict[str, Any]]:
    """Return the documentation of an answer that is a list of such rows, or is one of `further`."""
    describe_fields(row)
    description = "A list of what there is."
    return {200: {"description": description, "model": list[row], "content": dict(further)}}
