"""The pages of traces: a list with filters, everything about one, and where an answer comes from
and went to.

What is shown of one trace is bounded: long texts begin, and a script fetches the rest from the API
when somebody wants it; steps come in parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from thumbwheel.capture.judged import Judged
from thumbwheel.capture.prompts import prompt_id, short_id, titles
from thumbwheel.capture.trace_filter import TraceFilter
from thumbwheel.capture.trace_types import TracePage, TraceSummary
from thumbwheel.capture.traces import (
    count_matching,
    count_traces,
    list_traces,
    show_trace,
    signal,
)
from thumbwheel.core.config import Config
from thumbwheel.core.figures import duration
from thumbwheel.erasure.erase import erase
from thumbwheel.importers.fields import content_text
from thumbwheel.models.types import ModelVersion
from thumbwheel.models.versions import version, versions
from thumbwheel.report.formatting import indented
from thumbwheel.report.lineage import lineage
from thumbwheel.report.row_lineage import feedback_pieces, used_in
from thumbwheel.review.queues import all_queues
from thumbwheel.review.types import ItemKind
from thumbwheel.rewards.explain import explain
from thumbwheel.server.pages.page import PageRequest

AT_ONCE = 25
"""Traces on a page of the list."""
SORTED_FROM = 1_000
"""The newest traces that match are sorted by a column; older ones are not looked at."""
MOST_COUNTED = 10_000
STEPS_AT_ONCE = 100
RUNS_AT_ONCE = 20
"""Runs of other agents inside a trace."""
LEARNED_AT_ONCE = 100
"""Pieces of feedback that a model learned from."""
MOST_OF_TEXT, MOST_OF_STEP = 20_000, 4_000
"""Characters that are shown at first of a message or an answer, and of a part of a step."""
MOST_TURNS, MOST_OF_CHAT = 200, 200_000
"""Newest messages of a conversation that are shown, and their characters at first. An app sends the
conversation, so that a stranger says how long it is."""
MANY_STEPS = 20
"""Beyond so many steps, each shows less at first."""
MOST_OF_MANY = 400
PARTS_OF_STEP = ("input", "output", "error", "routing", "sampling")
MOST_QUEUES = 12
"""Rating queues that a trace can be put into from its page."""
CHECKERS = ("exact_answer", "json_fields")
"""What can compare an answer with a reference without settings of its own."""

REPLAY_FILTERS = {
    *("text", "version", "model", "session", "subject", "status", "since", "judged"),
}
"""Filters of the list that a request for a replay takes as they are."""

SortKey = Literal["latency", "tokens", "cost", "rating"]
Number = Annotated[str, Field(pattern=r"^v?\d{1,9}$")]


class TraceQuery(Config):
    """The filters of the list."""

    text: str | None = None
    """In the last message or the answer"""
    version: Number | None = None
    """That answered, such as v3"""
    model: str | None = None
    """Requested or served"""
    session: str | None = None
    """Of this conversation"""
    subject: str | None = None
    """About this person"""
    status: str | None = None
    """Such as ok, error, cancelled"""
    since: date | None = None
    """First day"""
    until: date | None = None
    """Last day"""
    rated: Literal["yes", "no"] | None = None
    """With or without feedback"""
    judged: Judged | None = None
    """By somebody about the answer"""
    prompt: str | None = Field(default=None, max_length=64)
    """Whose conversation begins with the system prompt of this id"""
    after: str | None = None
    """The cursor of the page before"""

    @property
    def day_after(self) -> date | None:
        """The day before which the traces were recorded; None where none bounds them."""
        if self.until is None or self.until == date.max:
            return None
        return self.until + timedelta(days=1)

    def wanted(self) -> TraceFilter:
        """Return the query as a filter for the trace store."""
        return TraceFilter(
            session=self.session,
            subject=self.subject,
            model=self.model,
            version=None if self.version is None else int(self.version.removeprefix("v")),
            status=self.status,
            since=_midnight(self.since),
            until=_midnight(self.day_after),
            text=self.text,
            rated=None if self.rated is None else self.rated == "yes",
            judged=self.judged,
            prompt=self.prompt,
        )


class ListQuery(TraceQuery):
    """The filters, the order and the place in it."""

    sort: SortKey | None = None
    """The column; the newest first without it"""
    order: Literal["desc", "asc"] = "desc"
    """The largest or the smallest first"""
    skip: int = Field(default=0, ge=0)
    """Rows before those that are shown"""
    ids: str | None = Field(default=None, max_length=20_000)
    """Only these traces, by their ids with commas between them"""

    def wanted(self) -> TraceFilter:
        """Return the query as a filter for the trace store."""
        wanted = super().wanted()
        return wanted if self.ids is None else replace(wanted, trace_ids=tuple(self.ids.split(",")))


class StepQuery(Config):
    """Which steps of a trace are shown."""

    steps: int = Field(default=0, ge=0)
    """Their first"""


@dataclass(frozen=True)
class Excerpt:
    """The beginning of a text."""

    text: str
    rest: int
    """Characters that are left out."""
    path: str
    """Where the whole text is in the trace's JSON: `steps.3.output`."""

    @classmethod
    def of(cls, value: Any, path: str, most: int = MOST_OF_TEXT) -> Excerpt:
        """Return the excerpt of a text or a JSON value: its first `most` characters."""
        text = indented(value)
        return cls(text[:most], max(0, len(text) - most), path)


