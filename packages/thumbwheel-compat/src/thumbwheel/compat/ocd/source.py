"""Decisions of the five agents (FILER, LIBRARIAN, PRIORITIZER, STORER, RETRIEVER; GUARDRAIL too):
three dialects of JSON lines, rows of their table, and the table itself by its PostgreSQL address,
which is only read (`?agentType=FILER` takes one agent's).

A decision is a trace: its input is what the agent was asked, one labelled line a fact
(`decision_prompts.py`), its answer the action as JSON, in whichever spelling it came and in
one order of keys. Where a file has the state (a row, a line with messages), the input is made of
it; a line that has a prompt only keeps it, with the agent's system prompt where the line has none.
The step of kind decision, and `metadata.decision` for the reward function of that name, have the
action as declared. A decision is known by its id: the same one from a table, from another dialect,
or with another order of keys is the same trace, to which it adds what it knows. So what may still
change is no part of the trace, and a row whose feedback or reward comes later is the same trace
with one more statement:

- CONFIRMED, CORRECTED, OVERRIDDEN, IGNORED: a label `user_feedback` of the person, and a thumb
  where it says good or bad. Nothing said is
  nothing stored, which is not IGNORED.
- userCorrection: a correction with the whole action, the changed fields spelled as the action
  spells its own.
- outcomeMetrics: completedSuccessfully is an outcome. The others are labels named like them,
  because they are good or bad by an agent's
  weights only.
- a label `leadingGoal` at a FILER's decision of an item that is finished and has the label of a
  goal, where the other rows say which goal
  led (`leading_goals`).
- reward: a score `decision_reward` from -5 to 5 of a checker, with little weight: people are never
  outvoted by it. A 0.0 that nothing
  stands behind was written for "no signal" and is left out. rewardComponents: a label
  `decision_reward_components` of the same checker,
  also where no reward was stored.
- A line without a time of its own for any of these dates them by createdAt; what a later import
  changes was said since.
- isTrainingData, isValidationData: marks of the owner in the metadata of the trace, which the next
  import may change.

Reviewed lines (`--gold`) are cases instead: the fields of the right answer that can be compared,
CONFIRMED, corrected or vouched for. A RETRIEVER's row that kept lengths instead of its text has no
answer, so nothing can be trained on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from thumbwheel.compat.ocd.decision_prompts import prompt_of, system_of
from thumbwheel.compat.ocd.leading_goals import AUTHORITY, INCOME, Completion, LeadingGoals, instant
from thumbwheel.compat.ocd.spelling import (
    KEYS,
    STORED_COMPONENTS,
    STORED_REWARD,
    agent_of,
    apply_change,
    declared,
    in_order,
    spelled,
)
from thumbwheel.core.errors import InputError, MissingExtra
from thumbwheel.importers.json_text import value_in
from thumbwheel.importers.lines import OnPosition, ignore_position
from thumbwheel.importers.location import Address
from thumbwheel.importers.rowfile import read_rows
from thumbwheel.importers.source import Item, JsonLines, Parse, Row, Unwanted
from thumbwheel.importers.types import (
    AnyRecord,
    CaseRecord,
    FeedbackRecord,
    Rater,
    Scale,
    TargetRef,
    TraceRecord,
    Unreadable,
)
from thumbwheel.sdk.plain import plain

AGENTS = ("FILER", "LIBRARIAN", "PRIORITIZER", "STORER", "RETRIEVER", "GUARDRAIL")
WORDS = {"CONFIRMED": True, "CORRECTED": False, "OVERRIDDEN": False, "IGNORED": None}
"""What a person did -> good, bad or neither."""
MARKS = {"is_training_data": "isTrainingData", "is_validation_data": "isValidationData"}
"""Key of the trace's metadata -> column: what the owner lets a row be used for."""
BESIDE = {"item_id": "itemId", "opus_id": "opusId", "alternative_actions": "alternativeActions"}
"""Key of the trace's metadata -> column."""
REWARDED = Rater(id="decision-reward", kind="checker", weight=0.1)
TRACKER = Rater(id="outcome-tracker", kind="checker")
COMPARED = {
    "FILER": ("swimlane", "priority", "status"),
    "PRIORITIZER": ("recommendedItemId",),
    "STORER": ("integrationDecision", "location", "method"),
}
"""Agent -> the declared fields of its action of which one value is right."""
PRISMA_POOL = {
    "pgbouncer",
    "connection_limit",
    "pool_timeout",
    "socket_timeout",
    "statement_cache_size",
}
PRISMA_TLS = {"sslaccept", "sslidentity"}
LOST = {"generated_document_length", "source_citations_count"}
"""What a RETRIEVER's live row has in place of its text."""
MARKER = re.compile(r"<\|(system|user|assistant)\|>\n?")
EXAMPLE = (
    '{"prompt": "Instructions: call the bank", "completion": "{\\"swimlane\\": \\"HOME\\"}", '
    '"reward": 1.1, "confidence": 0.8, '
    '"metadata": {"decisionId": "d1", "userFeedback": "CONFIRMED", "createdAt": '
    '"2026-01-05T08:30:00.000Z"}}\n'
    '{"messages": [{"role": "user", "content": "{}"}, {"role": "assistant", "content": '
    '"{\\"swimlane\\": \\"HOME\\"}"}], "reward": null, '
    '"metadata": {"decisionId": "d2", "agentType": "FILER", "userFeedback": "CORRECTED", '
    '"userCorrection": {"swimlane": "PROJECT"}}}\n'
    '{"id": "d3", "agentType": "FILER", "state": {"item": {"title": "Bank"}}, "action": '
    '{"swimlane": "HOME"}, "userFeedback": null}'
)


