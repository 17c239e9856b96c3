"""A worker of another host answers questions of an evaluation, with the same replies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.models.tiny_models import record, tiny_base
from tests.servers.postgres_server import Databases
from tests.store.test_cluster import opened, variables
from tests.waiting import until
from thumbwheel.core.config import Home
from thumbwheel.db import cluster
from thumbwheel.db.schema import datasets, job_parts, runs
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.load import base_fingerprint
from thumbwheel.evaluation.local_model import LocalModel, LocalResponder
from thumbwheel.evaluation.responder import ask
from thumbwheel.evaluation.types import Ask, AskLikelihood, EvaluationConfig
from thumbwheel.jobs import claims, current, queue, store
from thumbwheel.jobs.host import Host
from thumbwheel.jobs.types import JobsConfig, WorkerRow
from thumbwheel.models import versions

pytestmark = pytest.mark.postgresql
AGENT = "support"
SECONDS = 300.0
"""For the other worker to load torch on a busy machine."""
CONFIG = EvaluationConfig(batch_size=2, max_new_tokens=6, dtype="float32", max_length=128)
PROMPTS = [[{"role": "user", "content": f"Where is parcel {number}?"}] for number in range(10)]
ASKS = [Ask(prompt, 6) for prompt in PROMPTS]
LIKELIHOODS = [AskLikelihood(prompt, ("It left.", "No.")) for prompt in PROMPTS]


@pytest.fixture
def url(databases: Databases) -> Iterator[str]:
    address = databases.migrated()
    yield address
    databases.drop(address)


@pytest.fixture
def ws(tmp_path: Path, url: str) -> Iterator[Workspace]:
    """The first of two hosts, which share their blobs as by a network file system."""
    opened(tmp_path / "first", url, None).__exit__(None, None, None)
    cluster.initialise(Home.at(tmp_path / "first"), variables(url))
    cluster.join(Home.at(tmp_path / "second"), variables(url))
    (tmp_path / "second" / "blobs").rmdir()
    (tmp_path / "second" / "blobs").symlink_to(tmp_path / "first" / "blobs")
    with opened(tmp_path / "first", url) as workspace:
        yield workspace


@pytest.fixture
def responder(ws: Workspace, tmp_path: Path) -> LocalResponder:
    """A version whose adapter answers otherwise than its base."""
    import torch

    from thumbwheel.engine.load import LoraSettings, attach_lora, load_base

    torch.set_num_threads(1)
    base = tiny_base(tmp_path / "base")
    model, _ = load_base(str(base), "float32")
    adapted, _ = attach_lora(model, LoraSettings(rank=4), seed=0)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator)
    adapted.save_pretrained(tmp_path / "adapter")
    parent = versions.ensure_base(ws, AGENT, str(base), base_fingerprint(base))
    values = {"algorithm": "dpo", "base": str(base), "state": "finished"}
    dataset = record(ws, datasets, AGENT, shape="pairs")
    run = record(ws, runs, AGENT, dataset_id=dataset, **values)
    candidate = versions.add_candidate(ws, parent, run, tmp_path / "adapter")
    return LocalModel(ws, parent, [candidate], CONFIG).responder(candidate)


@contextmanager
def evaluating(ws: Workspace) -> Iterator[None]:
    """As the worker that has the job `evaluate`."""
    now = datetime.now(UTC)
    row = WorkerRow("wrk_a", Host.of(ws.home).id, 1, 1, "", 0, now, now)
    ws.db.write(lambda connection: store.add_worker(connection, row))
    queue.enqueue(ws, "evaluate", {"version": "v1", "agent": AGENT}, agent=AGENT)
    needs = {"evaluate": ("heavy",)}
    job = ws.db.write(
        lambda connection: claims.claim(connection, "wrk_a", needs, JobsConfig(), now)
    )
    assert job is not None
    with current.doing(job):
        yield


@pytest.fixture
def helper(ws: Workspace, tmp_path: Path, url: str) -> Iterator[Callable[[], None]]:
    """Start a worker of the second host, and wait until it is there."""
    processes: list[subprocess.Popen[bytes]] = []

    def begin() -> None:
        environment = {
            **os.environ,
            **variables(url),
            "THUMBWHEEL_JOBS__LEASE_SECONDS": "900",  # the one that has the job does not beat
        }
        command = [sys.executable, "-m", "thumbwheel", "--home", str(tmp_path / "second"), "worker"]
        with (tmp_path / "worker.log").open("wb") as log_file:
            processes.append(subprocess.Popen(command, env=environment, stderr=log_file))
        until(lambda: len(queue.live_workers(ws)) == 2, SECONDS)

    yield begin
    for process in processes:
        process.kill()
        process.wait(60)


def replies_of(responder: LocalResponder, asks: list[Any]) -> list[Any]:
    """The replies of one process, chunk by chunk."""
    reply_to = responder.answers if isinstance(asks[0], Ask) else responder.log_probabilities
    replies = []
    for start in range(0, len(asks), CONFIG.batch_size):
        replies += reply_to(asks[start : start + CONFIG.batch_size])
    return replies


def rows_of_parts(ws: Workspace) -> list[sa.Row[Any]]:
    with ws.db.read() as connection:
        return [*connection.execute(sa.select(job_parts).order_by(job_parts.c.number))]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["answers", "log_probabilities"])
def test_a_worker_of_another_host_answers_as_this_one(
    ws: Workspace,
    responder: LocalResponder,
    helper: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    asks: list[Any] = [*ASKS] if method == "answers" else [*LIKELIHOODS]
    expected = replies_of(responder, asks)
    reply = getattr(LocalResponder, method)
    answered_here: list[Any] = []

    def wait_and_reply(self: LocalResponder, chunk: Any) -> Any:
        if not answered_here:
            # all other chunks are answered on the other host
            until(lambda: [row.state for row in rows_of_parts(ws)].count("done") == 4, SECONDS)
        answered_here.extend(chunk)
        return reply(self, chunk)

    monkeypatch.setattr(LocalResponder, method, wait_and_reply)
    with evaluating(ws):
        helper()
        replies = ask(ws, responder.local_model.base.agent_id, responder, asks, "answers")
    assert len(answered_here) == CONFIG.batch_size
    if method == "answers":
        texts = [[(answer.text, answer.ids) for answer in answers] for answers in replies]
        assert texts == [[(answer.text, answer.ids) for answer in answers] for answers in expected]
    else:
        assert replies == [tuple(sums) for sums in expected]
    assert rows_of_parts(ws) == []


@pytest.mark.slow
def test_a_host_that_would_answer_otherwise_answers_nothing(
    ws: Workspace,
    responder: LocalResponder,
    helper: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    other = replace(responder, identity="of another device")
    reply = LocalResponder.answers
    answered_here: list[Any] = []

    def wait_and_reply(self: LocalResponder, chunk: Any) -> Any:
        if not answered_here:
            until(lambda: any(row.unfit for row in rows_of_parts(ws)), SECONDS)
        answered_here.extend(chunk)
        return reply(self, chunk)

    monkeypatch.setattr(LocalResponder, "answers", wait_and_reply)
    with evaluating(ws):
        helper()
        ask(ws, responder.local_model.base.agent_id, other, ASKS, "answers")
    assert len(answered_here) == len(ASKS)
    assert "its device or its precision is another one" in (tmp_path / "worker.log").read_text()
