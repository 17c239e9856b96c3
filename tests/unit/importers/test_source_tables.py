"""Tables with any columns, arrays that are streamed, and finding out which source reads a file."""

from __future__ import annotations

import gzip
import io
import json
import random
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import Run
from thumbwheel.core.errors import InputError
from thumbwheel.importers.detect import Options, detect, sample, source_of
from thumbwheel.importers.elements import elements
from thumbwheel.importers.import_report import SampleRow
from thumbwheel.importers.rowfile import read_rows
from thumbwheel.importers.source import Line, Refused
from thumbwheel.importers.sources import SOURCES
from thumbwheel.importers.types import CaseRecord, FeedbackRecord, TraceRecord
from thumbwheel.training.data_plan import plan_file


def items(path: Path, name: str = "csv", **options: Any) -> list[Line | Refused]:
    return list(source_of(name, Options(**options)).read(path, lambda position: None))


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def flat(path: Path, name: str = "csv", **options: Any) -> list[Any]:
    return [
        record
        for item in items(path, name, **options)
        if isinstance(item, Line)
        for record in item.records
    ]


class TestCsv:
    def test_columns_are_guessed_by_name_and_said(self, tmp_path: Path) -> None:
        path = write(
            tmp_path / "r.csv",
            'Question,Answer,Stars,user id,topic\n"How, '
            '""so""?","Like\nthis.",5,c1,x\nWhy?,So.,2,,y\n',
        )
        detection = detect(path)
        assert (detection.source, detection.mapping[0]) == (
            "csv",
            "prompt <- Question (guessed from its name)",
        )
        guess = "rating <- Stars (guessed from its name, from 1 to 5"
        assert f"{guess} (other: --scale rating=WORST:BEST))" in detection.mapping
        trace, rating, other, _ = flat(path)
        assert isinstance(trace, TraceRecord) and isinstance(rating, FeedbackRecord)
        assert (trace.input[0]["content"], trace.output, trace.metadata) == (
            'How, "so"?',
            "Like\nthis.",
            {"topic": "x"},
        )
        assert (rating.kind, rating.value) == ("rating", 5)
        assert other.subject is None
        assert [item.number for item in items(path)] == [2, 4]

    def test_told_columns_and_scales(self, tmp_path: Path) -> None:
        path = write(tmp_path / "r.csv", "a;b;c\nWhy?;So.;9\n")
        columns = {"prompt": "a", "response": "b", "score": "c"}
        _, score = flat(path, columns=columns, scales={"score": (0, 10)})
        assert (score.value, score.scale.max) == (9, 10)
        (refused,) = items(path, columns=columns)
        assert isinstance(refused, Refused) and "--scale c=WORST:BEST" in refused.reason

    def test_what_is_ambiguous_or_unknown_is_said(self, tmp_path: Path) -> None:
        for text, words in (
            ("question,query,answer\n1,2,3\n", "could both mean prompt"),
            ("a,b\n1,2\n", "none of its columns a, b is known"),
        ):
            with pytest.raises(InputError, match=words):
                detect(write(tmp_path / "r.csv", text))
        path = write(tmp_path / "r.csv", "question,query,answer\n1,2,3\n")
        assert detect(path, Options({"prompt": "query"})).mapping[0] == "prompt <- query (as told)"
        with pytest.raises(InputError, match="no such column"):
            detect(path, Options({"prompt": "querry"}))
        with pytest.raises(InputError, match="no such meaning"):
            detect(path, Options({"promt": "query"}))
        with pytest.raises(InputError, match="own keys"):
            source_of("graded", Options({"prompt": "query"}))

    @pytest.mark.parametrize(
        ("word", "up"),
        [("true", True), ("1", True), ("👍", True), ("Down", False), ("-1", False), ("no", False)],
    )
    def test_thumbs_in_words(self, word: str, up: bool, tmp_path: Path) -> None:
        assert (
            flat(write(tmp_path / "r.csv", f"prompt,response,thumb\np,r,{word}\n"))[1].value is up
        )

    def test_an_empty_cell_is_no_opinion_and_nonsense_is_refused(self, tmp_path: Path) -> None:
        path = write(
            tmp_path / "r.csv",
            "prompt,response,thumb,comment\np,r,,\np,r,maybe,\n,r,1,\np,r,,nice\n",
        )
        read_items = items(path)
        assert [type(item) for item in read_items] == [Line, Refused, Refused, Line]
        assert [record.kind for record in flat(path) if isinstance(record, FeedbackRecord)] == [
            "comment"
        ]

    def test_pairs_and_cases(self, tmp_path: Path) -> None:
        pair = flat(write(tmp_path / "p.csv", "question,preferred,worse,annotator\nq,a,b,ann\n"))
        assert [getattr(trace, "output", None) for trace in pair[:2]] == ["a", "b"] and pair[
            2
        ].rater.id == "ann"
        (case,) = flat(write(tmp_path / "c.csv", "question,ground_truth\nq,42\n"))
        assert isinstance(case, CaseRecord) and case.reference == "42"

    def test_hostile_rows_are_refused_with_their_number_and_text(self, tmp_path: Path) -> None:
        good = b"p,r,1\r\n"
        bad = [b"p,r\r\n", b"p,r,1,2\r\n", b"\xff\xfe,r,1\r\n", b"p\x00,r,1\r\n", b'"p"x,r,1\r\n']
        path = tmp_path / "r.csv"
        path.write_bytes(
            b"\xef\xbb\xbfprompt,response,thumb\r\n"
            + b"".join(good * 300 + text for text in bad)
            + b"\r\n"
            + good
        )
        read_items = items(path)
        refused = [item for item in read_items if isinstance(item, Refused)]
        assert [refusal.number for refusal in refused] == [302 + 301 * index for index in range(5)]
        assert [refusal.reason.split(":")[0][:26] for refusal in refused] == [
            "it has 2 cells, the header",
            "it has 4 cells, the header",
            "it is not UTF-8; Excel wri",
            "it holds a NUL character, ",
            "it is no CSV",
        ]
        assert refused[4].text == '"p"x,r,1'
        assert len(read_items) == 5 * 301 + 1

    def test_an_open_quote_does_not_eat_the_memory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("thumbwheel.importers.tables.LONGEST", 1000)
        path = write(
            tmp_path / "r.csv", 'prompt,response\np,r\n"open,r\n' + "p,r\n" * 500 + "p,r\n"
        )
        read_items = items(path)
        assert isinstance(read_items[0], Line)
        assert any(
            isinstance(item, Refused) and "more than the 1,000 characters" in item.reason
            for item in read_items
        )

    def test_separators_gzip_and_no_header(self, tmp_path: Path) -> None:
        packed = tmp_path / "r.tsv.gz"
        packed.write_bytes(gzip.compress(b"prompt\tresponse\nWhy, so?\tSo.\n"))
        assert flat(packed)[0].input[0]["content"] == "Why, so?"
        for text in ("", "\n", "prompt,prompt\n1,2\n", '{"a": 1}\n', "prompt,response\n"):
            with pytest.raises(InputError):
                items(write(tmp_path / "bad.csv", text))
        with pytest.raises(InputError):
            items(tmp_path / "missing.csv")


