"""`erase`: a subject's data out of the whole home, and what descends from it marked. Read this
first.

    mark      tombstones, taint: from here on no import brings the rows back and no gate passes what learned from them
    datasets  every dataset that holds their rows gets new files; it keeps its id, with a note
    files     run folders, cache, refused lines, reports, old files of datasets
    rows      the rows of the database, and the answers that evaluations show
    compact   the database is written anew, so that no free page holds them
    done      the record of the erasure is closed

A kill between or inside stages leaves a home in which the same command finishes: the rows, by which
everything else is found, go last, and the record of the erasure stays open until the bytes are
gone. What weights have learned cannot be taken out of them: the honest answer is to train anew from
the base, and the plan for that is part of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.capture.erased import NAME
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.core import ids
from thumbwheel.core.errors import NotFound
from thumbwheel.core.seal import Seal, make_seal, read_seal
from thumbwheel.datasets.build import by_id
from thumbwheel.datasets.rewrite import rewrite_without
from thumbwheel.db import schema
from thumbwheel.db.engine import compact
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.signing import resigned
from thumbwheel.loop import store
from thumbwheel.loop.purge import changed_reports, check_idle, purge
from thumbwheel.loop.retrain import retrain
from thumbwheel.loop.taint import datasets_holding, descendants, reward_datasets
from thumbwheel.loop.types import Record, SubjectRows, Tainted
from thumbwheel.models.versions import require_agent
from thumbwheel.rewards import unlearn

DONE = "done"
STAGES = ("mark", "datasets", "files", "rows", "compact", DONE)
LEARNED = (
    "What the weights of tainted versions have learned cannot be erased from them; train anew from "
    "the base, without the rows."
)
FITTED = (
    "Classifiers and judges' statements of agreement of this agent were fitted on labels that go: "
    "they are deleted, with the undecided "
    "suggestions and the ledger rows of `learned`. Fit them anew (label learn, label trust); "
    "files that --out wrote are yours to delete."
)
OUTSIDE = (
    "What Ollama or vLLM serve of a tainted version goes on answering there: thumbwheel undeploy "
    "VERSION --agent AGENT. Of other files "
    "outside this home only reports and exported folders are touched: delete your own copies "
    "(imported files, --rejects and --output "
    "files, exported datasets, backups) as your own rules say."
)


@dataclass
class Erasure:
    """What was erased, or would be; no text, and names only of what is the owner's own."""

    agent: str
    state: str
    """planned, done, or already: it was done before and nothing has come since."""
    id: str | None = None
    rows: dict[str, int] = field(default_factory=dict)
    """Table -> rows."""
    datasets: dict[str, dict[str, int]] = field(default_factory=dict)
    """Dataset id -> split -> rows that go."""
    files: dict[str, int] = field(default_factory=dict)
    tainted: dict[str, list[str]] = field(default_factory=dict)
    """Kind -> names."""
    retrain: list[str] = field(default_factory=list)
    """Commands that make what was tainted anew."""
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As a JSON value."""
        return asdict(self)


@dataclass
class _Job:
    """One erasure while it runs."""

    ws: Workspace
    agent: str
    agent_id: str
    keys: set[str]
    """Keys under which the subject's erasure is recorded."""
    doomed: SubjectRows
    tainted: Tainted
    done: Erasure
    began: datetime
    open: Record | None = None


def erase(
    ws: Workspace,
    agent: str,
    subject: str,
    *,
    dry_run: bool = False,
    stage: Callable[[str], None] = lambda name: None,
) -> Erasure:
    """Erase everything about `subject` (its name in the sources, or our id) of `agent`; `stage` is
    told every stage as it begins.

    With `dry_run` nothing is changed. Raises NotFound for a subject of which nothing was ever
    stored, Conflict while a run trains, StorageError where the disk or another program is in the
    way; the same call then goes on.
    """
    agent_id = require_agent(ws, agent)
    drain_inbox(ws)
    seal = read_seal(ws.home.secret) if dry_run else make_seal(ws.home.secret)
    job = _plan(ws, agent, agent_id, subject, seal)
    if job.done.state == "already" or dry_run:
        return job.done
    check_idle(ws)
    for name in STAGES:
        stage(name)
        WORK[name](job, seal or make_seal(ws.home.secret))
    job.done.state = DONE
    return job.done


