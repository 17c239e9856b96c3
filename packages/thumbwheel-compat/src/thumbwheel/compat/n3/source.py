"""Feedback rows of an n3 server: {prompt, response, score from 0 to 1, runId, notes} as posted,
with `run_id` as stored, and its datasets.

The score is of the scale 0 to 1 and anything else is refused (a stored row may hold NaN or 7). In a
dataset that the server wrote, {examples: [...], max_length}, the scores were scaled to -1..1
already, and that scale is kept with them. A run is a session: a run that answered twice was judged
twice. A dump of the table has the rows of every agent of the server: where there are several, one
of them has to be asked for (`--agent-id`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from thumbwheel.importers.fields import answer_at, moment, name_of, number_of, objects_at, text_at
from thumbwheel.importers.lines import OnPosition, ignore_position
from thumbwheel.importers.regular_file import file_error
from thumbwheel.importers.rowfile import read_rows
from thumbwheel.importers.source import Item, JsonLines, Parse, Row, Unwanted
from thumbwheel.importers.types import (
    AnyRecord,
    FeedbackRecord,
    Scale,
    TraceRecord,
    Unreadable,
)

KNOWN = ("prompt", "response", "score", "runId", "run_id", "notes", "id", "created_at", "createdAt")
POSTED, SCALED = Scale(min=0, max=1), Scale(min=-1, max=1)
EXAMPLE = (
    '{"prompt": "Opening hours?", "response": "Nine to five.", "score": 0.9, "runId": "run-7", '
    '"notes": null}\n'
    '{"id": "V1StGXR8_Z5j", "agent_id": "desk", "run_id": "run-8", "prompt": "Open on Sunday?", '
    '"response": "Yes.", "score": 0.1,'
    ' "notes": "wrong", "created_at": "2025-11-02 10:00:00"}'
)


def claims(row: Row) -> bool:
    """Return whether the row is a scored answer of a run, or a dataset of the server."""
    if {"examples", "max_length"} <= row.keys():
        return True
    return {"prompt", "response", "score"} <= row.keys() and bool({"runId", "run_id"} & row.keys())


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """Return trace and score of a row, or of every example of a dataset. Raises Unreadable."""
    if "examples" not in row:
        return _scored(row, POSTED)
    examples = objects_at(row, "examples")
    if not examples:
        raise Unreadable("it has no examples")
    records: list[AnyRecord] = []
    for example in examples:
        records += _scored(example, SCALED)
    return records


def _scored(row: Row, scale: Scale) -> list[AnyRecord]:
    if row.get("score") is None:
        raise Unreadable("key 'score' is missing")
    run = name_of(row.get("runId", row.get("run_id")))
    time = moment(row.get("created_at", row.get("createdAt")))
    rest = {key: value for key, value in row.items() if key not in KNOWN and value is not None}
    fields = {
        "session": run,
        "input": text_at(row, "prompt"),
        "output": answer_at(row, "response"),
        "metadata": rest or None,
    }
    trace = TraceRecord.model_validate(fields)
    score = {
        "kind": "score",
        "id": name_of(row.get("id")),
        "value": number_of(row["score"], "score"),
        "scale": scale,
        "comment": row.get("notes") or None,
        "occurred_at": time,
        "targets": [trace.as_target()],
    }
    return [trace, FeedbackRecord.model_validate(score)]


def agent_of(row: Row) -> str | None:
    """Return the agent of a row by the server's name for it; None if the row has none."""
    return name_of(row.get("agent_id", row.get("agentId")))


@dataclass(frozen=True)
class N3(JsonLines):
    """Rows of a server; `agent` takes those of one of its agents."""

    agent: str | None = None

    def of_agent(self, name: str) -> N3:
        return replace(self, agent=name)

    def item(self, number: int, row: dict[str, Any], text: str, parse: Parse | None = None) -> Item:
        return super().item(number, row, text, self._records)

    def _records(self, row: dict[str, Any]) -> list[AnyRecord]:
        owner = agent_of(row)
        if self.agent is not None and owner != self.agent:
            raise Unwanted(f"it is of agent {owner!r}" if owner else "it names no agent")
        return self.parse(row)

    def read(self, path: Path, on_position: OnPosition) -> Iterator[Item]:
        """Yield every item in order. Raises InputError if the rows are of several agents and none
        is chosen."""
        if self.agent is None:
            _demand_one_agent(path)
        yield from super().read(path, on_position)


def _demand_one_agent(path: Path) -> None:
    owners: Counter[str] = Counter()
    for row in read_rows(path, ignore_position):
        try:
            owner = agent_of(row.row) if row.row else None
        except Unreadable:
            continue  # it is refused where it is read
        if owner is not None:
            owners[owner] += 1
    if len(owners) > 1:
        largest = owners.most_common(10)
        counts = ", ".join(f"{name} ({count} rows)" for name, count in largest)
        more = f" and {len(owners) - 10} more" if len(owners) > 10 else ""
        example, _ = largest[0]
        raise file_error(
            path,
            f"its rows are of {len(owners)} agents: {counts}{more}",
            f"Import one at a time, for example: --agent-id {example}",
        )


SOURCE = N3(
    parse,
    claims,
    EXAMPLE,
    about="feedback rows of the n3 server.",
    reason="a scored answer of a run, or a dataset of the server",
)
