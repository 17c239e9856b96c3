"""Rows that are encoded before the transaction are those that SQLAlchemy would have written."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from thumbwheel.db.columns import Json, Utc, text
from thumbwheel.db.dialects import Backend
from thumbwheel.db.encoded_rows import EncodedRow, encoded, insert_missing, insert_rows
from thumbwheel.db.engine import writing

TABLE = sa.Table(
    "encoded_samples",
    sa.MetaData(),
    sa.Column("id", text(40), primary_key=True),
    sa.Column("content", text()),
    sa.Column("metadata", Json),
    sa.Column("count", sa.Integer),
    sa.Column("share", sa.Float),
    sa.Column("complete", sa.Boolean),
    sa.Column("recorded_at", Utc, nullable=False),
)
NOW = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)
TEXTS = ["", "\\N", "\\", "\\.", "a\tb", "a\nb\r\nc", "\\n", "'\"", "ü 你 🌍", "\x0b\x1f", "end\\"]
VALUES: list[Any] = [
    None,
    {},
    [],
    "text",
    "\\N",
    {"a\tb": ["\\", "\n", "ü\u2028", None]},
    0.1,
    True,
]


@pytest.fixture
def connection(backend: Backend) -> Iterator[sa.Connection]:
    with writing(backend) as engine, engine.begin() as opened:
        TABLE.create(opened)
        yield opened


def samples() -> list[dict[str, Any]]:
    return [
        {
            "id": f"row-{number:02}",
            "content": TEXTS[number % len(TEXTS)] if number else None,
            "metadata": VALUES[number % len(VALUES)],
            "count": number if number % 2 else None,
            "share": number / 3,
            "complete": [True, False, None][number % 3],
            "recorded_at": NOW,
        }
        for number in range(max(len(TEXTS), len(VALUES)))
    ]


def stored(connection: sa.Connection) -> list[dict[str, Any]]:
    query = sa.select(TABLE).order_by(TABLE.c.id)
    return [dict(row) for row in connection.execute(query).mappings()]


@pytest.mark.parametrize("is_encoded", [True, False])
def test_every_value_comes_back(connection: sa.Connection, is_encoded: bool) -> None:
    rows: list[dict[str, Any]] = samples()
    if is_encoded:
        rows = [encoded(TABLE, row, connection.dialect) for row in rows]
        assert all(isinstance(row, EncodedRow) for row in rows)
    insert_rows(connection, TABLE, rows)
    assert stored(connection) == samples()
    # SQLAlchemy's own form of a row is the same
    connection.execute(TABLE.delete())
    connection.execute(TABLE.insert(), samples())
    assert stored(connection) == samples()


def test_rows_that_exist_stay_as_they_are(connection: sa.Connection) -> None:
    first, second, third = samples()[:3]
    insert_missing(connection, TABLE, {"a": first, "b": second})
    changed = {**second, "content": "another"}
    # twice in one transaction
    insert_missing(connection, TABLE, {"b": changed, "c": third})
    assert stored(connection) == [first, second, third]


@pytest.mark.parametrize(
    "change", [{"recorded_at": NOW.replace(tzinfo=None)}, {"metadata": {"x": object()}}]
)
def test_what_cannot_be_stored_is_refused_before_the_write(
    connection: sa.Connection, change: dict[str, Any]
) -> None:
    with pytest.raises((TypeError, sa.exc.StatementError)):
        encoded(TABLE, samples()[0] | change, connection.dialect)
