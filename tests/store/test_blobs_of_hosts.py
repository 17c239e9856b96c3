"""Hosts of one home with their blobs in a bucket: what one stored the other has, a run goes on
elsewhere, and what a zombie uploads does not count."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bucket_hosts import Hosts
from tests.models.tiny_models import tiny_base
from tests.servers.postgres_server import Databases
from tests.servers.s3_server import S3Server
from tests.training_rows import frozen
from tests.waiting import until
from thumbwheel.core import ids
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import Conflict, Fenced, StorageError
from thumbwheel.datasets.build import by_id, split_rows
from thumbwheel.db.dialects import SQLITE, backend_at
from thumbwheel.db.hosts import folder_id
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import ROWS
from thumbwheel.engine.base_check import find_base, locate_unchanged
from thumbwheel.erasure.purge import purge
from thumbwheel.erasure.types import SubjectRows
from thumbwheel.homes.backup import back_up
from thumbwheel.homes.backup import restore as restore_backup
from thumbwheel.jobs import current
from thumbwheel.jobs.types import Job
from thumbwheel.models.blob_location import open_bucket_store
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import ensure_agent, versions
from thumbwheel.report.types import Tainted
from thumbwheel.training import store
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.stored_checkpoints import StoredCheckpoints, restore
from thumbwheel.training.train import find_run, resume, runs, train
from thumbwheel.training.types import Run, RunState

pytestmark = pytest.mark.postgresql
OPTIONS: dict[str, Any] = {
    "batch_size": 4,
    "num_train_epochs": 2,
    "min_steps": 1,
    "learning_rate": 1e-3,
    "lora_r": 4,
    "max_length": 128,
    "eval_steps": 5,
    "save_steps": 3,
    "probe_prompts": 0,
    "early_stopping_patience": 50,
}


@pytest.fixture
def hosts(tmp_path: Path, databases: Databases, bucket: str) -> Iterator[Hosts]:
    url = databases.migrated()
    yield Hosts(tmp_path, url, bucket)
    databases.drop(url)


def fake_checkpoint(run: RunDir, step: int, content: str) -> None:
    folder = run.checkpoints / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "weights").write_text(content)
    (folder / "checkpoint.json").write_text(
        json.dumps({"weights": ids.file_hash(folder / "weights")})
    )


def begun(ws: Workspace) -> Run:
    """A run that is recorded as going on, with a folder of its own."""
    dataset = frozen(ws, "a", "labels", 8, 4)
    record = {
        "id": ids.new("run"),
        "agent_id": Agent.named(dataset.agent).id,
        "algorithm": "kto",
        "dataset_id": dataset.id,
        "base": "a/base",
        "base_fingerprint": "0" * 64,
        "config": {},
        "environment": {},
        "seed": 1,
        "folder": folder_id(ws.home),
    }
    ws.db.write(lambda connection: store.add(connection, record))
    folder = RunDir(ws.home.runs / record["id"])
    folder.checkpoints.mkdir(parents=True)
    (folder.path / "spec.json").write_text("{}")
    (folder.path / "metrics.jsonl").write_text('{"step": 1}\n')
    return find_run(ws, record["id"])


def stored_steps(ws: Workspace, run: Run) -> list[tuple[int, int]]:
    with ws.db.read() as connection:
        stored = store.checkpoints_of(connection, run.id)
    return [(checkpoint.fence, checkpoint.step) for checkpoint in stored]


def restored_steps(ws: Workspace, hosts: Hosts, run: Run) -> list[str]:
    folder = RunDir(ws.home.runs / run.id)
    folder.path.mkdir(parents=True, exist_ok=True)
    restore(ws, hosts.bucket, run)
    return sorted(path.name for path in folder.checkpoints.iterdir())


def test_a_dataset_of_one_host_is_one_of_the_other(hosts: Hosts) -> None:
    with hosts.opened("first") as first, hosts.opened("second") as second:
        dataset = frozen(first, "a", "labels", 8, 4)
        rows = [dict(row) for row in split_rows(first, dataset, "train")]
        assert rows
        assert [dict(row) for row in split_rows(second, dataset, "train")] == rows


def test_checkpoints_of_a_zombie_do_not_count_after_a_takeover(hosts: Hosts) -> None:
    with hosts.opened("first") as first, hosts.opened("second") as second:
        run = begun(first)
        folder = RunDir(first.home.runs / run.id)
        zombie = StoredCheckpoints(first, hosts.bucket, run.id, fence=0)
        fake_checkpoint(folder, 3, "of the first host")
        zombie.sync()
        assert stored_steps(first, run) == [(0, 3), (0, 0)]

        # the other host takes the run over, and the first one does not know
        fence = second.db.write(
            lambda connection: store.restart(connection, run.id, folder_id(second.home))
        )
        fake_checkpoint(folder, 6, "of a zombie")
        with pytest.raises(Fenced, match="another process goes on with it"):
            zombie.sync()
        assert stored_steps(second, run) == [(0, 3), (0, 0)]
        assert restored_steps(second, hosts, run) == ["checkpoint-3"]

        # it goes on, and its own checkpoints take the place of the older ones
        other = RunDir(second.home.runs / run.id)
        fake_checkpoint(other, 6, "of the second host")
        StoredCheckpoints(second, hosts.bucket, run.id, fence).sync()
        assert stored_steps(second, run) == [(1, 6), (0, 3), (0, 0)]
        fake_checkpoint(folder, 9, "of a zombie, again")
        with pytest.raises(Fenced):
            zombie.sync()
        assert stored_steps(second, run) == [(1, 6), (0, 3), (0, 0)]
        assert restored_steps(first, hosts, run) == ["checkpoint-3", "checkpoint-6"]
        weights = RunDir(first.home.runs / run.id).checkpoints / "checkpoint-6" / "weights"
        assert weights.read_text() == "of the second host"


def test_the_bucket_has_the_checkpoints_of_the_folder_and_a_damaged_one_is_left_out(
    hosts: Hosts, s3_server: S3Server
) -> None:
    with hosts.opened("first") as first, hosts.opened("second") as second:
        run = begun(first)
        folder = RunDir(first.home.runs / run.id)
        uploads = StoredCheckpoints(first, hosts.bucket, run.id, fence=0)
        for step in (3, 6):
            fake_checkpoint(folder, step, f"step {step}")
            uploads.sync()
        (folder.checkpoints / "checkpoint-3").rename(folder.checkpoints / "tmp-3")
        fake_checkpoint(folder, 9, "step 9")
        uploads.sync()
        assert stored_steps(first, run) == [(0, 9), (0, 6), (0, 0)]
        assert not [key for key in hosts.bucket.sizes(f"runs/{run.id}") if "step-3" in key]
        key = f"home/runs/{run.id}/0/step-9/weights"
        s3_server.client.put_object(Bucket=hosts.bucket.address.bucket, Key=key, Body=b"damaged")
        assert restored_steps(second, hosts, run) == ["checkpoint-6"]
        other = RunDir(second.home.runs / run.id)
        assert other.read_metrics() == [{"step": 1}]


CHILD = """
import json, os, sys
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.datasets.build import find
from thumbwheel.engine.base_check import find_base
from thumbwheel.models.types import Agent
from thumbwheel.training.train import train
home, base, dataset, options = sys.argv[1:]
with Workspace.open(Home.at(home), Sources({}, "", dict(os.environ))) as ws:
    base, data = find_base(base, ws.home.cache), find(ws, "a", dataset)
    train(ws, Agent.named("a"), "kto", base, dataset=data, options=json.loads(options))
