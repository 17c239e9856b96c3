"""The same answer from two sources: a message in the history of a chat client, and the call that
the gateway recorded when the message came to be. It is stored once, as the call, which knows the
version and the deployment.

Lives here: which recorded answer a message is. Not here: where recorded answers are looked up
(`store.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from thumbwheel.importers.fields import content_text
from thumbwheel.importers.types import FeedbackRecord, TargetRef, TraceRecord, Unreadable

NEAR = timedelta(hours=1)
"""A message without a session in common is the call of the same texts only where it came so soon
before or after it."""


@dataclass(frozen=True)
class SourceAnswer:
    """A trace with an answer that another source stored."""

    source: str
    name: str
    """Its id in its source."""
    session: str | None
    question: str
    """The text of the last message of the user."""
    answer: str
    occurred_at: datetime | None
    metadata: Mapping[str, Any]
    input_id: str

    def as_target(self) -> TargetRef:
        """Return a reference to this trace as the target of feedback."""
        return TargetRef(kind="trace", id=self.name, source=self.source)


@dataclass(frozen=True)
class Message:
    """A message of a chat client's history: the trace that it would be."""

    trace: TraceRecord
    input_id: str
    """The id that its input has where it is stored."""


Recorded = Callable[[Sequence[TraceRecord]], Sequence[tuple[Message, Sequence[SourceAnswer]]]]
"""For each of these traces what other sources stored in its session, or of the same input."""


@dataclass(frozen=True)
class MessageKeys:
    """Where a recorded call keeps what its client said about the message, in its metadata."""

    message: str
    task: str
    """Set for a call that answers nobody, such as the one that invents a title."""


def counterpart(
    message: Message, recorded: Sequence[SourceAnswer], keys: MessageKeys
) -> SourceAnswer | None:
    """Return the recorded answer that this message is, or None if none can be identified."""
    answers = [answer for answer in recorded if not answer.metadata.get(keys.task)]

    # by the id of the message: of several calls (tools in between) the one that said its text
    trace = message.trace
    named = [answer for answer in answers if answer.metadata.get(keys.message) == trace.id]
    question, text = question_of(trace.input), _text(trace.output)
    same_text = [answer for answer in named if _text(answer.answer) == text]
    same_question = [answer for answer in named if answer.question == question]
    if named:
        return _nearest(message, same_text or same_question or named)

    # by question and answer within the session
    unnamed = [
        answer
        for answer in answers
        if not answer.metadata.get(keys.message) and _text(answer.answer) == text
    ]
    in_session = [
        answer for answer in unnamed if answer.session and answer.session == trace.session
    ]
    in_session = [answer for answer in in_session if answer.question == question]
    if in_session:
        return _nearest(message, in_session)

    # by all of the input and the answer
    same_input = [answer for answer in unnamed if answer.input_id == message.input_id]
    without_session = [answer for answer in same_input if not answer.session]
    return _nearest(message, [answer for answer in without_session if _is_near(message, answer)])


def aimed(record: FeedbackRecord, recorded: Mapping[str, SourceAnswer]) -> FeedbackRecord:
    """Return a copy of the feedback with recorded answers as targets; `recorded` maps the names of
    traces of this source to them."""
    targets = []
    for target in record.targets:
        answer = recorded.get(target.id) if target.source is None else None
        targets.append(answer.as_target() if answer else target)
    return record.model_copy(update={"targets": targets})


def question_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of the user's last message; empty if there is none, or if it cannot be
    read."""
    for message in reversed(messages):
        if message.get("role") == "user":
            try:
                return _text(content_text(message.get("content")))
            except Unreadable:
                break
    return ""


def _text(text: str | None) -> str:
    return (text or "").strip()


def _nearest(message: Message, answers: Sequence[SourceAnswer]) -> SourceAnswer | None:
    """Return an answer with the same input, else the nearest in time; None if there are no
    answers."""

    def distance(answer: SourceAnswer) -> tuple[bool, timedelta, str]:
        between = _time_between(message, answer)
        is_other_input = answer.input_id != message.input_id
        return is_other_input, timedelta.max if between is None else between, answer.name

    return min(answers, key=distance, default=None)


def _time_between(message: Message, answer: SourceAnswer) -> timedelta | None:
    time = message.trace.occurred_at
    if time is None or answer.occurred_at is None:
        return None
    return abs(time - answer.occurred_at)


def _is_near(message: Message, answer: SourceAnswer) -> bool:
    between = _time_between(message, answer)
    return between is not None and between <= NEAR
