"""Decisions of the five agents (FILER, LIBRARIAN, PRIORITIZER, STORER, RETRIEVER; GUARDRAIL too): three dialects of JSON lines, rows of
their table, and the table itself by its PostgreSQL address, which is only read (`?agentType=FILER` takes one agent's).

A decision is a trace: its prompt (of a row: the state as JSON) and its action as the answer, in whichever spelling it came; the step of
kind decision, and `metadata.decision` for the reward function of that name, have it as declared. What may still change is no part of the
trace, so that a row whose feedback or reward comes later is the same trace with one more statement:

- CONFIRMED, CORRECTED, OVERRIDDEN, IGNORED: a label `user_feedback` of the person, and a thumb where it says good or bad. Nothing said is
  nothing stored, which is not IGNORED.
- userCorrection: a correction with the whole action, the changed fields spelled as the action spells its own.
- outcomeMetrics: completedSuccessfully is an outcome. The others are labels named like them, because they are good or bad by an agent's
  weights only.
- reward: a score from -5 to 5 of a checker, with little weight: people are never outvoted by it. A 0.0 that nothing stands behind was
  written for "no signal" and is left out.

A RETRIEVER's row that kept lengths instead of its text has no answer, so nothing can be trained on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from thumbwheel.capture.lines import Seen
from thumbwheel.capture.place import Address
from thumbwheel.capture.source import AnyRecord, Item, JsonLines, Row
from thumbwheel.capture.spelling import agent_of, declared, like
from thumbwheel.capture.types import FeedbackRecord, Rater, Scale, TargetRef, TraceRecord, Unreadable
from thumbwheel.core.errors import InputError, MissingExtra
from thumbwheel.sdk.tracefile import plain

AGENTS = ("FILER", "LIBRARIAN", "PRIORITIZER", "STORER", "RETRIEVER", "GUARDRAIL")
WORDS = {"CONFIRMED": True, "CORRECTED": False, "OVERRIDDEN": False, "IGNORED": None}
"""What a person did -> good, bad or neither."""
REWARDED = Rater(id="decision-reward", kind="checker", weight=0.1)
TRACKER = Rater(id="outcome-tracker", kind="checker")
LOST = {"generated_document_length", "source_citations_count"}
"""What a RETRIEVER's live row has in place of its text."""
MARKER = re.compile(r"<\|(system|user|assistant)\|>\n?")
EXAMPLE = (
    '{"prompt": "Instructions: call the bank", "completion": "{\\"swimlane\\": \\"HOME\\"}", "reward": 1.1, "confidence": 0.8, '
    '"metadata": {"decisionId": "d1", "userFeedback": "CONFIRMED", "createdAt": "2026-01-05T08:30:00.000Z"}}\n'
    '{"messages": [{"role": "user", "content": "{}"}, {"role": "assistant", "content": "{\\"swimlane\\": \\"HOME\\"}"}], "reward": null, '
    '"metadata": {"decisionId": "d2", "agentType": "FILER", "userFeedback": "CORRECTED", "userCorrection": {"swimlane": "PROJECT"}}}\n'
    '{"id": "d3", "agentType": "FILER", "state": {"item": {"title": "Bank"}}, "action": {"swimlane": "HOME"}, "userFeedback": null}'
)


def claims(row: Row) -> bool:
    """An export line has a reward and a decisionId; a row of the table has agentType, state and action."""
    about = row.get("metadata")
    exported = "reward" in row and isinstance(about, dict) and "decisionId" in about
    return exported or {"agentType", "state", "action"} <= row.keys()


@dataclass(frozen=True)
class _Decision:
    """A decision, whatever it was spelled in. `about` has the columns of the table under their names."""

    input: Any
    output: str | None
    action: Mapping[str, Any]
    state: Any
    about: Row


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """The trace of a decision and what was said about it."""
    made = _of_table(row) if "state" in row or "action" in row else _exported(row)
    agent = made.about.get("agentType") or agent_of(made.action)
    if agent not in (None, *AGENTS):
        raise Unreadable(f"agentType {agent!r} is none of {', '.join(AGENTS)}")
    trace = _trace(made, agent)
    target = TargetRef(kind="trace", id=trace.identified()[0])
    return [trace, *_person(made, target), *_outcomes(made.about, target), *_reward(made.about, target)]


