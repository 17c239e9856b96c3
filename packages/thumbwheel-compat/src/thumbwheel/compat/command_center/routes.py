"""The ratings of the Command Center's page as a dialect: one, many, and the list of them; and its
feedback about sizes and issues of a widget.

An entry is known by its id alone there, and ids begin anew with every run. So a rating is about the
entry of the newest imported run that has it, or of the run that `run_id` names. Of each device the
newest rating of an entry counts. Below /a/AGENT the agent is that one; without it, the only one
that has such an entry.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, ValidationError

from thumbwheel.access.needs import needs
from thumbwheel.access.types import Principal, Verb
from thumbwheel.capture import trace_queries
from thumbwheel.compat.received_rows import (
    AgentName,
    Row,
    Text,
    objection_to,
    rater_of,
    require_stored,
    store_rows,
)
from thumbwheel.core import ids
from thumbwheel.core.errors import Conflict, InputError, NotFound, ThumbwheelError
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers.json_text import value_in
from thumbwheel.importers.types import Time
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import agents, require_agent

SOURCE = "widgets"
MOST_RATINGS = 10_000
"""Of one request."""


class EntryJudgement(BaseModel):
    """What somebody says about an entry."""

    rating: Literal["up", "down"]
    tags: list[Text] = Field(default=[], max_length=100)
    notes: Text = ""
    rated_at: Time | None = None
    """Unset, now."""
    run_id: Text | None = Field(default=None, max_length=512)
    """Unset, the newest run that has the entry."""


class WidgetRating(EntryJudgement):
    """A judgement with the entry and the device that it is of."""

    entry_id: Text = Field(min_length=1, max_length=512)
    device_id: Text = Field(default="", max_length=512)


class WidgetFeedback(BaseModel):
    """What somebody says about a size, or an issue, of a widget and its variant."""

    scenario: Text = Field(min_length=1, max_length=512)
    variant: Text = Field(default="", max_length=512)
    """A fixture; empty, any of the scenario."""
    size_mode: Text = Field(default="", max_length=64)
    feedback_type: Literal["size", "issue"]
    data: dict[str, Any] | Text | None = None
    device_id: Text = Field(default="", max_length=512)


class Ratings(BaseModel):
    """Judgements of a device by entry."""

    ratings: dict[Text, dict[str, Any]] = Field(max_length=MOST_RATINGS)
    device_id: Text = Field(default="", max_length=512)


@dataclass(frozen=True)
class RunEntry:
    """An entry of a run, with the traces that it is here."""

    agent: str
    run_id: str | None
    name: str
    trace_names: tuple[str, ...]


RatingKey = tuple[str | None, str, str]
"""Run, entry and device: there is one rating of each."""


def add_routes(routes: APIRouter) -> None:
    """Add the routes."""
    for prefix, form in (("", "any"), ("/a/{agent}", "agent")):
        routes.add_api_route(
            f"{prefix}/api/ratings/",
            list_ratings_of if prefix else list_ratings,
            methods=["GET"],
            dependencies=[needs("read", by_row=True)],
            operation_id=f"ratings.{form}.list",
            summary="The ratings of widgets, the oldest first",
            response_model=None,
            tags=["ratings"],
        )
        routes.add_api_route(
            f"{prefix}/api/ratings/",
            rate_of if prefix else rate,
            methods=["POST"],
            dependencies=[needs("rate", ingest=True)],
            operation_id=f"ratings.{form}.rate",
            summary="Rate a widget, or change the rating",
            response_model=None,
            responses={201: {"description": "It is the first rating of this device."}},
            tags=["ratings"],
        )
        routes.add_api_route(
            f"{prefix}/api/feedback/",
            list_feedback_of if prefix else list_feedback,
            methods=["GET"],
            dependencies=[needs("read", by_row=True)],
            operation_id=f"widget_feedback.{form}.list",
            summary="What was said about sizes and issues of widgets, the oldest first",
            response_model=None,
            tags=["ratings"],
        )
        routes.add_api_route(
            f"{prefix}/api/feedback/",
            say_of if prefix else say,
            methods=["POST"],
            dependencies=[needs("rate", ingest=True)],
            operation_id=f"widget_feedback.{form}.say",
            summary="Say something about a size or an issue of a widget",
            response_model=None,
            status_code=201,
            tags=["ratings"],
        )
        routes.add_api_route(
            f"{prefix}/api/ratings/bulk/",
            rate_many_of if prefix else rate_many,
            methods=["POST"],
            dependencies=[needs("rate", ingest=True)],
            operation_id=f"ratings.{form}.bulk",
            summary="Rate many widgets",
            response_model=None,
            tags=["ratings"],
        )


def list_ratings(request: Request) -> Any:
    """List the ratings of all agents that the caller may read."""
    return _listed(request, None)


def list_ratings_of(request: Request, agent: AgentName) -> Any:
    """List the ratings of one agent."""
    return _listed(request, agent)


def rate(request: Request, rating: WidgetRating) -> Any:
    """About the only agent that has the entry."""
    return _rated(request, None, rating)


def rate_of(request: Request, agent: AgentName, rating: WidgetRating) -> Any:
    """About this agent's entry."""
    return _rated(request, agent, rating)


