"""The HTTP side of capture: traces, feedback and spans of OpenTelemetry come in.

A request is answered (202) once it is on disk, or with `capture.acknowledge: rows` once its rows
are in the database (acknowledged.py). Spooled lines become rows within a second; what contradicts a
stored row then is set aside in the inbox's rejected.jsonl. Where too much waits, the answer is 429
with Retry-After, and nothing of the request is stored.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from thumbwheel import sdk
from thumbwheel.access.credentials import bearer_of
from thumbwheel.access.needs import address_of, needs, public, require_agents
from thumbwheel.access.problem import answered_with, problem
from thumbwheel.access.rate_limits import RateLimits
from thumbwheel.access.turn_route import TurnRoute
from thumbwheel.access.types import LOCAL_TOKEN, PAGE_OF_OWNER, Principal, Verb
from thumbwheel.access.work_shares import CURRENT, ReadingTurn
from thumbwheel.capture import openapi
from thumbwheel.capture import received as meaning
from thumbwheel.capture.acknowledged import SpoolFull
from thumbwheel.capture.feedback_token import FeedbackTokens, is_feedback_token
from thumbwheel.capture.inbox import Unstored
from thumbwheel.capture.quota import QuotaExceeded
from thumbwheel.capture.received import Received, Spell
from thumbwheel.core.errors import Busy, Forbidden, InputError, StorageError, ThumbwheelError
from thumbwheel.core.packed_body import BadPacking, TooLarge, unpacked
from thumbwheel.importers.fields import name_of
from thumbwheel.importers.otlp.request import (
    JSON,
    PROTOBUF,
    SpanLines,
    SpanSender,
    log_lines,
    response_body,
    span_lines,
)
from thumbwheel.importers.types import OWNER_MARKS, Unreadable
from thumbwheel.importers.unpacked import most_of_request
from thumbwheel.importers.voice import Voice
from thumbwheel.sdk.segment import Full

P = ParamSpec("P")
T = TypeVar("T")

MOST_BYTES, MOST_UNPACKED = 16 * 2**20, 64 * 2**20
"""Of a request's body, as sent and unpacked."""
MOST_OF_PAGE = 64 * 1024
"""Of the body of a page with a feedback token, as sent and unpacked: anybody can present one, and
whether it holds is known only when the body is read."""
SMALL = 32 * 1024
"""Bytes of a body that is read in the event loop; it takes tens of microseconds."""
LINE_TYPES = ("application/x-ndjson", "application/jsonl", "application/json-lines")
AGENT_HEADER = "x-thumbwheel-agent"
KEY_HEADER = "idempotency-key"
MARKS = tuple(mark.encode() for mark in (*OWNER_MARKS, "weight"))
"""Without one of these in it, a line claims nothing that needs a right of its own."""
FOREIGN_PAGES = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "POST",
    "access-control-allow-headers": "authorization, content-type, idempotency-key",
    "access-control-max-age": "86400",
}
"""Lets pages of any site post feedback, which takes a token; no cookie is ever looked at."""


Handler = Callable[..., Awaitable[Response]]
AGENT_PARAMETER = {
    "name": "agent",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1},
}


@dataclass(frozen=True)
class RowsPath:
    """A path that takes rows, without the agent before it."""

    path: str
    verb: Verb
    answer: Handler
    documentation: dict[str, Any]
    """Of OpenAPI."""
    elsewhere: Callable[[str], bool] | None = None
    """Which bearers it checks itself."""


class Spool(Protocol):
    """Where lines go (acknowledged.py)."""

    def append_all(self, lines: Sequence[bytes]) -> Future[None]:
        """Append lines that are stored together or not at all; the future resolves once they are
        acknowledged. Raises Full."""

    def append_large(self, lines: Sequence[bytes]) -> Future[None]:
        """Append lines as `append_all` does, after they were redacted in the calling thread: that
        may take long, and those of others do not wait for it."""


Admit = Callable[[str | None, Sequence[bytes]], None]
"""Raises QuotaExceeded where these lines, sent with the key of this name, are too much."""