@dataclass(frozen=True)
class ChatTurn:
    """A message of the chat."""

    role: str
    text: Excerpt | None
    more: Excerpt | None
    """What it has besides its text, such as calls of tools."""


@dataclass(frozen=True)
class ShownStep:
    """A step of the timeline."""

    row: Mapping[str, Any]
    parts: Sequence[tuple[str, Excerpt]]
    """(what it is, its text)."""
    seconds: float | None
    bar: tuple[float, float] | None
    """(begin, length) in percent of the trace."""


def load_list(asked: PageRequest) -> Mapping[str, Any]:
    """Load a page of the traces, newest first or sorted by a column."""
    query = asked.parsed(ListQuery)
    slug = asked.agent.slug
    filters = {name: value for name, value in asked.query.items() if name in FILTERS}
    page, older = _page(asked, query)
    return {
        "traces": page.traces,
        "after": page.after,
        "searched_to": page.searched_to,
        "older": older,
        "total": _total(asked, query, has_filters=bool(filters)),
        "query": query,
        "parameters": asked.query,
        "filters": filters,
        "sorted_from": SORTED_FROM,
        "empty_columns": _empty_columns(page.traces),
        "at_once": AT_ONCE,
        "tone": tone,
        "ratings": _ratings,
        "queues": _queues(asked),
        "versions": [each.name for each in reversed(versions(asked.ws, asked.agent))],
        "replay_filters": _replay_filters(query),
        "may_run": asked.principal.may("run", slug),
        "prompts": _prompt_choices(asked, query.prompt),
        "rater": asked.rater,
        "may_rate": asked.principal.may("rate", slug),
        "may_edit": asked.principal.may("edit", slug),
    }


def _page(asked: PageRequest, query: ListQuery) -> tuple[TracePage, bool]:
    """Return the traces of the page, and whether older ones exist that were not sorted."""
    slug, wanted = asked.agent.slug, query.wanted()
    if query.sort is None:
        return list_traces(asked.ws, slug, wanted, limit=AT_ONCE, after=query.after), False
    page = list_traces(asked.ws, slug, wanted, limit=SORTED_FROM)
    value = SORT_VALUES[query.sort]
    measured = [trace for trace in page.traces if value(trace) is not None]
    without = [trace for trace in page.traces if value(trace) is None]
    measured.sort(key=lambda trace: value(trace) or 0.0, reverse=query.order == "desc")
    traces = [*measured, *without][query.skip : query.skip + AT_ONCE]
    return TracePage(traces, None), page.after is not None


def _replay_filters(query: ListQuery) -> dict[str, Any]:
    """Return the filters of the list as parameters of a replay of what they match."""
    filters = query.model_dump(mode="json", include=REPLAY_FILTERS, exclude_none=True)
    if query.rated is not None:
        filters["rated"] = query.rated == "yes"
    if query.day_after is not None:
        filters["until"] = query.day_after.isoformat()
    return filters


