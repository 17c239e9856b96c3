"""What every shape in the table keeps: pure, typed rows with weight and provenance, that survive
Parquet and export."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from thumbwheel.datasets.files import SpillReader, SpillWriter, read_parquet, write_parquet
from thumbwheel.datasets.row_stats import RowStats, columns_of
from thumbwheel.datasets.shapes import SHAPES
from thumbwheel.datasets.types import (
    Asked,
    DatasetConfig,
    Drop,
    Edge,
    Evidence,
    JudgedText,
    JudgingCase,
    Row,
)
from thumbwheel.rewards.types import Value

CONFIG = DatasetConfig(chats_from_preferences=True)


def answer(
    text: str,
    good: bool | None,
    *,
    origin: str = "upvote",
    corrected: bool = False,
    conflict: bool = False,
) -> JudgedText:
    strength = 0.0 if good is None else 0.5
    named = (f"fbk_{text}",)
    value = None if good is None else Value(float(good), (1.0, 5.0), "rating", named)
    return JudgedText(
        text,
        good,
        strength,
        conflict,
        origin,
        corrected,
        "g1",
        named,
        (f"trc_{text}",),
        ("sub_1",),
        "stop",
        (1, 2),
        value,
    )


def evidence() -> Evidence:
    answers = (
        answer("good", True),
        answer("bad", False, origin="downvote"),
        answer("edited", True, origin="correction"),
        answer("original", None, corrected=True),
        answer("torn", None, conflict=True),
        answer("unjudged", None),
        answer("preferred", None),
    )
    edges = (
        Edge(2, 3, "correction", 1.0, ("fbk_c",)),
        Edge(6, 5, "preference", 0.25, ("fbk_p", "fbk_q")),
    )
    prompt = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "q"}]},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    cases = (
        JudgingCase("cas_1", "msg_1", {"a": 1}, None, None),
        JudgingCase("cas_2", "msg_1", "7", "exact_answer", {"require_mark": True}),
    )
    asked = (Asked("g1", "trc_good", "sub_1"), Asked("g1", "trc_bad", None))
    return Evidence("msg_1", prompt, tools, "train", answers, edges, cases, asked)


@pytest.fixture(params=SHAPES.names())
def shape(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def rows_of(shape: str) -> list[Row]:
    return [row for row in SHAPES.get(shape)().rows(evidence(), CONFIG) if isinstance(row, Row)]


def test_rows_are_of_the_declared_class_and_complete(shape: str) -> None:
    kind, rows = SHAPES.get(shape)(), rows_of(shape)
    assert kind.name == shape
    assert rows
    for row in rows:
        assert type(row) is kind.row
        assert (row.split, row.group, row.prompt) == ("train", "g1", evidence().prompt)
        assert 0 < row.weight <= 1
        assert row.feedback_ids or kind.unjudged
        assert row.trace_ids
        assert row.subject_ids == ["sub_1"]
        assert row.origin
    assert len({row.row_id for row in rows}) == len(rows)


def test_a_shape_is_pure(shape: str) -> None:
    original, untouched = evidence(), evidence()
    first = list(SHAPES.get(shape)().rows(original, CONFIG))
    assert original == untouched
    assert first == list(SHAPES.get(shape)().rows(copy.deepcopy(original), CONFIG))


def test_what_becomes_no_row_says_why(shape: str) -> None:
    empty = Evidence(
        "msg_1",
        evidence().prompt,
        None,
        "train",
        (answer("unjudged", None), answer("torn", None, conflict=True)),
        (),
    )
    drops = list(SHAPES.get(shape)().rows(empty, CONFIG))
    assert all(isinstance(drop, Drop) and drop.reason for drop in drops)
    assert SHAPES.get(shape)().missing(RowStats()) is not None


def stats_of(rows: list[Row]) -> RowStats:
    stats = RowStats()
    stats.take(columns_of(rows))
    return stats


def test_a_shape_is_satisfied_by_rows_in_train_only(shape: str) -> None:
    kind, rows = SHAPES.get(shape)(), rows_of(shape)
    assert kind.missing(stats_of(rows)) is None
    held = [type(row)(**(asdict(row) | {"split": "gate"})) for row in rows]
    assert kind.missing(stats_of(held)) is not None


def test_fitting_changes_columns_that_exist_and_keeps_every_row(shape: str) -> None:
    kind, rows = SHAPES.get(shape)(), rows_of(shape)
    fitted = kind.fit(stats_of(rows), CONFIG)
    json.dumps(fitted, allow_nan=False)
    columns = {name: [getattr(row, name) for row in rows] for name in kind.adjusts}
    untouched = copy.deepcopy(columns)
    changed = kind.finish(columns, fitted)
    assert columns == untouched
    assert changed.keys() <= {field.name for field in fields(kind.row)}
    assert all(len(values) == len(rows) for values in changed.values())


def test_a_spill_gives_every_row_back_in_the_order_of_its_id(shape: str, tmp_path: Path) -> None:
    kind, rows = SHAPES.get(shape)(), rows_of(shape)
    spill = SpillWriter(tmp_path, kind.row)
    for row in rows:
        spill.add(row)
    spill.close()
    back = [
        row
        for table in SpillReader([tmp_path], kind.row).tables("train")
        for row in spill.columns.decoded(table)
    ]
    assert back == sorted(rows, key=lambda row: row.row_id)
    assert list(SpillReader([tmp_path], kind.row).tables("gate")) == []


def test_parquet_round_trip(shape: str, tmp_path: Path) -> None:
    kind, rows = SHAPES.get(shape)(), rows_of(shape)
    write_parquet(tmp_path / "rows.parquet", kind.row, rows)
    assert list(read_parquet(tmp_path / "rows.parquet", kind.row)) == rows
    write_parquet(tmp_path / "none.parquet", kind.row, [])
    assert list(read_parquet(tmp_path / "none.parquet", kind.row)) == []


def test_trl_columns_are_message_lists(shape: str) -> None:
    for row in rows_of(shape):
        columns = SHAPES.get(shape)().trl_columns(row)
        for messages in (
            value
            for value in columns.values()
            if isinstance(value, list) and isinstance(value[0], dict)
        ):
            assert all({"role", "content"} <= message.keys() for message in messages)
