"""What is kept in a column of JSON or time comes back as it was."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from thumbwheel.db.columns import Json, Utc
from thumbwheel.db.dialects import Backend, json_text

TABLE = sa.Table(
    "stored_values",
    sa.MetaData(),
    sa.Column("number", sa.Integer),
    sa.Column("value", Json()),
    sa.Column("time", Utc()),
)
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
"""One table for all examples: each empties it first."""
TEXT = st.text(st.characters(codec=None))  # half surrogate pairs too
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)


@pytest.fixture
def engine(backend: Backend) -> Iterator[sa.Engine]:
    database = backend.engine()
    TABLE.metadata.create_all(database)
    yield database
    database.dispose()


def back(engine: sa.Engine, **values: Any) -> Any:
    with engine.begin() as connection:
        connection.execute(TABLE.delete())
        connection.execute(TABLE.insert().values(values))
        return connection.execute(sa.select(TABLE.c.value, TABLE.c.time)).one()


@SHARED
@given(VALUES)
@example("5")
@example({"half": "\ud800"})
def test_json_comes_back(engine: sa.Engine, value: Any) -> None:
    stored = back(engine, value=value).value
    assert stored == value and (isinstance(value, float) or type(stored) is type(value))


def test_an_absent_value_is_null_and_parts_of_a_value_can_be_asked_for(engine: sa.Engine) -> None:
    assert back(engine, value=None).value is None
    back(engine, value={"reason": "late"})
    with engine.connect() as connection:
        assert connection.execute(sa.select(json_text(TABLE.c.value, "reason"))).scalar() == "late"
        assert connection.execute(sa.select(json_text(TABLE.c.value, "other"))).scalar() is None
        assert (
            connection.execute(sa.select(sa.func.count()).where(TABLE.c.value.is_(None))).scalar()
            == 0
        )


@SHARED
@given(TEXT, TEXT)
@example("late \U0001f553", "\x00")
@example("late \U0001f553\\u0000", "\ud800")
@example("\udc00\U0001f553", "")
@example("\\ud83d\udc00 \\\ud83d", "\\")
def test_text_is_taken_out_of_any_json(engine: sa.Engine, reason: str, other: str) -> None:
    """Also out of JSON with what PostgreSQL cannot hold as text, NUL and half surrogate pairs."""
    back(engine, value={"other": other, "reason": reason})
    with engine.connect() as connection:
        text = connection.execute(sa.select(json_text(TABLE.c.value, "reason"))).scalar()
    if re.fullmatch("[^\x00\ud800-\udfff]*", reason):
        assert text == reason


@SHARED
@given(st.datetimes(), st.integers(-14, 14))
def test_times_come_back_in_utc(engine: sa.Engine, naive: datetime, hours: int) -> None:
    time = (datetime(2026, 1, 1) + (naive - datetime(naive.year, 1, 1))).replace(
        tzinfo=timezone(timedelta(hours=hours))
    )
    stored = back(engine, time=time).time
    assert stored == time and stored.tzinfo is UTC


def test_a_naive_time_is_refused(engine: sa.Engine) -> None:
    with pytest.raises(sa.exc.StatementError, match="naive"):
        back(engine, time=datetime(2026, 1, 1))
