"""The ledger: the score of each stored trace by each component of the reward, keyed by what the
component read.

A row is named by (trace, component, version, inputs): the version is a fingerprint of the function,
its version and its settings, the inputs one of exactly the parts of the case that the function
uses. Existing rows are not computed again. So late feedback or a changed case costs only the
components that read it, and a run as of a past day gives today what it gave then. Weights are not
part of a row: the reward is combined when it is read (`combine`). `blocked` rows are tried again at
every run, `failed` ones on request.
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
from thumbwheel.db.write_locks import of_agent
from thumbwheel.models.types import Agent
from thumbwheel.rewards import feedback_queries, store
from thumbwheel.rewards.cases import StoredCase, stored_cases
from thumbwheel.rewards.combine import Combined, RewardConfig, RewardsConfig
from thumbwheel.rewards.component import Component, components
from thumbwheel.rewards.function import JudgementStatus, Score
from thumbwheel.rewards.types import EVERY_PROMPT, PromptRange


@dataclass
class LedgerReport:
    """What a run did. `judged` and `standing` are component -> count; `statuses` are of what was
    judged."""

    traces: int = 0
    judged: Counter[str] = field(default_factory=Counter)
    standing: Counter[str] = field(default_factory=Counter)
    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    rewarded: int = 0
    """Traces that had no value of any component, and have one now."""

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON, for `add_json`."""
        return {
            "traces": self.traces,
            "rewarded": self.rewarded,
            "judged": dict(self.judged),
            "standing": dict(self.standing),
            "statuses": [[*key, count] for key, count in self.statuses.items()],
            "reasons": [[*key, count] for key, count in self.reasons.items()],
        }

    def add_json(self, counts: Mapping[str, Any]) -> None:
        """Add the counts of another run, of other traces."""
        self.traces += counts["traces"]
        self.rewarded += counts["rewarded"]
        self.judged.update(counts["judged"])
        self.standing.update(counts["standing"])
        for component, status, count in counts["statuses"]:
            self.statuses[component, status] += count
        for component, status, reason, count in counts["reasons"]:
            self.reasons[component, status, reason] += count

    def note(self, component: str, score: Score) -> None:
        """Count one judgement."""
        self.judged[component] += 1
        self.statuses[component, str(score.status)] += 1
        if score.status in (JudgementStatus.FAILED, JudgementStatus.BLOCKED):
            self.reasons[
                component, str(score.status), str(score.evidence.get("reason", ""))[:200]
            ] += 1


def settings(ws: Workspace, agent: str) -> RewardConfig:
    """Return the section `rewards` of the settings for one agent."""
    return ws.settings(RewardsConfig, "rewards").of(agent)


def run(
    ws: Workspace,
    agent: Agent,
    parts: Sequence[Component],
    *,
    as_of: datetime | None = None,
    retry: bool = False,
    dry_run: bool = False,
    trace_id: str | None = None,
    prompts: PromptRange = EVERY_PROMPT,
    advance: Advance | None = None,
) -> LedgerReport:
    """Judge everything not yet judged, for all traces of `agent`, for one or for those of some
    `prompts`; with `dry_run` only count it.

    `as_of`: with the feedback and the traces of that time; its rows are stored, and today's rewards
    stay unchanged.
    """
    report = LedgerReport()
    reads = frozenset[str]().union(*(part.function.reads for part in parts))
    with ws.db.read() as connection:
        for batch in stored_cases(connection, agent, reads, as_of, trace_id, prompts=prompts):
            rows = store.ledger(connection, [str(stored.case.target_id) for stored in batch])
            work = _Batch(agent.id, batch, rows, as_of)
            for part in parts:
                due = work.due(part, retry)
                report.standing[part.name] += len(batch) - len(due)
                if dry_run:
                    report.judged[part.name] += len(due)
                    continue
                for stored, score in zip(due, part.judge(due), strict=True):
                    report.note(part.name, score)
                    work.add(part, stored, score)
            report.traces += len(batch)
            report.rewarded += work.rewarded(parts)
            if not dry_run:
                ws.db.write(work.write, of_agent(agent.id))
            if advance:
                advance(len(batch))
    return report