def unbounded(key: str | None, lines: Sequence[bytes]) -> None:
    """Admit everything."""


def router(segment: Spool, tokens: FeedbackTokens, admit: Admit = unbounded) -> APIRouter:
    """Return the routes. `segment` writes lines durably, `tokens` are the feedback tokens of the
    home, `admit` enforces its quotas."""
    routes = APIRouter(route_class=TurnRoute)
    routes.add_api_route(
        "/feedback.js",
        _script,
        methods=["GET"],
        dependencies=[public("pages of any site load it, and it holds no data")],
    )
    append = partial(_append, segment, admit)
    operations = (
        RowsPath(
            "/api/traces",
            "call",
            partial(_rows, append, meaning.trace_row),
            openapi.operation("Send traces", openapi.rows(openapi.TRACE), 202, openapi.IDS),
        ),
        RowsPath(
            "/api/feedback",
            "rate",
            partial(_feedback, append, tokens),
            openapi.operation("Send feedback", openapi.rows(openapi.FEEDBACK), 202, openapi.IDS),
            elsewhere=is_feedback_token,
        ),
        RowsPath(
            "/api/feedback-tokens",
            "rate",
            partial(_token, tokens),
            openapi.operation(
                "Make a token with which a page may judge one trace",
                openapi.row(openapi.TOKEN_REQUEST),
                201,
                openapi.TOKEN,
            ),
        ),
        RowsPath(
            "/feedback",
            "rate",
            partial(_tensorzero, append),
            openapi.operation(
                "Send feedback as TensorZero spells it",
                openapi.row(openapi.TENSORZERO),
                200,
                openapi.FEEDBACK_ID,
            ),
        ),
        RowsPath(
            "/api/public/scores",
            "rate",
            partial(_langfuse, append),
            openapi.operation(
                "Send a score as Langfuse spells it", openapi.row(openapi.LANGFUSE), 200, openapi.ID
            ),
        ),
        RowsPath(
            "/api/public/ingestion",
            "rate",
            partial(_langfuse_batch, append),
            openapi.operation(
                "Send scores as Langfuse's SDKs do, many at once",
                openapi.row(openapi.LANGFUSE_BATCH),
                207,
                openapi.OF_EVENTS,
            ),
        ),
        RowsPath(
            "/api/public/otel/v1/traces",
            "call",
            partial(_spans, append, span_lines),
            openapi.operation(
                "Send spans where Langfuse's SDKs send them",
                openapi.otlp("ExportTraceServiceRequest"),
                200,
                openapi.OTLP_ANSWER,
            ),
        ),
        RowsPath(
            "/v1/traces",
            "call",
            partial(_spans, append, span_lines),
            openapi.operation(
                "Send spans of OpenTelemetry",
                openapi.otlp("ExportTraceServiceRequest"),
                200,
                openapi.OTLP_ANSWER,
            ),
        ),
        RowsPath(
            "/v1/logs",
            "rate",
            partial(_spans, append, log_lines),
            openapi.operation(
                "Send evaluation results as log records of OpenTelemetry",
                openapi.otlp("ExportLogsServiceRequest"),
                200,
                openapi.OTLP_ANSWER,
            ),
        ),
    )
    for operation in operations:
        _add(routes, operation, "", [])
        _add(routes, operation, "/a/{agent}", [AGENT_PARAMETER])
    for prefix in ("", "/a/{agent}"):
        path = f"{prefix}/api/feedback"
        routes.add_api_route(
            path,
            _preflight,
            methods=["OPTIONS"],
            include_in_schema=False,
            dependencies=[public("browsers ask it before they send anything")],
        )
    return routes


def _add(
    routes: APIRouter, operation: RowsPath, prefix: str, parameters: list[dict[str, Any]]
) -> None:
    async def handle(request: Request) -> Response:
        return await operation.answer(request)

    path = f"{prefix}{operation.path}"
    routes.add_api_route(
        path,
        handle,
        methods=["POST"],
        dependencies=[needs(operation.verb, ingest=True, elsewhere=operation.elsewhere)],
        name=path.strip("/").replace("/", "_").replace("{", "").replace("}", ""),
        openapi_extra={**operation.documentation, "parameters": parameters},
        response_class=Response,
        responses={},
    )