def rate_many(request: Request, body: Ratings) -> Any:
    """About the only agents that have the entries."""
    return _many_rated(request, None, body)


def rate_many_of(request: Request, agent: AgentName, body: Ratings) -> Any:
    """About this agent's entries."""
    return _many_rated(request, agent, body)


def list_feedback(request: Request) -> Any:
    """List the feedback of all agents that the caller may read."""
    return _listed_feedback(request, None)


def list_feedback_of(request: Request, agent: AgentName) -> Any:
    """List the feedback of one agent."""
    return _listed_feedback(request, agent)


def say(request: Request, feedback: WidgetFeedback) -> Any:
    """About the only agent that has such a widget."""
    return _said(request, None, feedback)


def say_of(request: Request, agent: AgentName, feedback: WidgetFeedback) -> Any:
    """About this agent's widget."""
    return _said(request, agent, feedback)


def _said(request: Request, agent: str | None, feedback: WidgetFeedback) -> JSONResponse:
    """Store it as a label of the newest widget that it is about."""
    ws: Workspace = request.app.state.workspace
    objection = objection_to(feedback.data)
    if objection is not None:
        raise InputError("data", objection, "Correct it")
    slug, trace = _widget_of(request, agent, feedback)
    device_id = rater_of(request, feedback.device_id) or ""
    value = feedback.data if isinstance(feedback.data, str) else ids.canonical(feedback.data or {})
    row: Row = {
        "type": "feedback",
        "id": ids.new("widget"),
        "target": {"trace": trace["external_id"]},
        "kind": "label",
        "name": feedback.feedback_type,
        "value": value or "{}",
        "occurred_at": datetime.now(UTC).isoformat(),
        "metadata": {"variant": feedback.variant, "size_mode": feedback.size_mode},
    }
    if device_id:
        row["rater"] = device_id
    require_stored(store_rows(request, slug, SOURCE, [[row]]))
    stored = _stored_feedback(ws, slug, [trace["external_id"]])
    return JSONResponse(stored[-1], 201)


def _widget_of(
    request: Request, agent: str | None, feedback: WidgetFeedback
) -> tuple[str, Mapping[str, Any]]:
    """Return the agent and the newest trace of the widget. Raises NotFound if no imported run has
    it, Conflict if several agents have it."""
    ws: Workspace = request.app.state.workspace
    newest: dict[str, Any] = {}
    for slug in _agents(request, agent, "rate"):
        with ws.db.read() as connection:
            rows = trace_queries.by_metadata(
                connection, Agent.named(slug).id, SOURCE, "scenario", [feedback.scenario]
            )
        for row in rows:
            about = row["metadata"]
            is_variant = feedback.variant in ("", about.get("fixture"))
            is_size = feedback.size_mode in ("", about.get("size"))
            if is_variant and is_size and "card_of" not in about:
                newest.setdefault(slug, row)
    if not newest:
        raise NotFound(
            f"widget {feedback.scenario!r} {feedback.variant!r}",
            "no imported run has one in that size",
            "Import the run first: thumbwheel import widgets FOLDER --agent AGENT",
        )
    if len(newest) > 1:
        raise Conflict(
            f"widget {feedback.scenario!r}",
            f"several agents have it: {', '.join(sorted(newest))}",
            "Name the agent in the path: /a/AGENT/api/feedback/",
        )
    return next(iter(newest.items()))


