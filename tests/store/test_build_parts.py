"""Ranges of prompts of a dataset are collected by workers of two hosts: it is the same dataset for
any number of parts, whoever is killed or taken for dead."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.bucket_hosts import Hosts
from tests.part_helper import Helper, doing, take_over, worker
from tests.servers.job_worker import started
from tests.servers.postgres_server import Databases
from tests.servers.s3_server import S3Server
from tests.waiting import until
from tests.worlds.feedback_world import AGENT, FeedbackWorld
from thumbwheel.core.errors import Fenced
from thumbwheel.datasets import build_parts, collect
from thumbwheel.datasets.build import build, load_rows
from thumbwheel.datasets.types import SPLITS, Dataset, DatasetConfig
from thumbwheel.db.schema import job_parts
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs import parts, queue, store
from thumbwheel.jobs.part_types import JobPart

pytestmark = pytest.mark.postgresql
CONFIG = DatasetConfig(dev=0.2, gate=0.2)
N_TRACES = 60
FACTS = ("drops", "notes", "prompts", "origins", "counts", "files", "watermark")


def world() -> FeedbackWorld:
    """Near copies, edits, comparisons across prompts and a gold case."""
    rows = FeedbackWorld()
    rows.case("gold", rows.prompt("q7"))
    last = ""
    for number in range(N_TRACES):
        question = f"q{number // 3 * 3 + number % 2}" + " " * (number % 3)
        trace = rows.trace(f"t{number}", question, f"a{number}", session=f"s{number // 4}")
        if number % 2:
            rows.say("score", number / N_TRACES, trace)
        else:
            rows.say("thumb", number % 4 == 0, trace)
        if number % 5 == 0:
            rows.say("correction", f"edit {number}", trace, rater="r2")
        if number % 3:
            rows.say("preference", {"ranking": [[0], [1]]}, trace, last, rater="r3")
        last = trace
    return rows


@pytest.fixture
def hosts(
    tmp_path: Path, databases: Databases, s3_server: S3Server, bucket: str
) -> Iterator[Hosts]:
    url = databases.migrated()
    yield Hosts(tmp_path, url, bucket)
    databases.drop(url)


@pytest.fixture
def ws(hosts: Hosts) -> Iterator[Workspace]:
    with hosts.opened("first") as workspace:
        world().write(workspace)
        yield workspace


@pytest.fixture
def helper(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> Iterator[Helper]:
    monkeypatch.setattr(queue, "LIVE_SECONDS", math.inf)  # it gives no sign of life
    with hosts.opened("second") as second:
        thread = Helper(second, "prompts", build_parts.collecting)
        yield thread
        thread.ended.set()
        if thread.is_alive():
            thread.join(60)
        assert thread.error is None, thread.error


def wait_in_first_part(monkeypatch: pytest.MonkeyPatch, wait: Callable[[str], None]) -> list[str]:
    """Let the worker of the job wait in the first part of each step; return the steps of the parts
    that it does."""
    steps: list[str] = []
    main = threading.current_thread()
    for name in ("claims", "spill"):
        method = getattr(build_parts._Part, name)

        def waiting(
            self: Any, *arguments: Any, name: str = name, method: Any = method, **options: Any
        ) -> Any:
            if threading.current_thread() is main:
                if name not in steps:
                    wait(name)
                steps.append(name)
            return method(self, *arguments, **options)

        monkeypatch.setattr(build_parts._Part, name, waiting)
    return steps


def alone(folder: Path, shape: str) -> tuple[Dataset, list[Any]]:
    """The dataset of a home with one host."""
    with world().into(folder / "alone") as ws:
        dataset = build(ws, AGENT, shape, CONFIG)
        return dataset, rows_of(ws, dataset)


def rows_of(ws: Workspace, dataset: Dataset) -> list[Any]:
    return [row for split in SPLITS for row in load_rows(ws, dataset.id, split)]


def assert_same(ws: Workspace, dataset: Dataset, folder: Path) -> None:
    expected, expected_rows = alone(folder, dataset.shape)
    assert dataset.id == expected.id and dataset.fingerprint == expected.fingerprint
    for fact in FACTS:
        assert dataset.manifest[fact] == expected.manifest[fact], fact
    assert expected_rows and rows_of(ws, dataset) == expected_rows


def stored_parts(ws: Workspace) -> list[Any]:
    with ws.db.read() as connection:
        return [*connection.execute(sa.select(job_parts))]


@pytest.mark.parametrize("shape", ["labels", "pairs"])
@pytest.mark.parametrize("n_parts", [1, 2, pytest.param(5, marks=pytest.mark.slow)])
def test_a_dataset_is_the_same_for_any_number_of_parts(
    hosts: Hosts,
    ws: Workspace,
    helper: Helper,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    shape: str,
    n_parts: int,
) -> None:
    monkeypatch.setattr(build_parts, "TRACES_A_PART", N_TRACES // n_parts)
    helper.start()

    def wait(step: str) -> None:
        # all others of this step are done on the other host
        n_steps = {"claims": 1, "spill": 2}[step]
        until(lambda: helper.error is not None or helper.n_done >= n_steps * (n_parts - 1))

    steps = wait_in_first_part(monkeypatch, wait)
    with doing(ws):
        dataset = build(ws, AGENT, shape, CONFIG)
    assert_same(ws, dataset, tmp_path)
    assert helper.n_done >= 2 * (n_parts - 1)
    # a dataset of one part never goes through the bucket
    assert helper.n_done + len(steps) == (0 if n_parts == 1 else 2 * n_parts)
    assert hosts.bucket.sizes("parts") == {} and stored_parts(ws) == []


@pytest.mark.slow
def test_each_host_uses_several_processes_for_a_part(
    ws: Workspace, helper: Helper, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build_parts, "TRACES_A_PART", N_TRACES // 2)
    monkeypatch.setattr(collect, "TRACES_A_WORKER", N_TRACES // 4)
    monkeypatch.setattr(collect, "usable_cores", lambda: 2)
    helper.start()
    wait_in_first_part(monkeypatch, lambda step: until(lambda: helper.n_done >= 1))
    with doing(ws):
        dataset = build(ws, AGENT, "pairs", CONFIG)
    assert_same(ws, dataset, tmp_path)
    assert helper.n_done >= 1


@pytest.mark.slow
def test_a_zombie_uploads_nothing_and_its_part_is_done_by_another(
    hosts: Hosts,
    ws: Workspace,
    helper: Helper,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(build_parts, "TRACES_A_PART", N_TRACES // 2)
    uploaded: dict[str, set[str]] = {}
    do = helper.do

    def die_and_wake_up(part: JobPart) -> None:
        step = "spill" if "assigned" in part.spec else "claims"
        if step in uploaded:
            do(part)
            return
        take_over(ws, helper.row())
        before = set(hosts.bucket.sizes("parts"))
        with pytest.raises(Fenced):
            do(part)
        helper.worker_id = f"wrk_b_{step}"
        fresh = worker(helper.ws, helper.worker_id)
        helper.ws.db.write(lambda connection: store.add_worker(connection, fresh))
        uploaded[step] = set(hosts.bucket.sizes("parts")) - before

    monkeypatch.setattr(helper, "do", die_and_wake_up)
    helper.start()
    wait_in_first_part(monkeypatch, lambda step: until(lambda: step in uploaded))
    with doing(ws):
        dataset = build(ws, AGENT, "labels", CONFIG)
    assert uploaded == {"claims": set(), "spill": set()}
    assert_same(ws, dataset, tmp_path)
    assert hosts.bucket.sizes("parts") == {}


@pytest.mark.slow
def test_a_part_whose_worker_is_killed_is_done_by_another(
    hosts: Hosts,
    ws: Workspace,
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(build_parts, "TRACES_A_PART", N_TRACES // 2)
    hold, held = tmp_path / "hold", tmp_path / "held"
    hold.touch()
    monkeypatch.setattr(queue, "LIVE_SECONDS", math.inf)
    environment = {**hosts.variables, **s3_server.environment}
    process = started(tmp_path / "second", "--lease", "900", environment=environment)

    def kill(step: str) -> None:
        if step == "claims":
            until(held.exists)
            assert len(hosts.bucket.sizes("parts")) == 2  # claims and prompts, of no part yet
            process.end(signal.SIGKILL)
            (row,) = [row for row in queue.live_workers(ws) if row.id != "wrk_a"]
            take_over(ws, row)

    try:
        with doing(ws):
            until(lambda: len(queue.live_workers(ws)) == 2)
            steps = wait_in_first_part(monkeypatch, kill)
            dataset = build(ws, AGENT, "labels", CONFIG)
    finally:
        process.end(signal.SIGKILL)
    assert steps == ["claims", "claims", "spill", "spill"]
    assert_same(ws, dataset, tmp_path)
    assert hosts.bucket.sizes("parts") == {} and stored_parts(ws) == []


def test_a_helper_that_uploads_when_the_job_fails_leaves_nothing(
    hosts: Hosts, ws: Workspace, helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_parts, "TRACES_A_PART", N_TRACES // 2)
    uploading, has_failed, is_over = (threading.Event() for _ in range(3))
    main = threading.current_thread()
    put, do = build_parts._put, helper.do
    uploaded: list[str] = []

    def put_late(*arguments: Any) -> dict[str, str]:
        if threading.current_thread() is main:
            return put(*arguments)
        uploading.set()
        assert has_failed.wait(60)
        stored = put(*arguments)
        uploaded.append(stored["key"])
        return stored

    def do_in_vain(part: JobPart) -> None:
        with pytest.raises(Fenced):
            do(part)
        is_over.set()

    def fail(step: str) -> None:
        assert uploading.wait(60)
        raise RuntimeError(step)

    monkeypatch.setattr(build_parts, "_put", put_late)
    monkeypatch.setattr(helper, "do", do_in_vain)
    helper.start()
    wait_in_first_part(monkeypatch, fail)
    with doing(ws), pytest.raises(RuntimeError, match="claims"):
        build(ws, AGENT, "labels", CONFIG)
    assert stored_parts(ws) == []
    has_failed.set()
    assert is_over.wait(60)
    assert len(uploaded) == 1 and hosts.bucket.sizes("parts") == {}


def test_without_a_bucket_a_dataset_is_built_by_one_host(
    tmp_path: Path, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_parts, "TRACES_A_PART", N_TRACES // 2)
    monkeypatch.setattr(build_parts._SharedRanges, "of", None)
    monkeypatch.setattr(queue, "LIVE_SECONDS", math.inf)
    url = databases.migrated()
    hosts = Hosts(tmp_path, url, "no-bucket")
    del hosts.variables["THUMBWHEEL_BLOBS"]
    with hosts.opened("first") as ws, hosts.opened("second") as second:
        world().write(ws)
        second.db.write(lambda connection: store.add_worker(connection, worker(second, "wrk_b")))
        with doing(ws):
            assert parts.has_helpers(ws)
            assert_same(ws, build(ws, AGENT, "labels", CONFIG), tmp_path)
    databases.drop(url)