class Append(Protocol):
    """Appends lines to the spool."""

    async def __call__(
        self, request: Request, lines: Sequence[bytes], turn: ReadingTurn | None
    ) -> Future[None]:
        """Return the future that resolves once all lines are acknowledged. Raises Busy or
        StorageError if they are not accepted."""


@asynccontextmanager
async def _turn(request: Request, content: bytes) -> AsyncIterator[ReadingTurn | None]:
    """Wait for the turn in which a large body may be read, and what it holds redacted; None for a
    small one. Raises Busy."""
    if len(content) <= SMALL and _packing(request) is None:
        yield None
        return
    current = CURRENT.get()
    assert current is not None  # noqa: S101 - every request has a share
    async with current.shares.reading_turn(current.name, "rows", len(content)) as turn:
        yield turn


async def _run(
    turn: ReadingTurn | None, read: Callable[P, T], /, *args: P.args, **options: P.kwargs
) -> T:
    """Return what `read` returns. What is small is read here: it takes less time than handing it to
    a thread."""
    if turn is None:
        return read(*args, **options)
    return await turn.in_thread(read, *args, **options)


async def _append(
    segment: Spool,
    admit: Admit,
    request: Request,
    lines: Sequence[bytes],
    turn: ReadingTurn | None,
) -> Future[None]:
    if not lines:
        nothing: Future[None] = Future()
        nothing.set_result(None)
        return nothing
    principal: Principal = request.state.principal
    try:
        if admit is not unbounded:
            key = principal.name if principal.kind == "key" else None
            await run_in_threadpool(admit, key, lines)
    except QuotaExceeded as error:
        kind = Busy if error.status == Busy.http_status else StorageError
        refusal = kind("a quota", str(error).rstrip("."), "Nothing of the request is stored")
        raise answered_with(error.status, refusal) from None
    try:
        # one piece of data for the disk, so that it is all there or not at all
        if turn is None:
            return segment.append_all(lines)
        return await turn.in_thread(segment.append_large, lines)
    except SpoolFull as error:
        raise Busy("the request", str(error.strerror), "Send it again later") from None
    except Full:
        raise Busy(
            "the request", "too many rows are waiting for the disk", "Send it again"
        ) from None
    except OSError as error:
        raise _refused_by_disk(error) from None


async def _acknowledged(stored: Future[None]) -> None:
    """Return when the lines of a future are acknowledged. Raises StorageError if they are not."""
    try:
        await asyncio.wrap_future(stored)
    except Unstored as error:
        fix = "It waits in the spool of this server. Send it again: a row with the same id is one"
        raise answered_with(503, StorageError("the request", str(error.strerror), fix)) from None
    except OSError as error:
        raise _refused_by_disk(error) from None


def _refused_by_disk(error: OSError) -> ThumbwheelError:
    why = f"the disk refuses it: {error.strerror or error}"
    return answered_with(507, StorageError("the request", why, "Free space, and send it again"))


def _voice(request: Request) -> Voice:
    """Return the sender of the request; a user can send feedback only in their own name."""
    principal: Principal = request.state.principal
    if principal.kind == "user":
        return Voice(principal.id, principal.name, is_person=True)
    return Voice(principal.id)


