"""The audit log: whatever is done to it, it shows."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from thumbwheel.access import audit
from thumbwheel.access.audit import Act
from thumbwheel.core.seal import make_seal
from thumbwheel.db.schema import audit as rows
from thumbwheel.db.workspace import Workspace

ROWS = 5


@pytest.fixture
def log(empty_ws: Workspace) -> Workspace:
    """A home with five rows in its log."""
    for number in range(ROWS):
        audit.record(empty_ws, Act("usr_1", "case.add", "support", {"number": number}))
    return empty_ws


def change(ws: Workspace, statement: sa.Executable) -> None:
    ws.db.write(lambda connection: connection.execute(statement))


def test_what_nobody_touched_is_whole(log: Workspace) -> None:
    assert audit.verify(log) == audit.AuditVerdict(ROWS, None, 0)
    assert [entry.number for entry in audit.entries(log, limit=2, before=4)] == [3, 2]


@pytest.mark.parametrize(
    ("values", "row"),
    [
        ({"actor": "usr_2"}, 2),
        ({"action": "case.remove"}, 2),
        ({"agent": None}, 3),
        ({"content": {"number": 9}}, 4),
        ({"mac": "0" * 64}, 5),
    ],
)
def test_a_changed_row(log: Workspace, values: dict[str, object], row: int) -> None:
    change(log, sa.update(rows).where(rows.c.number == row).values(**values))
    assert audit.verify(log).problem == f"row {row} is not as it was written"


def test_a_row_that_is_missing_in_the_middle_or_at_the_end(log: Workspace) -> None:
    change(log, sa.delete(rows).where(rows.c.number > 3))
    assert audit.verify(log).problem == "rows 4 to 5 are missing at the end"
    change(log, sa.delete(rows).where(rows.c.number == 2))
    assert audit.verify(log).problem == "row 2 is missing"
    change(log, sa.delete(rows))
    assert audit.verify(log).problem == "rows 1 to 5 are missing at the end"


def test_two_rows_that_changed_places(log: Workspace) -> None:
    for number, other in ((2, 9), (3, 2), (9, 3)):
        change(log, sa.update(rows).where(rows.c.number == number).values(number=other))
    assert audit.verify(log).problem == "row 2 is not as it was written"


def earlier_head(content: dict[str, object]) -> dict[str, object]:
    return content | {"number": 3}


def no_signature(content: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in content.items() if name != "signature"}


@pytest.mark.parametrize("forge", [earlier_head, no_signature])
def test_a_forged_head(
    log: Workspace, forge: Callable[[dict[str, object]], dict[str, object]]
) -> None:
    path = log.home.audit_head
    path.write_text(json.dumps(forge(json.loads(path.read_text()))))
    assert "the head of the audit log" in str(audit.verify(log).problem)


def test_a_head_that_is_gone(log: Workspace) -> None:
    log.home.audit_head.unlink()
    assert audit.verify(log).problem == "audit.head is missing"


def test_a_kill_between_the_row_and_the_head_is_no_fault(log: Workspace) -> None:
    seal = make_seal(log.home.access_key)
    log.db.write(lambda connection: audit.append(connection, seal, Act("usr_1", "gate.set")))
    assert audit.verify(log) == audit.AuditVerdict(ROWS + 1, None, 1)
    audit.record(log, Act("usr_1", "gate.set"))
    assert audit.verify(log) == audit.AuditVerdict(ROWS + 2, None, 0)