def _plan(ws: Workspace, agent: str, agent_id: str, subject: str, seal: Seal | None) -> _Job:
    with ws.db.read() as connection:
        doomed = store.subject_rows(connection, agent_id, subject)
        known = store.erasures(connection, agent_id)
    names = {subject} | doomed.names["subjects"] | doomed.subjects
    keys = {seal.of("subject", name) for name in names} if seal else set()
    mine = [row for row in known if keys & set(row["report"]["keys"])]
    unfinished = next((row for row in mine if row["report"]["state"] != DONE), None)
    job = _Job(
        ws,
        agent,
        agent_id,
        keys,
        doomed,
        Tainted(),
        Erasure(agent, "planned"),
        datetime.now(UTC),
        unfinished,
    )
    if not doomed.ids and not doomed.raters and unfinished is None:
        if not mine:
            fix = "Give the subject as the traces name it, or our id (sub_...)"
            raise NotFound(
                f"subject {subject!r} of agent {agent!r}", "nothing is stored about it", fix
            )
        at = mine[-1]["recorded_at"][:16]
        job.done = Erasure(
            agent,
            "already",
            mine[-1]["id"],
            notes=[f"everything about it was erased at {at} UTC; nothing has come since"],
        )
        return job
    _describe(job)
    return job


def _describe(job: _Job) -> None:
    """Find what descends from the rows and put it into words."""
    ws, before = job.ws, job.open["report"] if job.open else {}
    holding, earlier = (
        datasets_holding(ws, job.agent, job.doomed.ids, lost=True),
        before.get("tainted", {}),
    )
    fitted, said = _fitted(job, earlier), 0
    with ws.db.read() as connection:
        of = {*holding, *earlier.get("datasets", ())}
        by_rewards = reward_datasets(ws, job.agent)
        if job.doomed.ids:
            of |= by_rewards if unlearn.classifier_has_part(connection, job.agent_id) else set()
            said = unlearn.count_classifier_output(connection, job.agent_id)
        modelled = by_rewards if unlearn.reward_model_has_part(connection, job.agent_id) else set()
        found = descendants(
            ws,
            connection,
            job.agent_id,
            of,
            job.doomed.cases,
            bool(fitted["classifiers"]),
            modelled,
        )
        job.tainted = replace(found, **fitted)
        job.done.tainted = {
            kind: names
            for kind, names in named(connection, job.tainted, job.agent_id).items()
            if names
        }
        job.done.retrain = retrain(connection, job.tainted)
        served = store.aliases_at(connection, job.tainted.versions)
    job.done.id = job.open["id"] if job.open else None
    job.done.rows = before.get("rows") or job.doomed.counts
    job.done.datasets = before.get("datasets") or {
        one: rows.counts for one, rows in holding.items()
    }
    job.done.notes = [
        f"alias {alias!r} points at {name}, which is tainted: point it at another version, or "
        "retrain"
        for alias, name in served
    ]
    gone = {kind: [one[:12] for one in sorted(found)] for kind, found in fitted.items() if found}
    job.done.tainted |= gone
    job.done.notes += [FITTED] if gone or said else []
    changed = "was changed since it was written; look whether it names the subject"
    lost = [
        f"dataset {one}: its file of {split} is missing or damaged, and goes whole"
        for one, rows in holding.items()
        for split in rows.lost
    ]
    job.done.notes += lost
    job.done.notes += [f"report {path} {changed}" for path in changed_reports(ws, job.tainted)]
    job.done.notes += [LEARNED] if job.tainted.versions | job.tainted.reward_models else []
    job.done.notes.append(OUTSIDE)


def _fitted(job: _Job, earlier: Mapping[str, Any]) -> dict[str, set[str]]:
    """What was fitted on the labels, by kind: what an erasure that was stopped had found, and what
    is there now. Where the rows are gone already, what is there was fitted without them."""
    now = unlearn.fitted_documents(job.ws, job.agent) if job.doomed.ids else {}
    return {kind: {*earlier.get(kind, ()), *now.get(kind, ())} for kind in unlearn.KINDS}