def _received(
    request: Request,
    content: bytes,
    spell: Spell,
    voice: Voice | None = None,
    most_unpacked: int = MOST_UNPACKED,
) -> Received:
    """Return the rows of a body as lines. Raises InputError if none of them can be stored."""
    content_type = _content_type(request)
    content = _unpacked(request, content, most_unpacked)
    if content_type not in ("application/json", *LINE_TYPES):
        type_text = f"content type {content_type!r}" if content_type else "a body without its type"
        fix = f"Send application/json, or {LINE_TYPES[0]} for a row a line"
        raise answered_with(415, InputError(type_text, "rows come as JSON", fix))
    try:
        rows = meaning.rows_of(content, content_type in LINE_TYPES)
    except Unreadable as error:
        refusal = InputError("the body", f"it cannot be read: {error}", "Send rows of JSON")
        raise answered_with(400, refusal) from None
    targets = meaning.count_further_targets(rows)
    if targets > meaning.MOST_TARGETS:
        most = f"{meaning.MOST_TARGETS:,}"
        raise _too_large(f"beyond two a row, it has {targets:,} targets; {most} are the most")
    key = request.headers.get(KEY_HEADER)
    if key is not None and not 1 <= len(key) <= 400:
        why = f"it has {len(key)} characters"
        raise answered_with(400, InputError(f"header {KEY_HEADER}", why, "Give 1 to 400"))
    result = meaning.received(rows, spell, _agent(request), key, voice or _voice(request))
    if not result.lines:
        reasons = "; ".join(refusal["reason"] for refusal in result.refused[:3])
        raise InputError("the rows", f"none can be stored: {reasons}", "Correct them")
    _check_agents(request, result.lines)
    _check_claims(request, result.lines)
    return result


def _check_agents(request: Request, lines: Sequence[bytes]) -> None:
    """Raise Forbidden for rows of an agent that the key of the request is not for."""
    principal: Principal = request.state.principal
    if not principal.may(request.state.verb, None):
        require_agents(request, {json.loads(line)["agent"] for line in lines})


def _check_claims(request: Request, lines: Sequence[bytes]) -> None:
    """Raise Forbidden for claims that only editors of the agent may make: the purpose of a trace,
    since a held-out question counts in the gate however often it was asked; and a weight above 1 of
    a rater, since votes are counted by weight."""
    principal: Principal = request.state.principal
    for line in lines:
        if not any(mark in line for mark in MARKS):
            continue
        row = json.loads(line)
        metadata, rater = row.get("metadata"), row.get("rater")
        is_marked = row["type"] == "trace" and bool((metadata or {}).keys() & set(OWNER_MARKS))
        is_heavy = isinstance(rater, dict) and float(rater.get("weight") or 0) > 1
        if is_marked or is_heavy:
            principal.require("edit", row["agent"])


def _agent(request: Request) -> str | None:
    """Return the agent that the path or a header names, or None."""
    agent = request.path_params.get("agent") or request.headers.get(AGENT_HEADER)
    return str(agent) if agent else None


async def _rows(append: Append, spell: Spell, request: Request) -> Response:
    body = await _body(request)
    async with _turn(request, body) as turn:
        result = await _run(turn, _received, request, body, spell)
        stored = await append(request, result.lines, turn)
    await _acknowledged(stored)
    content: dict[str, Any] = {"ids": result.ids}
    if result.refused:
        content["refused"] = result.refused
    return JSONResponse(content, 202)


async def _feedback(append: Append, tokens: FeedbackTokens, request: Request) -> Response:
    """Store feedback of an app, or of a web page with the token of one trace; return the answer."""
    bearer = bearer_of(request.headers)
    if not is_feedback_token(bearer):
        return await _rows(append, meaning.feedback_row, request)
    limits: RateLimits = request.app.state.gate.limits
    try:
        voice = Voice(*tokens.voice_of(bearer))
        body = await _body(request, MOST_OF_PAGE)
        async with _turn(request, body) as turn:
            try:
                spell = meaning.feedback_row
                result = await _run(turn, _received, request, body, spell, voice, MOST_OF_PAGE)
                for line in result.lines:
                    _check_token(tokens, bearer, json.loads(line))
            except Forbidden:
                limits.count_failure(address_of(request))
                raise
            limits.count_page(voice.rater or "")
            stored = await append(request, result.lines, turn)
        await _acknowledged(stored)
        response: Response = JSONResponse({"ids": result.ids}, 202)
    except ThumbwheelError as error:
        response = problem(error)
    response.headers.update(FOREIGN_PAGES)
    return response