def claims(row: Row) -> bool:
    """Return whether the row is an export line, which has a reward and a decisionId, or a row of
    the table, which has agentType, state and action."""
    about = row.get("metadata")
    exported = "reward" in row and isinstance(about, dict) and "decisionId" in about
    return exported or {"agentType", "state", "action"} <= row.keys()


@dataclass(frozen=True)
class RecordedDecision:
    """A decision, whatever it was spelled in. `columns` has the columns of the table under their
    names."""

    agent: str | None
    prompt: list[dict[str, Any]]
    state: dict[str, Any] | None
    action: dict[str, Any]
    answer: str | None
    columns: Row


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """Return the trace of a decision and its feedback."""
    return _records(decision_of(row))


def decision_of(row: Row) -> RecordedDecision:
    """Return the decision of a row of the table or of a line of any dialect. Raises Unreadable."""
    return _of_table(row) if "state" in row or "action" in row else _exported(row)


def _records(decision: RecordedDecision) -> list[AnyRecord]:
    trace = _trace(decision)
    target = trace.as_target()
    feedback = [
        *_person_feedback(decision, target),
        *_outcomes(decision, target),
        *_reward(decision, target),
    ]
    if trace.id and not any(record.occurred_at for record in feedback):
        # an exported line says when its decision was made, and no other time
        feedback = [record.not_before(trace.occurred_at) for record in feedback]
    return [trace, *feedback]


def _of_table(row: Row) -> RecordedDecision:
    state = _object(row.get("state"), "state")
    action = _object(row.get("action"), "action")
    agent = _known_agent(row.get("agentType") or agent_of(action))
    for key in ("reasoning", "confidence"):
        is_asked = key in KEYS.get(agent or "", ())
        if is_asked and action.get(key) is None and row.get(key) is not None:
            action[key] = plain(row[key])
    prompt = prompt_of(agent, state, action)
    return RecordedDecision(agent, prompt, state, action, _answer(agent, action), row)