def named(connection: sa.Connection, tainted: Tainted, agent_id: str) -> dict[str, list[str]]:
    """What is tainted, by the names that people use; those of another agent than `agent_id` have
    its name before them."""
    found = tainted.to_json()
    for kind in ("shown", *unlearn.KINDS):
        found.pop(kind)
    for kind, table, letter in (
        ("versions", schema.model_versions, "v"),
        ("reward_models", schema.reward_models, "rm"),
    ):
        rows = [store.one(connection, table, row_id) or {} for row_id in found[kind]]
        others = {
            one: f"{(store.one(connection, schema.agents, one) or {})['slug']}/"
            for one in {row["agent_id"] for row in rows}
        }
        shown = sorted(
            (others[row["agent_id"]] if row["agent_id"] != agent_id else "", row["number"])
            for row in rows
        )
        found[kind] = [f"{other}{letter}{number}" for other, number in shown]
    found["exports"] = [
        str((store.one(connection, schema.exports, row_id) or {})["path"])
        for row_id in found["exports"]
    ]
    return found


def _report(job: _Job, state: str) -> dict[str, Any]:
    """What is kept about the erasure: counts, our own ids and keyed hashes."""
    report = {
        "state": state,
        "keys": sorted(job.keys),
        "rows": job.done.rows,
        "datasets": job.done.datasets,
        "files": job.done.files,
    }
    return report | {
        "tainted": job.tainted.to_json(),
        "began": job.began.isoformat(),
        "ended": datetime.now(UTC).isoformat(),
    }


def _mark(job: _Job, seal: Seal) -> None:
    keys = [(kind, seal.of(kind, name)) for kind, name in _tombstones(job.doomed)]

    def work(connection: sa.Connection) -> str:
        store.record_tombstones(connection, job.agent_id, keys, job.began)
        _taint(connection, job.tainted)
        if job.open is not None:
            store.note_erasure(connection, job.open["id"], _report(job, "mark"))
            return str(job.open["id"])
        return store.begin_erasure(
            connection,
            job.agent_id,
            seal.of("erasure", ids.new("ers")),
            _report(job, "mark"),
            job.began,
        )

    job.done.id = job.ws.db.write(work)


def _tombstones(doomed: SubjectRows) -> Iterator[tuple[str, str]]:
    for kind, rows in (
        ("trace", doomed.traces),
        ("feedback", doomed.feedback),
        ("case", doomed.cases),
        ("session", doomed.sessions),
    ):
        yield from ((kind, row) for row in sorted(rows))
    yield from ((NAME, name) for name in sorted(doomed.names["traces"] | doomed.traces))
    yield from (("subject", name) for name in sorted(doomed.names["subjects"]))
    yield from (
        ("rater", name) for name in sorted(doomed.names["own_raters"] | doomed.names["subjects"])
    )


def _taint(connection: sa.Connection, tainted: Tainted) -> None:
    for version in tainted.versions:
        store.set_values(connection, schema.model_versions, version, {"tainted": True})
    for table, rows in ((schema.reward_models, tainted.reward_models), (schema.runs, tainted.runs)):
        for row_id in rows:
            row = store.one(connection, table, row_id) or {}
            values: dict[str, Any] = {"metrics": {**(row["metrics"] or {}), "tainted": True}}
            if table is schema.runs and row["state"] != "finished":
                values |= {
                    "state": "failed",
                    "reason": "data that it was trained on was erased; start a new run",
                }
            store.set_values(connection, table, row_id, values)
    for dataset in tainted.datasets:
        row = store.one(connection, schema.datasets, dataset) or {}
        store.set_values(
            connection, schema.datasets, dataset, {"manifest": {**row["manifest"], "tainted": True}}
        )


def _datasets(job: _Job, seal: Seal) -> None:
    for dataset_id, found in datasets_holding(job.ws, job.agent, job.doomed.ids, lost=True).items():
        _rewrite(job, seal, dataset_id, {row for rows in found.rows.values() for row in rows})


