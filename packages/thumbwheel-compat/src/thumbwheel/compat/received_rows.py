"""Rows that a dialect of the server receives: stored when `store_rows` returns, so that the next
request of the client sees them.

They pass what every row passes that comes over HTTP: quotas, and redaction of personal data.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import HTTPException, Request
from fastapi import Path as PathParameter
from pydantic import Field

from thumbwheel.access.types import Principal
from thumbwheel.capture.ingest import save, scope_of
from thumbwheel.capture.quota import QuotaExceeded
from thumbwheel.capture.redact import Redactor
from thumbwheel.core.errors import InputError
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers.json_text import HasNul, has_nul
from thumbwheel.importers.source import Line
from thumbwheel.importers.sources.jsonl import SOURCE
from thumbwheel.importers.types import AnyRecord

Row = dict[str, Any]
"""A line of our own format."""
Text = Annotated[str, Field(pattern=r"^[^\x00]*$")]
"""A text that a database takes: without NUL and without half of a surrogate pair."""
AgentName = Annotated[str, PathParameter(min_length=1, max_length=400, pattern=r"^[^\x00]*$")]
"""An agent in a path."""
ERASED = "its target was erased"


def store_rows(
    request: Request, agent: str, source: str, groups: Sequence[Sequence[Row]]
) -> list[str | None]:
    """Store the rows of each group as a whole, as rows of this source; returns for each group why
    it is not stored, None where it is."""
    ws: Workspace = request.app.state.workspace
    redactor = Redactor.of_home(ws)
    reasons: list[str | None] = [None] * len(groups)
    lines = []
    texts = []
    for index, group in enumerate(groups):
        rows = [dict(redactor.line(row)) for row in group]
        records = _records(rows)
        if isinstance(records, str):
            reasons[index] = records
            continue
        lines.append(Line(index, records, ""))
        texts += [json.dumps({**row, "agent": agent}, ensure_ascii=False) for row in rows]
    if not lines:
        return reasons
    _admit(request, texts)
    scope = scope_of(ws, agent, source, sender=request.state.principal.id)
    for result in save(ws, scope, lines):
        reasons[result.line.number] = ERASED if result.erased else result.reason or None
    return reasons


def rater_of(request: Request, claimed: str | None) -> str | None:
    """Return whose words the request brings: those of the user who is logged in, else of whomever
    the app names."""
    principal: Principal = request.state.principal
    return principal.name if principal.kind == "user" else claimed


def require_stored(reasons: Sequence[str | None]) -> None:
    """Raise InputError where a group is not stored."""
    for index, reason in enumerate(reasons):
        if reason is not None:
            raise InputError(f"row {index}", reason, "Correct it, and send it again")


def _records(rows: Sequence[Row]) -> list[AnyRecord] | str:
    """Return the records of a group, or the reason why there are none."""
    records: list[AnyRecord] = []
    for row in rows:
        objection = objection_to(row)
        if objection is not None:
            return objection
        item = SOURCE.item(1, row, "")
        if not isinstance(item, Line):
            return item.reason
        records += item.records
    return records


def _admit(request: Request, texts: Sequence[str]) -> None:
    """Count the rows for the quotas; raises HTTPException beyond them."""
    admit = getattr(request.app.state, "admit", None)
    if admit is None:
        return
    principal: Principal = request.state.principal
    key = principal.name if principal.kind == "key" else None
    try:
        admit(key, [text.encode("utf-8", "backslashreplace") for text in texts])
    except QuotaExceeded as error:
        raise HTTPException(error.status, str(error)) from None


def objection_to(value: Any) -> str | None:
    """Return why no database takes this JSON value; None if one does."""
    if has_nul(value):
        return str(HasNul())
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return "it holds half of a surrogate pair, which is no text"
    except ValueError:
        return "it holds a number that JSON does not have"
    return None
