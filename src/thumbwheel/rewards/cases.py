"""StoredCase traces as cases: what was asked and answered, the run, the task's reference, and the
feedback in force as of a time.

Streamed in batches, the traces of one prompt side by side, so that a million of them take the
memory of one batch. Does not live here: judging them (`ledger`), fresh answers (training and
evaluation make their own cases).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.rewards import store
from thumbwheel.rewards.function import Case, Step
from thumbwheel.rewards.types import Statement

BATCH = 500
MOST_MATES = 32
"""Other answers to the same prompt that a case carries; the first ones by id, so that the choice
stays the same."""
CHECKER_KEYS = ("checker", "checker_config")
"""Where the metadata of a case has what the trace's own case names; a trace's metadata cannot set
them."""


@dataclass(frozen=True)
class StoredCase:
    """A stored trace as a case; `answered`: whether its answer was recorded. Where it was not, the
    text is empty and means nothing."""

    case: Case
    answered: bool


def stored_cases(
    connection: sa.Connection,
    agent: str,
    reads: Collection[str],
    as_of: datetime | None = None,
    trace_id: str | None = None,
) -> Iterator[list[StoredCase]]:
    """All traces of `agent` (or one) that were recorded by `as_of` (default: now), with the fields
    in `reads` filled, in batches."""
    agent_id = ids.derived("agt", agent)
    heard = (
        store.statements(connection, agent_id, as_of, trace_id, arrived_by=as_of)
        if "feedback" in reads
        else ()
    )
    said = groupby(
        heard, key=itemgetter(0)
    )  # about the traces of `rows` and no others, in the same order
    following = next(said, None)
    now = as_of or datetime.now(UTC)
    rows = store.stored(connection, agent_id, as_of, trace_id)
    while some := list(islice(rows, BATCH)):
        cases = _Parts(connection, agent_id, some, reads, as_of)
        found = []
        for row in some:
            statements: tuple[Statement, ...] = ()
            if following is not None and following[0] == row["id"]:
                statements = tuple(
                    sorted(
                        (one for _, one in following[1]), key=lambda one: (one.at, one.feedback_id)
                    )
                )
                following = next(said, None)
            found.append(
                StoredCase(
                    replace(cases.of(row), feedback=statements, as_of=now),
                    row["output"] is not None,
                )
            )
        yield found


def offered_tools(*sources: Any) -> list[dict[str, Any]] | None:
    """The tools that the model was given: as the input of its step has them, else as the trace's
    metadata has them."""
    for source in sources:
        if isinstance(source, dict) and isinstance(source.get("tools"), list) and source["tools"]:
            return list(source["tools"])
    return None


class _Parts:
    """What the traces of a batch need from other tables, fetched at once."""

    def __init__(
        self,
        connection: sa.Connection,
        agent_id: str,
        rows: Sequence[sa.RowMapping],
        reads: Collection[str],
        as_of: datetime | None,
    ) -> None:
        prompts, runs = [row["input_id"] for row in rows], [row["id"] for row in rows]
        self._prompts = store.prompts(connection, prompts) if "prompt" in reads else {}
        self._steps = (
            store.steps_of(connection, runs) if {"steps", "finish", "tools"} & set(reads) else {}
        )
        self._mates = (
            store.mates(connection, agent_id, prompts, MOST_MATES + 1, as_of)
            if "mates" in reads
            else {}
        )

    def of(self, row: sa.RowMapping) -> Case:
        """The case of one trace, without feedback."""
        steps = self._steps.get(row["id"], [])
        answer = next((step for step in reversed(steps) if step["kind"] == "llm"), None)
        others = [
            output
            for trace_id, output in self._mates.get(row["input_id"], [])
            if trace_id != row["id"]
        ]
        checker_fields = {key: row[key] for key in CHECKER_KEYS} if row["asked"] else {}
        return Case(
            text=row["output"] or "",
            reference=row["reference"],
            prompt=self._prompts.get(row["input_id"], ()),
            tools=offered_tools(answer["input"] if answer else None, row["metadata"]),
            steps=tuple(_step(step) for step in steps),
            status=row["status"],
            finish=answer["finish_reason"] if answer else None,
            metadata={
                key: value
                for key, value in (row["metadata"] or {}).items()
                if key not in CHECKER_KEYS
            }
            | checker_fields,
            mates=tuple(others[:MOST_MATES]),
            occurred_at=row["occurred_at"],
            target_id=row["id"],
        )


def _step(row: Any) -> Step:
    timed = row["started_at"] is not None and row["ended_at"] is not None
    seconds = (row["ended_at"] - row["started_at"]).total_seconds() if timed else None
    plain = {
        key: row[key]
        for key in (
            "kind",
            "name",
            "input",
            "output",
            "status",
            "prompt_tokens",
            "completion_tokens",
        )
    }
    return Step(**plain, seconds=seconds)