def _exported(row: Row) -> RecordedDecision:
    # its columns
    metadata = row.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise Unreadable("metadata is no object")
    metadata = metadata or {}
    columns = {"id": metadata.get("decisionId"), **metadata, "reward": row.get("reward")}
    columns["confidence"] = row.get("confidence", columns.get("confidence"))

    # the action
    messages: Any = row.get("messages")
    if "messages" not in row:
        completion = row.get("completion")
    elif _ends_with_answer(messages):
        completion = messages[-1].get("content")
        if not columns.get("rewardComputedAt") and not columns["reward"]:
            columns["reward"] = None  # a reward that was never computed is written as 0
    else:
        raise Unreadable("messages do not end with the assistant's action")
    action: dict[str, Any] = {}
    parsed = _parsed(completion)
    if isinstance(parsed, dict):
        optional = ("reasoning", "confidence")
        fields = _object(parsed, "completion").items()
        action = {key: value for key, value in fields if value is not None or key not in optional}

    # what was asked, and the answer as a text
    agent = _known_agent(columns.get("agentType") or agent_of(action))
    prompt, state = _prompt_and_state(row, messages, agent, action)
    if action:
        answer = _answer(agent, action)
    elif completion is None or isinstance(completion, str):
        answer = completion
    else:
        answer = json.dumps(completion, ensure_ascii=False)
    return RecordedDecision(agent, prompt, state, action, answer, columns)


def _ends_with_answer(messages: Any) -> bool:
    if not isinstance(messages, list) or len(messages) < 2:
        return False
    return isinstance(messages[-1], dict) and messages[-1].get("role") == "assistant"


def _prompt_and_state(
    row: Row, messages: Any, agent: str | None, action: Row
) -> tuple[Any, dict[str, Any] | None]:
    """Return (the prompt of the agent, its state or None if the line lacks it). Raises
    Unreadable."""
    text = row.get("prompt")
    if messages and isinstance(messages[-2], dict):
        text = messages[-2].get("content")
    state = _parsed(text) if isinstance(text, str) else None
    if isinstance(state, dict):
        state = _object(state, "state")
        return prompt_of(agent, state, action), state
    if messages:
        return messages[:-1], None
    if not isinstance(text, str):
        raise Unreadable(f"prompt {str(text)[:60]!r} is no text")

    # a text, plain or with markers of roles
    parts = MARKER.split(text)
    if len(parts) == 1 or parts[0].strip():
        return [*system_of(agent, action), {"role": "user", "content": text}], None
    prompt = []
    for role, content in zip(parts[1::2], parts[2::2], strict=True):
        if content.strip():
            prompt.append({"role": role, "content": content.strip()})
    return prompt, None


def _object(value: Any, name: str) -> dict[str, Any]:
    parsed = _parsed(value)
    if not isinstance(parsed, dict):
        raise Unreadable(f"{name} is no object")
    return dict(plain(parsed))


def _parsed(text: Any) -> Any:
    """Return the JSON value of a text, or None if it is not JSON; any other value unchanged."""
    if not isinstance(text, str):
        return text
    value = value_in(text)
    return None if value is text else value


def _known_agent(agent: Any) -> str | None:
    if agent not in (None, *AGENTS):
        raise Unreadable(f"agentType {agent!r} is none of {', '.join(AGENTS)}")
    return str(agent) if agent else None


def _answer(agent: str | None, action: Row) -> str | None:
    """Return the action as the text that is trained on; None if the row has lost its text."""
    if action.keys() & LOST and "generatedContent" not in declared(action):
        return None
    return json.dumps(in_order(agent, action), ensure_ascii=False)