class _Batch:
    """What is known and what becomes known about some traces."""

    def __init__(
        self,
        agent_id: str,
        batch: Sequence[StoredCase],
        rows: Sequence[store.LedgerEntry],
        as_of: datetime | None,
    ) -> None:
        self._agent_id, self._batch, self._as_of, self._live = agent_id, batch, as_of, as_of is None
        self._known = {row.key: row for row in rows}
        self._of: dict[tuple[str, str], list[store.LedgerEntry]] = defaultdict(list)
        for row in rows:
            self._of[row.key[:2]].append(row)
        self._names: dict[tuple[str, str], tuple[str, str]] = {}
        self._fresh: list[dict[str, Any]] = []
        self._again: list[dict[str, Any]] = []
        self._valued: set[str] = set()

    def due(self, part: Component, retry: bool) -> list[StoredCase]:
        """Return the cases that this component has not judged in their present state; blocked ones
        are due again, and with `retry` failed ones."""
        unjudged = []
        for stored in self._batch:
            target = str(stored.case.target_id)
            names = self._names[target, part.name] = part.version, part.inputs(stored)
            row = self._known.get((target, part.name, *names))
            if (
                row is None
                or row.status == JudgementStatus.BLOCKED
                or (retry and row.status == JudgementStatus.FAILED)
            ):
                unjudged.append(stored)
            elif row.status == JudgementStatus.OK:
                self._valued.add(target)
        return unjudged

    def add(self, part: Component, stored: StoredCase, score: Score) -> None:
        """Note the score of a component for a case."""
        target = str(stored.case.target_id)
        key = (target, part.name, *self._names[target, part.name])
        values = {
            "value": score.value,
            "status": str(score.status),
            "evidence": _evidence(score),
            "as_of": stored.case.as_of,
        }
        values |= {"recorded_at": datetime.now(UTC)}
        if key in self._known:
            self._again.append({"row": self._known[key].id, **values})
        else:
            names = dict(
                zip(("target_id", "component", "component_version", "inputs"), key, strict=True)
            )
            self._fresh.append(
                {
                    "id": ids.derived("rwd", *key),
                    "agent_id": self._agent_id,
                    **names,
                    **values,
                    "current": self._live,
                }
            )
        if score.status is JudgementStatus.OK:
            self._valued.add(target)

    def rewarded(self, parts: Sequence[Component]) -> int:
        """Count the traces that had no current value before and have one now."""
        versions = {(part.name, part.version) for part in parts}
        before = {
            row.target_id
            for row in self._known.values()
            if row.current
            and row.status == JudgementStatus.OK
            and (row.component, row.component_version) in versions
        }
        return len(self._valued - before)

    def write(self, connection: sa.Connection) -> None:
        """Write the scores into the ledger; a run as of today also marks which rows are current."""
        standing = {}
        for (target, name), names in self._names.items() if self._live else ():
            version, inputs = names
            for row in self._of.get((target, name), ()):
                if row.component_version != version:
                    # what other settings found stands for them: they may come back into force
                    continue
                is_current = row.inputs == inputs
                if row.current != is_current:
                    standing[row.id] = is_current
        store.keep(connection, self._fresh, self._again, standing)


def _evidence(score: Score) -> Any:
    """Return the evidence as JSON that every database reads: any value that is not JSON becomes its
    text."""
    if all(type(value) in _PLAIN_TYPES for value in score.evidence.values()):
        return dict(score.evidence)
    return _DECODER.decode(_ENCODER.encode(dict(score.evidence)))


_PLAIN_TYPES = (str, int, bool)
_STATUSES = {str(status): status for status in JudgementStatus}
# made once: json.dumps makes one for every call
_ENCODER = json.JSONEncoder(default=str)
_DECODER = json.JSONDecoder(parse_constant=str)


Version = tuple[str, str]
"""(component, version): which rows of the ledger are meant."""


def scores(
    connection: sa.Connection,
    agent: Agent,
    parts: Sequence[Component],
    as_of: datetime | None = None,
    trace_id: str | None = None,
) -> Iterator[tuple[str, dict[Version, Score]]]:
    """Yield (trace, its score by each of `parts`), as the last run of each part found it, for all
    traces, in the order of their ids, or for one.

    All code that shows, explains, reweighs or builds from rewards reads them here. The evidence of
    a score is not read: for one trace it names the ledger row. A score that a part has not given is
    missing. With `as_of` the scores are those that the traces and the feedback of that time give,
    in the order of `traces.input_id, traces.id`; nothing is run for it.
    """
    if as_of is not None:
        yield from _scores_as_of(connection, agent, parts, as_of, trace_id)
        return
    wanted = {(part.name, part.version) for part in parts}
    rows = store.current(connection, agent.id, {version for _, version in wanted}, trace_id)
    for target, rows_of_target in groupby(rows, key=itemgetter(0)):
        by_version: dict[Version, Score] = {}
        for _, name, version, value, status, row_id in rows_of_target:
            if (name, version) in wanted:
                by_version[name, version] = _score(
                    value, status, _NO_EVIDENCE if trace_id is None else {"row": row_id}
                )
        if by_version:
            yield target, by_version


