"""N10: a small packed file fills no disk. 118 KB of Parquet were 100 GB of rows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import InputError
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers import unpacked
from thumbwheel.importers.sources import SOURCES
from thumbwheel.importers.types import TraceRecord

MEBIBYTE = 2**20


def parquet_bomb(path: Path, rows: int, compression: str = "zstd") -> Path:
    """Write one text that stands in every row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = "a" * MEBIBYTE
    table = pa.table({"prompt": ["Hi"] * rows, "response": pa.array([text] * rows)})
    pq.write_table(table, path, compression=compression, store_schema=False)
    return path


def arrow_bomb(path: Path, rows: int) -> Path:
    """Write the same as an Arrow file whose texts are entries of a dictionary."""
    import pyarrow as pa

    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["a" * MEBIBYTE])
    table = pa.table({"prompt": ["Hi"] * rows, "response": texts})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(path, table.schema, options=options) as writer:
        writer.write_table(table)
    return path


def gzip_bomb(path: Path, rows: int) -> Path:
    """Write lines that are packed a thousandfold."""
    line = json.dumps({"id": "t", "prompt": "Hi", "response": "a" * MEBIBYTE}).encode() + b"\n"
    with gzip.open(path, "wb") as out:
        for _ in range(rows):
            out.write(line)
    return path


BOMBS = {"parquet": parquet_bomb, "arrow": arrow_bomb, "jsonl.gz": gzip_bomb}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_read_up_to_its_bound(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacked, "AT_LEAST", 8 * MEBIBYTE)
    path = BOMBS[name](tmp_path / f"bomb.{name}", 40)
    assert path.stat().st_size < 100_000
    read = 0
    source = SOURCES.get("jsonl" if name == "jsonl.gz" else "parquet")
    with pytest.raises(InputError, match="unpacks to more than"):
        for _ in source.read(path, lambda position: None):
            read += 1
    assert read < 20


@pytest.mark.slow
def test_the_home_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacked, "AT_LEAST", 8 * MEBIBYTE)
    path = parquet_bomb(tmp_path / "bomb.parquet", 400)
    home = tmp_path / "home"
    sources = Sources({}, "none", {})
    bound = pytest.raises(InputError, match="unpacks to more than")
    with Workspace.open(Home.at(home), sources) as ws, bound:
        ingest(ws, "support", "parquet", path)
    assert sum(file.stat().st_size for file in home.rglob("*") if file.is_file()) < 60 * MEBIBYTE


def test_an_honest_file_with_one_long_prompt_in_every_row_is_read(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    prompts = [f"You are helpful. {'rule ' * 400} Question {number}" for number in range(2000)]
    table = pa.table({"prompt": prompts, "response": [f"answer {n}" for n in range(2000)]})
    path = tmp_path / "honest.parquet"
    pq.write_table(table, path, compression="zstd")
    lines = list(SOURCES.get("parquet").read(path, lambda position: None))
    assert len(lines) == 2000
    assert isinstance(lines[0].records[0], TraceRecord)