class TestParquet:
    def table(self, path: Path, columns: dict[str, Any]) -> Path:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table(columns), path)
        return path

    def test_a_table_with_types(self, tmp_path: Path) -> None:
        time = datetime(2026, 1, 5, tzinfo=UTC)
        columns = {
            "question": ["p", "q"],
            "answer": ["r", "s"],
            "stars": [4.0, float("nan")],
            "date": [time, None],
            "raw": [b"x", None],
        }
        path = self.table(
            tmp_path / "r.parquet", {key: column for key, column in columns.items() if key != "raw"}
        )
        assert detect(path).source == "parquet"
        trace, rating, other = flat(path, "parquet")
        assert (trace.occurred_at, rating.value, other.output) == (time, 4.0, "s")
        binary = items(self.table(tmp_path / "b.parquet", columns), "parquet")
        assert (
            isinstance(binary[0], Refused)
            and "bytes data" in binary[0].reason
            and isinstance(binary[1], Line)
        )

    def test_what_another_source_knows_is_that_sources(self, tmp_path: Path) -> None:
        chats = [[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]]
        assert detect(self.table(tmp_path / "a.parquet", {"messages": chats})).source == "openai"
        path = self.table(
            tmp_path / "b.parquet", {"prompt": ["p"], "completion": ["c"], "label": [False]}
        )
        assert detect(path).source == "trl"
        assert [
            record.value for record in flat(path, "trl") if isinstance(record, FeedbackRecord)
        ] == [False]

    def test_broken_files_are_one_error(self, tmp_path: Path) -> None:
        whole = self.table(tmp_path / "r.parquet", {"prompt": ["p"] * 5000}).read_bytes()
        for name, content in {
            "torn": whole[:200],
            "fake": b"PAR1" + b"x" * 99,
            "text": b"prompt\n",
        }.items():
            path = tmp_path / name
            path.write_bytes(content)
            with pytest.raises(InputError):
                items(path, "parquet")


