"""Taking a subject out: nothing of theirs is left in any byte of the home, everything of the others
is, and nothing comes back."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.models.tiny_models import record
from tests.training_rows import frozen
from tests.worlds import label_world
from tests.worlds.erasure_world import (
    AGENT,
    dump,
    find,
    judged,
    lines_of,
    name,
    personal,
    word,
    write,
)
from thumbwheel import sdk
from thumbwheel.capture.feedback import add_feedback
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.capture.ingest import ingest
from thumbwheel.capture.redact import RedactedSegment, Redactor
from thumbwheel.core import ids
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import Conflict, NotFound, StorageError
from thumbwheel.datasets.build import build, by_id, load_rows
from thumbwheel.datasets.types import SPLITS, Dataset, DatasetConfig
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.erasure.erase import STAGES, erase
from thumbwheel.erasure.subject_data import subject_rows
from thumbwheel.evaluation.evaluate import evaluations
from thumbwheel.evaluation.signing import genuine, signed_evaluation
from thumbwheel.evaluation.types import EvaluationConfig
from thumbwheel.export.types import Parity, ParityLimits
from thumbwheel.jobs import queue
from thumbwheel.models import documents, reward_models, versions
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.types import Agent
from thumbwheel.report import taint
from thumbwheel.report.lineage import lineage, uses
from thumbwheel.report.report import report
from thumbwheel.report.row_lineage import used_in, why
from thumbwheel.report.taint import descendants
from thumbwheel.report.written_reports import note_copy
from thumbwheel.review.label_config import LearnConfig
from thumbwheel.review.suggest import decide, questions, suggest
from thumbwheel.rewards import ledger, unlearn
from thumbwheel.rewards.combine import RewardConfig
from thumbwheel.rewards.component import components
from thumbwheel.rewards.presets import ComponentConfig
from thumbwheel.sdk.segment import Segment
from thumbwheel.training.algorithms.dpo import DpoConfig
from thumbwheel.training.rundir import RunDir

PEOPLE = 8
PARITY = Parity(5, 200, "F32", 1e-6, 1e-9, 1.0, 0.5, True, ParityLimits(1e-4, 0.99))
GONE = 3
SPLIT = DatasetConfig(dev=0.2, gate=0.4)


def measure(named: str) -> dict[str, Any]:
    figures = {
        "before": 0.5,
        "after": 0.7,
        "gain": 0.2,
        "low": 0.1,
        "high": 0.3,
        "level": 0.95,
        "n": 40,
        "clusters": 40,
        "changed": 8,
    }
    return {
        "name": named,
        **figures,
        "spread": {"centre": 0.2, "error": 0.05, "degrees": 39.0, "limit": 1.0},
    }


def results(candidate: Any, base: Any) -> dict[str, Any]:
    """An evaluation that shows what the erased person asked, and has a slice named after them."""
    shown = {
        "case": "cas_x",
        "prompt": personal(GONE, "q"),
        "reference": "r",
        "before": personal(GONE, "b"),
        "after": "a",
        "value_before": 0.0,
        "value_after": 1.0,
    }
    return {
        "agent": AGENT,
        "candidate_id": candidate.id,
        "candidate": candidate.name,
        "against_id": base.id,
        "against": base.name,
        "basis": "gold",
        "fresh": True,
        "primary": measure("success"),
        "preferences": [],
        "guards": [],
        "slices": [measure(f"customer: {name(GONE)}"), measure("customer: all")],
        "examples": [shown],
        "reads": 1,
        "detectable": 0.05,
        "dropped": {},
        "notes": [],
        "rows": "r" * 64,
        "key": "k" * 64,
        "suites": [of_json_agent()],
    }


def of_json_agent() -> dict[str, Any]:
    errors = {
        "after": {
            "error_examples": [
                {
                    "case": "cas_x",
                    "prompt": personal(GONE, "asked"),
                    "response": personal(GONE, "told"),
                }
            ]
        }
    }
    slices = [measure(f"customer: {name(GONE)}")]
    return {
        "name": "json_agent",
        "measures": [measure("all fields right")],
        "slices": slices,
        "details": errors,
        "dropped": {},
    }


class Turned:
    """A home after a whole turn: imported, judged by hand, frozen, trained (as a run leaves it),
    evaluated, exported, reported."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = (
            folder,
            write(
                folder / "feedback.jsonl",
                [line for number in range(PEOPLE) for line in lines_of(number)],
            ),
        )
        self.ws = Workspace.open(Home(folder / "home"), Sources({}, "", {}))
        ingest(self.ws, AGENT, "jsonl", self.file)
        self.by_hand = add_feedback(
            self.ws,
            AGENT,
            f"t1-{word(GONE)}",
            "comment",
            personal(GONE, "typed by hand"),
            rater="clerk",
        )
        self.sets = {
            shape: build(self.ws, AGENT, shape, SPLIT) for shape in ("pairs", "labels", "prompts")
        }
        base = versions.ensure_base(self.ws, AGENT, "/models/base", "ab" * 32)
        self.judge = self._judge(self._run("reward", "pairs", {}))
        self.run = self._run("dpo", "labels", {"reward_model": "rm1"})
        self.version = versions.add_candidate(self.ws, base, self.run, self._weights("v1"))
        values = {
            "candidate_id": self.version.id,
            "against_id": base.id,
            "basis": "gold",
            "results": results(self.version, base),
        }
        config = EvaluationConfig().model_dump(mode="json")
        self.evaluation = record(self.ws, schema.evaluations, AGENT, config=config, **values)
        reply = [{"text": personal(GONE, "repeated by a model")}]
        record(
            self.ws, schema.answers, AGENT, id="", model="m", suite="answers", row="r", result=reply
        )
        self.exported = folder / "exported"
        self.exported.mkdir()
        stored = {"path": str(self.exported), "files": {}, "parity": asdict(PARITY)}
        record(
            self.ws, schema.exports, AGENT, version_id=self.version.id, format="merged", **stored
        )
        self._scatter()

    def _weights(self, text: str) -> Path:
        folder = self.folder / f"weights-{text}"
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_text(text)
        return folder

    def _run(self, algorithm: str, shape: str, config: dict[str, Any]) -> str:
        values = {
            "algorithm": algorithm,
            "dataset_id": self.sets[shape].id,
            "base": "/models/base",
            "state": "finished",
            "metrics": {},
        }
        evaluation = DpoConfig(beta=0.3).model_dump(mode="json") | config
        run = record(
            self.ws, schema.runs, AGENT, config=evaluation, environment={}, seed=1, **values
        )
        folder = RunDir(self.ws.home.runs / run)
        folder.checkpoints.mkdir(parents=True)
        folder.log.write_text(personal(GONE, "log of the run"))
        (folder.checkpoints / "samples.jsonl").write_text(personal(GONE, "an answer"))
        folder.metrics.write_text('{"step": 1, "loss": 0.5}\n')
        return run

    def _judge(self, run: str) -> Any:
        return reward_models.add(
            self.ws, AGENT, run, "/models/base", "ab" * 32, self._weights("rm1"), {"dev": {}}
        )

    def _scatter(self) -> None:
        """What else a home may hold."""
        home = self.ws.home
        home.cache.mkdir(exist_ok=True)
        (home.cache / "reference.db").write_text(personal(GONE, "cached"))
        (home.path / "building-x").mkdir()
        (home.path / "building-x" / "train.parquet").write_text(personal(GONE, "half a file"))
        (home.blobs / "sha256" / "incoming-1").write_text(personal(GONE, "half a blob"))
        refused = [
            {
                "number": n,
                "reason": "r",
                "text": json.dumps({"subject": name(n), "x": personal(n, "refused")}),
            }
            for n in (GONE, 5)
        ]
        write(home.inbox / "rejected.jsonl", refused)
        for n in (GONE, 5):
            queue.enqueue(self.ws, "import", {"path": f"/exports/{name(n)}.jsonl"}, agent=AGENT)
        report(
            self.ws, versions.version(self.ws, AGENT, "v1"), None, self.ws.home.path / "report.json"
        )


