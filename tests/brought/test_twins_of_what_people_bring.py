"""Every file that people brought says the same in another container: JSON lines, an array, wrapped,
CSV, Parquet, with the keys or rows turned round, with null where a key is missing, with more
columns, with a row of another kind."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.brought.reading import answers, brought, items, refusals, signals, traces, written
from tests.command_line import Run
from tests.public_data import public_data
from thumbwheel.core.errors import InputError
from thumbwheel.importers.source import Line
from thumbwheel.importers.types import FeedbackRecord, TraceRecord

Rows = list[dict[str, Any]]

FOLDERS = ("01", "02", "04", "05", "06", "09", "10", "11", "12", "13", "14")
FOLDERS += ("16", "17", "18", "20", "23", "26", "31", "34", "36", "56")
NOT_UTF_8 = {"cp1252.csv", "utf16.csv", "backslash.csv"}
OTHER_SEPARATORS = {"semicolon-bom.csv", "sep-line.csv", "cr-only.csv"}
NO_ROWS = {"traces.json"} | NOT_UTF_8 | OTHER_SEPARATORS
"""Files that are no list of rows, or that Python's reader of CSV does not take as they are."""


def rows_of(path: Path) -> Rows:
    """Read the rows of a file without any code of ours."""
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines() if line]
    if path.suffix == ".csv":
        return list(csv.DictReader(io.StringIO(path.read_text("utf-8-sig"))))
    rows: Rows = json.loads(path.read_text())
    return rows


def names_of(rows: Rows) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def json_lines(path: Path, rows: Rows) -> Path:
    return written(path.with_suffix(".jsonl"), *rows)


def array(path: Path, rows: Rows) -> Path:
    path = path.with_suffix(".json")
    path.write_text(json.dumps(rows, indent=1))
    return path


def wrapped(path: Path, rows: Rows) -> Path:
    path = path.with_suffix(".json")
    path.write_text(json.dumps({"data": rows, "total": len(rows)}))
    return path


def keys_turned_round(path: Path, rows: Rows) -> Path:
    return json_lines(path, [dict(reversed(row.items())) for row in rows])


def rows_turned_round(path: Path, rows: Rows) -> Path:
    return json_lines(path, rows[::-1])


def null_in_place_of_missing(path: Path, rows: Rows) -> Path:
    nothing = dict.fromkeys([*names_of(rows), "note_x"])
    return json_lines(path, [nothing | row for row in rows])


def more_columns(path: Path, rows: Rows) -> Path:
    return json_lines(path, [row | {"split": "train", "source": "web"} for row in rows])


def one_odd_row(path: Path, rows: Rows) -> Path:
    return json_lines(path, [*rows, {"odd": 1}])


def with_bom_and_empty_lines(path: Path, rows: Rows) -> Path:
    path = path.with_suffix(".jsonl")
    lines = "\r\n\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_bytes(b"\xef\xbb\xbf" + lines.encode())
    return path


def parquet(path: Path, rows: Rows) -> Path:
    """Write JSON lines where Parquet cannot hold the rows (several types, empty objects)."""
    nothing = dict.fromkeys(names_of(rows))
    try:
        table = pa.Table.from_pylist([nothing | row for row in rows])
        pq.write_table(table, path.with_suffix(".parquet"))
    except pa.ArrowException:
        return json_lines(path, rows)
    return path.with_suffix(".parquet")


def comma_separated(path: Path, rows: Rows) -> Path:
    """Write objects and lists as JSON, as a database's export does."""
    path = path.with_suffix(".csv")
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names_of(rows))
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _cell(value) for name, value in row.items()})
    return path


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value


TWINS: tuple[Callable[[Path, Rows], Path], ...] = (
    json_lines,
    array,
    wrapped,
    keys_turned_round,
    rows_turned_round,
    null_in_place_of_missing,
    more_columns,
    one_odd_row,
    with_bom_and_empty_lines,
    parquet,
    comma_separated,
)


def content(path: Path) -> list[str] | str:
    """Return what is learned from a file: prompts, answers, calls, opinions; or its error."""
    try:
        read = items(path)
    except InputError as error:
        return str(error).replace(str(path), "").replace(path.name, "")
    lines = [item for item in read if isinstance(item, Line)]
    learned = [_content_of(record) for line in lines for record in line.records]
    return sorted(learned)


