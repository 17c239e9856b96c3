"""Old traces go with all that is theirs; what something stands on stays, and is counted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from thumbwheel.capture.feedback import add_feedback
from thumbwheel.capture.ingest import save, scope_of
from thumbwheel.core.config import Home, Sources
from thumbwheel.datasets.build import build
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db import schema
from thumbwheel.db.leadership import Leadership
from thumbwheel.db.workspace import Workspace
from thumbwheel.homes.retention import Retained, retain
from thumbwheel.importers.source import Line
from thumbwheel.importers.sources.jsonl import SOURCE
from thumbwheel.server.maintenance import Maintenance

LATER = datetime.now(UTC) + timedelta(days=40)


@pytest.fixture
def thirty_days_kept(tmp_path: Path) -> Iterator[Workspace]:
    sources = Sources({"retention": {"days": 30, "agents": {"legal": None}}}, "none", {})
    with Workspace.open(Home.at(tmp_path / "home"), sources) as workspace:
        yield workspace


def store(ws: Workspace, *rows: dict[str, Any], agent: str = "desk") -> None:
    lines = []
    for number, row in enumerate(rows, 1):
        item = SOURCE.item(number, {"type": "trace", **row}, "")
        assert isinstance(item, Line), item
        lines.append(item)
    for result in save(ws, scope_of(ws, agent, "sdk"), lines):
        assert result.reason is None, result.reason


def numbered(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": f"t{number}",
        "session": f"s{number // 2}",
        "input": f"Where is order {number} of customer {number * 7}?",
        "output": f"It left on day {number}.",
        **more,
    }


def counts(ws: Workspace) -> dict[str, int]:
    tables = ("traces", "steps", "messages", "sessions", "feedback", "feedback_targets", "cases")
    with ws.db.read() as connection:
        return {
            name: connection.execute(
                sa.select(sa.func.count()).select_from(schema.metadata.tables[name])
            ).scalar_one()
            for name in tables
        }


def only(results: list[Retained]) -> Retained:
    (result,) = results
    return result


def test_old_traces_go_whole(thirty_days_kept: Workspace) -> None:
    store(thirty_days_kept, *(numbered(number, model="m") for number in range(4)))
    store(thirty_days_kept, numbered(9), agent="legal")
    add_feedback(thirty_days_kept, "desk", "t1", "thumb", True, rater="ann")
    assert only(retain(thirty_days_kept)).removed["traces"] == 0, "they are of today"
    before = counts(thirty_days_kept)
    planned = only(retain(thirty_days_kept, now=LATER, dry_run=True))
    assert counts(thirty_days_kept) == before
    result = only(retain(thirty_days_kept, now=LATER))
    assert result.removed == planned.removed
    assert result.removed["traces"] == 4
    assert result.stays == {}
    after = counts(thirty_days_kept)
    assert (after["traces"], after["messages"], after["sessions"]) == (1, 1, 1)
    assert (after["steps"], after["feedback"], after["feedback_targets"]) == (1, 0, 0)
    store(thirty_days_kept, numbered(0))
    assert counts(thirty_days_kept)["traces"] == 2, "an import may bring it back"


def test_what_something_stands_on_stays(thirty_days_kept: Workspace) -> None:
    store(thirty_days_kept, *(numbered(number) for number in range(40)))
    for number in range(40):
        add_feedback(thirty_days_kept, "desk", f"t{number}", "thumb", number % 3 > 0, rater="ann")
    dataset = build(thirty_days_kept, "desk", "labels", DatasetConfig())
    assert sum(dataset.counts.values()) == 40
    store(thirty_days_kept, *(numbered(number) for number in range(100, 106)))
    case = {
        "type": "case",
        "id": "c1",
        "input": numbered(100)["input"],
        "reference": "Soon.",
    }
    item = SOURCE.item(1, case, "")
    assert isinstance(item, Line), item
    save(thirty_days_kept, scope_of(thirty_days_kept, "desk", "sdk"), [item])
    result = only(retain(thirty_days_kept, now=LATER))
    assert result.stays == {"rows of a dataset": 40, "a gold case": 1}
    assert result.removed["traces"] == 5
    left = counts(thirty_days_kept)
    assert (left["traces"], left["feedback"], left["cases"]) == (41, 40, 1)
    again = only(retain(thirty_days_kept, now=LATER))
    assert again.removed["traces"] == 0


def test_a_run_of_a_gold_case_stays_also_where_it_asked_in_other_words(
    thirty_days_kept: Workspace,
) -> None:
    case = {"type": "case", "id": "c1", "input": "Where is order 7?", "reference": "Soon."}
    item = SOURCE.item(1, case, "")
    assert isinstance(item, Line), item
    save(thirty_days_kept, scope_of(thirty_days_kept, "desk", "sdk"), [item])
    store(thirty_days_kept, numbered(1, case="c1"), numbered(2))
    with thirty_days_kept.db.read() as connection:
        of_case = sa.select(schema.traces.c.external_id).where(schema.traces.c.case_id.is_not(None))
        assert connection.execute(of_case).scalars().all() == ["t1"]
    result = only(retain(thirty_days_kept, now=LATER))
    assert result.stays == {"a gold case": 1}
    assert result.removed["traces"] == 1
    assert (counts(thirty_days_kept)["traces"], counts(thirty_days_kept)["cases"]) == (1, 1)


def test_a_comparison_with_a_newer_answer_stays(thirty_days_kept: Workspace) -> None:
    store(thirty_days_kept, numbered(0), numbered(1), numbered(2))
    preference = {
        "type": "feedback",
        "targets": [{"trace": "t0"}, {"trace": "t2"}],
        "kind": "preference",
        "value": {"ranking": [[0], [1]]},
        "rater": "ann",
    }
    item = SOURCE.item(1, preference, "")
    assert isinstance(item, Line), item
    save(thirty_days_kept, scope_of(thirty_days_kept, "desk", "sdk"), [item])
    with_newer = datetime.now(UTC) + timedelta(days=10)

    def date(connection: sa.Connection) -> None:
        newer = schema.traces.update().where(schema.traces.c.external_id == "t2")
        connection.execute(newer.values(recorded_at=with_newer))

    thirty_days_kept.db.write(date)
    result = only(retain(thirty_days_kept, now=datetime.now(UTC) + timedelta(days=35)))
    assert result.stays == {"a comparison with a newer answer": 1}
    assert result.removed["traces"] == 1
    result = only(retain(thirty_days_kept, now=datetime.now(UTC) + timedelta(days=60)))
    assert result.removed["traces"] == 2
    assert counts(thirty_days_kept)["feedback"] == 0


def test_the_server_does_it_by_itself(thirty_days_kept: Workspace) -> None:
    store(thirty_days_kept, numbered(0))

    def age(connection: sa.Connection) -> None:
        connection.execute(schema.traces.update().values(recorded_at=LATER - timedelta(days=80)))

    thirty_days_kept.db.write(age)
    with (
        Leadership(thirty_days_kept.db) as leadership,
        Maintenance(thirty_days_kept, leadership, first=0.01, every=0.1) as maintenance,
    ):
        deadline = datetime.now(UTC) + timedelta(seconds=10)
        while counts(thirty_days_kept)["traces"] and datetime.now(UTC) < deadline:
            pass
        assert maintenance.problem() is None
    assert counts(thirty_days_kept)["traces"] == 0