def _trace(decision: RecordedDecision) -> TraceRecord:
    columns, action = decision.columns, declared(decision.action)
    metadata = {key: columns[column] for key, column in BESIDE.items() if columns.get(column)}
    for key, column in MARKS.items():
        if isinstance(columns.get(column), bool):
            metadata[key] = columns[column]
    if decision.agent:
        item_keys = ("swimlane", "priority", "labels")
        for_reward = {
            "agent_type": decision.agent,
            "confidence": columns.get("confidence", action.get("confidence")),
            "action": action,
            "item": {key: action[key] for key in item_keys if action.get(key)},
        }
        metadata["decision"] = {
            key: value for key, value in for_reward.items() if value not in (None, {})
        }
    decision_step = {
        "kind": "decision",
        "name": decision.agent,
        "input": decision.state,
        "output": action or None,
    }
    llm_step = {"kind": "llm"}
    if columns.get("modelVersion"):
        llm_step["model"] = columns["modelVersion"]
    fields = {
        "id": columns.get("id"),
        "session": _item_name(columns),
        "subject": columns.get("userId"),
        "input": decision.prompt,
        "output": decision.answer or None,
        "steps": [decision_step, llm_step],
        "occurred_at": columns.get("createdAt"),
        "metadata": metadata or None,
    }
    present = {key: value for key, value in fields.items() if value is not None}
    trace = TraceRecord.model_validate(plain(present))
    return trace.with_identity({"decision": trace.id}) if trace.id else trace


def _item_name(columns: Row) -> str | None:
    """Return the name of the decision's item for a session or a group; None if there is no item."""
    return f"item:{columns['itemId']}" if columns.get("itemId") else None


def _person_feedback(decision: RecordedDecision, target: TargetRef) -> Iterator[FeedbackRecord]:
    columns, word = decision.columns, decision.columns.get("userFeedback")
    if word is None:
        return
    if not isinstance(word, str) or word not in WORDS:
        raise Unreadable(f"userFeedback {word!r} is none of {', '.join(WORDS)}")
    rater = {"id": columns["userId"]} if columns.get("userId") else None
    shared = {"targets": [target], "rater": rater, "occurred_at": columns.get("feedbackAt")}
    yield _feedback(decision, shared | {"kind": "label", "name": "user_feedback", "value": word})
    if WORDS[word] is not None:
        yield _feedback(decision, shared | {"kind": "thumb", "value": WORDS[word]})

    change = _parsed(columns.get("userCorrection"))
    if not isinstance(change, dict) or not change:
        return
    if decision.answer is None or not decision.action:
        return
    partial = plain(change)
    corrected = in_order(decision.agent, apply_change(decision.action, partial))
    text = json.dumps(corrected, ensure_ascii=False)
    if text != decision.answer:
        correction = {"kind": "correction", "value": text, "metadata": {"partial": partial}}
        yield _feedback(decision, shared | correction, declared(partial))


def _outcomes(decision: RecordedDecision, target: TargetRef) -> Iterator[FeedbackRecord]:
    metrics = _parsed(decision.columns.get("outcomeMetrics"))
    if not isinstance(metrics, dict):
        return
    for name, value in metrics.items():
        shared = {
            "name": name,
            "targets": [target],
            "rater": TRACKER,
            "occurred_at": decision.columns.get("outcomeObservedAt"),
        }
        if name == "completedSuccessfully" and isinstance(value, bool):
            yield _feedback(decision, shared | {"kind": "outcome", "value": value})
        elif isinstance(value, bool | int | float | str) and value != "":
            text = value if isinstance(value, bool | str) else json.dumps(value)
            yield _feedback(decision, shared | {"kind": "label", "value": text})


def _reward(decision: RecordedDecision, target: TargetRef) -> Iterator[FeedbackRecord]:
    columns = decision.columns
    value, components = columns.get("reward"), _parsed(columns.get("rewardComponents"))
    evidence = components or columns.get("userFeedback") or columns.get("outcomeMetrics")
    shared: dict[str, Any] = {"targets": [target], "rater": REWARDED}
    # where nobody knows when the rest of the row was said, all of it has the time of its import: a
    # reward was computed after what it counts
    times = {"userFeedback": "feedbackAt", "outcomeMetrics": "outcomeObservedAt"}
    if all(columns.get(time) for column, time in times.items() if columns.get(column)):
        shared["occurred_at"] = columns.get("rewardComputedAt")
    if value is not None and (value != 0 or evidence):
        score = {
            "kind": "score",
            "name": STORED_REWARD,
            "value": value,
            "scale": Scale(min=-5.0, max=5.0),
            "metadata": {"components": plain(components)} if components else None,
        }
        yield _feedback(decision, shared | score)
    if isinstance(components, dict) and components:
        text = json.dumps(plain(components), sort_keys=True)
        label = {"kind": "label", "name": STORED_COMPONENTS, "value": text}
        yield _feedback(decision, shared | label)


