"""Verbs for gold cases: add what the owner reviewed, list what there is.

Not here: cases that come in files (`ingest.py`), running a checker (the evaluation stage).
"""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pydantic import ValidationError

from thumbwheel.capture import store
from thumbwheel.capture.feedback import store_record
from thumbwheel.capture.json_text import json_value
from thumbwheel.capture.regular_file import file_error, read_regular
from thumbwheel.capture.types import CaseRecord, Unreadable, explain
from thumbwheel.core.errors import InputError, NotFound
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.versions import require_agent


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