def rows_of(ws: Workspace, dataset: Dataset) -> list[Any]:
    return [row for split in SPLITS for row in load_rows(ws, dataset.id, split)]


@pytest.fixture
def turned(tmp_path: Path) -> Any:
    world = Turned(tmp_path)
    yield world
    world.ws.db.close()


def test_nothing_is_left_and_nothing_comes_back(turned: Turned) -> None:
    ws, home = turned.ws, turned.ws.home.path
    assert len(find(home, word(GONE))) > 8
    others = {shape: rows_of(ws, dataset) for shape, dataset in turned.sets.items()}
    done = erase(ws, Agent.named(AGENT), name(GONE))
    assert find(home, word(GONE)) == []
    assert word(GONE) not in (turned.folder / "exported" / "TAINTED.txt").read_text()
    assert done.rows | {"messages": 0} == {
        "subjects": 1,
        "sessions": 1,
        "traces": 3,
        "feedback": 6,
        "raters": 2,
        "cases": 1,
        "messages": 0,
    }
    assert word(5) in (home / "inbox" / "rejected.jsonl").read_text()
    assert sorted(job.spec["path"] for job in queue.jobs(ws)[0]) == [
        queue.ERASED,
        f"/exports/{name(5)}.jsonl",
    ]
    assert done.files["texts of jobs"] == 1
    for shape, dataset in turned.sets.items():
        version = by_id(ws, dataset.id)
        left = rows_of(ws, dataset)
        assert left == [
            row
            for row in others[shape]
            if word(GONE) not in str(row) and not _merged(row, others[shape])
        ]
        assert version.fingerprint != dataset.fingerprint
        assert sum(version.counts.values()) == len(left)
        assert version.manifest["erased"][0]["erasure"] == done.id
        assert version.manifest["tainted"]
        blobs = Artifacts.of(ws)
        assert not set(dataset.manifest["files"].values()) - set(
            version.manifest["files"].values()
        ) & set(blobs.all())
    again = ingest(ws, AGENT, "jsonl", turned.file)
    assert (again.stored, again.erased, again.refused) == (0, len(lines_of(GONE)), 0)
    assert again.read == again.duplicates + again.erased
    assert find(home, word(GONE)) == []


