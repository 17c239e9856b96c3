"""The ledger: what each component of an agent's reward says about each stored trace, kept by what the component read.

A row is named by (trace, component, version, inputs): the version is a fingerprint of the function, its version and its settings, the
inputs one of exactly the parts of the case that the function heeds. What is there is not run again, so late feedback or a changed case
costs only what reads it, and a run as of a day in the past gives today what it gave then. Weights are no part of it: the reward is
combined when it is read. What is `blocked` is tried again at every run, what `failed` when asked for.

Here rows are made and read; what a component is, is in `component`, and what a reward is made of in `combine`.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.core.log import Advance
from thumbwheel.db.workspace import Workspace
from thumbwheel.rewards import store
from thumbwheel.rewards.cases import Stored, stored_cases
from thumbwheel.rewards.combine import Combined, RewardConfig, RewardsConfig
from thumbwheel.rewards.component import Component
from thumbwheel.rewards.function import Score, Status


@dataclass
class Report:
    """What a run did. `judged` and `standing` are component -> count; `statuses` are of what was judged."""

    traces: int = 0
    judged: Counter[str] = field(default_factory=Counter)
    standing: Counter[str] = field(default_factory=Counter)
    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    rewarded: int = 0
    """Traces that had no value of any component, and have one now."""

    def note(self, component: str, score: Score) -> None:
        """Count one judgement."""
        self.judged[component] += 1
        self.statuses[component, str(score.status)] += 1
        if score.status in (Status.FAILED, Status.BLOCKED):
            self.reasons[component, str(score.status), str(score.evidence.get("reason", ""))[:200]] += 1


def settings(ws: Workspace, agent: str) -> RewardConfig:
    """The section `rewards` for one agent."""
    return ws.settings(RewardsConfig, "rewards").of(agent)


def run(
    ws: Workspace, agent: str, parts: Sequence[Component], *, as_of: datetime | None = None, retry: bool = False, dry_run: bool = False,
    trace_id: str | None = None, advance: Advance | None = None,
) -> Report:  # fmt: skip
    """Judge what has not been judged, of all traces of `agent` or of one; with `dry_run` only count it.

    `as_of`: with the feedback and the traces of that time; its rows are kept, and today's rewards stay as they are.
    """
    report = Report()
    reads = frozenset[str]().union(*(part.function.reads for part in parts))
    with ws.db.read() as connection:
        for batch in stored_cases(connection, agent, reads, as_of, trace_id):
            known = store.ledger(connection, [str(one.case.target_id) for one in batch])
            work = _Batch(ids.derived("agt", agent), batch, known, as_of)
            for part in parts:
                due = work.due(part, retry)
                report.standing[part.name] += len(batch) - len(due)
                if dry_run:
                    report.judged[part.name] += len(due)
                    continue
                for one, score in zip(due, part.judge(due), strict=True):
                    report.note(part.name, score)
                    work.add(part, one, score)
            report.traces += len(batch)
            report.rewarded += work.rewarded(parts)
            if not dry_run:
                ws.db.write(work.write)
            if advance:
                advance(len(batch))
    return report


class _Batch:
    """What is known and what becomes known about some traces."""

    def __init__(self, agent_id: str, batch: Sequence[Stored], known: Sequence[store.Entry], as_of: datetime | None) -> None:
        self._agent_id, self._batch, self._as_of, self._live = agent_id, batch, as_of, as_of is None
        self._known = {row.key: row for row in known}
        self._of: dict[tuple[str, str], list[store.Entry]] = defaultdict(list)
        for row in known:
            self._of[row.key[:2]].append(row)
        self._names: dict[tuple[str, str], tuple[str, str]] = {}
        self._fresh: list[dict[str, Any]] = []
        self._again: list[dict[str, Any]] = []
        self._valued: set[str] = set()

    def due(self, part: Component, retry: bool) -> list[Stored]:
        """Those that this component has not judged as they are."""
        found = []
        for one in self._batch:
            target = str(one.case.target_id)
            names = self._names[target, part.name] = part.version, part.inputs(one)
            row = self._known.get((target, part.name, *names))
            if row is None or row.status == Status.BLOCKED or (retry and row.status == Status.FAILED):
                found.append(one)
            elif row.status == Status.OK:
                self._valued.add(target)
        return found

    def add(self, part: Component, one: Stored, score: Score) -> None:
        """Note a judgement."""
        target = str(one.case.target_id)
        key = (target, part.name, *self._names[target, part.name])
        values = {"value": score.value, "status": str(score.status), "evidence": _evidence(score), "as_of": one.case.as_of}
        values |= {"recorded_at": datetime.now(UTC)}
        if key in self._known:
            self._again.append({"row": self._known[key].id, **values})
        else:
            names = dict(zip(("target_id", "component", "component_version", "inputs"), key, strict=True))
            self._fresh.append({"id": ids.derived("rwd", *key), "agent_id": self._agent_id, **names, **values, "current": self._live})
        if score.status is Status.OK:
            self._valued.add(target)

    def rewarded(self, parts: Sequence[Component]) -> int:
        """How many of them had no value that stood, and have one now."""
        versions = {(part.name, part.version) for part in parts}
        before = {
            row.target_id
            for row in self._known.values()
            if row.current and row.status == Status.OK and (row.component, row.component_version) in versions
        }
        return len(self._valued - before)

    def write(self, connection: sa.Connection) -> None:
        """Into the ledger; a run as of today also notes which rows stand."""
        standing = {}
        for (target, name), names in self._names.items() if self._live else ():
            for row in self._of.get((target, name), ()):
                if row.current != (stands := row.key[2:] == names):
                    standing[row.id] = stands
        store.keep(connection, self._fresh, self._again, standing)


def _evidence(score: Score) -> Any:
    """As JSON that every database reads: what is no JSON becomes its text."""
    if all(type(one) in _SURE for one in score.evidence.values()):
        return dict(score.evidence)
    return _DECODER.decode(_ENCODER.encode(dict(score.evidence)))


_SURE, _STATUSES = (str, int, bool), {str(one): one for one in Status}
_ENCODER, _DECODER = json.JSONEncoder(default=str), json.JSONDecoder(parse_constant=str)  # json.dumps makes one for every call


def rewards(
    connection: sa.Connection, agent: str, config: RewardConfig, parts: Sequence[Component], as_of: datetime | None = None
) -> Iterator[Combined]:
    """The reward of every trace in the ledger, without evidence and in the order of their ids, as the last run found it.

    With `as_of` what the traces and the feedback of that time give, in the order of `traces.input_id, traces.id`; nothing is run, so a
    component that was not run as of that time is missing.
    """
    if as_of is not None:
        yield from _then(connection, agent, config, parts, as_of)
        return
    versions, combine = {part.name: part.version for part in parts}, config.combiner()
    for target, rows in groupby(store.current(connection, ids.derived("agt", agent)), key=itemgetter(0)):
        scores = {name: _score(value, status) for _, name, version, value, status in rows if versions.get(name) == version}
        if scores:
            yield Combined(target, combine(scores), scores)


def _then(
    connection: sa.Connection, agent: str, config: RewardConfig, parts: Sequence[Component], as_of: datetime | None, **which: Any
) -> Iterator[Combined]:
    reads, combine = frozenset[str]().union(*(part.function.reads for part in parts)), config.combiner()
    for batch in stored_cases(connection, agent, reads, as_of, **which):
        known = {row.key: row for row in store.ledger(connection, [str(one.case.target_id) for one in batch])}
        for one in batch:
            target = str(one.case.target_id)
            rows = {part.name: known.get((target, part.name, part.version, part.inputs(one))) for part in parts}
            scores = {name: _score(row.value, row.status, {"row": row.id}) for name, row in rows.items() if row is not None}
            if scores:
                yield Combined(target, combine(scores), scores)


def one_reward(
    connection: sa.Connection, agent: str, config: RewardConfig, parts: Sequence[Component], trace_id: str, as_of: datetime | None = None
) -> Combined:
    """The reward of one trace with its evidence, for the case as it is now (or was then); a component that has not judged it is missing."""
    found = next(_then(connection, agent, config, parts, as_of, trace_id=trace_id), Combined(trace_id, None, {}))
    evidence = store.evidence(connection, trace_id)
    return (
        found
        if not evidence
        else Combined(
            trace_id,
            found.value,
            {name: Score(score.value, score.status, evidence[str(score.evidence["row"])]) for name, score in found.scores.items()},
        )
    )


def _score(value: float | None, status: str, evidence: Mapping[str, Any] = MappingProxyType({})) -> Score:
    return Score(value, _STATUSES[status], evidence)


def count(ws: Workspace, agent: str, as_of: datetime | None = None) -> int:
    """How many traces there are to judge."""
    with ws.db.read() as connection:
        return store.trace_count(connection, ids.derived("agt", agent), as_of)


def moved(ws: Workspace, agent: str, since: datetime) -> set[str]:
    """Traces whose combined reward may be another one than at `since`: a component of it valued them anew, or for the first time."""
    parts = [name for name, part in settings(ws, agent).parts().items() if part.weight]
    with ws.db.read() as connection:
        return store.moved(connection, ids.derived("agt", agent), since, parts)


def said_since(ws: Workspace, agent: str, since: datetime) -> set[str]:
    """Traces about which people said something, or took something back, after `since`."""
    with ws.db.read() as connection:
        return store.said_since(connection, ids.derived("agt", agent), since)