def _content_of(record: Any) -> str:
    if isinstance(record, TraceRecord):
        outputs = [step.output for step in record.steps if step.output is not None]
        parts: list[Any] = [record.input, record.output, outputs]
    else:
        assert isinstance(record, FeedbackRecord)
        value = float(record.value) if type(record.value) is int else record.value
        scale = None if record.scale is None else [record.scale.min, record.scale.max]
        parts = [record.kind, record.name, value, scale]
    return json.dumps(parts, sort_keys=True, default=str)


def row_files() -> list[str]:
    root = public_data("brought")
    paths = sorted(path for path in root.glob("*/*.*") if path.parent.name[:2] in FOLDERS)
    names = [str(path.relative_to(root)) for path in paths if path.name not in NO_ROWS]
    return [*names, "04-langfuse-score-columns/traces.json"]


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.__name__)
def test_the_same_rows_in_another_container_say_the_same(
    twin: Callable[[Path, Rows], Path], tmp_path: Path
) -> None:
    names = row_files()
    assert len(names) > 60
    if twin is parquet:  # a process reads each: the first file of every folder
        names = list({name.partition("/")[0]: name for name in reversed(names)}.values())
    for number, name in enumerate(names):
        rows = rows_of(brought(name))
        if twin is comma_separated and name == "20-equal-pair/rows.jsonl":
            rows = [row for row in rows if row["rejected"] != ""]  # no row of CSV can say that
        original = json_lines(tmp_path / f"{number}-original", rows)
        expected = content(original if name.endswith("l") else brought(name))
        if name.startswith("26-label-studio/export") and twin is comma_separated:
            continue  # Label Studio's own CSV has one column an answer
        assert content(twin(tmp_path / f"{number}-twin", rows)) == expected, name


@pytest.mark.parametrize("empty", ["", None, "  "])
@pytest.mark.parametrize("key", ["prompt", "instruction", "question", "query"])
@pytest.mark.parametrize(
    "sides", [("chosen", "rejected"), ("chosen_response", "rejected_response")]
)
def test_an_empty_prompt_is_not_made_up_of_the_answers(
    key: str, empty: str | None, sides: tuple[str, str], tmp_path: Path
) -> None:
    """`A` stood for the prompt of `A pear.` and `A stone.`, because CSV has no other empty cell."""
    first, second = sides
    rows = [
        {key: "Red fruit?", first: "A cherry.", second: "A stone."},
        {key: empty, first: "A pear.", second: "A stone."},
    ]
    for write in (json_lines, comma_separated):
        path = write(tmp_path / "pairs", rows)
        assert list(refusals(path).values()) == ["its prompt is empty"], write


def test_the_tables_of_open_webui_in_csv_are_its_feedback(tmp_path: Path) -> None:
    """`sqlite3 -csv -header webui.db "select * from feedback"` writes objects as a text."""
    rows = rows_of(brought("34-openwebui-output-items/feedback.json"))
    path = comma_separated(tmp_path / "feedback", rows)
    assert answers(path) == ["From nine to six.", "Until four."]
    assert signals(path) == [("thumb", True)] * 2
    chats = rows_of(brought("34-openwebui-output-items/chats.json"))
    assert answers(comma_separated(tmp_path / "chats", chats)) == ["From nine to six."]


def test_pictures_beside_a_chat_in_csv_are_those_pictures(tmp_path: Path) -> None:
    rows = rows_of(brought("18-image-parts/sharegpt-images.json"))
    (trace,) = traces(comma_separated(tmp_path / "pictures", rows))
    assert trace.input[0]["content"][0]["image_url"] == {"url": "a.png"}


def test_a_file_is_imported_by_the_source_that_recognises_it(
    command_line: Run, tmp_path: Path
) -> None:
    path = brought("11-anythingllm/chats.csv")
    code, out, err = command_line("import", str(path), "--agent", "shop", "--json")
    assert code == 0, err
    assert json.loads(out)["records"]["thumb"] == 2
    assert "source csv" in err
    code, _, err = command_line("import", "no-such-file.csv", "--agent", "shop")
    assert code != 0 and "no source of that name" in err


def test_a_refused_file_of_the_named_source_is_not_said_to_look_like_it(command_line: Run) -> None:
    path = brought("02-openwebui-reasoning-blocks/owui-undone.json")
    code, _, err = command_line("import", "openwebui", str(path), "--agent", "shop")
    assert code != 0
    assert "was not finished" in err and "looks like" not in err