def _feedback(
    decision: RecordedDecision, fields: Mapping[str, Any], content: Any = None
) -> FeedbackRecord:
    """Return feedback about a decision, identified by its content (`content`, else its value), so
    that a dialect that leaves out the rater or the time adds nothing new."""
    record = FeedbackRecord.model_validate(fields)
    decision_id = decision.columns.get("id")
    if not decision_id:
        return record
    return record.with_identity(
        {
            "decision": str(decision_id),
            "kind": record.kind,
            "name": record.name,
            "value": record.value if content is None else content,
        }
    )


def _case(decision: RecordedDecision) -> CaseRecord:
    """Return the case of a decision: the prompt of the agent, and the comparable fields of the
    right answer. Raises Unreadable if the right answer is unknown."""
    fields = COMPARED.get(decision.agent or "")
    if fields is None:
        name = decision.agent or "an agent that is not known"
        raise Unreadable(
            f"a decision of {name} is no case: its answer is a text of which more than one can be "
            "right; write a case with a checker (thumbwheel case add)"
        )
    columns, action = decision.columns, decision.action
    word, change = columns.get("userFeedback"), _parsed(columns.get("userCorrection"))
    if isinstance(change, dict) and change:
        action = apply_change(action, plain(change))
    if word in WORDS and WORDS[word] is False and action == decision.action:
        raise Unreadable(f"a person said {word} and not what would be right, so it is no case")
    compared = spelled(fields, action)
    reference = {
        key: value for key, value in action.items() if key in compared and value is not None
    }
    if not reference:
        raise Unreadable(
            f"its answer has none of the fields {', '.join(fields)}, so nothing says what is right"
        )
    case = {
        "id": columns.get("id"),
        "input": decision.prompt,
        "reference": reference,
        "checker": "json_fields",
        "group": _item_name(columns),
        "slices": {"agent_type": decision.agent},
    }
    present = {key: value for key, value in case.items() if value is not None}
    return CaseRecord.model_validate(present)


