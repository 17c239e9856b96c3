"""`erase`: delete a subject's data from the whole home, and mark what descends from it as tainted.
Read this first.

    mark      write tombstones and taint: from here on no import brings the rows back, and the gate
              rejects what learned from them
    datasets  write new files for every dataset that holds their rows; it keeps its id, with a note
    files     delete run folders, cache, refused lines, reports, old files of datasets
    rows      delete the rows of the database, the answers that evaluations show, and what jobs say
    compact   write the database anew, so that no free page holds them
    done      close the record of the erasure

After a kill between or inside stages the same command finishes. Everything else is found by the
rows, so these go last, and the record of the erasure stays open until the bytes are gone. What
weights have learned cannot be erased from them: they have to be trained anew from the base, and the
result has the commands for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.capture.erased import NAME
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.capture.redact import hashed_name
from thumbwheel.core import ids
from thumbwheel.core.errors import Conflict, NotFound
from thumbwheel.core.home_paths import located
from thumbwheel.core.seal import Seal, make_seal, read_seal
from thumbwheel.datasets.build import by_id
from thumbwheel.datasets.rewrite import rewrite_without
from thumbwheel.db import schema, stored_rows
from thumbwheel.db.stored_rows import Record
from thumbwheel.db.workspace import Workspace
from thumbwheel.erasure import store, subject_data
from thumbwheel.erasure.pending_erasures import leave_to_others, other_hosts, waiting_hosts
from thumbwheel.erasure.purge import changed_reports, check_idle, mentions, purge
from thumbwheel.erasure.retrain import retrain
from thumbwheel.erasure.types import Erasure, SubjectRows
from thumbwheel.evaluation.signing import resigned
from thumbwheel.jobs.queue import forget
from thumbwheel.models.types import Agent
from thumbwheel.report.taint import datasets_holding, descendants, reward_datasets
from thumbwheel.report.tainted_names import names_of
from thumbwheel.report.types import Tainted
from thumbwheel.review import label_documents
from thumbwheel.rewards import unlearn
from thumbwheel.training.killed_runs import host_of, running_elsewhere

DONE = "done"
STAGES = ("mark", "datasets", "files", "rows", "compact", DONE)
LEARNED = (
    "What the weights of tainted versions have learned cannot be erased from them; train anew from "
    "the base, without the rows."
)
FITTED = (
    "Classifiers and judges' statements of agreement of this agent were fitted on labels that go: "
    "they are deleted, with the undecided suggestions and the ledger rows of `learned`. Fit them "
    "anew (label learn, label trust); files that --out wrote are yours to delete."
)
OUTSIDE = (
    "What Ollama or vLLM serve of a tainted version goes on answering there: thumbwheel undeploy "
    "VERSION --agent AGENT. Of other files outside this home only reports and exported folders are "
    "touched: delete your own copies (imported files, --rejects and --output files, exported "
    "datasets, backups) as your own rules say."
)


@dataclass
class _Erasure:
    """One erasure while it runs."""

    ws: Workspace
    agent: Agent
    keys: set[str]
    """Keys under which the subject's erasure is recorded."""
    doomed: SubjectRows
    tainted: Tainted
    result: Erasure
    began: datetime
    unfinished: Record | None = None
    """The record of an erasure that was stopped."""


def erase(
    ws: Workspace,
    agent: Agent,
    subject: str,
    *,
    dry_run: bool = False,
    stage: Callable[[str], None] = lambda name: None,
) -> Erasure:
    """Erase everything about `subject` (its name in the sources, or Thumbwheel's id) of `agent`.
    `stage` is called with each stage as it begins.

    With `dry_run` nothing is changed. Raises NotFound for a subject about which nothing was ever
    stored, Conflict while a run trains, StorageError if the disk is full or another program holds a
    file; the same call then continues.
    """
    drain_inbox(ws, everything=True)
    seal = read_seal(ws.home.secret) if dry_run else make_seal(ws.home.secret)
    job = _plan(ws, agent, subject, seal)
    if job.result.state == "already" or dry_run:
        return job.result
    check_idle(ws)
    for run in running_elsewhere(ws):
        raise Conflict(
            f"run {run.id!r}",
            f"{host_of(ws, run)} trains it at this moment, and would write checkpoints again",
            "Wait for its end, or stop it there; then erase",
        )
    for name in STAGES:
        stage(name)
        WORK[name](job, seal or make_seal(ws.home.secret))
    job.result.state = DONE
    return job.result