def _prompt_choices(asked: PageRequest, chosen: str | None) -> list[tuple[str, str]]:
    """Return (id, title) of the named prompts, newest first, and of the one that is chosen."""
    named = titles(asked.ws, asked.agent)
    if chosen is not None:
        named.setdefault(chosen, short_id(chosen))
    return [*reversed(named.items())]


def _prompt(asked: PageRequest, chat: Sequence[Mapping[str, Any]]) -> dict[str, str] | None:
    """Return id and title of the system prompt that a chat begins with; None without one."""
    message_id = prompt_id(chat[0]) if chat else None
    if message_id is None:
        return None
    title = titles(asked.ws, asked.agent).get(message_id, short_id(message_id))
    return {"id": message_id, "title": title}


def _total(asked: PageRequest, query: ListQuery, *, has_filters: bool) -> str:
    """Return how many traces match, in words; empty where counting would read every trace."""
    slug = asked.agent.slug
    if not has_filters:
        count: int | None = count_traces(asked.ws, slug)
    else:
        count = count_matching(asked.ws, slug, query.wanted(), MOST_COUNTED + 1)
        if count is not None and count > MOST_COUNTED:
            return f"more than {MOST_COUNTED:,} traces"
    if count is None:
        return ""
    return f"{count:,} trace" if count == 1 else f"{count:,} traces"


def _empty_columns(traces: Sequence[TraceSummary]) -> list[str]:
    """Return the columns in which no trace of the page has a value; they only take room."""
    has_value = {
        "tokens": any(_tokens(trace) is not None for trace in traces),
        "cost": any(trace.cost is not None for trace in traces),
        "tags": any(trace.tags for trace in traces),
        "version": any(trace.version for trace in traces),
    }
    return [name for name, has_any in has_value.items() if not has_any]


def _ratings(trace: TraceSummary) -> Mapping[str, int]:
    """Return what was said about a trace, apart from its tags, with how often."""
    tags = {f"{tag} True" for tag in trace.tags}
    return Counter(word for word in trace.feedback if word not in tags)


def _rating(trace: TraceSummary) -> float | None:
    """Return how good people found an answer, from -1 to 1; None where nobody said it."""
    values = []
    for word in trace.feedback:
        if word in WORTH:
            values.append(WORTH[word])
        elif word.startswith("rating "):
            values.append((float(word.removeprefix("rating ")) - 3) / 2)
    return sum(values) / len(values) if values else None


def _tokens(trace: TraceSummary) -> float | None:
    counts = [trace.prompt_tokens, trace.completion_tokens]
    numbers = [count for count in counts if count is not None]
    return float(sum(numbers)) if numbers else None


WORTH = {"thumb up": 1.0, "preferred": 1.0, "tie": 0.0, "thumb down": -1.0, "not preferred": -1.0}
SORT_VALUES: Mapping[SortKey, Callable[[TraceSummary], float | None]] = {
    "latency": lambda trace: trace.seconds,
    "tokens": _tokens,
    "cost": lambda trace: trace.cost,
    "rating": _rating,
}
FILTERS = frozenset(TraceQuery.model_fields) - {"after"}


def load_trace(asked: PageRequest) -> Mapping[str, Any]:
    """Load one trace with its steps, feedback, reward and inner runs."""
    slug = asked.agent.slug
    first = asked.parsed(StepQuery).steps
    trace = show_trace(asked.ws, slug, asked.parts["trace"])
    question = _last_text(trace["input"])
    calls = [step for step in trace["steps"] if step["kind"] == "llm"]
    answering: Mapping[str, Any] = calls[-1] if calls else {}
    inner = [_run_inside(asked, name) for name in trace["children"][:RUNS_AT_ONCE]]
    return {
        "title": _title(trace),
        "trace": trace,
        "turns": _turns(trace["input"]),
        "answer": Excerpt.of(trace["output"] or "", "output"),
        "timeline": _timeline(trace["steps"], first),
        "first": first,
        "next": first + STEPS_AT_ONCE if first + STEPS_AT_ONCE < len(trace["steps"]) else None,
        "answering": answering,
        "prompt": _prompt(asked, trace["input"]),
        "totals": _totals(calls, trace["steps"]),
        "feedback": [_with_words(judgement) for judgement in trace["feedback"]],
        "tone": tone,
        "reward": explain(asked.ws, slug, trace["id"]).as_dict(),
        "inner": inner,
        "may_rate": asked.principal.may("rate", slug),
        "may_edit": asked.principal.may("edit", slug),
        "checkers": CHECKERS,
        "queues": _queues(asked),
        "better": _best_text(trace),
        "question": question if len(question) <= MOST_OF_TEXT else "",
    }