@dataclass(frozen=True)
class Decisions(JsonLines):
    """A file of rows, or the address of the database.

    `agent` takes one agent's decisions only; with `gold` a decision is a case that somebody
    reviewed, and no trace.
    """

    agent: str | None = None
    gold: bool = False
    goals: LeadingGoals | None = field(default=None, compare=False)
    address_variable: str = "DATABASE_URL"
    reads_whole_tables: bool = True

    def of_agent(self, name: str) -> Decisions:
        agent = name.upper()
        if agent not in AGENTS:
            raise InputError(
                f"--agent-type {name!r}",
                f"it is none of {', '.join(AGENTS)}",
                "Leave it out for all",
            )
        return replace(self, agent=agent)

    def as_gold(self) -> Decisions:
        return replace(self, gold=True)

    def item(self, number: int, row: dict[str, Any], text: str, parse: Parse | None = None) -> Item:
        return super().item(number, row, text, self._records)

    def _records(self, row: dict[str, Any]) -> list[AnyRecord]:
        decision = decision_of(row)
        if self.agent not in (None, decision.agent):
            raise Unwanted(f"it is of {decision.agent or 'an agent that it does not name'}")
        if self.gold:
            return [_case(decision)]
        trace, *feedback = _records(decision)
        assert isinstance(trace, TraceRecord)  # noqa: S101 - narrows the type; the trace of a decision comes first
        goal = _leading_goal(decision, trace.as_target(), self.goals)
        if goal is not None:
            feedback.append(goal)
        return [trace, *feedback]

    def _knowing_goals(self, table: Iterable[Row]) -> Decisions:
        """Return this source with the leading goals read from the whole table."""
        completions = map(_completion, table)
        goals = LeadingGoals(completion for completion in completions if completion is not None)
        return replace(self, goals=goals)

    def claims_location(self, path: Path) -> bool:
        """Return whether the path is the address of a PostgreSQL database."""
        if not isinstance(path, Address):
            return False
        return path.url.lower().startswith(("postgresql://", "postgres://"))

    def read(self, path: Path, on_position: OnPosition) -> Iterator[Item]:
        """Yield every item of the file or of the Decision table; nothing else of a database is
        read.

        If FILER's decisions are wanted, completions are read first, so the whole is read twice.
        """
        source = self
        goals_matter = self.agent in (None, "FILER") and not self.gold
        if not isinstance(path, Address):
            if goals_matter:
                rows = read_rows(path, ignore_position)
                source = self._knowing_goals(row.row for row in rows if row.row)
            yield from source.items(read_rows(path, on_position), source.parse)
            return
        if goals_matter and _query(path, self.agent).agent in (None, "FILER"):
            source = self._knowing_goals(_table(path, "FILER"))
        for number, row in enumerate(_table(path, self.agent), 1):
            yield source.item(number, row, json.dumps(row, ensure_ascii=False))


def _completion(row: Row) -> Completion | None:
    """Return when the item of a FILER's decision was completed, and with which labels; None for any
    other row."""
    columns = row if "state" in row or "action" in row else row.get("metadata")
    metrics = _parsed(columns.get("outcomeMetrics")) if isinstance(columns, dict) else None
    if not isinstance(metrics, dict) or metrics.get("completedSuccessfully") is not True:
        return None
    try:
        decision = decision_of(row)
    except Unreadable:
        return None  # the import itself says why
    time = instant(decision.columns.get("outcomeObservedAt"))
    labels = declared(decision.action).get("labels")
    if decision.agent != "FILER" or time is None or not isinstance(labels, list):
        return None
    decision_id = str(decision.columns.get("id"))
    return Completion(decision_id, _user(decision), time, tuple(map(str, labels)))


def _user(decision: RecordedDecision) -> str | None:
    user = decision.columns.get("userId")
    return str(user) if user else None


def _leading_goal(
    decision: RecordedDecision, target: TargetRef, goals: LeadingGoals | None
) -> FeedbackRecord | None:
    """Return the goal that led when the item was completed, as feedback; None if the outcome has it
    already, or if it is unknown."""
    if goals is None or decision.agent != "FILER":
        return None
    metrics = _parsed(decision.columns.get("outcomeMetrics"))
    labels = declared(decision.action).get("labels")
    time = instant(decision.columns.get("outcomeObservedAt"))
    if time is None or not isinstance(metrics, dict) or not isinstance(labels, list):
        return None
    if "leadingGoal" in metrics or not {INCOME, AUTHORITY} & set(map(str, labels)):
        return None
    goal = goals.leading_goal(_user(decision), time)
    if goal is None:
        return None
    fields = {
        "kind": "label",
        "name": "leadingGoal",
        "value": goal,
        "targets": [target],
        "rater": TRACKER,
        "occurred_at": time,
    }
    return _feedback(decision, fields, "as this import knows it")