def _plan(ws: Workspace, agent: Agent, subject: str, seal: Seal | None) -> _Erasure:
    with ws.db.read() as connection:
        # strict redaction may have put its hash in place of the name
        asked_names = {subject, *([hashed_name(seal, subject)] if seal else ())}
        doomed = subject_data.subject_rows(connection, agent.id, asked_names)
        erasures = store.erasures(connection, agent.id)
    if doomed.subjects and subject not in doomed.subjects:
        doomed.names["subjects"].add(subject)
    names = {subject} | doomed.names["subjects"] | doomed.subjects
    keys = {seal.of("subject", name) for name in names} if seal else set()
    of_subject = [erasure for erasure in erasures if keys & set(erasure["report"]["keys"])]
    open_erasures = [erasure for erasure in of_subject if erasure["report"]["state"] != DONE]
    unfinished = open_erasures[0] if open_erasures else None
    job = _Erasure(
        ws,
        agent,
        keys,
        doomed,
        Tainted(),
        Erasure(agent.slug, "planned"),
        datetime.now(UTC),
        unfinished,
    )
    if not doomed.ids and not doomed.raters and unfinished is None:
        if not of_subject:
            fix = "Give the subject as the traces name it, or our id (sub_...)"
            raise NotFound(
                f"subject {subject!r} of agent {agent.slug!r}", "nothing is stored about it", fix
            )
        last = of_subject[-1]
        erased_at = last["recorded_at"][:16]
        note = f"everything about it was erased at {erased_at} UTC; nothing has come since"
        notes = [note]
        if waiting := waiting_hosts(ws, last["id"]):
            notes.append(_left_to(waiting))
        job.result = Erasure(agent.slug, "already", last["id"], notes=notes)
        return job
    _describe(job)
    return job


def _describe(job: _Erasure) -> None:
    """Find all descendants of the rows, and fill `job.tainted` and `job.result`."""
    ws, result = job.ws, job.result
    # An erasure that was stopped had found things that are gone by now.
    earlier = job.unfinished["report"] if job.unfinished else {}
    earlier_tainted = earlier.get("tainted", {})
    holding = datasets_holding(ws, job.agent.slug, job.doomed.ids, lost=True)
    documents = _fitted_documents(job, earlier_tainted)
    with_rewards = reward_datasets(ws, job.agent.slug)
    affected = {*holding, *earlier_tainted.get("datasets", ())}
    classifier_output = 0
    with ws.db.read() as connection:
        if job.doomed.ids:
            if unlearn.classifier_has_part(connection, job.agent.id):
                affected |= with_rewards
            classifier_output = unlearn.count_classifier_output(connection, job.agent.id)
        modelled = set()
        if unlearn.reward_model_has_part(connection, job.agent.id):
            modelled = with_rewards
        tainted = descendants(
            ws,
            connection,
            job.agent.id,
            affected,
            job.doomed.cases,
            bool(documents["classifiers"]),
            modelled,
        )
        job.tainted = replace(tainted, **documents)
        names = names_of(connection, job.tainted, job.agent.id)
        result.retrain = retrain(connection, job.tainted)
        aliases = store.aliases_at(connection, job.tainted.versions)

    result.id = job.unfinished["id"] if job.unfinished else None
    result.rows = earlier.get("rows") or job.doomed.counts
    result.datasets = earlier.get("datasets") or {
        dataset_id: rows.counts for dataset_id, rows in holding.items()
    }
    names["exports"] = located(names["exports"], ws.home.path)
    result.tainted = {kind: kind_names for kind, kind_names in names.items() if kind_names}
    for kind, hashes in documents.items():
        if hashes:
            result.tainted[kind] = [sha256[:12] for sha256 in sorted(hashes)]

    notes = [
        f"alias {alias!r} points at {name}, which is tainted: point it at another version, or "
        "retrain"
        for alias, name in aliases
    ]
    if any(documents.values()) or classifier_output:
        notes.append(FITTED)
    for dataset_id, rows in holding.items():
        notes += [
            f"dataset {dataset_id}: its file of {split} is missing or damaged, and goes whole"
            for split in rows.lost
        ]
    notes += [
        f"report {path} was changed since it was written; look whether it names the subject"
        for path in changed_reports(ws, job.tainted)
    ]
    if job.tainted.versions | job.tainted.reward_models:
        notes.append(LEARNED)
    if others := other_hosts(ws):
        notes.append(_left_to(others))
    notes.append(OUTSIDE)
    result.notes = notes


def _left_to(hosts: list[str]) -> str:
    """Return a note about the files in the folders of other hosts."""
    return (
        f"files in the folders of other hosts are removed by their servers within seconds, or when "
        f"they next start: {', '.join(hosts)}"
    )


