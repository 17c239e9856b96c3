"""Table rows of records: pure translation, ids derived, nothing read or written.

Lives here: how a record looks in the tables, and the ids that it leads to. Not here: whether it is
new (`store.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from thumbwheel.capture.gateway_seal import CLAIMED, claims_of, is_sealed
from thumbwheel.core import ids
from thumbwheel.core.seal import Seal
from thumbwheel.db.feedback_in_force import OWNER, USER
from thumbwheel.db.workspace import OWNER_OF_HOME, CaseRule, any_case
from thumbwheel.importers.types import (
    AnyRecord,
    CaseRecord,
    FeedbackRecord,
    Rater,
    StepRecord,
    TargetRef,
    TraceRecord,
)

Row = dict[str, Any]
PREFIXES: Mapping[type[AnyRecord], str] = {
    TraceRecord: "trc",
    FeedbackRecord: "fbk",
    CaseRecord: "cas",
}
NO_FACTS: Row = dict.fromkeys(("model_version_id", "deployment", "routing", "cost"))
"""Columns of a step that only the gateway fills, as anybody else leaves them."""
TARGET_PREFIX = {"trace": "trc", "step": "trc", "session": "ses"}


@lru_cache(maxsize=4096)
def row_id(prefix: str, agent: str, source: str, name: str) -> str:
    """Return the id of the row that `source` calls `name`; cached, because lines name the same
    raters, sessions and traces again and again."""
    return ids.derived(prefix, agent, source, name)


@dataclass(frozen=True)
class Scope:
    """Under which agent and source records are stored, and on whose word cases are gold (nobody's:
    basis feedback)."""

    agent_id: str
    agent: str
    source: str
    reviewer: str | None = None
    seal: Seal | None = None
    """With which tombstones are recognised; None where nothing was ever erased."""
    gateway_seal: Seal | None = None
    """With which the gateway seals its calls; None where it never has."""
    case_rule: CaseRule = any_case
    """What cases are taken."""
    recorded_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    """One time for all lines of an import: within a file without times no line is newer than
    another."""
    sender: str | None = None
    """Who sends what is stored. None for the inbox, whose lines say it: the server writes it into
    each, and a line without it was written by an app that has the files of the home."""

    def sender_of(self, record: FeedbackRecord) -> str:
        """Return the sender of this feedback."""
        return self.sender or record.sender or OWNER_OF_HOME

    @property
    def basis(self) -> str:
        """What a case of this scope stands on."""
        return "gold" if self.reviewer else "feedback"

    def id_of(self, prefix: str, name: str, source: str | None = None) -> str:
        """Return the row id of `name` in `source`; a name that already is a row id is returned
        unchanged."""
        if name.startswith(prefix + "_") and len(name) == len(prefix) + 25:
            return name
        return row_id(prefix, self.agent, source or self.source, name)


@dataclass(frozen=True)
class NamedRecord:
    """A record with its row id, its name in its source and the hash of its content."""

    record: AnyRecord
    id: str
    source: str
    name: str
    fingerprint: str


def named_record(scope: Scope, record: AnyRecord) -> NamedRecord:
    """Return `record` with its identity. Raises Unreadable if its content is not valid JSON."""
    name, fingerprint = record.name_and_fingerprint()
    source = record.source or scope.source
    record_id = row_id(PREFIXES[type(record)], scope.agent, source, name)
    return NamedRecord(record, record_id, source, name, fingerprint)


def rater_source(scope: Scope, named: NamedRecord, record: FeedbackRecord) -> str:
    """Return the source to which the rater of this feedback belongs. A logged-in user is the same
    person on every path. No line can speak for that source, so no line can set the kind or weight
    of a user."""
    is_user = scope.sender_of(record).startswith(USER)
    return OWNER if is_user else named.source


def case_objection(records: Iterable[AnyRecord], case_rule: CaseRule) -> str | None:
    """Return why the cases among `records` are refused, or None if they are not."""
    for record in records:
        if isinstance(record, CaseRecord):
            reason = case_rule(record.checker, record.checker_config, record.reference)
            if reason is not None:
                return f"checker_config: {reason}"
    return None


def chain_of(messages: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """Yield the rows of a history. An id depends on everything up to and including its message."""
    parent = ""
    for message in messages:
        content = {key: value for key, value in message.items() if key != "role"}
        message_id = ids.derived("msg", parent, message["role"], ids.canonical(content))
        yield {
            "id": message_id,
            "parent_id": parent or None,
            "role": message["role"],
            "content": content,
        }
        parent = message_id


@dataclass
class Rows:
    """What a batch adds, by table; those that several records share are held by id."""

    scope: Scope
    versions: Mapping[str, str]
    """Name or id of a model version of the agent -> its id."""
    messages: dict[str, Row] = field(default_factory=dict)
    sessions: dict[str, Row] = field(default_factory=dict)
    subjects: dict[str, Row] = field(default_factory=dict)
    raters: dict[str, Row] = field(default_factory=dict)
    cases: list[Row] = field(default_factory=list)
    traces: list[Row] = field(default_factory=list)
    steps: list[Row] = field(default_factory=list)
    feedback: list[Row] = field(default_factory=list)
    targets: list[Row] = field(default_factory=list)

    def extend(self, other: Rows) -> None:
        """Add the rows of `other`; a shared row that is here already stays."""
        for into, rows in (
            (self.messages, other.messages),
            (self.sessions, other.sessions),
            (self.subjects, other.subjects),
            (self.raters, other.raters),
        ):
            for shared_id, row in rows.items():
                into.setdefault(shared_id, row)
        self.cases += other.cases
        self.traces += other.traces
        self.steps += other.steps
        self.feedback += other.feedback
        self.targets += other.targets

    def add(self, named: NamedRecord) -> None:
        """Add the rows of a new record."""
        if isinstance(named.record, TraceRecord):
            self._trace(named, named.record)
        elif isinstance(named.record, FeedbackRecord):
            self._feedback(named, named.record)
        else:
            self._case(named, named.record)

    def _origin(self, named: NamedRecord) -> Row:
        return {
            "id": named.id,
            "agent_id": self.scope.agent_id,
            "source": named.source,
            "external_id": named.name,
            "fingerprint": named.fingerprint,
            "recorded_at": self.scope.recorded_at,
        }

    def _owner(
        self, into: dict[str, Row], prefix: str, source: str, name: str | None, **columns: Any
    ) -> str | None:
        """Note the row of a session, subject or rater and return its id, or None without a name."""
        if name is None:
            return None
        owner_id = row_id(prefix, self.scope.agent, source, name)
        if owner_id not in into:
            into[owner_id] = {
                "id": owner_id,
                "agent_id": self.scope.agent_id,
                "source": source,
                "external_id": name,
                "recorded_at": self.scope.recorded_at,
                **columns,
            }
        return owner_id

    def _chain(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Note the rows of `messages` and return the id of the last one."""
        last_id = ""
        for row in chain_of(messages):
            last_id = row["id"]
            self.messages.setdefault(last_id, row)
        return last_id

    def _id_of(self, prefix: str, name: str | None, source: str) -> str | None:
        return self.scope.id_of(prefix, name, source) if name else None

    def _trace(self, named: NamedRecord, record: TraceRecord) -> None:
        scope = self.scope
        vouched = is_sealed(scope.gateway_seal, scope.agent, named.source, record)
        metadata = record.metadata
        if not vouched and (claims := claims_of(record)):
            metadata = {**(metadata or {}), CLAIMED: claims}
        self.traces.append(
            {
                **self._origin(named),
                "session_id": self._owner(self.sessions, "ses", named.source, record.session),
                "subject_id": self._owner(self.subjects, "sub", named.source, record.subject),
                "parent_id": self._id_of("trc", record.parent, named.source),
                "case_id": self._id_of("cas", record.case, named.source),
                "input_id": self._chain(record.input),
                "output": record.output,
                "status": record.status,
                "metadata": metadata,
                "occurred_at": record.occurred_at,
                "seal": record.seal if vouched else None,
            }
        )
        for position, step in enumerate(record.steps):
            row = self._step(named.id, position, step)
            self.steps.append(row | (self._gateway_facts(step) if vouched else NO_FACTS))

    def _gateway_facts(self, step: StepRecord) -> Row:
        return {
            "model_version_id": self.versions[step.model_version] if step.model_version else None,
            "deployment": step.deployment,
            "routing": step.routing.model_dump(exclude_none=True) if step.routing else None,
            "cost": step.cost,
        }

    def _step(self, trace_id: str, position: int, step: StepRecord) -> Row:
        return {
            "trace_id": trace_id,
            "position": position,
            "kind": step.kind,
            "name": step.name,
            "input": step.input,
            "output": step.output,
            "status": step.status,
            "finish_reason": step.finish_reason,
            "started_at": step.started_at,
            "ended_at": step.ended_at,
            "requested_model": step.model,
            "served_model": step.served_model,
            "sampling": step.sampling,
            "prompt_tokens": step.tokens.prompt if step.tokens else None,
            "completion_tokens": step.tokens.completion if step.tokens else None,
            "cached_tokens": step.tokens.cached if step.tokens else None,
            "reasoning_tokens": step.tokens.reasoning if step.tokens else None,
            "token_ids": step.token_ids,
            "token_logprobs": step.token_logprobs,
            "first_token_at": step.first_token_at,
            "complete": step.complete,
            "error": step.error,
            "agent_id": self.scope.agent_id,
            "recorded_at": self.scope.recorded_at,
        }

    def _feedback(self, named: NamedRecord, record: FeedbackRecord) -> None:
        self.feedback.append(
            {
                **self._origin(named),
                "kind": record.kind,
                "name": record.name,
                "value": record.value,
                "scale": record.scale.model_dump() if record.scale else None,
                "comment": record.comment,
                "rater_id": self.rater(record.rater, rater_source(self.scope, named, record)),
                "sender": self.scope.sender_of(record),
                "occurred_at": record.occurred_at,
                "supersedes": self._id_of("fbk", record.supersedes, named.source),
                "retracts": self._id_of("fbk", record.retracts, named.source),
                "metadata": record.metadata,
            }
        )
        for position, target in enumerate(record.targets):
            self.targets.append(self._target(named, position, target))

    def rater(self, rater: Rater | None, source: str) -> str | None:
        """Note the row of the rater and return its id, or None without a rater."""
        if rater is None:
            return None
        weight = 1.0 if rater.weight is None else rater.weight
        return self._owner(
            self.raters, "rat", source, rater.id, kind=rater.kind or "person", weight=weight
        )

    def _target(self, named: NamedRecord, position: int, target: TargetRef) -> Row:
        return {
            "feedback_id": named.id,
            "position": position,
            "kind": target.kind,
            "source": target.source or named.source,
            "external_id": target.id,
            "step": target.step,
            "target_id": None,
        }

    def _case(self, named: NamedRecord, record: CaseRecord) -> None:
        self.cases.append(
            {
                **self._origin(named),
                "input_id": self._chain(record.input),
                "reference": record.reference,
                "checker": record.checker,
                "checker_config": record.checker_config,
                "group_key": record.group,
                "basis": self.scope.basis,
                "slices": record.slices,
                "reviewer_id": self.reviewer(),
            }
        )

    def reviewer(self) -> str | None:
        """Note the row of the person who vouches for the cases of this scope and return its id, or
        None without a reviewer."""
        return self.rater(Rater(id=self.scope.reviewer), OWNER) if self.scope.reviewer else None