def test_what_the_subject_said_about_others_does_not_come_back(turned: Turned) -> None:
    """A tombstone of the rater covers words about traces that stay."""
    line = judged(GONE, "about-5", f"t0-{word(5)}", "thumb", True, name(GONE))
    file = write(turned.folder / "said.jsonl", [line])
    erase(turned.ws, Agent.named(AGENT), name(GONE))
    again = ingest(turned.ws, AGENT, "jsonl", file)
    assert (again.stored, again.erased) == (0, 1)
    assert find(turned.ws.home.path, word(GONE)) == []


def test_stored_answers_to_requests_go(turned: Turned) -> None:
    row = {
        "key": "k" * 64,
        "fingerprint": "f" * 64,
        "recorded_at": datetime.now(UTC),
        "answer": {"status": 200, "headers": {}, "body": personal(GONE, "told again")},
    }
    turned.ws.db.write(lambda c: c.execute(schema.request_keys.insert().values(**row)))
    erase(turned.ws, Agent.named(AGENT), name(GONE))
    with turned.ws.db.read() as connection:
        left = connection.execute(sa.select(sa.func.count()).select_from(schema.request_keys))
        assert left.scalar_one() == 0


def _merged(row: Any, rows: list[Any]) -> bool:
    """Whether the row stands on a trace of the erased person: one answer that several people got is
    one row."""

    gone = {
        ids.derived("trc", AGENT, "jsonl", f"{trace}-{word(GONE)}") for trace in ("t0", "t1", "h")
    }
    return bool(gone & set(row.trace_ids))


@pytest.mark.slow
def test_nothing_is_left_in_postgresql(
    homes_in_postgresql: dict[Path, str], turned: Turned
) -> None:
    test_nothing_is_left_and_nothing_comes_back(turned)


def test_the_sdk_cannot_bring_it_back_and_a_later_visit_is_welcome(
    turned: Turned, monkeypatch: pytest.MonkeyPatch
) -> None:
    erase(turned.ws, Agent.named(AGENT), name(GONE))
    monkeypatch.setenv("THUMBWHEEL_HOME", str(turned.ws.home.path))
    sdk.trace(
        AGENT,
        input=personal(GONE, "again"),
        output="x",
        id="old",
        subject=name(GONE),
        occurred_at="2026-02-01T00:00:00Z",
    )
    sdk.feedback(AGENT, f"t0-{word(GONE)}", comment=personal(GONE, "remark from elsewhere"))
    drained = drain_inbox(turned.ws)
    assert drained == ["inbox: 0 lines stored, 2 belong to what was erased and were dropped"]
    assert find(turned.ws.home.path, word(GONE)) == []
    sdk.trace(AGENT, input="a new question", output="x", id="new", subject=name(GONE))
    assert drain_inbox(turned.ws) == ["inbox: 1 lines stored"]
    assert erase(turned.ws, Agent.named(AGENT), name(GONE)).rows["traces"] == 1
    assert find(turned.ws.home.path, word(GONE)) == []