def load_lineage(asked: PageRequest) -> Mapping[str, Any]:
    """Load the lineage of an answer: back to the feedback that its model learned from, and forward
    to its uses and to what erasing the person would remove."""
    slug = asked.agent.slug
    trace = show_trace(asked.ws, slug, asked.parts["trace"])
    names = [step["version"] for step in trace["steps"] if step.get("version")]
    answered = version(asked.ws, slug, names[-1]) if names else None
    erasure = None
    if trace["subject"] is not None and asked.principal.may("own", slug):
        erasure = erase(asked.ws, asked.agent, trace["subject"], dry_run=True)
    return {
        "trace": trace,
        "back": None if answered is None else _taught_by(asked, answered),
        "forward": used_in(asked.ws, trace["id"], slug),
        "erasure": erasure,
        "tone": tone,
        "may_own": asked.principal.may("own", slug),
    }


def tone(word: str) -> str:
    """Return the colour of a judgement: `good`, `bad` or empty.

    >>> tone("thumb down"), tone("preferred"), tone("rating 3")
    ('bad', 'good', '')
    """
    if word in ("thumb up", "preferred"):
        return "good"
    return "bad" if word in ("thumb down", "not preferred") else ""


def _midnight(day: date | None) -> datetime | None:
    return None if day is None else datetime.combine(day, time(), UTC)


def _title(trace: Mapping[str, Any]) -> str:
    words = " ".join((_last_text(trace["input"]) or trace["external_id"]).split())
    return words if len(words) <= 100 else f"{words[:100]}…"


