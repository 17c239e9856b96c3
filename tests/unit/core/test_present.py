"""The result of a command, as JSON and as a table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from thumbwheel.core import present


@dataclass(frozen=True)
class Part:
    name: str
    path: Path


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]


PARTS = [Part("a", Path("/x")), Part("b", Path("/y"))]
COLUMNS = {"part": lambda part: part.name, "where": lambda part: part.path}


def test_json_has_the_fields_or_what_the_command_promises(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = [{"name": "a", "path": "/x"}, {"name": "b", "path": "/y"}]
    present.records(PARTS, "parts", COLUMNS, json=True)
    assert json.loads(capsys.readouterr().out) == plain
    present.record(Whole(tuple(PARTS)), "whole", [], json=True)
    assert json.loads(capsys.readouterr().out) == {"parts": plain}
    present.records(PARTS, "parts", COLUMNS, json=True, data={"parts": PARTS, "count": 2})
    assert json.loads(capsys.readouterr().out) == {"parts": plain, "count": 2}
    present.records([], "parts", COLUMNS, json=True)
    assert json.loads(capsys.readouterr().out) == []


def test_tables_have_a_row_for_each_value_or_property(capsys: pytest.CaptureFixture[str]) -> None:
    present.records(PARTS, "parts", COLUMNS, json=False)
    present.record(PARTS[0], "part", [("name", "a"), ("note", None)], json=False)
    out = capsys.readouterr().out
    assert all(text in out for text in ("parts", "where", "/y", "note"))


def test_a_message_is_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    present.message(PARTS[0], "done", json=False)
    assert capsys.readouterr() == ("", "done\n")
    present.message(PARTS[0], "done", json=True)
    assert json.loads(capsys.readouterr().out)["name"] == "a"
