"""What is kept in a column of JSON or time comes back as it was."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import example, given
from hypothesis import strategies as st

from thumbwheel.db.columns import Json, Utc

TABLE = sa.Table(
    "stored_values",
    sa.MetaData(),
    sa.Column("number", sa.Integer),
    sa.Column("value", Json()),
    sa.Column("time", Utc()),
)
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


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> sa.Engine:
    database = sa.create_engine(f"sqlite:///{Path(tmp_path_factory.mktemp('columns')) / 'db'}")
    TABLE.metadata.create_all(database)
    return database


def back(engine: sa.Engine, **values: Any) -> Any:
    with engine.begin() as connection:
        connection.execute(TABLE.delete())
        connection.execute(TABLE.insert().values(values))
        return connection.execute(sa.select(TABLE.c.value, TABLE.c.time)).one()


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
        assert connection.execute(sa.select(TABLE.c.value["reason"].as_string())).scalar() == "late"
        assert (
            connection.execute(sa.select(sa.func.count()).where(TABLE.c.value.is_(None))).scalar()
            == 0
        )


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
