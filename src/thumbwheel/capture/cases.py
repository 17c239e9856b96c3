"""Verbs for gold cases: add what the owner reviewed, list what there is, edit it, and vouch for it
or not.

Not here: cases that come in files (`ingest.py`), running a checker (the evaluation stage).
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pydantic import ValidationError

from thumbwheel.capture import store
from thumbwheel.capture.feedback import check_text, store_record
from thumbwheel.capture.ingest import scope_under
from thumbwheel.capture.judged import Judged, meaning
from thumbwheel.capture.rows import case_objection
from thumbwheel.capture.trace_filter import TraceFilter
from thumbwheel.capture.trace_queries import answered_traces, judgements, trace_ids
from thumbwheel.capture.trace_types import CaseDraft
from thumbwheel.capture.traces import show_trace
from thumbwheel.core import ids
from thumbwheel.core.errors import DataError, InputError, NotFound, at_field
from thumbwheel.core.present import json_text
from thumbwheel.db.feedback_in_force import OWNER
from thumbwheel.db.message_chains import conversation
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.importers.json_text import json_value
from thumbwheel.importers.regular_file import file_error, read_regular
from thumbwheel.importers.types import CaseRecord, Unreadable, explain
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import require_agent

DRAWN = 10_000
"""The newest traces of a kind of judgement that are drawn from."""
MOST_BYTES = 32 << 20
"""Of the cases that are made of traces at once."""


def add_case(ws: Workspace, agent: str, reviewer: str, **fields: Any) -> str:
    """Store a case that `reviewer` vouches for (basis gold) and return its id; `fields` are those
    of CaseRecord.

    Raises InputError for an impossible case and for an id that is stored with other content.
    """
    try:
        record = CaseRecord.model_validate(
            {key: value for key, value in fields.items() if value is not None}
        )
    except ValidationError as error:
        raise InputError("case", explain(error), "See: thumbwheel case add --help") from None
    return store_record(ws, agent, record, reviewer)


def case_draft(ws: Workspace, agent: Agent, name: str) -> CaseDraft:
    """Return the case that a trace becomes. The reference is its newest correction, else its
    answer. Raises NotFound, and DataError for a trace without an answer or a question."""
    trace = show_trace(ws, agent.slug, name)
    corrections = [
        judgement["value"] for judgement in trace["feedback"] if judgement["kind"] == "correction"
    ]
    reference = corrections[-1] if corrections else trace["output"]
    if reference is None or not trace["input"]:
        what = "answer" if reference is None else "question"
        raise DataError(f"trace {name!r}", f"it has no {what}", "Leave it out")
    return CaseDraft(trace["id"], trace["input"], reference)


def case_drafts(ws: Workspace, agent: Agent, names: Iterable[str]) -> list[CaseDraft]:
    """Return the cases that traces become, one for each trace. Raises as `case_draft`, and
    InputError if they are too large together."""
    with ws.db.read() as connection:
        named = trace_ids(connection, agent, names)
    drafts: list[CaseDraft] = []
    size = 0
    for trace_id in named:
        drafts.append(case_draft(ws, agent, trace_id))
        size += len(json_text(drafts[-1], indent=None))
        if size > MOST_BYTES:
            raise InputError(
                f"{len(named)} traces",
                f"{len(drafts)} of them have more than {MOST_BYTES >> 20} MB already",
                "Make cases of fewer traces at a time",
            )
    return drafts


def store_drafts(
    ws: Workspace, agent: Agent, drafts: Sequence[CaseDraft], reviewer: str
) -> list[str]:
    """Store drafts as gold cases, for which `reviewer` vouches, and return their ids."""
    return [
        add_case(ws, agent.slug, reviewer, input=draft.input, reference=draft.reference)
        for draft in drafts
    ]


def draw_drafts(ws: Workspace, agent: Agent, count: int) -> list[CaseDraft]:
    """Draw `count` questions that people corrected, or whose answers they liked and nobody
    disliked, of the newest traces. A question that is a gold case already is not drawn, and none
    twice. The same home draws the same ones.

    Raises DataError if there are fewer.
    """
    with ws.db.read() as connection:
        asked = store.gold_inputs(connection, agent.id)
        usable: dict[str, str] = {}  # input -> trace
        for judged in (Judged.CORRECTED, Judged.GOOD):
            rows = list(answered_traces(connection, agent.id, TraceFilter(judged=judged), DRAWN))
            disliked = set()
            if judged is Judged.GOOD:
                by_trace = judgements(connection, agent.id, [row.id for row in rows], is_brief=True)
                for trace_id, statements in by_trace.items():
                    if any(meaning(dict(row)) is Judged.BAD for row in statements):
                        disliked.add(trace_id)
            for row in rows:
                if row.id not in disliked and row.input_id not in asked:
                    usable.setdefault(row.input_id, row.id)
    if len(usable) < count:
        raise DataError(
            f"--count {count}",
            f"only {len(usable)} more questions have an answer that people liked or corrected",
            f"Draw fewer, or import or rate more: thumbwheel queue create review --agent "
            f"{agent.slug}",
        )
    # by a hash: neither the newest nor those of one person come first
    drawn = sorted(usable, key=lambda input_id: ids.fingerprint(["case", input_id]))[:count]
    return case_drafts(ws, agent, [usable[input_id] for input_id in drawn])


@dataclass(frozen=True)
class WholeCase:
    """A case with all messages of its input."""

    id: str
    input: list[dict[str, Any]]
    reference: Any
    checker: str | None
    checker_config: dict[str, Any] | None
    group: str | None
    slices: dict[str, Any] | None
    basis: str
    reviewer: str | None
    source: str
    recorded_at: datetime


def find_case(ws: Workspace, agent: Agent, case_id: str) -> WholeCase:
    """Return a case of the agent. Raises NotFound."""
    with ws.db.read() as connection:
        row = store.case_row(connection, agent.id, case_id)
        messages = conversation(connection, row["input_id"]) if row is not None else []
    if row is None:
        raise NotFound(
            f"case {case_id!r}", f"agent {agent.slug!r} has none of that id", "List the cases"
        )
    names = ("id", "reference", "checker", "checker_config", "slices", "basis", "reviewer")
    shared = {name: row[name] for name in (*names, "source", "recorded_at")}
    return WholeCase(input=messages, group=row["group_key"], **shared)


def edit_case(
    ws: Workspace,
    agent: Agent,
    case_id: str,
    reviewer: str,
    *,
    reference: str | None = None,
    checker: str | None = None,
    group: str | None = None,
) -> None:
    """Change what makes an answer to a case right; `reviewer` vouches for it from now on. None
    keeps what is there.

    A reference that is no text is given as JSON. Raises NotFound, InputError for an impossible
    case.
    """
    case = find_case(ws, agent, case_id)
    changed: dict[str, Any] = {
        "input": case.input,
        "reference": case.reference,
        "checker": checker or case.checker,
        "group": group or case.group,
        "slices": case.slices,
    }
    if checker in (None, case.checker):
        changed["checker_config"] = case.checker_config
    if reference is not None:
        is_json = case.reference is not None and not isinstance(case.reference, str)
        changed["reference"] = _as_json(reference) if is_json else reference
    scope = scope_under(ws, agent.id, agent.slug, OWNER, reviewer)
    try:
        record = CaseRecord.model_validate(_stated(changed))
        check_text(record)
    except ValidationError as error:
        raise InputError("case", explain(error), "Give a reference or a checker") from None
    if objection := case_objection([record], scope.case_rule):
        raise at_field(InputError("case", objection, "Choose another checker"), "checker")
    work = partial(store.edit_case, scope=scope, case_id=case_id, record=record)
    ws.db.write(work, of_agent(agent.id))


def _stated(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _as_json(text: str) -> Any:
    try:
        return json_value(text.encode())
    except Unreadable as error:
        refusal = InputError("the reference", str(error), "It is JSON here: give JSON again")
        raise at_field(refusal, "reference") from None


def vouch_for(ws: Workspace, agent: Agent, case_ids: Sequence[str], reviewer: str) -> None:
    """Make cases gold, many at once. Raises NotFound for an unknown one; then none is changed."""
    case_ids = _known(ws, agent, case_ids)
    scope = scope_under(ws, agent.id, agent.slug, OWNER, reviewer)
    ws.db.write(partial(store.vouch, scope=scope, case_ids=case_ids), of_agent(agent.id))


def _known(ws: Workspace, agent: Agent, case_ids: Sequence[str]) -> list[str]:
    """Return each of the cases once. Raises NotFound for an unknown one."""
    different = list(dict.fromkeys(case_ids))
    for case_id in different:
        find_case(ws, agent, case_id)
    return different


def withdraw_reviews(ws: Workspace, agent: Agent, case_ids: Sequence[str]) -> None:
    """Take back that these cases are gold. Raises NotFound for an unknown one; then none is
    changed."""
    case_ids = _known(ws, agent, case_ids)

    def work(connection: sa.Connection) -> None:
        for case_id in case_ids:
            store.withdraw_review(connection, case_id)

    ws.db.write(work, of_agent(agent.id))


def withdraw_review(connection: sa.Connection, case_id: str) -> None:
    """Set the basis of a case back to feedback, because nobody vouches for it any more."""
    store.withdraw_review(connection, case_id)


def read_cases(path: Path) -> list[dict[str, Any]]:
    """Return the fields of the cases in a JSON file, one object or a list of them. Raises
    InputError."""
    try:
        content = json_value(read_regular(path).removeprefix(codecs.BOM_UTF8))
    except Unreadable as error:
        fix = "Give a JSON object with one case, or a list of them; JSON lines go through import"
        raise file_error(path, str(error), fix) from None
    cases = content if isinstance(content, list) else [content]
    if not cases or not all(isinstance(case, dict) for case in cases):
        raise file_error(
            path, "it holds no case", "Give an object with input and reference, or a list of them"
        )
    for case in cases:
        case.pop("type", None)
    return cases


def list_cases(
    ws: Workspace,
    agent: str,
    *,
    basis: str | None = None,
    limit: int = 20,
    after: str | None = None,
) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Return (basis -> number of all cases, a page of cases), the newest first, starting after the
    case with the id `after`; each case has the content of its last input message as `input`. Raises
    NotFound for an unknown agent or basis."""
    if basis not in (None, "gold", "feedback"):
        raise NotFound(f"basis {basis!r}", "there is no such basis", "Known: gold, feedback")
    agent_id = require_agent(ws, agent).id
    with ws.db.read() as connection:
        rows = store.case_rows(connection, agent_id, basis, limit, after)
        counts = store.case_counts(connection, agent_id)
    hidden = ("agent_id", "reviewer_id", "input_id", "fingerprint", "message")
    cases = []
    for row in rows:
        case = {key: row[key] for key in row if key not in hidden}
        cases.append(case | {"input": row["message"].get("content")})
    return counts, cases
