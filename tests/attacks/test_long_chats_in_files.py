"""Chats of thousands of turns in a file: each answer has all messages before it, so that a row of
150 KB took 850 MB, and one of a megabyte all memory of the server that previews it."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from thumbwheel.importers.lines import ignore_position
from thumbwheel.importers.sources import SOURCES
from thumbwheel.importers.types import TraceRecord

SECONDS, MOST_MEMORY = 10, 400 * 2**20
LONG = 6000


def messages(count: int) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[number % 2], "content": f"m{number}"} for number in range(count)]


def row_of(source: str, count: int) -> dict[str, Any]:
    if source != "sharegpt":
        return {"messages": messages(count)}
    names = {"user": "human", "assistant": "gpt"}
    turns = [{"from": names[m["role"]], "value": m["content"]} for m in messages(count)]
    return {"conversations": turns}


def read(folder: Path, source: str, row: dict[str, Any]) -> list[Any]:
    path = folder / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    return list(SOURCES.get(source).read(path, ignore_position))


@pytest.mark.parametrize("source", ["openai", "sharegpt"])
def test_a_chat_of_thousands_of_turns_fills_no_memory(tmp_path: Path, source: str) -> None:
    row = row_of(source, LONG)
    began = time.process_time()
    tracemalloc.start()
    try:
        (item,) = read(tmp_path, source, row)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "messages before them" in item.reason
    assert peak < MOST_MEMORY
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize("source", ["openai", "sharegpt"])
def test_a_long_chat_of_people_is_read(tmp_path: Path, source: str) -> None:
    (item,) = read(tmp_path, source, row_of(source, 400))
    prompts = [record.input for record in item.records if isinstance(record, TraceRecord)]
    assert len(prompts) == 200
    assert len(prompts[-1]) == 399
