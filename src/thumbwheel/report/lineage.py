"""Where a version comes from, back to single pieces of feedback; and forward, which versions
learned from one of them.

The links are the ids that every stage stored with its rows; nothing is stored here. Erasing is in
`erasure`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import sqlalchemy as sa

from thumbwheel.capture.erased import NAME
from thumbwheel.core import ids
from thumbwheel.core.errors import NotFound
from thumbwheel.core.home_paths import located
from thumbwheel.core.seal import read_seal
from thumbwheel.datasets.build import load_rows
from thumbwheel.datasets.types import SPLITS, Row
from thumbwheel.db import stored_rows
from thumbwheel.db.schema import reward_models
from thumbwheel.db.stored_rows import Record
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import versions
from thumbwheel.models.types import ModelVersion
from thumbwheel.report import store
from thumbwheel.report.taint import datasets_holding, judge_of
from thumbwheel.report.types import DatasetSources, Lineage, SourceUse

SOURCES = {"feedback": "feedback_ids", "traces": "trace_ids", "subjects": "subject_ids"}


def lineage(ws: Workspace, model_version: ModelVersion) -> Lineage:
    """Return the lineage of a version, with the decisions about it."""
    version_id = model_version.id
    with ws.db.read() as connection:
        row = store.version(connection, version_id) or {}
        parent = store.version(connection, row["parent_id"])
        run = store.run(connection, row["run_id"])
        dataset = store.dataset(connection, run["dataset_id"]) if run else None
        children = store.children_of(connection, version_id)
        return Lineage(
            version=_with_name(row),
            parent=_with_name(parent) if parent else None,
            aliases=store.alias_names(connection, version_id),
            run=run,
            dataset=dataset,
            sources=sources(_rows(ws, dataset["id"])) if dataset else None,
            evaluations=store.evaluations_of(connection, version_id),
            decisions=store.decisions_of(connection, version_id),
            exports=located(store.exports_of(connection, version_id), ws.home.path),
            reward_model=_reward_model(ws, connection, run) if run else None,
            children=[f"v{child['number']}" for child in children],
        )


def _reward_model(ws: Workspace, connection: sa.Connection, run: Record) -> Record | None:
    models = stored_rows.rows_of_agent(connection, reward_models, run["agent_id"])
    judge_id = judge_of(ws, run, models)
    for model in models:
        if model["id"] == judge_id:
            return {**model, "name": f"rm{model['number']}"}
    return None


def _with_name(row: Record) -> Record:
    return {**row, "name": f"v{row['number']}"}


def _rows(ws: Workspace, dataset_id: str) -> Iterator[Row]:
    for split in SPLITS:
        yield from load_rows(ws, dataset_id, split)


def sources(rows: Iterable[Row]) -> DatasetSources:
    """Return the sources of a dataset's `rows`, by split."""
    count: Counter[str] = Counter()
    origins: Counter[str] = Counter()
    ids_of: dict[str, dict[str, set[str]]] = {kind: {} for kind in SOURCES}
    for row in rows:
        count[row.split] += 1
        origins[row.origin] += 1
        for kind, column in SOURCES.items():
            ids_of[kind].setdefault(row.split, set()).update(getattr(row, column))

    def sorted_ids(kind: str) -> dict[str, list[str]]:
        return {split: sorted(source_ids) for split, source_ids in ids_of[kind].items()}

    return DatasetSources(
        rows=dict(count),
        feedback=sorted_ids("feedback"),
        traces=sorted_ids("traces"),
        subjects=sorted_ids("subjects"),
        origins=dict(origins),
    )


def uses(ws: Workspace, agent: str, source: str) -> list[SourceUse]:
    """Return the reward models and versions whose data contains `source`, oldest first. `source` is
    a piece of feedback, a trace or a subject, by Thumbwheel's id or its external one.

    A trace includes the feedback about it. A version that was only trained against such a reward
    model counts too. Raises NotFound for a source that was never recorded, or was erased.
    """
    agent_id = versions.require_agent(ws, agent).id
    with ws.db.read() as connection:
        wanted = source_and_feedback_ids(ws, connection, agent, source)
        trained = store.trained_versions(connection, agent_id)
        models = store.trained_reward_models(connection, agent_id)
        judges = {}
        for version in trained:
            run = store.run(connection, version["run_id"]) or {}
            judges[version["id"]] = judge_of(ws, run, models)

    # Dataset -> split -> rows that hold the source.
    counts = {name: rows.counts for name, rows in datasets_holding(ws, agent, wanted).items()}
    source_uses = [
        _source_use(f"rm{model['number']}", model, counts.get(model["dataset_id"]))
        for model in models
    ]
    models_by_id = {model["id"]: model for model in models}
    for version in trained:
        rows, through = counts.get(version["dataset_id"]), None
        judge = models_by_id.get(judges[version["id"]] or "")
        if rows is None and judge is not None:
            rows, through = counts.get(judge["dataset_id"]), f"rm{judge['number']}"
        source_uses.append(_source_use(f"v{version['number']}", version, rows, through))
    return [use for use in source_uses if use.rows]


