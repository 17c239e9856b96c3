"""Where a version comes from, back to single pieces of feedback; and forward, which versions
learned from one of them.

The links are the ids that every stage stored with its rows; nothing is kept here. Does not live
here: erasing (erase.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import sqlalchemy as sa

from thumbwheel.capture.erased import NAME
from thumbwheel.core import ids
from thumbwheel.core.errors import NotFound
from thumbwheel.core.seal import read_seal
from thumbwheel.datasets.build import load_rows
from thumbwheel.datasets.types import SPLITS, Row
from thumbwheel.db.schema import reward_models
from thumbwheel.db.workspace import Workspace
from thumbwheel.loop import store
from thumbwheel.loop.taint import datasets_holding, judge_of
from thumbwheel.loop.types import Lineage, Record, Sources, SourceUse
from thumbwheel.models import versions

SOURCES = {"feedback": "feedback_ids", "traces": "trace_ids", "subjects": "subject_ids"}


def lineage(ws: Workspace, agent: str, version: str) -> Lineage:
    """Everything that `version` of `agent` stands on, and what was decided about it."""
    one = versions.version(ws, agent, version)
    with ws.db.read() as connection:
        run = store.run(connection, one.run_id)
        dataset = store.dataset(connection, run["dataset_id"] if run else None)
        return Lineage(
            version=_named(store.version(connection, one.id)),
            parent=_named(store.version(connection, one.parent_id)) if one.parent_id else None,
            aliases=store.alias_names(connection, one.id),
            run=run,
            dataset=dataset,
            sources=sources(_rows(ws, dataset["id"])) if dataset else None,
            evaluations=store.evaluations_of(connection, one.id),
            decisions=store.decisions_of(connection, one.id),
            exports=store.exports_of(connection, one.id),
            reward_model=_reward_model(ws, connection, run) if run else None,
            children=[f"v{child['number']}" for child in store.children_of(connection, one.id)],
        )


def _reward_model(ws: Workspace, connection: sa.Connection, run: Record) -> Record | None:
    known = store.rows_of_agent(connection, reward_models, run["agent_id"])
    found = judge_of(ws, run, known)
    return next(
        ({**one, "name": f"rm{one['number']}"} for one in known if one["id"] == found), None
    )


def _named(row: Record | None) -> Record:
    return {**(row or {}), "name": f"v{row['number']}" if row else None}


def _rows(ws: Workspace, dataset_id: str) -> Iterator[Row]:
    return chain.from_iterable(load_rows(ws, dataset_id, split) for split in SPLITS)


def sources(rows: Iterable[Row]) -> Sources:
    """What `rows` of a dataset were made from, by split."""
    count: Counter[str] = Counter()
    origins: Counter[str] = Counter()
    found: dict[str, dict[str, set[str]]] = {kind: {} for kind in SOURCES}
    for row in rows:
        count[row.split] += 1
        origins[row.origin] += 1
        for kind, column in SOURCES.items():
            found[kind].setdefault(row.split, set()).update(getattr(row, column))
    listed = {kind: {split: sorted(ids) for split, ids in by.items()} for kind, by in found.items()}
    return Sources(
        dict(count), listed["feedback"], listed["traces"], listed["subjects"], dict(origins)
    )


def uses(ws: Workspace, agent: str, source: str) -> list[SourceUse]:
    """The reward models and versions whose data holds `source`: a feedback, trace or subject, by
    our id or its external one; oldest first.

    A trace also stands for the feedback about it; a version that only was trained against such a
    reward model counts too. Raises NotFound for what was never recorded, or was erased.
    """
    agent_id = versions.require_agent(ws, agent)
    with ws.db.read() as connection:
        wanted = source_and_feedback_ids(ws, connection, agent, source)
        trained, judges = (
            store.trained_versions(connection, agent_id),
            store.trained_reward_models(connection, agent_id),
        )
        against = {
            one["id"]: judge_of(ws, store.run(connection, one["run_id"]) or {}, judges)
            for one in trained
        }
    counted = {one: found.counts for one, found in datasets_holding(ws, agent, wanted).items()}
    found = [_use(f"rm{one['number']}", one, counted, None) for one in judges]
    by_id = {one["id"]: one for one in judges}
    for one in trained:
        judge = by_id.get(against[one["id"]] or "")
        through = f"rm{judge['number']}" if judge and one["dataset_id"] not in counted else None
        found.append(_use(f"v{one['number']}", one, counted, through, judge if through else None))
    return [one for one in found if one.rows]


def _use(
    name: str,
    one: Record,
    counted: Mapping[str, dict[str, int]],
    through: str | None,
    judge: Record | None = None,
) -> SourceUse:
    return SourceUse(
        name,
        one["id"],
        one["run_id"],
        one["dataset_id"],
        counted.get((judge or one)["dataset_id"], {}),
        through,
    )


def source_and_feedback_ids(
    ws: Workspace, connection: sa.Connection, agent: str, source: str
) -> set[str]:
    """The ids that `source` means, and those of the feedback about it; raises NotFound for what was
    never recorded, or was erased."""
    agent_id = versions.require_agent(ws, agent)
    wanted = set(store.source_ids(connection, agent_id, source))
    if not wanted:
        raise NotFound(
            f"{source!r} of agent {agent!r}", *_missing(ws, connection, agent_id, source)
        )
    ids.require_single(
        source,
        sorted(row_id for row_id in wanted if row_id != source and ids.stands_for(source, row_id)),
    )
    about = {
        feedback_id for row_id in wanted for feedback_id in store.feedback_on(connection, row_id)
    }
    return wanted | about


def _missing(
    ws: Workspace, connection: sa.Connection, agent_id: str, source: str
) -> tuple[str, str]:
    seal = read_seal(ws.home.secret)
    keys = (
        [seal.of(kind, source) for kind in ("trace", "feedback", "case", "subject", NAME)]
        if seal
        else []
    )
    if at := store.erased_at(connection, agent_id, keys):
        return f"it was erased at {at[:16]} UTC", "The tombstone is all that is left of it"
    return (
        "no feedback, trace or subject has that id",
        "List feedback: thumbwheel feedback list --agent AGENT",
    )


def tree(found: Lineage) -> Iterator[tuple[int, str]]:
    """The lineage as lines of (depth, text)."""
    version = found.version
    names = f" [{', '.join(found.aliases)}]" if found.aliases else ""
    yield (
        0,
        f"{version['name']}{names} {version['state']}{' TAINTED' if version['tainted'] else ''}  "
        f"{version['recorded_at'][:16]}",
    )
    yield 1, f"base {version['base']}  {_short(version['base_fingerprint'])}"
    if found.parent:
        yield 1, f"parent {found.parent['name']} {found.parent['state']}"
    yield from _training(found)
    for one in found.evaluations:
        yield 1, f"evaluation {one['id']}  basis {one['basis']}  {one['recorded_at'][:16]}"
    for one in found.decisions:
        yield 1, f"decision {one['decision']}  {one['recorded_at'][:16]}"
        for reason in one["reasons"]:
            yield 2, str(reason)
    for one in found.exports:
        yield (
            1,
            f"export {' '.join(filter(None, (one['format'], one.get('quant'))))}  {one['path']}",
        )
    if found.children:
        yield 1, f"trained further: {', '.join(found.children)}"


def _training(found: Lineage) -> Iterator[tuple[int, str]]:
    run, dataset, made = found.run, found.dataset, found.sources
    if not (run and dataset and made):
        return
    yield 1, f"run {run['id']}  {run['algorithm']}  seed {run['seed']}  {run['state']}"
    if found.reward_model:
        taint = " TAINTED" if found.reward_model["metrics"].get("tainted") else ""
        yield (
            2,
            f"against reward model {found.reward_model['name']}{taint}  run "
            f"{found.reward_model['run_id']}",
        )
    yield 2, f"dataset {dataset['id']}  {dataset['shape']}  {_short(dataset['fingerprint'])}"
    for split, count in made.rows.items():
        parts = [f"{kind} {len(ids[split])}" for kind, ids in _kinds(made) if ids.get(split)]
        yield 3, f"{split}: rows {count}, {', '.join(parts) or 'no recorded source'}"


def _kinds(made: Sources) -> list[tuple[str, dict[str, list[str]]]]:
    return [("feedback", made.feedback), ("traces", made.traces), ("subjects", made.subjects)]


def _short(fingerprint: str | None) -> str:
    return f"sha256 {fingerprint[:12]}" if fingerprint else "unknown fingerprint"