def _fitted_documents(job: _Erasure, earlier: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return kind -> hashes of the documents fitted on the labels, found by an interrupted erasure
    or existing now. Once the rows are gone, existing documents were fitted without them and do not
    count."""
    now = label_documents.fitted_documents(job.ws, job.agent.slug) if job.doomed.ids else {}
    return {kind: {*earlier.get(kind, ()), *now.get(kind, ())} for kind in label_documents.KINDS}


def _report(job: _Erasure, state: str) -> dict[str, Any]:
    """Return the stored report of the erasure: counts, Thumbwheel ids and keyed hashes."""
    return {
        "state": state,
        "keys": sorted(job.keys),
        "rows": job.result.rows,
        "datasets": job.result.datasets,
        "files": job.result.files,
        "tainted": job.tainted.to_json(),
        "began": job.began.isoformat(),
        "ended": datetime.now(UTC).isoformat(),
    }


def _mark(job: _Erasure, seal: Seal) -> None:
    keys = [(kind, seal.of(kind, name)) for kind, name in _tombstones(job.doomed)]

    def work(connection: sa.Connection) -> str:
        store.record_tombstones(connection, job.agent.id, keys, job.began)
        _taint(connection, job.tainted)
        if job.unfinished is not None:
            store.note_erasure(connection, job.unfinished["id"], _report(job, "mark"))
            return str(job.unfinished["id"])
        return store.begin_erasure(
            connection,
            job.agent.id,
            seal.of("erasure", ids.new("ers")),
            _report(job, "mark"),
            job.began,
        )

    job.result.id = job.ws.db.write(work)


def _tombstones(doomed: SubjectRows) -> Iterator[tuple[str, str]]:
    """Yield (kind, name) of everything that must not be imported again."""
    names_of_kind = {
        "trace": doomed.traces,
        "feedback": doomed.feedback,
        "case": doomed.cases,
        "session": doomed.sessions,
        NAME: doomed.names["traces"] | doomed.traces,
        "subject": doomed.names["subjects"],
        "rater": doomed.names["named_raters"] | doomed.names["subjects"],
    }
    for kind, names in names_of_kind.items():
        for name in sorted(names):
            yield kind, name


def _taint(connection: sa.Connection, tainted: Tainted) -> None:
    for version in tainted.versions:
        stored_rows.set_values(connection, schema.model_versions, version, {"tainted": True})
    for table, rows in ((schema.reward_models, tainted.reward_models), (schema.runs, tainted.runs)):
        for row_id in rows:
            row = stored_rows.row_by_id(connection, table, row_id) or {}
            values: dict[str, Any] = {"metrics": {**(row["metrics"] or {}), "tainted": True}}
            if table is schema.runs and row["state"] != "finished":
                values |= {
                    "state": "failed",
                    "reason": "data that it was trained on was erased; start a new run",
                }
            stored_rows.set_values(connection, table, row_id, values)
    for dataset in tainted.datasets:
        row = stored_rows.row_by_id(connection, schema.datasets, dataset) or {}
        manifest = {**row["manifest"], "tainted": True}
        stored_rows.set_values(connection, schema.datasets, dataset, {"manifest": manifest})


def _datasets(job: _Erasure, seal: Seal) -> None:
    holding = datasets_holding(job.ws, job.agent.slug, job.doomed.ids, lost=True)
    for dataset_id, affected in holding.items():
        row_ids = set().union(*affected.rows.values())
        _rewrite(job, seal, dataset_id, row_ids)


def _rewrite(job: _Erasure, seal: Seal, dataset_id: str, rows: set[str]) -> None:
    """Write new files of one dataset, under the same id; its old hashes become tombstones. `rows`
    are the ids of the rows to remove."""
    dataset = by_id(job.ws, dataset_id)
    rewritten = rewrite_without(job.ws, dataset, job.doomed.ids)

    manifest = scrubbed(dataset.manifest, job.doomed.ids | rows)
    manifest["files"] = rewritten.files
    manifest["counts"] = rewritten.counts
    manifest["origins"] = dict(sorted(rewritten.origins.items()))
    manifest["gate_groups"] = len(rewritten.gate_groups)
    for figures in ("scores", "characters", "loudest"):  # they also count rows that are gone
        manifest.pop(figures, None)
    note = {
        "erasure": job.result.id,
        "at": job.began.isoformat(),
        "rows": {split: removed for split, removed in rewritten.removed.items() if removed},
    }
    manifest["erased"] = [*manifest.get("erased", ()), note]

    old_hashes = {dataset.fingerprint, *dataset.manifest["files"].values()}
    old_hashes -= set(rewritten.files.values())
    tombstones = [("hash", seal.of("hash", sha256)) for sha256 in old_hashes]
    content = {"dataset": dataset_id, "erasure": job.result.id, "files": rewritten.files}
    fingerprint = ids.fingerprint(content)

    def work(connection: sa.Connection) -> None:
        store.record_tombstones(connection, job.agent.id, tombstones, job.began)
        store.replace_dataset(connection, dataset_id, manifest, fingerprint, rewritten.sizes)

    job.ws.db.write(work)


def scrubbed(value: Any, gone: frozenset[str]) -> Any:
    """Return `value` without the objects and list entries that contain one of the ids `gone`.

    >>> manifest = {"rows": [{"id": "a", "text": "x"}, {"id": "b"}], "ids": ["a", "b"]}
    >>> scrubbed(manifest, frozenset({"a"}))
    {'rows': [{'id': 'b'}], 'ids': ['b']}
    """
    if isinstance(value, Mapping):
        return {
            key: scrubbed(part, gone)
            for key, part in value.items()
            if key not in gone and not _contains_id(part, gone)
        }
    if isinstance(value, list | tuple):
        return [scrubbed(part, gone) for part in value if not _contains_id(part, gone)]
    return value


def _contains_id(part: Any, gone: frozenset[str]) -> bool:
    if isinstance(part, Mapping):
        return any(isinstance(inner, str) and inner in gone for inner in part.values())
    return isinstance(part, str) and part in gone


def _files(job: _Erasure, seal: Seal) -> None:
    with job.ws.db.read() as connection:
        exports = stored_rows.rows_by_id(connection, schema.exports, job.tainted.exports)
    names = [export["path"] for export in exports]
    leave_to_others(job.ws, str(job.result.id), job.doomed, job.tainted, names)
    paths = located(names, job.ws.home.path)
    job.result.files = purge(job.ws, job.doomed, job.tainted, paths)


def _rows(job: _Erasure, seal: Seal) -> None:
    names = set().union(*job.doomed.names.values())
    long_names = {name for name in names if len(name) > 2}

    def work(connection: sa.Connection) -> None:
        job.ws.db.prepare_erasure(connection)
        for evaluation_id in sorted(job.tainted.evaluations):
            _forget_answers(job.ws, connection, evaluation_id, long_names)
        subject_data.delete(connection, job.doomed)
        store.forget_replies(connection, job.agent.id)
        store.forget_requests(connection, job.agent.slug)
        if rewritten := forget(connection, mentions(names | job.doomed.ids)):
            job.result.files["texts of jobs"] = rewritten
        if job.doomed.ids:
            unlearn.delete_classifier_output(connection, job.agent.id)
        tainted_models = job.tainted.reward_models
        reward_models = stored_rows.rows_by_id(connection, schema.reward_models, tainted_models)
        if any(model["agent_id"] == job.agent.id for model in reward_models):
            unlearn.delete_reward_model_scores(connection, job.agent.id)
        store.note_erasure(connection, str(job.result.id), _report(job, "rows"))

    job.ws.db.write(work)


def _forget_answers(
    ws: Workspace, connection: sa.Connection, evaluation_id: str, names: set[str]
) -> None:
    """Remove the answers in an evaluation, and the slices whose name contains one of `names`. Its
    figures stay."""
    row = stored_rows.row_by_id(connection, schema.evaluations, evaluation_id) or {}
    results = dict(row["results"])
    results["examples"] = []
    results["slices"] = _without_names(results.get("slices", ()), names)
    results["suites"] = [
        {**suite, "details": {}, "slices": _without_names(suite["slices"], names)}
        for suite in results.get("suites", ())
    ]
    results["notes"] = [*results.get("notes", ()), "its examples were erased"]
    values = {"results": resigned(ws, row, results)}
    stored_rows.set_values(connection, schema.evaluations, evaluation_id, values)


def _without_names(slices: Iterable[Record], names: set[str]) -> list[Record]:
    return [measure for measure in slices if not any(name in measure["name"] for name in names)]


def _compact(job: _Erasure, seal: Seal) -> None:
    job.ws.db.compact()


def _close(job: _Erasure, seal: Seal) -> None:
    erasure_id = str(job.result.id)
    job.ws.db.write(
        lambda connection: store.note_erasure(connection, erasure_id, _report(job, DONE))
    )


WORK: Mapping[str, Callable[[_Erasure, Seal], None]] = {
    "mark": _mark,
    "datasets": _datasets,
    "files": _files,
    "rows": _rows,
    "compact": _compact,
    DONE: _close,
}