def _listed_feedback(request: Request, agent: str | None) -> list[Row]:
    ws: Workspace = request.app.state.workspace
    rows: list[Row] = []
    for slug in _agents(request, agent, "read"):
        rows += _stored_feedback(ws, slug)
    rows.sort(key=lambda row: row["created_at"])
    return rows


def _stored_feedback(
    ws: Workspace, slug: str, trace_names: Sequence[str] | None = None
) -> list[Row]:
    """Return the labels about sizes and issues as rows of the feedback table."""
    with ws.db.read() as connection:
        rows = trace_queries.judged_traces(
            connection, Agent.named(slug).id, SOURCE, "label", trace_names
        )
    listed = []
    for row in rows:
        about = row["metadata"] or {}
        if row["name"] not in ("size", "issue") or "size_mode" not in about:
            continue
        listed.append(
            {
                "id": row["id"],
                "scenario": (row["trace_metadata"] or {}).get("scenario"),
                "variant": about.get("variant", ""),
                "size_mode": about["size_mode"],
                "feedback_type": row["name"],
                "data": value_in(row["value"]),
                "device_id": row["rater"] or "",
                "created_at": row["recorded_at"].isoformat(),
            }
        )
    return listed


def _listed(request: Request, agent: str | None) -> list[Row]:
    ws: Workspace = request.app.state.workspace
    rows: list[Row] = []
    for slug in _agents(request, agent, "read"):
        rows += _stored_ratings(ws, slug).values()
    rows.sort(key=lambda row: row["rated_at"])
    return rows


def _rated(request: Request, agent: str | None, rating: WidgetRating) -> JSONResponse:
    ws: Workspace = request.app.state.workspace
    entry = _Entries(request, agent, [rating.entry_id]).find(rating.entry_id, rating.run_id)
    device_id = rater_of(request, rating.device_id) or ""
    key = (entry.run_id, entry.name, device_id)
    is_new = key not in _stored_ratings(ws, entry.agent, entry.trace_names)
    rows = _rows(entry, device_id, rating)
    require_stored(store_rows(request, entry.agent, SOURCE, [rows]))
    row = _stored_ratings(ws, entry.agent, entry.trace_names)[key]
    return JSONResponse(row, 201 if is_new else 200)


def _many_rated(request: Request, agent: str | None, body: Ratings) -> Row:
    """Store the ratings and return the counts. A rating that cannot be stored is refused alone,
    with its reason; if none can be stored, the first error is raised."""
    ws: Workspace = request.app.state.workspace
    entries = _Entries(request, agent, list(body.ratings))
    device_id = rater_of(request, body.device_id) or ""
    first_error: ThumbwheelError | None = None
    refused: list[Row] = []
    by_agent: defaultdict[str, list[tuple[RunEntry, list[Row]]]] = defaultdict(list)
    for entry_id, content in body.ratings.items():
        try:
            judgement = _judgement(entry_id, content)
            entry = entries.find(entry_id, judgement.run_id)
        except (InputError, NotFound, Conflict) as error:
            first_error = first_error or error
            refused.append({"entry_id": entry_id, "reason": str(error)})
            continue
        by_agent[entry.agent].append((entry, _rows(entry, device_id, judgement)))

    created = 0
    updated = 0
    for slug, accepted in by_agent.items():
        stored = _stored_ratings(ws, slug)
        reasons = store_rows(request, slug, SOURCE, [rows for _, rows in accepted])
        for (entry, _), reason in zip(accepted, reasons, strict=True):
            if reason is not None:
                refusal = InputError(f"entry {entry.name!r}", reason, "Correct it")
                first_error = first_error or refusal
                refused.append({"entry_id": entry.name, "reason": reason})
            elif (entry.run_id, entry.name, device_id) in stored:
                updated += 1
            else:
                created += 1
    if first_error is not None and not created + updated:
        raise first_error
    counts: Row = {"created": created, "updated": updated, "total": len(body.ratings)}
    return counts | {"refused": refused} if refused else counts


def _judgement(entry_id: str, content: Mapping[str, Any]) -> EntryJudgement:
    try:
        return EntryJudgement.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InputError(f"entry {entry_id!r}, {name}", first["msg"], "Correct it") from None