def _check_token(tokens: FeedbackTokens, bearer: str, line: dict[str, Any]) -> None:
    """Raise Forbidden if the line is about anything but the trace of the token."""
    target = line.get("target")
    if line.get("source") or (isinstance(target, dict) and target.get("source")):
        raise Forbidden("feedback token", "it cannot name a source", "Leave source out")
    trace = name_of(target.get("trace")) if isinstance(target, dict) else None
    if trace is None:
        raise Forbidden("feedback token", "it is valid for one trace", "Give its id as trace")
    if line.get("retracts") or line.get("supersedes"):
        # what it names may be about another trace
        raise Forbidden("feedback token", "it cannot take feedback back", "Send a new judgement")
    objection = tokens.objection(bearer, line["agent"], trace)
    if objection is not None:
        raise Forbidden("feedback token", objection, "Use the token for this trace")


async def _token(tokens: FeedbackTokens, request: Request) -> Response:
    """Return a token with which a web page may judge the trace that the request names."""
    principal: Principal = request.state.principal
    if principal.kind == "user":  # each token is a rater, and a user is one
        why = "a user speaks in no name but their own"
        raise Forbidden("the feedback token", why, "Use the key of the app that serves the page")
    body = await _body(request)
    async with _turn(request, body) as turn:
        result = await _run(turn, _received, request, body, _trace_of_token)
    line = json.loads(result.lines[0])
    trace = str(line["target"]["trace"])  # a number is an id, too
    # visitors of a page are not the owner, whose word alone decides an experiment
    maker = PAGE_OF_OWNER if principal.id == LOCAL_TOKEN.id else principal.id
    token = tokens.make(line["agent"], trace, maker)
    return JSONResponse({"token": token, "trace": trace}, 201)


def _trace_of_token(row: dict[str, Any]) -> dict[str, Any]:
    """Return a placeholder judgement of the trace, so that the names are checked as for a real
    one."""
    judgement: dict[str, Any] = {"thumb": True}
    judgement.update((key, row[key]) for key in ("agent", "trace") if key in row)
    return meaning.feedback_row(judgement)


async def _script() -> Response:
    """Return the script by which a web page sends feedback."""
    script = Path(sdk.__file__).with_name("feedback.js").read_bytes()
    return Response(script, 200, {"cache-control": "max-age=3600"}, "text/javascript")


async def _preflight() -> Response:
    return Response(status_code=204, headers=FOREIGN_PAGES)


async def _tensorzero(append: Append, request: Request) -> Response:
    """Answer as TensorZero's gateway does; a dry run is checked and not stored."""
    dry_run = False

    def spell(row: dict[str, Any]) -> dict[str, Any]:
        nonlocal dry_run
        dry_run = row.get("dryrun") is True
        return meaning.tensorzero_row(row)

    body = await _body(request)
    async with _turn(request, body) as turn:
        result = await _run(turn, _received, request, body, spell)
        stored = await append(request, [] if dry_run else result.lines, turn)
    await _acknowledged(stored)
    return JSONResponse({"feedback_id": result.ids[0]}, 200)


async def _langfuse(append: Append, request: Request) -> Response:
    body = await _body(request)
    async with _turn(request, body) as turn:
        result = await _run(turn, _received, request, body, meaning.langfuse_row)
        stored = await append(request, result.lines, turn)
    await _acknowledged(stored)
    return JSONResponse({"id": result.ids[0]}, 200)


async def _langfuse_batch(append: Append, request: Request) -> Response:
    """Answer each event by itself, as Langfuse does: one that cannot be stored fails alone."""
    body = await _body(request)
    async with _turn(request, body) as turn:
        events, result = await _run(turn, _received_events, request, body)
        stored = await append(request, result.lines, turn)
    await _acknowledged(stored)
    refusals = {refusal["index"]: refusal["reason"] for refusal in result.refused}
    successes, errors = [], []
    for index, event in enumerate(events):
        name = _event_name(event)
        if index in refusals:
            errors.append({"id": name, "status": 400, "message": refusals[index]})
        else:
            successes.append({"id": name, "status": 201})
    return JSONResponse({"successes": successes, "errors": errors}, 207)


