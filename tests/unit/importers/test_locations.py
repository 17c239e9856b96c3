"""Where an import reads: folders and addresses for every command, secrets that are never shown,
times, names, and what is missing."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.command_line import Run
from tests.public_data import public_data
from thumbwheel.core import ids
from thumbwheel.core.errors import InputError
from thumbwheel.importers.detect import Options, detect
from thumbwheel.importers.location import Address, path_or_address
from thumbwheel.importers.source import Line, Refused
from thumbwheel.importers.sources import SOURCES
from thumbwheel.importers.types import FeedbackRecord, TraceRecord

TRACE = {
    "trace_id": "a1",
    "session_id": "s1",
    "user_query": "Hours?",
    "final_response": "Nine to five.",
    "timestamp": "2026-07-05T08:30:00",
}
ENTRY = {
    "entry_id": "e1",
    "scenario": "kpi",
    "fixture": "dial",
    "question": "Pump?",
    "rating": "up",
}


def write(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


class TestSecrets:
    @given(
        password=st.text(
            st.characters(codec="ascii", categories=("L", "N", "P", "S")), min_size=4
        ).filter(lambda text: "***" not in text)
    )
    def test_a_password_of_any_characters_is_hidden(self, password: str) -> None:
        for url in (
            f"postgresql://app:{password}@localhost/desk",
            f"POSTGRES://app:{password}@db:5432/desk?schema=a",
        ):
            address = path_or_address(url)
            for shown in (
                str(address),
                repr(address),
                address.name,
                address.as_posix(),
                *address.parts,
            ):
                assert f":{password}@" not in shown and f"{password}@" not in shown, shown

    @pytest.mark.parametrize(
        "text",
        [
            "postgresql://app@localhost/desk?password=sesame99",
            "postgresql://app@localhost/desk?pass%77ord=sesame99&schema=a",
            "postgresql://localhost/desk?sslpassword=sesame99",
            "host=localhost password=sesame99 user=app",
            "host=localhost password = 'sesame99 \\' x' user=app",
            "Postgresql+psycopg2://app:sesame99@localhost",
            "postgresql://:sesame99@localhost",
            "postgresql://app:sesame99@[::1/desk",
            "mysql://app:sesame99@localhost/desk",
        ],
    )
    def test_no_command_prints_it(self, text: str, command_line: Run) -> None:
        for arguments in (
            ("plan", text),
            ("import", "--detect", text),
            ("import", "decisions", text, "--agent", "a"),
            ("import", "csv", text, "--agent", "a"),
            ("plan", text, "--source", "decisions"),
        ):
            code, out, err = command_line(*arguments)
            assert code == 2, (arguments, err)
            assert "sesame99" not in out + err, err

    def test_parts_of_it_in_an_error_are_hidden(self) -> None:
        assert (
            Address("postgresql://a:p@ss:word1@h/d").hide('invalid port "word1@h"')
            == 'invalid port "***@h"'
        )
        assert Address("postgresql://a:@h/d").hide("as it is") == "as it is"


class TestDetecting:
    def test_an_address_is_of_the_source_that_reads_databases(self) -> None:
        assert detect(path_or_address("postgresql://app:x@localhost/desk")).source == "decisions"
        with pytest.raises(InputError, match=r"no source recognises it.*postgresql://USER"):
            detect(path_or_address("mysql://localhost/desk"))
        with pytest.raises(InputError, match="this source reads files"):
            list(
                SOURCES.get("jsonl").read(
                    path_or_address("postgresql://localhost/desk"), lambda position: None
                )
            )

    def test_folders_are_recognised_and_planned(self, tmp_path: Path, command_line: Run) -> None:
        runs, widgets, other = tmp_path / "runs", tmp_path / "widgets", tmp_path / "other"
        write(runs / "2026-07-05" / "a1.json", TRACE | {"label": True})
        (widgets / "run").mkdir(parents=True)
        (widgets / "run" / "exhaustive_data.json").write_text(
            json.dumps({"run_id": "r1", "entries": [ENTRY]})
        )
        write(other / "x.json", {"spam": 1})
        assert (detect(runs).source, detect(widgets).source) == ("flowagent", "widgets")
        with pytest.raises(InputError, match=r"folder .*no source recognises it"):
            detect(other)
        for folder, source in ((runs, "flowagent"), (widgets, "widgets")):
            code, out, err = command_line("import", "--detect", str(folder))
            assert code == 0 and f"source {source}" in out, err
            code, out, err = command_line("plan", str(folder), "--json")
            assert code == 0 and json.loads(out)["traces"] == 1, err

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("bandit/obd-men-bts.csv", "logged bandit feedback"),
            ("prompts/mt-bench-reference-gpt4.jsonl", "MT-Bench"),
            ("ab-tests/asos-digital-experiments.csv", "summary figures"),
            ("intents/clinc150-val.jsonl", "intents"),
        ],
    )
    def test_what_no_source_reads_has_a_next_step(
        self, name: str, words: str, command_line: Run
    ) -> None:
        path = public_data(name)
        for arguments in (
            ("plan", str(path)),
            ("import", "--detect", str(path)),
            ("import", "graded", str(path), "--agent", "a"),
        ):
            code, _, err = command_line(*arguments)
            assert code == 2
            assert words in err
            assert "thumbwheel import" in err or "Export the rows" in err


class TestPieces:
    def test_llmfao_names_the_files_that_it_misses(self, tmp_path: Path, command_line: Run) -> None:
        row = {
            "id": "1",
            "prompt": "5",
            "model_x": "97",
            "model_y": "23",
            "worker": "85",
            "winner": "left",
            "left": "A",
            "right": "B",
        }
        path = write(tmp_path / "llmfao-crowd.jsonl", row)
        code, out, err = command_line("import", "llmfao", str(path), "--agent", "a", "--json")
        assert code == 0, err
        assert "llmfao-prompts.jsonl and no llmfao-results.jsonl" in json.loads(out)["warnings"][0]
        _, _, err = command_line("import", "llmfao", str(path), "--agent", "a")
        assert "note: beside it is no llmfao-prompts.jsonl" in err
        _, out, _ = command_line("plan", str(path))
        assert "llmfao-prompts.jsonl" in out
        write(tmp_path / "llmfao-prompts.jsonl", {"id": "5", "text": "Hi"})
        write(
            tmp_path / "llmfao-results.jsonl",
            *({"prompt": "5", "model": model, "result": f"so {model}"} for model in ("97", "23")),
        )
        _, out, _ = command_line("import", "llmfao", str(path), "--agent", "a", "--json")
        assert json.loads(out)["warnings"] == []

    def test_labels_that_contradict_their_reference_are_told(
        self, tmp_path: Path, command_line: Run
    ) -> None:
        rows = [
            {
                "question": f"{n}?",
                "ground_truth": f"#### {n},000",
                "m": {"is_correct": right, "solution": solution},
            }
            for n, right, solution in (
                (1, True, "A: 1000"),
                (2, False, "A: $2,000"),
                (3, True, "A: 4000"),
                (4, False, "none"),
                (5, True, "#### 5000.0"),
            )
        ]
        path = write(tmp_path / "graded.jsonl", *rows)
        code, out, err = command_line("import", "graded", str(path), "--agent", "a", "--json")
        assert code == 0, err
        assert json.loads(out)["remarks"] == {
            "a solution is labelled wrong, and its final answer is the reference": 1,
            "a solution is labelled right, and its final answer is not the reference": 1,
        }
        _, _, err = command_line("import", "graded", str(path), "--agent", "b")
        assert "note: 1 line: a solution is labelled wrong" in err

    def test_the_labels_of_gsm8k_contradict_nothing(self) -> None:
        path = public_data("math/gsm8k-model-solutions-graded.jsonl")
        lines = [
            item
            for item in SOURCES.get("graded").read(path, lambda position: None)
            if isinstance(item, Line)
        ]
        assert len(lines) == 652 and not any(line.remarks for line in lines)


def test_refusals_in_a_folder_name_the_file_and_the_line(tmp_path: Path) -> None:
    write(tmp_path / "runs" / "day" / "many.json", TRACE, {"trace_id": "b2", "user_query": 5})
    (tmp_path / "runs" / "broken.pkl").write_bytes(pickle.dumps(object))
    items = list(SOURCES.get("flowagent").read(tmp_path / "runs", lambda position: None))
    reasons = [item.reason for item in items if isinstance(item, Refused)]
    assert reasons[0].startswith("broken.pkl: ")
    assert reasons[1].startswith("day/many.json, line 2: ")
    run = tmp_path / "widgets" / "one" / "exhaustive_data.json"
    run.parent.mkdir(parents=True)
    run.write_text(
        json.dumps(
            {"run_id": "r1", "entries": [ENTRY, ENTRY | {"entry_id": "e2", "fixture": None}]}
        )
    )
    refused = [
        item
        for item in SOURCES.get("widgets").read(tmp_path / "widgets", lambda position: None)
        if isinstance(item, Refused)
    ]
    assert refused[0].reason.startswith("one/exhaustive_data.json: ")


class TestTimes:
    def imported(
        self, command_line: Run, tmp_path: Path, *options: str
    ) -> tuple[dict[str, Any], str]:
        line = {
            "type": "trace",
            "id": "t1",
            "input": "Hi",
            "output": "Ho",
            "occurred_at": "2026-07-05 08:30:00",
        }
        path = write(
            tmp_path / "t.jsonl",
            line,
            line | {"id": "t2", "occurred_at": "2026-07-05T08:30:00+01:00"},
        )
        name = "-".join(options)[:20].replace("/", "-").replace("+", "p").replace(":", "-")
        agent = f"a{len(options)}{name.lower()}"
        code, out, err = command_line(
            "import", "jsonl", str(path), "--agent", agent, "--json", *options
        )
        assert code == 0, err
        _, _, err = command_line(
            "import", "jsonl", str(path), "--agent", agent, "--dry-run", *options
        )
        return json.loads(out), err

    def test_the_zone_is_said(self, command_line: Run, tmp_path: Path) -> None:
        report, err = self.imported(command_line, tmp_path)
        assert report["naive_times"] == 1
        assert (
            "times without a zone were read as UTC; if they are of another one: --timezone"
            in err.replace("\n", " ")
        )
        report, err = self.imported(command_line, tmp_path, "--timezone", "Europe/Berlin")
        assert report["timezone"] == "Europe/Berlin" and "read as Europe/Berlin" in err

    @pytest.mark.parametrize(
        ("zone", "hour"),
        [(None, 8), ("Europe/Berlin", 6), ("+02:00", 6), ("America/New_York", 12), ("UTC", 8)],
    )
    def test_it_moves_naive_times_only(self, zone: str | None, hour: int, tmp_path: Path) -> None:
        from thumbwheel.importers.types import naive_times

        path = write(
            tmp_path / "t.json",
            TRACE,
            TRACE | {"trace_id": "b2", "timestamp": "2026-07-05T08:30:00Z"},
        )
        with naive_times(Options.parsed(None, None, timezone=zone).zone):
            items = list(SOURCES.get("flowagent").read(path, lambda position: None))
        traces = [
            record
            for item in items
            if isinstance(item, Line)
            for record in item.records
            if isinstance(record, TraceRecord)
        ]
        assert [trace.occurred_at.hour for trace in traces if trace.occurred_at] == [hour, 8]

    def test_an_unknown_zone_is_an_error(self, command_line: Run, tmp_path: Path) -> None:
        path = write(tmp_path / "t.json", TRACE)
        for zone in ("Mars/Base", "+99:00", "../../etc/passwd", "-"):
            code, _, err = command_line("plan", str(path), "--timezone", zone)
            assert code == 2 and "there is no such zone" in err


class TestNames:
    def test_an_agent_may_be_written_as_people_write_it(
        self, command_line: Run, tmp_path: Path
    ) -> None:
        path = write(
            tmp_path / "t.jsonl", {"type": "trace", "id": "t1", "input": "Hi", "output": "Ho"}
        )
        code, out, err = command_line(
            "import", "jsonl", str(path), "--agent", "Support Bot", "--json"
        )
        assert code == 0 and json.loads(out)["agent"] == "support-bot"
        assert "agent 'Support Bot' is 'support-bot' here" in err
        for arguments in (
            ("feedback", "add", "t1", "-a", "Support Bot", "--thumb", "up"),
            ("feedback", "stats", "--agent", "SUPPORT BOT"),
            ("dataset", "plan", "--agent", "Support Bot"),
            ("gate", "show", "--agent", "Support Bot"),
            ("models", "list", "--agent", "Support Bot"),
            ("deployments", "--agent", "Support Bot"),
        ):
            code, out, err = command_line(*arguments)
            assert code == 0, (arguments, err)
            assert "is 'support-bot' here" in err
        code, _, err = command_line("import", "jsonl", str(path), "--agent", "?!")
        assert code == 2 and "agent name" in err

    def test_the_sdk_too(self, command_line: Run) -> None:
        import thumbwheel

        thumbwheel.trace("Help Desk", input="Hi", output="Ho", id="t1")
        code, _, err = command_line("feedback", "stats", "--agent", "help-desk", "--json")
        assert code == 0, err
        assert "inbox: 1 lines stored" in err

    @given(st.text(max_size=80))
    def test_whatever_comes_out_is_a_slug(self, name: str) -> None:
        try:
            slug = ids.slug_of(name)
        except InputError:
            return
        assert ids.slug(slug) == slug == ids.slug_of(slug)


class TestSubjects:
    def test_a_trace_file_says_whose_it_is(self, tmp_path: Path) -> None:
        rows = [
            TRACE | {"user_id": "ann"},
            TRACE | {"trace_id": "b", "metadata": {"user_id": 7}},
            TRACE | {"trace_id": "c", "user_id": {"a": 1}},
        ]
        items = list(
            SOURCES.get("flowagent").read(write(tmp_path / "t.json", *rows), lambda position: None)
        )
        subjects = [
            record.subject
            for item in items
            if isinstance(item, Line)
            for record in item.records
            if isinstance(record, TraceRecord)
        ]
        assert subjects == ["ann", "7", None]


PAIRS = [{"prompt": f"Question {i}?", "chosen": "Yes.", "rejected": "No."} for i in range(70)]


class TestHuggingFace:
    """Folders of datasets, by what their columns are."""

    def check(self, folder: Path) -> None:
        assert detect(folder).source == "huggingface"
        items = list(SOURCES.get("huggingface").read(folder, lambda position: None))
        assert [item.number for item in items] == list(range(1, 71))
        for item, row in zip(items, PAIRS, strict=True):
            assert isinstance(item, Line), item
            chosen, rejected, preference = item.records
            assert isinstance(chosen, TraceRecord) and isinstance(rejected, TraceRecord)
            assert chosen.input[0]["content"] == row["prompt"]
            assert (chosen.output, rejected.output) == ("Yes.", "No.")
            assert isinstance(preference, FeedbackRecord) and preference.kind == "preference"

    def test_arrow_as_saved_by_datasets(self, tmp_path: Path) -> None:
        table = pa.Table.from_pylist(PAIRS)
        folder = tmp_path / "saved" / "train"
        folder.mkdir(parents=True)
        with pa.ipc.new_stream(folder / "data-00000-of-00001.arrow", table.schema) as stream:
            stream.write_table(table, max_chunksize=1000)  # one batch, as datasets writes it
        (folder / "dataset_info.json").write_text("{}")
        (folder / "state.json").write_text('{"_data_files": []}')
        (folder.parent / "dataset_dict.json").write_text('{"splits": ["train"]}')
        self.check(folder.parent)

    def test_parquet_as_on_the_hub(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        pq.write_table(pa.Table.from_pylist(PAIRS), tmp_path / "data/train-0.parquet")
        (tmp_path / "script.py").write_text("raise SystemExit('it ran')")
        self.check(tmp_path)

    def test_columns_that_nobody_knows_are_refused(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"apples": ["one"]}), tmp_path / "x.parquet")
        (item,) = SOURCES.get("huggingface").read(tmp_path, lambda position: None)
        assert isinstance(item, Refused)
        assert item.reason.startswith("x.parquet, line 1: its columns (apples) are of none of")

    def test_a_broken_file_costs_no_other(self, tmp_path: Path) -> None:
        (tmp_path / "a.arrow").write_bytes(b"\xff\xff\xff\xff" + b"\x10\x00\x00\x00" * 9)
        pq.write_table(pa.Table.from_pylist(PAIRS[:1]), tmp_path / "b.parquet")
        broken, whole = SOURCES.get("huggingface").read(tmp_path, lambda position: None)
        assert isinstance(broken, Refused) and isinstance(whole, Line)
        assert "no readable Parquet or Arrow file" in broken.reason