def _rewrite(job: _Job, seal: Seal, dataset_id: str, rows: set[str]) -> None:
    """New files of one dataset, under the same id; its old hashes become tombstones."""
    dataset = by_id(job.ws, dataset_id)
    made = rewrite_without(job.ws, dataset, job.doomed.ids)
    note = {
        "erasure": job.done.id,
        "at": job.began.isoformat(),
        "rows": {split: many for split, many in made.removed.items() if many},
    }
    manifest = scrubbed(dataset.manifest, job.doomed.ids | rows)
    manifest |= {
        "files": made.files,
        "counts": made.counts,
        "origins": dict(sorted(made.origins.items())),
    }
    manifest["gate_groups"] = len(made.gate_groups)
    for figures in ("scores", "characters", "loudest"):  # of rows that are gone too
        manifest.pop(figures, None)
    manifest["erased"] = [*manifest.get("erased", ()), note]
    old = [
        ("hash", seal.of("hash", name))
        for name in {dataset.fingerprint, *dataset.manifest["files"].values()}
        - set(made.files.values())
    ]

    def work(connection: sa.Connection) -> None:
        store.record_tombstones(connection, job.agent_id, old, job.began)
        fingerprint = ids.fingerprint(
            {"dataset": dataset_id, "erasure": job.done.id, "files": made.files}
        )
        store.replace_dataset(connection, dataset_id, manifest, fingerprint, made.sizes)

    job.ws.db.write(work)


def scrubbed(value: Any, gone: frozenset[str]) -> Any:
    """`value` without the objects and list entries that name one of `gone`.

    >>> scrubbed({"rows": [{"id": "a", "text": "x"}, {"id": "b"}], "ids": ["a", "b"]},
    frozenset({"a"})) {'rows': [{'id': 'b'}], 'ids': ['b']}
    """
    if isinstance(value, Mapping):
        return {
            key: scrubbed(part, gone)
            for key, part in value.items()
            if key not in gone and not _names_one(part, gone)
        }
    if isinstance(value, list | tuple):
        return [scrubbed(part, gone) for part in value if not _names_one(part, gone)]
    return value


def _names_one(part: Any, gone: frozenset[str]) -> bool:
    if isinstance(part, Mapping):
        return any(isinstance(inner, str) and inner in gone for inner in part.values())
    return isinstance(part, str) and part in gone


def _files(job: _Job, seal: Seal) -> None:
    with job.ws.db.read() as connection:
        runs = store.run_ids(connection)
        paths = [
            str((store.one(connection, schema.exports, row_id) or {})["path"])
            for row_id in job.tainted.exports
        ]
    job.done.files = purge(job.ws, job.doomed, job.tainted, runs, paths)


def _rows(job: _Job, seal: Seal) -> None:
    shown = {name for names in job.doomed.names.values() for name in names if len(name) > 2}

    def work(connection: sa.Connection) -> None:
        for row_id in sorted(job.tainted.evaluations):
            _forget_answers(job.ws, connection, row_id, shown)
        store.delete(connection, job.doomed)
        store.forget_replies(connection, job.agent_id)
        if job.doomed.ids:
            unlearn.delete_classifier_output(connection, job.agent_id)
        if any(
            row["agent_id"] == job.agent_id
            for row in store.rows_by_id(connection, schema.reward_models, job.tainted.reward_models)
        ):
            unlearn.delete_reward_model_scores(connection, job.agent_id)
        store.note_erasure(connection, str(job.done.id), _report(job, "rows"))

    job.ws.db.write(work)


def _forget_answers(
    ws: Workspace, connection: sa.Connection, evaluation_id: str, names: set[str]
) -> None:
    """The figures of an evaluation stay; the answers that it shows go, and slices that are named
    after what was erased."""
    row = store.one(connection, schema.evaluations, evaluation_id) or {}
    results = dict(row["results"])
    results["examples"] = []
    results["slices"] = _nameless(results.get("slices", ()), names)
    results["suites"] = [
        {**one, "details": {}, "slices": _nameless(one["slices"], names)}
        for one in results.get("suites", ())
    ]
    results["notes"] = [*results.get("notes", ()), "its examples were erased"]
    store.set_values(
        connection, schema.evaluations, evaluation_id, {"results": resigned(ws, row, results)}
    )


def _nameless(slices: Iterable[Record], names: set[str]) -> list[Record]:
    return [one for one in slices if not any(name in one["name"] for name in names)]


def _compact(job: _Job, seal: Seal) -> None:
    compact(job.ws.home.database, job.ws.home.lock)


def _close(job: _Job, seal: Seal) -> None:
    job.ws.db.write(
        lambda connection: store.note_erasure(connection, str(job.done.id), _report(job, DONE))
    )


WORK: Mapping[str, Callable[[_Job, Seal], None]] = {
    "mark": _mark,
    "datasets": _datasets,
    "files": _files,
    "rows": _rows,
    "compact": _compact,
    DONE: _close,
}