def test_who_is_stored_under_the_hash_of_strict_redaction_is_erased_by_the_name(
    tmp_path: Path,
) -> None:
    mail = f"{word(GONE)}@example.org"
    sources = Sources({"capture": {"redaction": "strict"}}, "thumbwheel.yaml", {})
    with Workspace.open(Home(tmp_path / "home"), sources) as ws:

        def record(segment: Segment, trace: str) -> list[str]:
            line = {"type": "trace", "agent": AGENT, "id": trace, "subject": mail}
            line |= {"input": "Hi", "output": "Ho", "occurred_at": "2026-01-05T10:00:00Z"}
            segment.append(json.dumps(line).encode()).result()
            return drain_inbox(ws)

        segments = [RedactedSegment(ws.home.inbox, Redactor.of_home(ws)), Segment(ws.home.inbox)]
        for number, segment in enumerate(segments):  # a home that was stricter once
            record(segment, f"t{number}")
        erasure = erase(ws, Agent.named(AGENT), mail)
        assert erasure.rows["traces"] == 2 and erasure.rows["subjects"] == 2
        for number, segment in enumerate(segments):
            assert "1 belong to what was erased" in record(segment, f"u{number}")[0]
            segment.close()
        assert find(ws.home.path, word(GONE)) == []
        assert erase(ws, Agent.named(AGENT), mail).state == "already"


def test_without_its_secret_a_home_takes_nothing(turned: Turned) -> None:
    erase(turned.ws, Agent.named(AGENT), name(GONE))
    turned.ws.home.secret.unlink()
    with pytest.raises(StorageError, match="missing"):
        ingest(turned.ws, AGENT, "jsonl", turned.file)


def test_what_descends_is_tainted_and_passes_no_gate(turned: Turned) -> None:
    ws = turned.ws
    planned = erase(ws, Agent.named(AGENT), name(GONE), dry_run=True)
    assert not versions.version(ws, AGENT, "v1").tainted
    done = erase(ws, Agent.named(AGENT), name(GONE))
    assert planned.tainted == done.tainted
    assert (done.tainted["versions"], done.tainted["reward_models"]) == (["v1"], ["rm1"])
    assert versions.version(ws, AGENT, "v1").tainted
    assert not versions.version(ws, AGENT, "v0").tainted
    with pytest.raises(Conflict, match="tainted"):
        reward_models.folder(ws, reward_models.find(ws, AGENT, "rm1"))
    (shown,) = (
        item
        for item in evaluations(ws, versions.version(ws, AGENT, "v1"))
        if item.id == turned.evaluation
    )
    assert (shown.examples, [item.name for item in shown.slices]) == ((), ["customer: all"])
    assert shown.primary.gain == 0.2
    assert done.retrain[0].startswith(
        f"thumbwheel train reward --agent {AGENT} --base /models/base"
    )
    assert "--reward-model latest" in done.retrain[1]
    assert done.retrain[-1] == f"thumbwheel evaluate latest --agent {AGENT}"
    assert any("cannot be erased" in note for note in done.notes)
    remaining = {path.name for path in (ws.home.runs / turned.run).iterdir()}
    assert remaining == {"metrics.jsonl", "lock"}
    assert not (ws.home.path / "report.json").exists()


@pytest.mark.parametrize("edited", [False, True])
def test_an_erasure_signs_what_it_shortened_and_nothing_that_was_edited_before(
    turned: Turned, edited: bool
) -> None:
    ws, evaluation = turned.ws, schema.evaluations
    (before,) = (
        stored_evaluation
        for stored_evaluation in evaluations(ws, versions.version(ws, AGENT, "v1"))
        if stored_evaluation.id == turned.evaluation
    )
    signed = signed_evaluation(ws, before)
    assert signed.examples
    stored = signed.model_dump(mode="json", exclude={"id", "config"}) | (
        {"reads": 7} if edited else {}
    )
    ws.db.write(
        lambda c: c.execute(
            evaluation.update().where(evaluation.c.id == before.id).values(results=stored)
        )
    )
    erase(ws, Agent.named(AGENT), name(GONE))
    (after,) = (
        stored_evaluation
        for stored_evaluation in evaluations(ws, versions.version(ws, AGENT, "v1"))
        if stored_evaluation.id == turned.evaluation
    )
    assert (after.examples, genuine(ws, after)) == ((), not edited)


