"""A small world of traces, feedback and cases, written into a home by the conventions of the
tables; for tests of what reads them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.core.config import Home, Sources
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace

START = datetime(2026, 1, 5, tzinfo=UTC)
AGENT = "helper"


@dataclass
class FeedbackWorld:
    """Collects rows; `into` writes them, in any order that keeps references valid, as one import
    would."""

    rows: list[tuple[sa.Table, dict[str, Any]]] = field(default_factory=list)
    clock: int = 0

    def prompt(self, *texts: str, system: str | None = None) -> str:
        chain = [("system", system)] if system else []
        chain += [(("user", "assistant")[index % 2], text) for index, text in enumerate(texts)]
        parent: str | None = None
        for role, text in chain:
            content = {"content": text}
            parent_id, parent = (
                parent,
                ids.derived("msg", parent or "", role, json.dumps(content, sort_keys=True)),
            )
            self._add(schema.messages, id=parent, parent_id=parent_id, role=role, content=content)
        assert parent is not None
        return parent

    def trace(
        self,
        name: str,
        prompt: str,
        output: str | None,
        *,
        session: str | None = None,
        subject: str | None = None,
        steps: int = 1,
        **more: Any,
    ) -> str:
        """`prompt` is a text or the id of a prompt."""
        trace_id = self._id("trc", name)
        self._add(
            schema.traces,
            id=trace_id,
            agent_id=self._agent(),
            source="t",
            external_id=name,
            session_id=self._named(schema.sessions, "ses", session),
            subject_id=self._named(schema.subjects, "sub", subject),
            input_id=self._prompt_id(prompt),
            output=output,
            status="ok",
            fingerprint="",
            metadata=more.get("metadata"),
            recorded_at=START,
        )
        for position in range(steps):
            self._add(
                schema.steps,
                trace_id=trace_id,
                position=position,
                kind="llm",
                status="ok",
                finish_reason="stop",
                token_ids=more.get("token_ids"),
                complete=more.get("complete"),
                served_model=more.get("model"),
            )
        return trace_id

    def say(
        self,
        kind: str,
        value: Any,
        *traces: str,
        rater: str | None = "r1",
        weight: float = 1.0,
        name: str | None = None,
        **more: Any,
    ) -> str:
        self.clock += 1
        external = more.pop("id", f"f{self.clock}")
        feedback_id = self._id("fbk", external)
        rater_id = self._named(schema.raters, "rat", rater, kind="person", weight=weight)
        time = START + timedelta(minutes=more.pop("minute", self.clock))
        targets = more.pop("targets", [("trace", trace) for trace in traces])
        self._add(
            schema.feedback,
            id=feedback_id,
            agent_id=self._agent(),
            source="t",
            external_id=external,
            kind=kind,
            name=name,
            value=value,
            rater_id=rater_id,
            occurred_at=time,
            recorded_at=more.pop("recorded", START),
            fingerprint="",
            **more,
        )
        for position, (target, trace) in enumerate(targets):
            self._add(
                schema.feedback_targets,
                feedback_id=feedback_id,
                position=position,
                kind=target,
                source="t",
                external_id=trace,
                target_id=None if trace.startswith("missing") else trace,
            )
        return feedback_id

    def case(self, name: str, prompt: str, basis: str = "gold") -> str:
        case_id = self._id("cas", name)
        self._add(
            schema.cases,
            id=case_id,
            agent_id=self._agent(),
            source="t",
            external_id=name,
            input_id=self._prompt_id(prompt),
            reference="x",
            basis=basis,
            fingerprint="",
            recorded_at=START,
        )
        return case_id

    def into(self, home: Path, shuffle: Any = None) -> Workspace:
        ws = Workspace.open(
            Home.at(home), Sources({"endpoints": {"private": ["127.0.0.1"]}}, "test", {})
        )
        self.write(ws, shuffle)
        return ws

    def write(self, ws: Workspace, shuffle: Any = None) -> None:
        """Write the rows into a home that is open."""
        rows_by_key = {
            (table, *(values[key.name] for key in table.primary_key)): (table, values)
            for table, values in self.rows
        }
        rows = list(rows_by_key.values())
        if shuffle:
            shuffle(rows)
        order = {table: index for index, table in enumerate(schema.metadata.sorted_tables)}
        rows.sort(key=lambda row: (order[row[0]], self._depth(*row)))

        def work(connection: sa.Connection) -> None:
            for table, values in rows:
                connection.execute(table.insert().values(**values))

        ws.db.write(work)

    def _depth(self, table: sa.Table, values: dict[str, Any]) -> int:
        """How many messages come before this one; they must be there first."""
        if table is not schema.messages:
            return 0
        parents = {
            row["id"]: row["parent_id"] for other, row in self.rows if other is schema.messages
        }
        depth, message_id = 0, values["parent_id"]
        while message_id is not None:
            depth, message_id = depth + 1, parents[message_id]
        return depth

    def _prompt_id(self, prompt: str) -> str:
        return prompt if prompt.startswith("msg_") else self.prompt(prompt)

    def _agent(self) -> str:
        agent_id = ids.derived("agt", AGENT)
        self._add(schema.agents, id=agent_id, slug=AGENT, recorded_at=START)
        return agent_id

    def _named(self, table: sa.Table, prefix: str, name: str | None, **more: Any) -> str | None:
        if name is None:
            return None
        row_id = self._id(prefix, name)
        self._add(
            table,
            id=row_id,
            agent_id=self._agent(),
            source="t",
            external_id=name,
            recorded_at=START,
            **more,
        )
        return row_id

    def _id(self, prefix: str, name: str) -> str:
        return ids.derived(prefix, AGENT, "t", name)

    def _add(self, table: sa.Table, **values: Any) -> None:
        self.rows.append((table, values))
