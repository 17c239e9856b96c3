"""What people bring, as tests read it: its records in short form, and what a plan says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.command_line import Run
from tests.public_data import public_data
from thumbwheel.importers.detect import Options, detect, source_of
from thumbwheel.importers.source import Item, Line, Refused
from thumbwheel.importers.types import FeedbackRecord, TraceRecord


def brought(name: str) -> Path:
    """An input that people brought, such as 01-kto-tag/messages.jsonl."""
    return public_data(f"brought/{name}")


def written(path: Path, *rows: Any) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


def items(path: Path, source: str | None = None, options: Options | None = None) -> list[Item]:
    """Every item of a file, by the source that recognises it."""
    name = detect(path, options, source).source
    return list(source_of(name, options or Options()).read(path, lambda position: None))


def records(path: Path, source: str | None = None, options: Options | None = None) -> list[Any]:
    """The records of a file that is read whole."""
    all_records: list[Any] = []
    for item in items(path, source, options):
        assert isinstance(item, Line), item
        all_records += item.records
    return all_records


def refusals(path: Path, source: str | None = None) -> dict[int, str]:
    """Number -> reason of the refused rows."""
    return {item.number: item.reason for item in items(path, source) if isinstance(item, Refused)}


def traces(
    path: Path, source: str | None = None, options: Options | None = None
) -> list[TraceRecord]:
    """The traces of a file that is read whole."""
    return [record for record in records(path, source, options) if isinstance(record, TraceRecord)]


def answers(path: Path, source: str | None = None) -> list[str | None]:
    """What the traces answered."""
    return [trace.output for trace in traces(path, source)]


def signals(path: Path, source: str | None = None, options: Options | None = None) -> list[Any]:
    """(kind, value) of every piece of feedback of the rows that are taken."""
    feedback: list[Any] = []
    for item in items(path, source, options):
        if isinstance(item, Line):
            feedback += [
                (record.kind, record.value)
                for record in item.records
                if isinstance(record, FeedbackRecord)
            ]
    return feedback


def planned(command_line: Run, path: Path, *options: str) -> dict[str, tuple[int, int]]:
    """Kind -> (good, bad) of what `thumbwheel plan FILE` says that people said."""
    code, out, err = command_line("plan", str(path), "--json", *options)
    assert code == 0, err
    signals = json.loads(out)["signals"]
    return {signal["kind"]: (signal["good"], signal["bad"]) for signal in signals}


def refused(command_line: Run, path: Path, *options: str) -> str:
    """The one error of `thumbwheel plan FILE` for a file that cannot be read."""
    code, out, err = command_line("plan", str(path), *options)
    assert code != 0, out
    return err