def test_what_was_trained_over_an_export_is_tainted_whoever_trained_it_and_however_it_was_named(
    turned: Turned,
) -> None:
    ws, named = turned.ws, turned.exported / ".." / turned.exported.name
    ws.db.write(lambda c: c.execute(schema.exports.update().values(path=str(named))))
    parent = versions.ensure_base(ws, "other", str(turned.exported.resolve()), "cd" * 32)
    dataset = record(ws, schema.datasets, "other", shape="labels", manifest={"files": {}})
    values = {
        "algorithm": "sft",
        "base": str(turned.exported.resolve()),
        "state": "finished",
        "config": {},
    }
    run = record(ws, schema.runs, "other", dataset_id=dataset, **values)
    version = versions.add_candidate(ws, parent, run, turned._weights("over"))
    versions.check_base(ws, turned.exported)
    done = erase(ws, Agent.named(AGENT), name(GONE))
    assert versions.version(ws, "other", version.name).tainted and run in done.tainted["runs"]
    assert done.tainted["versions"] == ["v1", "other/v0", "other/v1"]
    for base in (turned.exported, named):
        with pytest.raises(Conflict, match="the export of a tainted version"):
            versions.check_base(ws, base)


@pytest.mark.parametrize("state", ["damaged", "missing"])
def test_a_file_that_cannot_be_read_may_hold_the_subject_and_goes_whole(
    turned: Turned, state: str
) -> None:
    ws, dataset = turned.ws, turned.sets["labels"]
    file = Artifacts.of(ws).path(dataset.manifest["files"]["train"])
    file.chmod(0o600)
    file.write_bytes(file.read_bytes()[:-9]) if state == "damaged" else file.unlink()
    planned = erase(ws, Agent.named(AGENT), name(GONE), dry_run=True)
    assert planned.datasets[dataset.id]["train"] == dataset.counts["train"]
    assert (
        f"dataset {dataset.id}: its file of train is missing or damaged, and goes whole"
        in planned.notes
    )
    done = erase(ws, Agent.named(AGENT), name(GONE))
    assert (done.state, done.datasets) == ("done", planned.datasets)
    assert list(load_rows(ws, dataset.id, "train")) == [] and list(
        load_rows(ws, dataset.id, "gate")
    )
    assert by_id(ws, dataset.id).counts["train"] == 0


def test_rewards_that_rest_on_what_the_subject_said_about_others_go(turned: Turned) -> None:
    ws = turned.ws
    add_feedback(ws, AGENT, f"t1-{word(5)}", "thumb", False, rater=name(GONE))
    ledger.run(ws, Agent.named(AGENT), components(ws, AGENT, RewardConfig()))
    with ws.db.read() as connection:
        doomed = subject_rows(connection, Agent.named(AGENT).id, {name(GONE)})
    before = [
        row
        for row in rewarded(ws)
        if not doomed.feedback.isdisjoint((row["evidence"] or {}).get("feedback_ids", ()))
    ]
    assert {row["target_id"] for row in before} - doomed.traces, "the subject judged others"
    erase(ws, Agent.named(AGENT), name(GONE))
    assert not [
        row
        for row in rewarded(ws)
        if any(feedback_row in json.dumps(row["evidence"]) for feedback_row in doomed.feedback)
    ]


def test_a_dataset_of_rewards_descends_from_the_reward_model_that_judged(turned: Turned) -> None:
    ws = turned.ws
    ledger.run(ws, Agent.named(AGENT), components(ws, AGENT, RewardConfig()))
    allow = DatasetConfig(
        reward="ledger", allow=("balance", "length", "leakage"), dev=0.2, gate=0.2
    )
    dataset = build(ws, AGENT, "labels", allow)
    agent_id = Agent.named(AGENT).id
    with ws.db.read() as connection:
        assert not unlearn.reward_model_has_part(connection, agent_id)
    ws.db.write(
        lambda c: c.execute(
            schema.rewards.update().values(evidence={"output": 0.1, "loss_type": "bradley_terry"})
        )
    )
    with ws.db.read() as connection:
        assert unlearn.reward_model_has_part(connection, agent_id) and taint.reward_datasets(
            ws, AGENT
        ) == {dataset.id}
        pairs = {turned.sets["pairs"].id}
        tainted = descendants(ws, connection, agent_id, pairs, modelled={dataset.id})
        assert (
            dataset.id in tainted.datasets
            and dataset.id not in descendants(ws, connection, agent_id, pairs).datasets
        )
    erase(ws, Agent.named(AGENT), name(GONE))
    assert rewarded(ws) == []


def test_a_refused_line_goes_whole_whatever_ends_a_line_in_it(turned: Turned) -> None:
    text = json.dumps(
        {"subject": name(GONE), "x": "a\u2028the rest of a secret\x85more"}, ensure_ascii=False
    )
    path = turned.ws.home.inbox / "rejected.jsonl"
    with path.open("a", encoding="utf-8") as out:
        out.write(json.dumps({"number": 9, "reason": "r", "text": text}, ensure_ascii=False) + "\n")
    erase(turned.ws, Agent.named(AGENT), name(GONE))
    left = path.read_text(encoding="utf-8")
    assert "secret" not in left and left.count("\n") == 1