def _source_use(
    name: str, row: Record, rows: dict[str, int] | None, through: str | None = None
) -> SourceUse:
    return SourceUse(name, row["id"], row["run_id"], row["dataset_id"], rows or {}, through)


def source_and_feedback_ids(
    ws: Workspace, connection: sa.Connection, agent: str, source: str
) -> set[str]:
    """Return the ids of `source` and of the feedback about it. Raises NotFound for a source that
    was never recorded, or was erased."""
    agent_id = versions.require_agent(ws, agent).id
    source_ids = set(store.source_ids(connection, agent_id, source))
    if not source_ids:
        raise _not_found(ws, connection, agent, agent_id, source)
    abbreviated = [
        row_id for row_id in source_ids if row_id != source and ids.stands_for(source, row_id)
    ]
    ids.require_single(source, sorted(abbreviated))
    wanted = set(source_ids)
    for row_id in source_ids:
        wanted.update(store.feedback_on(connection, row_id))
    return wanted


def _not_found(
    ws: Workspace, connection: sa.Connection, agent: str, agent_id: str, source: str
) -> NotFound:
    what = f"{source!r} of agent {agent!r}"
    seal = read_seal(ws.home.secret)
    if seal:
        keys = [seal.of(kind, source) for kind in ("trace", "feedback", "case", "subject", NAME)]
        erased_at = store.erased_at(connection, agent_id, keys)
        if erased_at:
            fix = "The tombstone is all that is left of it"
            return NotFound(what, f"it was erased at {erased_at[:16]} UTC", fix)
    return NotFound(
        what,
        "no feedback, trace or subject has that id",
        "List feedback: thumbwheel feedback list --agent AGENT",
    )


def tree(lineage: Lineage) -> Iterator[tuple[int, str]]:
    """Yield the lineage as lines of (depth, text)."""
    version = lineage.version
    aliases = f" [{', '.join(lineage.aliases)}]" if lineage.aliases else ""
    taint = " TAINTED" if version["tainted"] else ""
    recorded_at = version["recorded_at"][:16]
    basis = f" (basis {version['basis']})" if version["basis"] else ""
    yield 0, f"{version['name']}{aliases} {version['state']}{basis}{taint}  {recorded_at}"
    yield 1, f"base {version['base']}  {_short(version['base_fingerprint'])}"
    if lineage.parent:
        yield 1, f"parent {lineage.parent['name']} {lineage.parent['state']}"
    yield from _training_lines(lineage)
    for evaluation in lineage.evaluations:
        recorded_at = evaluation["recorded_at"][:16]
        yield 1, f"evaluation {evaluation['id']}  basis {evaluation['basis']}  {recorded_at}"
    for decision in lineage.decisions:
        yield 1, f"decision {decision['decision']}  {decision['recorded_at'][:16]}"
        for reason in decision["reasons"]:
            yield 2, str(reason)
    for export in lineage.exports:
        name = " ".join(filter(None, (export["format"], export.get("quant"))))
        yield 1, f"export {name}  {export['path']}"
    if lineage.children:
        yield 1, f"trained further: {', '.join(lineage.children)}"


def _training_lines(lineage: Lineage) -> Iterator[tuple[int, str]]:
    run, dataset, sources = lineage.run, lineage.dataset, lineage.sources
    if not (run and dataset and sources):
        return
    yield 1, f"run {run['id']}  {run['algorithm']}  seed {run['seed']}  {run['state']}"
    model = lineage.reward_model
    if model:
        taint = " TAINTED" if model["metrics"].get("tainted") else ""
        yield 2, f"against reward model {model['name']}{taint}  run {model['run_id']}"
    yield 2, f"dataset {dataset['id']}  {dataset['shape']}  {_short(dataset['fingerprint'])}"
    for split, count in sources.rows.items():
        parts = []
        for kind in SOURCES:
            source_ids = getattr(sources, kind).get(split)
            if source_ids:
                parts.append(f"{kind} {len(source_ids)}")
        yield 3, f"{split}: rows {count}, {', '.join(parts) or 'no recorded source'}"


def _short(fingerprint: str | None) -> str:
    return f"sha256 {fingerprint[:12]}" if fingerprint else "unknown fingerprint"