def _of_table(row: Row) -> _Decision:
    state, action = _object(row.get("state"), "state"), _object(row.get("action"), "action")
    output = None if action.keys() & LOST and "generatedContent" not in action else json.dumps(action, ensure_ascii=False)
    return _Decision(json.dumps(state, ensure_ascii=False, indent=2), output, action, state, row)


def _object(found: Any, name: str) -> dict[str, Any]:
    if isinstance(found, str):
        found = _parsed(found)
    if not isinstance(found, dict):
        raise Unreadable(f"{name} is no object")
    return found


def _parsed(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return None


def _exported(row: Row) -> _Decision:
    told = row.get("metadata")
    if told is not None and not isinstance(told, dict):
        raise Unreadable("metadata is no object")
    about = {"id": (told or {}).get("decisionId"), **(told or {}), "reward": row.get("reward")}
    about["confidence"] = row.get("confidence", about.get("confidence"))
    if "messages" in row:
        messages = row["messages"]
        if (
            not isinstance(messages, list)
            or len(messages) < 2
            or not isinstance(messages[-1], dict)
            or messages[-1].get("role") != "assistant"
        ):
            raise Unreadable("messages do not end with the assistant's action")
        asked, answer = messages[:-1], messages[-1].get("content")
    else:
        asked, answer = _prompt(row.get("prompt")), row.get("completion")
    output = answer if isinstance(answer, str) or answer is None else json.dumps(answer, ensure_ascii=False)
    action = _parsed(output)
    lost = isinstance(action, dict) and action.keys() & LOST and "generatedContent" not in action
    return _Decision(asked, None if lost else output, action if isinstance(action, dict) else {}, None, about)


def _prompt(text: Any) -> Any:
    """The text, or the messages that its markers separate."""
    if not isinstance(text, str):
        raise Unreadable(f"prompt {str(text)[:60]!r} is no text")
    parts = MARKER.split(text)
    if len(parts) == 1 or parts[0].strip():
        return text
    pairs = zip(parts[1::2], parts[2::2], strict=True)
    return [{"role": role, "content": said.strip()} for role, said in pairs if said.strip()]


def _trace(made: _Decision, agent: str | None) -> TraceRecord:
    about, action = made.about, declared(made.action)
    item = {key: action[key] for key in ("swimlane", "priority", "labels") if action.get(key)}
    decision = {"agent_type": agent, "confidence": about.get("confidence", action.get("confidence")), "action": action, "item": item}
    beside = {"item_id": about.get("itemId"), "opus_id": about.get("opusId"), "alternative_actions": about.get("alternativeActions")}
    known = {key: value for key, value in beside.items() if value} | {
        "decision": {k: v for k, v in decision.items() if v not in (None, {})}
    }
    model = {"model": about["modelVersion"]} if about.get("modelVersion") else {}
    fields = {
        "id": about.get("id"),
        "session": f"item:{about['itemId']}" if about.get("itemId") else None,
        "subject": about.get("userId"),
        "input": made.input,
        "output": made.output or None,
        "steps": [{"kind": "decision", "name": agent, "input": made.state, "output": action or None}, {"kind": "llm"} | model],
        "occurred_at": about.get("createdAt"),
        "metadata": known if agent else None,
    }
    return TraceRecord.model_validate(plain({key: value for key, value in fields.items() if value is not None}))


def _person(made: _Decision, target: TargetRef) -> Iterator[FeedbackRecord]:
    about, word = made.about, made.about.get("userFeedback")
    if word is None:
        return
    if not isinstance(word, str) or word not in WORDS:
        raise Unreadable(f"userFeedback {word!r} is none of {', '.join(WORDS)}")
    rater = {"id": about["userId"]} if about.get("userId") else None
    shared = {"targets": [target], "rater": rater, "occurred_at": about.get("feedbackAt")}
    yield FeedbackRecord.model_validate(shared | {"kind": "label", "name": "user_feedback", "value": word})
    if WORDS[word] is not None:
        yield FeedbackRecord.model_validate(shared | {"kind": "thumb", "value": WORDS[word]})
    change = _parsed(about.get("userCorrection"))
    if isinstance(change, dict) and change and made.output is not None and made.action:
        text = _written(like(made.action, change), made.output)
        if text != made.output:
            yield FeedbackRecord.model_validate(shared | {"kind": "correction", "value": text, "metadata": {"partial": plain(change)}})


def _written(action: Mapping[str, Any], like_text: str) -> str:
    """`action` as JSON in the layout of `like_text`."""
    if "\n" in like_text.strip():
        return json.dumps(action, ensure_ascii=False, indent=2)
    return json.dumps(action, ensure_ascii=False, separators=None if '": ' in like_text else (",", ":"))


def _outcomes(about: Row, target: TargetRef) -> Iterator[FeedbackRecord]:
    metrics = _parsed(about.get("outcomeMetrics"))
    for name, value in metrics.items() if isinstance(metrics, dict) else ():
        shared = {"name": name, "targets": [target], "rater": TRACKER, "occurred_at": about.get("outcomeObservedAt")}
        if name == "completedSuccessfully" and isinstance(value, bool):
            yield FeedbackRecord.model_validate(shared | {"kind": "outcome", "value": value})
        elif isinstance(value, bool | int | float | str) and value != "":
            text = value if isinstance(value, bool | str) else json.dumps(value)
            yield FeedbackRecord.model_validate(shared | {"kind": "label", "value": text})


def _reward(about: Row, target: TargetRef) -> Iterator[FeedbackRecord]:
    value, components = about.get("reward"), _parsed(about.get("rewardComponents"))
    stands = components or about.get("userFeedback") or about.get("outcomeMetrics")
    if value is None or (value == 0 and not stands):
        return
    fields = {"kind": "score", "value": value, "scale": Scale(min=-5.0, max=5.0), "targets": [target], "rater": REWARDED}
    beside = {"components": plain(components)} if components else None
    yield FeedbackRecord.model_validate(fields | {"occurred_at": about.get("rewardComputedAt"), "metadata": beside})


@dataclass(frozen=True)
class Decisions(JsonLines):
    """See the module: a file of rows, or the address of the database."""

    def read(self, path: Path, seen: Seen) -> Iterator[Item]:
        """See Source; of a database nothing but its Decision table is read, in one snapshot, as a stream."""
        if not isinstance(path, Address):
            yield from super().read(path, seen)
            return
        for number, row in enumerate(_table(path), 1):
            yield self.item(number, row, json.dumps(row, ensure_ascii=False))


def _table(address: Address) -> Iterator[dict[str, Any]]:
    url, agent = _asked(address)
    try:
        import psycopg
        from psycopg.rows import dict_row
    except ImportError:
        raise MissingExtra.of(f"source {str(address)!r}", "psycopg", "postgres") from None
    query = 'SELECT * FROM "Decision" WHERE %(agent)s::text IS NULL OR "agentType"::text = %(agent)s ORDER BY "createdAt", id'
    try:
        with psycopg.connect(url, connect_timeout=10) as connection:
            connection.read_only = True
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            with connection.cursor("thumbwheel", row_factory=dict_row) as cursor:
                cursor.itersize = 500
                for row in cursor.execute(query, {"agent": agent}):
                    yield {key: _value(value) for key, value in row.items()}
    except psycopg.Error as error:
        why = str(error).strip().partition("\n")[0]
        raise InputError(f"address {str(address)!r}", why, "Name the database that has the Decision table") from None


def _asked(address: Address) -> tuple[str, str | None]:
    """(the address for the driver, the agent whose decisions are wanted)."""
    parts = urlsplit(address.url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise InputError(f"address {str(address)!r}", f"{parts.scheme} is no database that is read here", "Give postgresql://...")
    given = parse_qsl(parts.query, keep_blank_values=True)
    agent = next((value for key, value in given if key == "agentType"), None)
    if agent not in (None, *AGENTS):
        raise InputError(f"address {str(address)!r}", f"agentType {agent!r} is none of {', '.join(AGENTS)}", "Leave it out for all")
    query = urlencode([pair for pair in given if pair[0] != "agentType"])
    return urlunsplit((parts.scheme, parts.netloc, parts.path, query, "")), agent


def _value(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else plain(value)


SOURCE = Decisions(parse, claims, EXAMPLE)