def test_a_copy_of_the_reward_model_is_marked_as_the_export_is(
    turned: Turned, tmp_path: Path
) -> None:
    copies = tmp_path / "reward_model", tmp_path / "of_another", tmp_path / "gone"
    for folder in copies[:2]:
        folder.mkdir()
    note_copy(turned.ws, turned.version.id, copies[0])
    note_copy(turned.ws, "ver_another", copies[1])
    note_copy(turned.ws, turned.version.id, copies[2])
    erase(turned.ws, Agent.named(AGENT), name(GONE))
    assert [(folder / "TAINTED.txt").is_file() for folder in copies] == [True, False, False]


def test_a_report_that_was_changed_is_left_to_its_owner(turned: Turned, tmp_path: Path) -> None:
    report(turned.ws, versions.version(turned.ws, AGENT, "v1"), None, tmp_path / "mine.json")
    (tmp_path / "mine.json").write_text("my own notes")
    done = erase(turned.ws, Agent.named(AGENT), name(GONE))
    assert (tmp_path / "mine.json").read_text() == "my own notes"
    assert any("mine.json" in note for note in done.notes)


def test_a_training_run_is_waited_for(turned: Turned) -> None:
    before = dump(turned.ws)
    held = RunDir(turned.ws.home.runs / turned.run).lock()
    try:
        with pytest.raises(Conflict, match="training"):
            erase(turned.ws, Agent.named(AGENT), name(GONE))
    finally:
        os.close(held)
    assert dump(turned.ws) == before


def test_a_run_forgets_what_an_erased_rater_judged(turned: Turned) -> None:
    ws = turned.ws
    agent_id = ids.derived("agt", AGENT)
    with ws.db.read() as connection:
        raters = subject_rows(connection, agent_id, {name(GONE)}).raters
    other = {"row_2": ["rtr_somebody_else"]}
    folder = ws.home.runs / "run_of_judgements"
    folder.mkdir()
    spec = {"seed": 3, "raters": {"row_1": ["rtr_somebody_else", min(raters)]} | other}
    (folder / "spec.json").write_text(json.dumps(spec))
    erase(ws, Agent.named(AGENT), name(GONE))
    assert json.loads((folder / "spec.json").read_text()) == {"seed": 3, "raters": other}


def test_a_run_descends_from_the_answers_by_which_it_weighed_raters(turned: Turned) -> None:
    ws = turned.ws
    turned.sets["of others"] = frozen(ws, AGENT, "chats", 4, 2)
    weighed, plain = (turned._run("sft", "of others", {}) for _ in range(2))
    spec = {"judged_dataset": turned.sets["labels"].id}
    (ws.home.runs / weighed / "spec.json").write_text(json.dumps(spec))
    base = versions.version(ws, AGENT, "v0")
    of_weighed, of_plain = (
        versions.add_candidate(ws, base, run, turned._weights(run)) for run in (weighed, plain)
    )
    erase(ws, Agent.named(AGENT), name(GONE))
    assert versions.by_id(ws, of_weighed.id).tainted
    assert not versions.by_id(ws, of_plain.id).tainted


def test_a_second_time_and_an_unknown_subject(turned: Turned) -> None:
    done = erase(turned.ws, Agent.named(AGENT), name(GONE))
    assert (
        erase(turned.ws, Agent.named(AGENT), name(GONE)).state,
        erase(turned.ws, Agent.named(AGENT), name(GONE)).id,
    ) == (
        "already",
        done.id,
    )
    with pytest.raises(NotFound, match="nothing is stored"):
        erase(turned.ws, Agent.named(AGENT), "nobody")
    with pytest.raises(NotFound, match="erased at"):
        used_in(turned.ws, turned.by_hand, AGENT)
    assert name(GONE) not in str(dump(turned.ws))


KILLED = """
import os, signal, sys
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.erasure.erase import erase
from thumbwheel.models.types import Agent
with Workspace.open(Home(__import__("pathlib").Path(sys.argv[1])), Sources({}, "", {})) as ws:
    kill = lambda name: name == sys.argv[4] and os.kill(os.getpid(), signal.SIGKILL)
    erase(ws, Agent.named(sys.argv[2]), sys.argv[3], stage=kill)
"""


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_killed_at_a_stage_the_same_command_finishes(turned: Turned, stage: str) -> None:
    turned.ws.db.close()
    home = turned.ws.home.path
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(home), AGENT, name(GONE), stage],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    with Workspace.open(Home(home), Sources({}, "", {})) as ws:
        if stage != "mark":
            assert ingest(ws, AGENT, "jsonl", turned.file).stored == 0
        again = erase(ws, Agent.named(AGENT), name(GONE))
        assert again.state == "done"
        assert again.rows["traces"] == 3
        assert set(again.tainted["datasets"]) == {
            killed_stage.id for killed_stage in turned.sets.values()
        }
        assert versions.version(ws, AGENT, "v1").tainted
        assert ingest(ws, AGENT, "jsonl", turned.file).stored == 0
    assert find(home, word(GONE)) == []