def _rows(entry: RunEntry, device_id: str, judgement: EntryJudgement) -> list[Row]:
    """Return the thumbs: one about the fixture, and for a natural entry also one about the
    widget."""
    rated_at = judgement.rated_at or datetime.now(UTC)
    rows = []
    for name in entry.trace_names:
        row: Row = {
            "type": "feedback",
            "id": ids.new("rating"),
            "target": {"trace": name},
            "kind": "thumb",
            "value": judgement.rating == "up",
            "occurred_at": rated_at.isoformat(),
        }
        if judgement.tags:
            row["metadata"] = {"tags": judgement.tags}
        if judgement.notes:
            row["comment"] = judgement.notes
        if device_id:
            row["rater"] = device_id
        rows.append(row)
    return rows


class _Entries:
    """The entries of these ids, of the agents that a request is about."""

    def __init__(self, request: Request, agent: str | None, entry_ids: Sequence[str]) -> None:
        ws: Workspace = request.app.state.workspace
        self._traces: defaultdict[str, list[tuple[str, Any]]] = defaultdict(list)
        for slug in _agents(request, agent, "rate"):
            agent_id = Agent.named(slug).id
            with ws.db.read() as connection:
                rows = trace_queries.by_metadata(
                    connection, agent_id, SOURCE, "entry_id", entry_ids
                )
            for row in rows:
                self._traces[str(row["metadata"]["entry_id"])].append((slug, row))

    def find(self, entry_id: str, run_id: str | None) -> RunEntry:
        """Return the entry of this run, or of the newest run if `run_id` is None. Raises NotFound
        if nobody imported it, Conflict if several agents have it."""
        traces = self._traces.get(entry_id, [])
        if run_id is not None:
            traces = [(slug, row) for slug, row in traces if _run_of(row) == run_id]
        if not traces:
            raise NotFound(
                f"entry {entry_id!r}",
                "no imported run has it",
                "Import the run first: thumbwheel import widgets FOLDER --agent AGENT",
            )
        slugs = sorted({slug for slug, _ in traces})
        if len(slugs) > 1:
            raise Conflict(
                f"entry {entry_id!r}",
                f"several agents have it: {', '.join(slugs)}",
                "Name the agent in the path: /a/AGENT/api/ratings/",
            )
        _, newest = traces[0]
        run = _run_of(newest)
        names = [row["external_id"] for _, row in traces if _run_of(row) == run]
        return RunEntry(slugs[0], run, entry_id, tuple(names))


def _run_of(trace: Any) -> str | None:
    name = trace["metadata"].get("run_id")
    return None if name is None else str(name)


def _agents(request: Request, name: str | None, verb: Verb) -> list[str]:
    """Return the slugs of the agents that a request is about: the named one, else all for which the
    principal may do `verb`."""
    ws: Workspace = request.app.state.workspace
    principal: Principal = request.state.principal
    if name is not None:
        slug = ids.slug_of(name)
        principal.require(verb, slug)
        return [require_agent(ws, slug).slug]
    return [agent.slug for agent in agents(ws) if principal.may(verb, agent.slug)]


def _stored_ratings(
    ws: Workspace, slug: str, trace_names: Sequence[str] | None = None
) -> dict[RatingKey, Row]:
    """Return the ratings in force of an agent, or about the given traces, as rows of the ratings
    table by run, entry and device."""
    agent_id = Agent.named(slug).id
    with ws.db.read() as connection:
        rows = trace_queries.judged_traces(connection, agent_id, SOURCE, "thumb", trace_names)
    ratings: dict[RatingKey, Row] = {}
    for row in rows:
        trace = row["trace_metadata"] or {}
        entry_id = str(trace.get("entry_id"))
        run_id = _run_of({"metadata": trace})
        device_id = row["rater"] or ""
        recorded_at = row["recorded_at"].isoformat()
        rating = {
            "id": row["id"],
            "entry_id": entry_id,
            "run_id": run_id,
            "rating": "up" if row["value"] is True else "down",
            "tags": (row["metadata"] or {}).get("tags", []),
            "notes": row["comment"] or "",
            "rated_at": (row["occurred_at"] or row["recorded_at"]).isoformat(),
            "device_id": device_id,
            "created_at": recorded_at,
            "updated_at": recorded_at,
        }
        # a natural entry was rated as a fixture and as a widget at once
        ratings.setdefault((run_id, entry_id, device_id), rating)
    return ratings