class TestElements:
    def pieces(self, text: bytes, size: int, array: bool = True) -> list[bytes]:
        stream = io.BytesIO(text)
        return [
            raw
            for raw, problem in elements(lambda: stream.read(size), 10**6, 20, array)
            if problem is None
        ]

    def test_any_value_cut_anywhere_comes_out_whole(self) -> None:
        random.seed(5)
        values = ["", 'a"b', "\\", "\\\\", '\\"', "[{,}]", "é\n", 3, -1.5e3, True, None, [], {}]

        def value_of_depth(depth: int) -> Any:
            if depth and random.random() < 0.6:
                return (
                    [value_of_depth(depth - 1) for _ in range(3)]
                    if random.random() < 0.5
                    else {f'k"{index}\\': value_of_depth(depth - 1) for index in range(3)}
                )
            return random.choice(values)

        for _ in range(15):
            elements_in = [value_of_depth(3) for _ in range(random.randint(0, 6))]
            text = json.dumps(elements_in, indent=random.choice([None, 1])).encode()
            for size in (1, 2, 3, 5, 64, 10**6):
                assert [json.loads(piece) for piece in self.pieces(text, size)] == elements_in

    def test_an_array_is_read_in_constant_memory(self, tmp_path: Path) -> None:
        row = json.dumps({"prompt": "p" * 2000, "response": "r" * 2000, "score": 0.5, "runId": "x"})
        path = tmp_path / "many.json"
        path.write_text("[" + ",\n".join([row] * 4_000) + "]")
        tracemalloc.start()
        count = sum(row.row is not None for row in read_rows(path, lambda position: None))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == 4_000
        assert peak < 8 * 2**20 < path.stat().st_size


class TestDetect:
    def test_two_sources_that_fit_are_said_and_not_chosen_between(self, tmp_path: Path) -> None:
        both = json.loads(SOURCES.get("trl").example.splitlines()[0]) | json.loads(
            SOURCES.get("feedback_jsonl").example
        )
        path = write(tmp_path / "both.jsonl", json.dumps(both))
        with pytest.raises(
            InputError, match=r"ambiguous: trl \(1 of the first rows\), feedback_jsonl \(1"
        ):
            detect(path)
        mixed = [SOURCES.get(name).example.splitlines()[0] for name in ("trl", "jsonl", "jsonl")]
        with pytest.raises(InputError, match=r"ambiguous: jsonl \(2 of the first rows\), trl"):
            plan_file(write(tmp_path / "mixed.jsonl", "\n".join(mixed)))

    def test_its_first_rows_in_words(self, tmp_path: Path) -> None:
        path = write(
            tmp_path / "a.json",
            '[{"prompt": "Hi", "completion": "Hello!", "label": true}, {"prompt": "Hi"}, 3, 4]',
        )
        first_rows = sample(path, detect(path).source)
        assert first_rows[0] == SampleRow(1, ["trace: Hi -> Hello!", "thumb: true"])
        assert first_rows[2].refused == "it is a JSON int, not an object"
        assert len(first_rows) == 3

    def test_options_are_pairs(self) -> None:
        assert Options.parsed(["prompt=a=b"], ["rating=1:10"]) == Options(
            {"prompt": "a=b"}, {"rating": (1, 10)}
        )
        for columns, scales in (
            ([["prompt"], []]),
            ([["=x"], []]),
            ([[], ["rating=10"]]),
            ([[], ["rating=5:5"]]),
            ([[], ["rating=0:inf"]]),
        ):
            with pytest.raises(InputError):
                Options.parsed(columns, scales)

    def test_the_commands(self, tmp_path: Path, command_line: Run) -> None:
        path = write(tmp_path / "r.csv", "frage,antwort,note_\nWhy?,So.,2\n")
        options = [
            "--column",
            "prompt=frage",
            "--column",
            "response=antwort",
            "--column",
            "rating=note_",
            "--scale",
            "rating=0:2",
        ]
        shown = json.loads(command_line("import", "--detect", str(path), *options, "--json")[1])
        assert shown["source"] == "csv"
        assert shown["rows"] == [
            {
                "number": 2,
                "records": ["trace: Why? -> So.", "rating: 2 of 0 to 2"],
                "refused": None,
            }
        ]
        plan = json.loads(command_line("plan", str(path), *options, "--json")[1])
        assert plan["read_as"][0] == "source csv: a table whose columns are known by their names"
        assert plan["traces"] == 1
        stored = json.loads(
            command_line("import", "csv", str(path), "--agent", "a", *options, "--json")[1]
        )
        assert stored["records"] == {"trace": 1, "feedback": 1, "rating": 1}