@pytest.mark.slow
@settings(
    max_examples=10, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(seed=st.integers(0, 10**6), people=st.integers(4, 7), common=st.booleans())
def test_the_others_keep_every_byte(
    tmp_path_factory: pytest.TempPathFactory, seed: int, people: int, common: bool
) -> None:
    rng, folder = random.Random(seed), tmp_path_factory.mktemp("others")
    lines = [
        line
        for item in range(people)
        for line in lines_of(item, turns=rng.randint(1, 3), common=common)
    ]
    rng.shuffle(lines)
    gone = rng.randrange(people)
    with Workspace.open(Home(folder / "home"), Sources({}, "", {})) as ws:
        file = write(folder / "all.jsonl", lines)
        ingest(ws, AGENT, "jsonl", file)
        dataset = build(ws, AGENT, "prompts", SPLIT)
        rows = rows_of(ws, dataset)
        before = dump(ws, "tombstones", "datasets", "artifacts")
        own_ids = {row[0] for row in before["traces"] if word(gone) in str(row)} | {
            row[0] for row in before["feedback"] if word(gone) in str(row)
        }
        erase(ws, Agent.named(AGENT), name(gone))
        after = dump(ws, "tombstones", "datasets", "artifacts")
        owned = {
            row[0]
            for table in ("subjects", "sessions", "raters", "cases")
            for row in before[table]
            if word(gone) in str(row)
        }
        for table, stored in before.items():
            expected = [
                row
                for row in stored
                if word(gone) not in str(row)
                and not {str(item) for item in row} & (own_ids | owned)
            ]
            assert after[table] == expected, table
        left = rows_of(ws, dataset)
        assert left == [
            row
            for row in rows
            if not (own_ids | owned) & {*row.trace_ids, *row.feedback_ids, row.case_id}
        ]
        again = ingest(ws, AGENT, "jsonl", file)
        assert again.stored == 0
        assert again.erased == sum(word(gone) in json.dumps(line) for line in lines)
        assert dump(ws, "tombstones", "datasets", "artifacts") == after


def test_why_a_row_is_there(turned: Turned) -> None:
    row = next(row for row in rows_of(turned.ws, turned.sets["pairs"]) if word(GONE) in str(row))
    explanation = why(turned.ws, row.row_id)
    assert explanation["feedback"][0]["value"] == row.chosen
    assert explanation["feedback"][0]["rater_kind"] == "person"
    assert explanation["traces"][0]["external_id"].endswith(word(GONE))
    assert name(GONE) not in str(explanation["subjects"])
    assert (
        why(turned.ws, f"{turned.sets['pairs'].id}:{row.row_id}", subjects=True)["origin"]
        == "correction"
    )
    with pytest.raises(NotFound, match="no dataset has"):
        why(turned.ws, "row_unknown")


def test_where_feedback_has_gone_also_through_a_reward_model(turned: Turned) -> None:
    (by_rating,) = [item for item in turned.sets.values() if item.shape == "pairs"]
    usage = used_in(turned.ws, f"c0-{word(GONE)}", AGENT)
    assert by_rating.id in {dataset.id for dataset in usage.datasets}
    assert (usage.versions, usage.reward_models) == (["v1"], ["rm1"])
    assert usage.evaluations == [turned.evaluation]
    assert usage.exports == [str(turned.exported)]
    assert {item.version for item in uses(turned.ws, AGENT, f"c0-{word(GONE)}")} == {"rm1", "v1"}
    judge = lineage(turned.ws, versions.version(turned.ws, AGENT, "v1")).reward_model
    assert judge
    assert judge["name"] == "rm1"


@pytest.fixture
def labelled(tmp_path: Path) -> Any:
    """A home in which a classifier was fitted, on a label about one subject's trace too, and has
    judged and suggested."""
    rows = label_world.lines()
    rows[0] |= {"subject": "mrs-gone"}
    with label_world.home(tmp_path, rows) as ws:
        suggested = suggest(ws, AGENT, 10, LearnConfig())
        parts = {
            name: ComponentConfig(function="learned", settings={"classifier": "latest"})
            for name in ("learned", "liked")
        }
        config = RewardConfig(
            preset="none", components=parts | {"plain": ComponentConfig(function="length")}
        )
        ledger.run(ws, Agent.named(AGENT), components(ws, AGENT, config))
        documents.save(ws, "judge_agreement", {"agent": AGENT, "kappa": 0.5})
        documents.save(ws, "judge_agreement", {"agent": "another", "kappa": 0.5})
        yield ws, suggested.classifier


def test_what_was_fitted_on_erased_labels_goes_with_all_that_it_said(labelled: Any) -> None:
    ws, classifier = labelled
    first = next(iter(questions(ws, AGENT)))
    decide(ws, AGENT, first, True, "carla")
    blobs = set(Artifacts.of(ws).all())
    planned = erase(ws, Agent.named(AGENT), "mrs-gone", dry_run=True)
    assert set(Artifacts.of(ws).all()) == blobs
    done = erase(ws, Agent.named(AGENT), "mrs-gone")
    assert done.tainted == planned.tainted
    assert done.tainted["classifiers"] == [classifier[:12]]
    assert len(done.tainted["judge_agreements"]) == 1
    assert done.files["classifiers and judges' statements"] == 2
    assert any("--out" in note for note in done.notes)
    assert (
        documents.documents(ws, "classifier", AGENT)
        == documents.documents(ws, "judge_agreement", AGENT)
        == []
    )
    assert len(documents.documents(ws, "judge_agreement", "another")) == 1
    assert len(blobs - set(Artifacts.of(ws).all())) == 2
    assert {row["component"] for row in rewarded(ws)} == {"plain"}
    assert [row["id"] for row in suggestions(ws)] == [first.id]
    with pytest.raises(NotFound, match="label learn"):
        components(
            ws,
            AGENT,
            RewardConfig(
                preset="none",
                components={"learned": ComponentConfig(settings={"classifier": "latest"})},
            ),
        )


def test_what_a_classifier_had_a_part_in_descends_from_its_labels(labelled: Any) -> None:
    ws, _ = labelled
    ledger.run(ws, Agent.named(AGENT), components(ws, AGENT, RewardConfig()))
    dataset = build(ws, AGENT, "labels", DatasetConfig(allow=("balance", "length")))
    rewarded = build(
        ws, AGENT, "labels", DatasetConfig(reward="ledger", allow=("balance", "length"))
    )
    agent_id = Agent.named(AGENT).id
    with ws.db.read() as connection:
        assert unlearn.classifier_has_part(connection, agent_id) and taint.reward_datasets(
            ws, AGENT
        ) == {rewarded.id} != {dataset.id}
    trained = {"algorithm": "grpo", "base": "b", "base_fingerprint": "f", "metrics": {}}
    judged = record(
        ws,
        schema.runs,
        AGENT,
        dataset_id=dataset.id,
        config={"reward_functions": ["learned=2"]},
        **trained,
    )
    other = record(
        ws,
        schema.runs,
        AGENT,
        dataset_id=dataset.id,
        config={"reward_functions": ["checker"]},
        **trained,
    )
    with ws.db.read() as connection:
        assert descendants(ws, connection, agent_id, (), classifier=True).runs == {judged}
        assert descendants(ws, connection, agent_id, ()).runs == set() != {other}
    assert (
        rewarded.id in erase(ws, Agent.named(AGENT), "mrs-gone", dry_run=True).tainted["datasets"]
    )


@pytest.mark.parametrize("stage", STAGES)
def test_stopped_at_a_stage_what_was_fitted_goes_all_the_same(labelled: Any, stage: str) -> None:
    ws, classifier = labelled

    def stop(name: str) -> None:
        if name == stage:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        erase(ws, Agent.named(AGENT), "mrs-gone", stage=stop)
    again = erase(ws, Agent.named(AGENT), "mrs-gone")
    assert again.tainted["classifiers"] == [classifier[:12]]
    assert documents.documents(ws, "classifier", AGENT) == []
    assert {row["component"] for row in rewarded(ws)} == {"plain"}
    assert suggestions(ws) == []


def rewarded(ws: Workspace) -> list[Any]:
    with ws.db.read() as connection:
        return list(connection.execute(sa.select(schema.rewards)).mappings())


def suggestions(ws: Workspace) -> list[Any]:
    with ws.db.read() as connection:
        return list(
            connection.execute(
                sa.select(schema.suggestions).order_by(schema.suggestions.c.rank)
            ).mappings()
        )
