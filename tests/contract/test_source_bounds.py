"""Whatever a file is, every source of the table answers soon, in bounded memory, with an error or
refused rows, and never waits for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.third_party import names
from thumbwheel.core.errors import InputError
from thumbwheel.importers.detect import detect
from thumbwheel.importers.source import Line, Refused
from thumbwheel.importers.sources import SOURCES

SERVERS = ("mlflow", "phoenix")
"""Sources that read no files; what a server may send is bounded by their own tests."""
EVERY = pytest.mark.parametrize("name", sorted({*names(SOURCES)} - {*SERVERS}))
SUFFIXES = (".json", ".jsonl", ".csv", ".parquet", ".pkl", ".json.gz")
"""Sources look at endings before they open a file."""


def refusal(name: str, path: Path) -> str:
    """Why the source cannot read what is at `path`; a source that is still waiting after ten
    seconds fails the test."""
    outcome: list[str] = []

    def read() -> None:
        try:
            refused = [
                item.reason
                for item in SOURCES.get(name).read(path, lambda position: None)
                if isinstance(item, Refused)
            ]
            outcome.append("; ".join(refused))
        except InputError as error:
            outcome.append(str(error))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(60)
    assert outcome, f"{name} waits for {path}"
    return outcome[0]


@EVERY
def test_what_is_no_regular_file_is_refused_at_once(name: str, tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        fifo, link, device = (tmp_path / f"{kind}{suffix}" for kind in ("fifo", "link", "device"))
        os.mkfifo(fifo)
        link.symlink_to(fifo)
        device.symlink_to("/dev/zero")
        for path in (fifo, link, device):
            assert "regular file" in refusal(name, path), (name, path)
            with pytest.raises(InputError, match="regular file"):
                detect(path)


@EVERY
def test_a_folder_with_a_fifo_in_it_is_read_past_it(name: str, tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        os.mkfifo(tmp_path / f"rating-catalog{suffix}")
    (tmp_path / "broken.json").write_text("{}")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    assert refusal(name, tmp_path)


PEAK = """
import resource, sys
from pathlib import Path
from thumbwheel.importers.sources import SOURCES
from thumbwheel.core.errors import InputError
import thumbwheel.compat.command_center.source, thumbwheel.compat.isaa.source
import thumbwheel.importers.sources.langfuse
source, path = SOURCES.get(sys.argv[1]), Path(sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
count = 0
try:
    for item in source.read(path, lambda position: None):
        count += 1
        if count == 100:
            break
except InputError as error:
    print(error)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(count, (after - before) // 1024)
"""


def megabytes_to_read(name: str, path: Path) -> int:
    """By how much the process that reads the file grows at most."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, name, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return int(done.stdout.split()[-1])


@pytest.mark.parametrize("name", ["jsonl", "widgets", "flowagent", "langfuse"])
def test_brackets_without_end_cost_no_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / "brackets.json"
    path.write_bytes(b"[" * (64 * 2**20))
    assert megabytes_to_read(name, path) < 200


@pytest.mark.parametrize("name", ["jsonl", "widgets", "flowagent"])
def test_many_small_values_cost_no_memory(name: str, tmp_path: Path) -> None:
    """Sixteen megabytes of empty arrays would be half a gigabyte of objects."""
    path = tmp_path / "values.json"
    path.write_bytes(b'{"trace_id": [' + b"[]," * (5 * 2**20) + b"[]]}")
    assert megabytes_to_read(name, path) < 200


def test_a_table_has_so_many_columns_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    header = ",".join(f"c{number}" for number in range(200_000))
    path.write_text(f"{header}\n{header}\n")
    with pytest.raises(InputError, match="200,000 columns"):
        list(SOURCES.get("csv").read(path, lambda position: None))
    with pytest.raises(InputError, match="200,000 columns"):
        detect(path)


def test_a_record_of_many_long_cells_is_refused_and_costs_itself_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thumbwheel.importers.tables.LONGEST", 1000)
    path = tmp_path / "long.csv"
    cells = ",".join('"' + "x\n" * 300 + '"' for _ in range(4))
    path.write_text(
        f"prompt,response,a,b\nHi,Hello,1,2\n{cells}\nHi,{'y' * 5000},1,2\nHi,Hello,3,4\n"
    )
    items = list(SOURCES.get("csv").read(path, lambda position: None))
    assert isinstance(items[0], Line) and isinstance(items[-1], Line)
    refused = [item for item in items if isinstance(item, Refused)]
    assert any("1,000" in item.reason for item in refused)
    assert all(len(item.text) <= 1000 for item in refused)


class TestParquet:
    @pytest.mark.slow
    def test_a_small_file_of_long_repeated_texts_costs_no_memory(self, tmp_path: Path) -> None:
        """A dictionary with one text, repeated by run lengths, compressed: a few hundred bytes that
        were half a gigabyte."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = tmp_path / "bomb.parquet"
        text = "a" * 2**20
        table = pa.table({"prompt": pa.array([text] * 200), "response": ["b"] * 200})
        pq.write_table(table, path, compression="zstd", store_schema=False)
        assert path.stat().st_size < 3000
        assert megabytes_to_read("parquet", path) < 300

    @pytest.mark.slow
    def test_a_cell_beyond_all_bounds_is_an_error_or_a_refusal(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = tmp_path / "cell.parquet"
        table = pa.table({"prompt": ["Hi", "a" * (17 * 2**20), "Hi"], "response": ["b"] * 3})
        pq.write_table(table, path, compression="zstd")
        items = list(SOURCES.get("parquet").read(path, lambda position: None))
        assert [type(item) for item in items] == [Line, Refused, Line]
        assert isinstance(items[1], Refused) and len(items[1].text) <= 200
        monkeypatch.setattr("thumbwheel.importers.tables.MOST_MEMORY", 300 * 2**20)
        pq.write_table(
            pa.table({"prompt": ["a" * (200 * 2**20)], "response": ["b"]}), path, compression="zstd"
        )
        assert path.stat().st_size < 50_000
        with pytest.raises(InputError, match="memory"):
            list(SOURCES.get("parquet").read(path, lambda position: None))

    def test_columns_are_counted(self, tmp_path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = tmp_path / "wide.parquet"
        pq.write_table(pa.table({f"c{number}": [1] for number in range(10_001)}), path)
        with pytest.raises(InputError, match="10,001 columns"):
            detect(path)

    def test_a_column_that_stands_twice_is_refused_as_in_csv(self, tmp_path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = tmp_path / "twice.parquet"
        pq.write_table(
            pa.table([["a"], ["b"], ["c"]], names=["prompt", "response", "prompt"]), path
        )
        with pytest.raises(InputError, match="'prompt' twice"):
            detect(path)


def test_nul_is_refused_wherever_it_hides(tmp_path: Path) -> None:
    entry = {
        "entry_id": "e1",
        "scenario": "kpi",
        "fixture": "dial\x00",
        "question": "Pump?",
        "rating": "up",
    }
    run = tmp_path / "exhaustive_data.json"
    run.write_text(
        json.dumps(
            {"run_id": "r1", "entries": [entry, entry | {"entry_id": "e2", "fixture": "dial"}]}
        )
    )
    items = list(SOURCES.get("widgets").read(run, lambda position: None))
    assert [type(item) for item in items] == [Refused, Line]
    assert isinstance(items[0], Refused) and "NUL" in items[0].reason
    nested = {
        "trace": {"id": "t1", "input": json.dumps("Hi\x00"), "output": json.dumps("Hello")},
        "observations": [],
    }
    path = tmp_path / "langfuse.jsonl"
    path.write_text(json.dumps(nested))
    (item,) = SOURCES.get("langfuse").read(path, lambda position: None)
    assert isinstance(item, Refused) and "NUL" in item.reason