def _table(address: Address, agent: str | None) -> Iterator[dict[str, Any]]:
    query = _query(address, agent)
    try:
        import psycopg
        from psycopg import sql
        from psycopg.rows import dict_row
    except ImportError:
        raise MissingExtra.of(f"source {str(address)!r}", "psycopg", "postgres") from None
    # a search path would be a startup option, which a pooler between us and the server refuses
    table = sql.Identifier(query.schema, "Decision") if query.schema else sql.Identifier("Decision")
    statement = sql.SQL(
        'SELECT * FROM {} WHERE %(agent)s::text IS NULL OR "agentType"::text = %(agent)s ORDER BY '
        '"createdAt", id'
    ).format(table)
    try:
        # prepared statements outlive a transaction, after which a pooler hands out another
        # connection
        with psycopg.connect(query.url, prepare_threshold=None) as connection:
            connection.read_only = True
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            with connection.cursor("thumbwheel", row_factory=dict_row) as cursor:
                cursor.itersize = 500
                for row in cursor.execute(statement, {"agent": query.agent}):
                    yield {key: _value(value) for key, value in row.items()}
    except psycopg.Error as error:
        why = str(error).strip().partition("\n")[0]
        raise InputError(
            f"address {str(address)!r}", address.hide(why), _advice(error, why)
        ) from None


def _advice(error: Exception, why: str) -> str:
    """Return advice on an error of the database."""
    state = getattr(error, "sqlstate", None) or ""
    if state == "42P01":
        return "Name the database that has the Decision table, and its schema: ?schema=NAME"
    if state == "42501":
        return 'Let this user read it: GRANT SELECT ON "Decision" TO USER'
    if state.startswith("28") or "authentication failed" in why or "password" in why:
        return "Check the user and the password in the address"
    if state == "3D000" or "does not exist" in why:
        return "Check the name of the database, behind the last / of the address"
    if "query parameter" in why or "connection option" in why:
        return "Leave that parameter out of the address"
    return "Check host and port, and that the server runs and may be reached from here"


@dataclass(frozen=True)
class _Query:
    """An address, taken apart: what the driver understands, and what it does not."""

    url: str
    agent: str | None
    schema: str | None


def _query(address: Address, agent: str | None) -> _Query:
    """Return the query for this address. The driver does not know Prisma's parameters: `schema` is
    the schema of the table, parameters of its pool are ignored, and parameters of its certificates,
    which have other names there, are refused. Raises InputError."""
    what = f"address {str(address)!r}"
    try:
        parts = urlsplit(address.url)
    except ValueError as error:
        raise InputError(
            what, address.hide(str(error)), "Escape such characters: %5B for ["
        ) from None
    if parts.scheme not in ("postgresql", "postgres"):
        raise InputError(
            what, f"{parts.scheme} is not a supported database", "Give postgresql://..."
        )
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    address_agent = parameters.pop("agentType", None)
    schema = parameters.pop("schema", None)
    if address_agent not in (None, *AGENTS):
        raise InputError(
            what,
            f"agentType {address_agent!r} is none of {', '.join(AGENTS)}",
            "Leave it out for all",
        )
    if None not in (address_agent, agent) and address_agent != agent:
        raise InputError(
            f"--agent-type {agent}", f"the address asks for {address_agent}", "Give one of them"
        )
    for name in PRISMA_TLS & parameters.keys():
        raise InputError(
            what,
            f"{name} is Prisma's, and the PostgreSQL driver has its own way to check certificates",
            "Give sslmode=verify-full with sslrootcert=FILE in its place",
        )
    for_driver = {name: value for name, value in parameters.items() if name not in PRISMA_POOL}
    query = urlencode({"connect_timeout": "10"} | for_driver)
    url = urlunsplit((parts.scheme, parts.netloc, parts.path, query, ""))
    return _Query(url, agent or address_agent, schema or None)


def _value(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is None:
        value = value.replace(tzinfo=UTC)  # Prisma writes UTC into columns without a zone
    return value.isoformat() if hasattr(value, "isoformat") else plain(value)


SOURCE = Decisions(
    parse,
    claims,
    EXAMPLE,
    about="decisions of agents: JSON lines, or postgresql://... with that table, without PATH "
    "the one in DATABASE_URL. --agent-type FILER takes one agent's; with --gold its lines are "
    "cases.",
    reason="an export line has a reward and a decisionId; a row of the table has agentType, state "
    "and action",
)
