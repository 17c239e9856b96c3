"""Every source in the table keeps the contract: a stream of numbered items, nothing lost, nothing
raised for what a line holds."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thumbwheel.core.errors import InputError, NotFound
from thumbwheel.importers import lines
from thumbwheel.importers.detect import detect
from thumbwheel.importers.source import HOPELESS, Item, JsonLines, Line, Refused, Source
from thumbwheel.importers.sources import SOURCES

EVERY = pytest.mark.parametrize(
    "name", [name for name in SOURCES.names() if isinstance(SOURCES.get(name), JsonLines)]
)
"""Sources of rows with keys of their own; tables with any columns, and folders, have tests of
their own."""


def read(source: Source, path: Path) -> list[Item]:
    return list(source.read(path, lambda position: None))


def examples(name: str) -> list[str]:
    return SOURCES.get(name).example.splitlines()


@EVERY
def test_its_example_is_read_and_recognised(name: str, tmp_path: Path) -> None:
    for text in examples(name):
        path = tmp_path / "one.jsonl"
        path.write_text(text)
        (item,) = read(SOURCES.get(name), path)
        assert isinstance(item, Line), item
        assert item.records
        assert (item.number, item.text) == (1, text)
        assert detect(path).source == name


@EVERY
def test_no_other_source_claims_its_rows(name: str) -> None:
    for text in examples(name):
        assert [
            other for other in SOURCES.names() if SOURCES.get(other).claims(json.loads(text))
        ] == [name]


@EVERY
def test_an_array_and_pretty_printed_objects_are_read_like_lines(name: str, tmp_path: Path) -> None:
    plain, array, pretty = tmp_path / "a.jsonl", tmp_path / "a.json", tmp_path / "b.json"
    rows = [json.loads(text) for text in examples(name)]
    plain.write_text("\n".join(examples(name)))
    array.write_text(
        "\ufeff" + json.dumps(rows, indent=2, ensure_ascii=False).replace("\n", "\r\n")
    )
    pretty.write_text("\n".join(json.dumps(row, indent=1) for row in rows))
    source = SOURCES.get(name)
    wanted = [(item.number, item.records) for item in read(source, plain) if isinstance(item, Line)]
    assert len(wanted) == len(rows)
    for path in (array, pretty):
        assert [
            (item.number, item.records) for item in read(source, path) if isinstance(item, Line)
        ] == wanted


@EVERY
def test_a_broken_element_of_an_array_costs_itself_only(name: str, tmp_path: Path) -> None:
    good = examples(name)[0]
    path = tmp_path / "bad.json"
    path.write_text(
        f'[{good}, {{"a" 1}}, 3, {{]}}, {"[" * 9999 + "]" * 9999}, {{"a": NaN}}, null, "x, {{", '
        f"{good}]"
    )
    items = read(SOURCES.get(name), path)
    assert [type(item) for item in items] == [Line, *[Refused] * 7, Line]
    assert [item.text for item in items[1:4]] == ['{"a" 1}', "3", "{]}"]


@EVERY
def test_a_reading_is_repeatable_whatever_the_line_number(name: str, tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text("\n".join([*examples(name), "", *examples(name)]))
    items = [item for item in read(SOURCES.get(name), path) if isinstance(item, Line)]
    half = len(items) // 2
    assert [
        [record.name_and_fingerprint() for record in item.records] for item in items[:half]
    ] == [[record.name_and_fingerprint() for record in item.records] for item in items[half:]]
    assert items[half].number == half + 2


@EVERY
def test_broken_lines_are_refused_and_stop_nothing(name: str, tmp_path: Path) -> None:
    good = examples(name)[0].encode()
    bad = [
        b"junk",
        b'{"a": 1',
        b"[1]",
        b"3",
        b'"x"',
        b"null",
        b"\xff\xfe{}",
        b'{"a": NaN}',
        b'{"a": "\\ud800"}',
        b'{"a": "x\\u0000"}',
        b"[" * 9999,
        b"{}",
    ]
    path = tmp_path / "bad.jsonl"
    path.write_bytes(
        b"\n".join(line for pair in zip([good] * len(bad), bad, strict=True) for line in pair)
        + b"\n"
    )
    items = read(SOURCES.get(name), path)
    assert [item.number for item in items] == list(range(1, 2 * len(bad) + 1))
    assert all(isinstance(item, Line) for item in items[::2])
    for item in items[1::2]:
        assert isinstance(item, Refused)
        assert len(item.reason) > 5
    assert "UTF-8" in items[13].reason  # type: ignore[union-attr]


@EVERY
def test_files_that_are_no_lines_are_one_clear_error(name: str, tmp_path: Path) -> None:
    source = SOURCES.get(name)
    noise = random.Random(1).randbytes(200_000)
    files = {
        "empty": b"",
        "blank": b"\n\n  \n",
        "binary": noise,
        "png": b"\x89PNG\r\n\x1a\n\x00\x00" + noise,
        "torn.json": b'\n [{"a": 1}, {"b"',
        "twice.json": b'[{"a": 1}]\n[{"a": 1}]',
        "torn object.json": b'{\n "a": 1',
        "utf16": "{}\n".encode("utf-16"),
        "torn.gz": gzip.compress(b'{"a": 1}\n' * 9000)[:40],
        "fake.gz": b"\x1f\x8bnot a gzip at all",
        "junk": b"not json\n" * (HOPELESS + 1),
        "latin": b"\xe9\xe8 nothing\n" * (HOPELESS + 1),
    }
    for file, content in files.items():
        path = tmp_path / file
        path.write_bytes(content)
        with pytest.raises(InputError):
            read(source, path)
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError):
            read(source, path)


@EVERY
def test_gzip_bom_and_windows_line_ends_make_no_difference(name: str, tmp_path: Path) -> None:
    content = "\n".join(examples(name)).encode()
    plain, packed, windows = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    windows.write_bytes(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n") + b"\r\n")
    source = SOURCES.get(name)
    assert read(source, plain) == read(source, packed) == read(source, windows)


@EVERY
def test_a_line_that_is_too_long_is_refused_without_being_held(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "LONGEST", 5000)
    monkeypatch.setattr(lines, "_PIECE", 1000)
    path = tmp_path / "long.jsonl"
    good = examples(name)[0]
    path.write_text(f'{good}\n{{"a": "{"x" * 20_000}"}}\n{good}\n')
    items = read(SOURCES.get(name), path)
    assert [type(item) for item in items] == [Line, Refused, Line]
    assert isinstance(items[1], Refused)
    assert "20,010 bytes" in items[1].reason.replace("20,011", "20,010")
    assert len(items[1].text) <= 200


@EVERY
def test_the_position_is_told_up_to_the_end(name: str, tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text((examples(name)[0] + "\n") * 1000)
    positions: list[int] = []
    assert len(list(SOURCES.get(name).read(path, positions.append))) == 1000
    assert positions == sorted(positions)
    assert positions[-1] == path.stat().st_size
    assert len(positions) > 3


WORDS = ["user", "assistant", "t1", "up", "trace", "2026-01-01"]
KEYS = ["role", "content", "id", "trace", "ranking", "source", "kind", "is_correct", "solution"]
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)
MORE_KEYS = ["steps", "metadata", "shown", "targets", "scale", "prompt", "tokens", "case"]


@pytest.mark.slow
@EVERY
@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_object_makes_it_raise(name: str, data: st.DataObject) -> None:
    source = SOURCES.get(name)
    assert isinstance(source, JsonLines)
    row: dict[str, Any] = json.loads(data.draw(st.sampled_from(examples(name))))
    for key in data.draw(st.lists(st.sampled_from([*row, *MORE_KEYS]), min_size=1, max_size=3)):
        row[key] = data.draw(json_values)
    item = source.item(1, row, "")
    assert isinstance(item, Line | Refused)
    if isinstance(item, Refused):
        assert item.reason


def test_an_unknown_source_names_the_nearest() -> None:
    with pytest.raises(NotFound, match="Did you mean 'preference'"):
        SOURCES.get("prefrence")


def test_what_no_source_knows_is_said(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"spam": 1}\n')
    with pytest.raises(InputError, match="spam"):
        detect(path)