def _received_events(request: Request, content: bytes) -> tuple[list[dict[str, Any]], Received]:
    """Return (the events of a batch of Langfuse's, their scores as lines)."""
    try:
        events = meaning.langfuse_events(_unpacked(request, content))
    except Unreadable as error:
        refusal = InputError("the body", f"it cannot be read: {error}", "Send events of Langfuse")
        raise answered_with(400, refusal) from None
    spell, voice = meaning.langfuse_event_row, _voice(request)
    result = meaning.received(events, spell, _agent(request), None, voice)
    _check_agents(request, result.lines)
    return events, result


def _event_name(event: Mapping[str, Any]) -> str | None:
    """Return the id of an event for the answer, or None if it has no valid one."""
    try:
        return name_of(event.get("id"))
    except Unreadable:
        return None


async def _spans(
    append: Append, read: Callable[[bytes, str, SpanSender], SpanLines], request: Request
) -> Response:
    """Answer an export request of OpenTelemetry in its own encoding."""
    content_type = _content_type(request)
    if content_type not in (JSON, PROTOBUF):
        type_text = f"content type {content_type!r}" if content_type else "a body without its type"
        refusal = InputError(type_text, "spans come as OTLP", f"Send {PROTOBUF} or {JSON}")
        raise answered_with(415, refusal)
    body = await _body(request)
    async with _turn(request, body) as turn:
        result = await _run(turn, _received_spans, request, body, content_type, read)
        stored = await append(request, result.lines, turn)
    await _acknowledged(stored)
    return Response(response_body(result, content_type), 200, media_type=content_type)


def _received_spans(
    request: Request,
    content: bytes,
    content_type: str,
    read: Callable[[bytes, str, SpanSender], SpanLines],
) -> SpanLines:
    """Return the spans or log records of a body as lines."""
    principal: Principal = request.state.principal
    sender = SpanSender(_agent(request), _voice(request), partial(principal.may, "rate"))
    try:
        result = read(_unpacked(request, content), content_type, sender)
    except Unreadable as error:
        why = f"it cannot be read: {error}"
        raise answered_with(400, InputError("the body", why, "Send OTLP")) from None
    _check_agents(request, result.lines)
    return result


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _packing(request: Request) -> str | None:
    """Return how the body is packed, or None if it is not."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    return None if encoding in ("", "identity") else encoding


async def _body(request: Request, most: int = MOST_BYTES) -> bytes:
    """Return the body as it was sent. Raises InputError if it is too large, or packed in an unknown
    way."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > most:
            raise _too_large(f"a body has at most {most:,} bytes")
        chunks.append(chunk)
    encoding = _packing(request)
    if encoding not in (None, "gzip", "deflate"):
        refusal = InputError(
            f"Content-Encoding {encoding!r}", "it is not supported", "Use gzip or deflate"
        )
        raise answered_with(415, refusal)
    return b"".join(chunks)


def _unpacked(request: Request, content: bytes, most: int = MOST_UNPACKED) -> bytes:
    """Return a gzip or zlib body unpacked, and any other as it is. Raises InputError beyond `most`
    bytes, beyond a multiple of its packed size, and for a damaged body."""
    if _packing(request) is None:
        return content
    most_of_size = most_of_request(len(content))
    try:
        return unpacked(content, min(most, most_of_size))
    except TooLarge:
        if most_of_size < most:
            why = f"it unpacks to more than the {most_of_size:,} bytes that a body of its size may"
            raise _too_large(why, "Send less at once, or send it unpacked") from None
        raise _too_large(f"unpacked, a body has at most {most:,} bytes") from None
    except BadPacking as error:
        why = f"it cannot be unpacked: {error}" if str(error) else "it breaks off"
        refusal = InputError("the packed body", why, "Send all of it")
        raise answered_with(400, refusal) from None


def _too_large(why: str, fix: str = "Send less at once") -> ThumbwheelError:
    return answered_with(413, InputError("the body", why, fix))