def _scores_as_of(
    connection: sa.Connection,
    agent: Agent,
    parts: Sequence[Component],
    as_of: datetime,
    trace_id: str | None,
) -> Iterator[tuple[str, dict[Version, Score]]]:
    reads = frozenset[str]().union(*(part.function.reads for part in parts))
    for batch in stored_cases(connection, agent, reads, as_of, trace_id):
        rows = {
            row.key: row
            for row in store.ledger(connection, [str(case.case.target_id) for case in batch])
        }
        for case in batch:
            target = str(case.case.target_id)
            by_version: dict[Version, Score] = {}
            for part in parts:
                row = rows.get((target, part.name, part.version, part.inputs(case)))
                if row is not None:
                    by_version[part.name, part.version] = _score(
                        row.value, row.status, {"row": row.id}
                    )
            if by_version:
                yield target, by_version


def rewards(
    connection: sa.Connection,
    agent: Agent,
    config: RewardConfig,
    parts: Sequence[Component],
    as_of: datetime | None = None,
) -> Iterator[Combined]:
    """Yield the reward of every trace in the ledger, without evidence; see `scores`."""
    combine = config.combiner()
    for target, by_version in scores(connection, agent, parts, as_of):
        by_name = {name: score for (name, _), score in by_version.items()}
        yield Combined(target, combine(by_name), by_name)


def one_reward(
    connection: sa.Connection,
    agent: Agent,
    config: RewardConfig,
    parts: Sequence[Component],
    trace_id: str,
    as_of: datetime | None = None,
) -> tuple[Combined, frozenset[str]]:
    """Return (the reward of one trace with its evidence, the components whose score is of an
    earlier state of the trace)."""
    _, by_version = next(scores(connection, agent, parts, as_of, trace_id), (trace_id, {}))
    rows = store.evidence(connection, trace_id)
    by_name: dict[str, Score] = {}
    inputs: dict[str, str] = {}
    for (name, _), score in by_version.items():
        inputs[name], evidence = rows[str(score.evidence["row"])]
        by_name[name] = Score(score.value, score.status, evidence)
    reads = frozenset[str]().union(*(part.function.reads for part in parts))
    outdated: set[str] = set()
    for batch in stored_cases(connection, agent, reads, as_of, trace_id):
        outdated.update(
            part.name
            for part in parts
            if part.name in inputs and part.inputs(batch[0]) != inputs[part.name]
        )
    return Combined(trace_id, config.combine(by_name), by_name), frozenset(outdated)


def not_run(
    connection: sa.Connection,
    agent: Agent,
    config: RewardConfig,
    parts: Sequence[Component],
    as_of: datetime | None = None,
) -> list[str]:
    """Return the components with a weight for which the ledger has no row with their present
    function and settings: they do not count in a reward."""
    weights = {name: part.weight for name, part in config.parts().items()}
    return [
        part.name
        for part in parts
        if weights[part.name]
        and not store.has_rows(connection, agent.id, part.name, part.version, current=as_of is None)
    ]


def not_run_warning(agent: str, names: Sequence[str]) -> str:
    """Return the warning about `not_run` for a person.

    >>> why, fix = not_run_warning("filer", ["decision"]).split(". ")
    >>> why
    'Never judged with the present settings, so without a part in the reward: decision'
    >>> fix
    'Judge them: thumbwheel reward run --agent filer'
    """
    why = "Never judged with the present settings, so without a part in the reward"
    return f"{why}: {', '.join(names)}. Judge them: thumbwheel reward run --agent {agent}"


_NO_EVIDENCE: Mapping[str, Any] = MappingProxyType({})


def _score(value: float | None, status: str, evidence: Mapping[str, Any]) -> Score:
    return Score(value, _STATUSES[status], evidence)


def count(ws: Workspace, agent: Agent, as_of: datetime | None = None) -> int:
    """Return the number of traces to judge."""
    with ws.db.read() as connection:
        return feedback_queries.trace_count(connection, agent.id, as_of)


def traces_with_new_rewards(ws: Workspace, agent: Agent, since: datetime) -> set[str]:
    """Return the traces whose combined reward may differ from the one at `since`: one of its
    components valued them again, or for the first time.

    Raises NotFound where a model or classifier of the reward is gone.
    """
    config = settings(ws, agent.slug)
    weighted = [name for name, part in config.parts().items() if part.weight]
    if not weighted:
        return set()
    versions = {part.version for part in components(ws, agent.slug, config, weighted)}
    with ws.db.read() as connection:
        return store.traces_with_new_rewards(connection, agent.id, since, versions)


def traces_with_new_feedback(ws: Workspace, agent: Agent, since: datetime) -> set[str]:
    """Return the traces about which people gave or withdrew feedback after `since`."""
    with ws.db.read() as connection:
        return store.traces_with_new_feedback(connection, agent.id, since)