"""


def job_of(run: Run) -> Job:
    """The job that began a run, as the worker has it that took it over."""
    values: dict[str, Any] = dict.fromkeys(Job.__dataclass_fields__)
    return Job(**values | {"id": ids.new("job"), "notes": {"run": run.id}})


def curve(ws: Workspace, run: Run) -> list[dict[str, Any]]:
    lines = RunDir(ws.home.runs / run.id).read_metrics()
    return [{key: line[key] for key in line if key != "step_seconds"} for line in lines]


@pytest.mark.slow
def test_a_run_goes_on_on_another_host_when_its_host_dies(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    base = tiny_base(tmp_path / "base")
    with hosts.opened("first") as first:
        ensure_agent(first, "a")
        dataset = frozen(first, "a", "labels", 24, 6)
        undisturbed = train(
            first,
            Agent.named("a"),
            "kto",
            find_base(str(base), first.home.cache),
            dataset=dataset,
            options=OPTIONS,
        )
        expected = curve(first, find_run(first, undisturbed.run_id))

        # another one, whose host is killed after a checkpoint
        environment = os.environ | hosts.variables | {"PYTHONPATH": os.pathsep.join(sys.path)}
        arguments = [str(first.home.path), str(base), dataset.id, json.dumps(OPTIONS)]
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, *arguments], env=environment, start_new_session=True
        )

        def has_checkpoint() -> bool:
            newest = runs(first, Agent.named("a"))[-1]
            steps = stored_steps(first, newest)
            return newest.id != undisturbed.run_id and bool(steps) and steps[0][1] > 0

        until(has_checkpoint, seconds=300)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        run = runs(first, Agent.named("a"))[-1]
        assert run.state is RunState.RUNNING

    base.rename(tmp_path / "base of the dead host")
    with hosts.opened("second") as second:
        run = find_run(second, run.id)
        with pytest.raises(Conflict, match="another host trains it"):
            resume(second, run)
        with current.doing(job_of(run)):
            result = resume(second, run)
        assert result.state is RunState.FINISHED
        assert curve(second, run) == expected
        version = versions(second, Agent.named("a"))[-1]
        assert version.run_id == run.id
        # whoever needs its base on this host has it, too
        _, folder = locate_unchanged(second, version)
        assert folder.is_relative_to(second.home.cache)
        # nothing of a finished run stays
        assert stored_steps(second, run) == []
        assert not hosts.bucket.sizes("runs")


def test_a_run_of_which_nothing_was_uploaded_stays_with_its_host(hosts: Hosts) -> None:
    with hosts.opened("first") as first, hosts.opened("second") as second:
        run = begun(first)
        first.db.write(
            lambda connection: store.end(connection, run.id, RunState.STOPPED, None, {}), ROWS
        )
        with pytest.raises(Conflict, match="nothing of it is in the bucket"):
            resume(second, find_run(second, run.id))
        assert find_run(second, run.id).state is RunState.STOPPED


def test_an_erasure_deletes_checkpoints_in_the_bucket(hosts: Hosts) -> None:
    with hosts.opened("first") as first:
        tainted, other, judged = begun(first), begun(first), begun(first)
        for run in (tainted, other):
            StoredCheckpoints(first, hosts.bucket, run.id, fence=0).sync()
        removed = purge(first, SubjectRows(), Tainted(runs={tainted.id}), [])
        assert removed["checkpoints in the bucket"] == 1
        assert stored_steps(first, tainted) == []
        assert stored_steps(first, other) == [(0, 0)]
        assert [key.split("/")[1] for key in hosts.bucket.sizes("runs")] == [other.id]
        # specs name raters
        StoredCheckpoints(first, hosts.bucket, judged.id, fence=0).sync()
        removed = purge(first, SubjectRows(raters={"rat_1"}), Tainted(), [])
        assert removed["checkpoints in the bucket"] == 2
        assert not hosts.bucket.sizes("runs")


def test_a_backup_has_the_blobs_of_the_bucket_and_is_a_home_of_its_own(
    hosts: Hosts, tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosts.opened("first") as first:
        run = begun(first)
        StoredCheckpoints(first, hosts.bucket, run.id, fence=0).sync()
        backup = back_up(first, tmp_path / "backup")
        assert not backup.missing
        assert any(name.startswith("blobs/") for name in backup.files)
    restored = Home.at(tmp_path / "restored")
    restore_backup(restored, backend_at(restored, SQLITE, "test"), tmp_path / "backup")
    with Workspace.open(restored, Sources({}, "none", {})) as ws:
        dataset = by_id(ws, run.dataset_id)
        assert len(split_rows(ws, dataset, "train")) == 8
        assert stored_steps(ws, run) == []

    # a bucket that does not answer is no bucket without blobs
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    (tmp_path / "first" / "cache").rename(tmp_path / "cache of another time")
    open_bucket_store.cache_clear()
    with hosts.opened("first") as first:
        with pytest.raises(StorageError, match="cannot be reached"):
            back_up(first, tmp_path / "another")
        assert not (tmp_path / "another").exists()