def _last_text(chat: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of the last user message; without one, of the last message."""
    for message in reversed(chat):
        if message["role"] == "user":
            return content_text(message.get("content")) or ""
    return content_text(chat[-1].get("content")) or "" if chat else ""


def _best_text(trace: Mapping[str, Any]) -> str:
    """Return the text that the answer should have been: the newest correction, else the answer."""
    corrections = [word["value"] for word in trace["feedback"] if word["kind"] == "correction"]
    best = corrections[-1] if corrections else trace["output"] or ""
    return str(best)[:MOST_OF_TEXT]


def _turns(chat: Sequence[Mapping[str, Any]]) -> list[ChatTurn]:
    """Return the newest messages, in their order. Once the newest have used up `MOST_OF_CHAT`, the
    others show their beginnings; before `MOST_TURNS` there is no more than their length."""
    n_earlier = max(0, len(chat) - MOST_TURNS)
    room = MOST_OF_CHAT
    turns = []
    for number in reversed(range(n_earlier, len(chat))):
        message = chat[number]
        text = content_text(message.get("content"))
        more = {key: value for key, value in message.items() if key not in ("role", "content")}
        if text is None and message.get("content") is not None:
            more["content"] = message["content"]
        path = f"input.{number}"
        most = max(MOST_OF_MANY, min(MOST_OF_TEXT, room))
        shown_text = None if text is None else Excerpt.of(text, f"{path}.content", most)
        room -= len(shown_text.text) if shown_text else 0
        turns.append(
            ChatTurn(
                role=str(message["role"]),
                text=shown_text,
                more=Excerpt.of(more, path, MOST_OF_STEP) if more else None,
            )
        )
    if n_earlier:
        characters = sum(len(content_text(turn.get("content")) or "") for turn in chat[:n_earlier])
        role = f"{n_earlier:,} earlier messages"
        turns.append(ChatTurn(role, Excerpt("", characters, "input"), None))
    return turns[::-1]


def _totals(
    calls: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]
) -> list[tuple[str, str]]:
    """Return (label, value) of the totals over all model calls, and of the duration of all
    steps."""
    totals = []
    if len(calls) > 1:
        totals.append(("calls of models", f"{len(calls):,}"))
    for key, label in (("prompt_tokens", "tokens read"), ("completion_tokens", "tokens written")):
        counts = [call[key] for call in calls if call.get(key) is not None]
        if counts:
            totals.append((label, f"{sum(counts):,}"))
    costs = [call["cost"] for call in calls if call.get("cost") is not None]
    if costs:
        totals.append(("cost", f"{sum(costs):.6g}"))
    begin, end = _times(steps)
    if begin is not None and end is not None:
        totals.append(("took", duration((end - begin).total_seconds())))
    return totals


def _times(steps: Sequence[Mapping[str, Any]]) -> tuple[datetime | None, datetime | None]:
    """Return the first start and the last end of the steps; None where unknown."""
    begins = [step["started_at"] for step in steps if step.get("started_at")]
    ends = [step["ended_at"] for step in steps if step.get("ended_at")]
    return min(begins, default=None), max(ends, default=None)


def _timeline(steps: Sequence[Mapping[str, Any]], first: int) -> list[ShownStep]:
    """Return up to STEPS_AT_ONCE steps from `first` on, each with its share of the total time."""
    begin_of_all, end_of_all = _times(steps)
    span = 0.0
    if begin_of_all is not None and end_of_all is not None:
        span = (end_of_all - begin_of_all).total_seconds()
    most = MOST_OF_STEP if len(steps) <= MANY_STEPS else MOST_OF_MANY
    timeline = []
    for number, step in enumerate(steps[first : first + STEPS_AT_ONCE], start=first):
        keys = [key for key in PARTS_OF_STEP if step.get(key) is not None]
        parts = [(key, Excerpt.of(step[key], f"steps.{number}.{key}", most)) for key in keys]
        seconds = bar = None
        if step.get("started_at") and step.get("ended_at"):
            seconds = (step["ended_at"] - step["started_at"]).total_seconds()
            if begin_of_all is not None and span > 0:
                begin = (step["started_at"] - begin_of_all).total_seconds()
                bar = (100 * begin / span, max(0.5, 100 * seconds / span))
        timeline.append(ShownStep(step, parts, seconds, bar))
    return timeline


def _with_words(judgement: Mapping[str, Any]) -> dict[str, Any]:
    """Return a judgement with its verdict in a word, and an excerpt of its text if it has one."""
    optional = ("name", "rater", "said", "comment", "step")
    fields: dict[str, Any] = {**dict.fromkeys(optional), "position": 0}
    shown = {**fields, **judgement}
    shown["word"] = signal(shown)
    shown["when"] = shown.get("at") or shown.get("occurred_at") or shown.get("recorded_at")
    is_text = shown["kind"] in ("correction", "comment")
    shown["text"] = Excerpt.of(shown["value"], "", MOST_OF_STEP) if is_text else None
    return shown


def _queues(asked: PageRequest) -> list[str]:
    """Return the names of the open queues for single answers, newest first."""
    queues = all_queues(asked.ws, asked.agent)
    names = [queue.name for queue in queues if queue.kind is ItemKind.ANSWER]
    return names[:MOST_QUEUES]


def _run_inside(asked: PageRequest, name: str) -> dict[str, Any]:
    run = show_trace(asked.ws, asked.parts["agent"], name)
    return {
        "id": run["id"],
        "title": _title(run),
        "status": run["status"],
        "steps": len(run["steps"]),
        "output": (run["output"] or "")[:200],
    }


def _taught_by(asked: PageRequest, answered: ModelVersion) -> dict[str, Any]:
    """Return the version that answered, its lineage, and the feedback that it was trained on."""
    line = lineage(asked.ws, answered)
    feedback = line.sources.feedback if line.sources else {}
    learned = feedback.get("train", [])
    return {
        "version": answered.name,
        "line": line,
        "counts": {split: len(names) for split, names in feedback.items()},
        "origins": line.sources.origins if line.sources else {},
        "learned": _pieces(asked, learned[:LEARNED_AT_ONCE]),
        "rest": max(0, len(learned) - LEARNED_AT_ONCE),
    }


def _pieces(asked: PageRequest, names: Sequence[str]) -> list[dict[str, Any]]:
    return [_with_words(piece) for piece in feedback_pieces(asked.ws, names)]
