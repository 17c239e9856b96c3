"""Files and model servers of one host, seen from another one of the same home: rows name them so
that nobody is misled, errors say where they are, and erasures reach them."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
import sqlalchemy as sa

from tests.models.tiny_models import record, tiny_adapter, tiny_base
from tests.servers.postgres_server import Databases
from tests.servers.thumbwheel_server import ThumbwheelServer, running
from tests.training_rows import QUICK, frozen
from tests.waiting import until
from tests.worlds.deploy_world import QUESTION, DeployWorld
from tests.worlds.erasure_world import AGENT, dump, find, lines_of, name, word, write
from thumbwheel.access import keys
from thumbwheel.app.routing_table import upstream_of
from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import Conflict, NotFound, StorageError
from thumbwheel.datasets.build import build, split_rows
from thumbwheel.db import cluster, hosts
from thumbwheel.db.schema import cluster_keys, datasets, runs, traces
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import deploy, processes, remote_token, routing
from thumbwheel.deploy import running as deployments_running
from thumbwheel.deploy import store as deployment_store
from thumbwheel.deploy.deploy import undeploy
from thumbwheel.deploy.types import DeploymentState, Endpoint
from thumbwheel.engine.base_check import find_base
from thumbwheel.erasure.erase import erase
from thumbwheel.erasure.pending_erasures import (
    cluster_hosts,
    forget_host,
    purge_here,
    waiting_hosts,
)
from thumbwheel.export import package
from thumbwheel.jobs import queue
from thumbwheel.jobs import store as jobs_store
from thumbwheel.jobs.types import JobState, WorkerRow
from thumbwheel.models.blob_store import UnsoundBlob
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import ensure_agent, ensure_base
from thumbwheel.server.api.export_files import file_of
from thumbwheel.training import beat, store, train
from thumbwheel.training.killed_runs import RunWatch
from thumbwheel.training.types import RunState

pytestmark = pytest.mark.postgresql
KEY = base64.b64encode(os.urandom(32)).decode()
ADDRESS = "127.0.0.2"
"""Leads to this machine, as the address of another host would, and is not how it calls itself."""


@dataclass
class Hosts:
    """Two folders of one home."""

    first: Workspace
    second: Workspace
    environment: dict[str, str]

    def opened(self, ws: Workspace, **settings: str) -> Workspace:
        """Open the folder of `ws` once more."""
        return Workspace.open(ws.home, Sources({}, "none", self.environment | settings))


@pytest.fixture(scope="module")
def url(databases: Databases) -> Iterator[str]:
    address = databases.migrated()
    yield address
    databases.drop(address)


def two_hosts(folder: Path, url: str) -> Iterator[Hosts]:
    environment = {"THUMBWHEEL_DATABASE": url, "THUMBWHEEL_CLUSTER_KEY": KEY}
    homes = Home.at(folder / "first"), Home.at(folder / "second")
    Workspace.open(homes[0], Sources({}, "none", environment)).db.close()
    cluster.initialise(homes[0], environment)
    cluster.join(homes[1], environment)
    sources = Sources({}, "none", environment)
    with Workspace.open(homes[0], sources) as first, Workspace.open(homes[1], sources) as second:
        yield Hosts(first, second, environment)


@pytest.fixture
def pair(tmp_path: Path, databases: Databases) -> Iterator[Hosts]:
    """Two hosts whose folders are empty."""
    address = databases.migrated()
    yield from two_hosts(tmp_path, address)
    databases.drop(address)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, url: str) -> Iterator[Hosts]:
    """The first host has a dataset, a run, exports, a deployment and a job of its own."""
    folder = tmp_path_factory.mktemp("hosts")
    base = tiny_base(folder / "base", initializer_range=0.1)
    for pair in two_hosts(folder, url):
        first = pair.first
        dataset = frozen(first, "a", "pairs", 12, 4)
        model = find_base(str(base), first.home.cache)
        train.train(first, Agent.named("a"), "dpo", model, dataset=dataset, options=QUICK)

        reachable = pair.opened(first, THUMBWHEEL_HOST__ADDRESS=ADDRESS)
        world = DeployWorld(reachable, base, [tiny_adapter(base, folder / "adapter")], "support")
        version = world.version(0)
        world.deploy(version)
        spec = {"version": version.name, "agent": "support", "format": "adapter"}
        spec["to"] = str(first.home.path / "exports" / "of-a-job")
        queue.enqueue(first, "export", spec, agent="support")
        command = [sys.executable, "-m", "thumbwheel", "--home", str(first.home.path), "worker"]
        patient = {"THUMBWHEEL_JOBS__LEASE_SECONDS": "120"}
        environment = os.environ | pair.environment | patient
        subprocess.run([*command, "--until-idle"], env=environment, check=True)
        yield pair
        deployments_running.stop(reachable, Agent.named("support"))
        reachable.__exit__(None, None, None)


@pytest.mark.slow
def test_no_row_has_the_path_or_the_loopback_address_of_a_host(filled: Hosts) -> None:
    jobs, _ = queue.jobs(filled.first)
    assert [job.state for job in jobs] == [JobState.SUCCEEDED], jobs
    rows = dump(filled.first)
    for table in ("runs", "exports", "deployments", "datasets", "jobs", "job_events", "hosts"):
        assert rows[table], table
    paths = (str(filled.first.home.path), str(filled.second.home.path))
    database = urlsplit(filled.environment["THUMBWHEEL_DATABASE"]).netloc.rpartition("@")[2]
    for table, table_rows in rows.items():
        # the database may be on loopback, and jobs log which one they use
        text = json.dumps(table_rows, default=str).replace(database, "DATABASE")
        for text_of_host in (*paths, "127.0.0.1", "localhost"):
            assert text_of_host not in text, (table, text_of_host)
    # the spec of a run, too: its folder moves with the home
    for spec in filled.first.home.runs.glob("*/spec.json"):
        assert paths[0] not in spec.read_text()


@pytest.mark.slow
def test_what_the_first_host_has_is_found_there_and_named_on_the_other(filled: Hosts) -> None:
    (run,) = train.runs(filled.first, Agent.named("a"))
    assert train.run_dir(filled.first, run).spec().blobs == str(filled.first.home.blobs)
    with pytest.raises(Conflict, match="it is finished"):
        train.resume(filled.second, run)

    version = routing.deployments(filled.first, Agent.named("support"))[0]
    model = DeployWorld(filled.first, Path(), [], "support").find(version.version)
    for ws, host in ((filled.first, None), (filled.second, os.uname().nodename)):
        exports = package.exports(ws, model)
        assert {export.host for export in exports} == {host}
        assert {export.path.parent for export in exports} == {ws.home.path / "exports"}
    (of_job,) = (export for export in exports if export.path.name == "of-a-job")
    with pytest.raises(Conflict, match=r"in the folder of host .*Ask the server of that host"):
        file_of(of_job, next(iter(of_job.files)))
    # it does not take that export for its own, and has no adapter for another one
    with pytest.raises(UnsoundBlob, match="another host of this home"):
        deploy.plan(filled.second, model, "embedded", None)


@pytest.mark.slow
def test_a_deployment_is_reached_under_the_address_of_its_host(filled: Hosts) -> None:
    first, second = filled.first, filled.second
    agent = Agent.named("support")
    (here,) = routing.deployments(first, agent)
    assert here.host is None and here.endpoint is not None
    assert here.endpoint.url.startswith("http://127.0.0.1:")
    (there,) = routing.deployments(second, agent)
    assert there.host and routing.is_elsewhere(there)
    with pytest.raises(
        Conflict, match=r"listen on loopback.*Set host\.address there.*--alias none"
    ):
        upstream_of(second, there)

    hosts.set_address(first.db, first.home, ADDRESS)
    (there,) = routing.deployments(second, agent)
    upstream = upstream_of(second, there)
    assert upstream.url == here.endpoint.url.replace("127.0.0.1", ADDRESS)
    body = {"model": upstream.model, "messages": QUESTION, "max_tokens": 4}
    statuses = []
    for token in (upstream.secret, "wrong"):
        answer = httpx2.post(
            f"{upstream.url}/chat/completions",
            json=body,
            headers={"authorization": f"Bearer {token}"},
            timeout=60,
            trust_env=False,
        )
        statuses.append(answer.status_code)
    assert statuses == [200, 401]
    hosts.set_address(first.db, first.home, None)

    # nobody stops it from the other host
    model = DeployWorld(second, Path(), [], "support").find(there.version)
    with pytest.raises(Conflict, match="points at it"):
        undeploy(second, model)
    assert deployments_running.stop(second, agent) == []
    assert deployments_running.health(here).alive
    with pytest.raises(Conflict, match=r"runs on host .*Run the same command there"):
        routing.require_here(there)


SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        is_known = self.headers["authorization"] == "Bearer " + os.environ["TOKEN"]
        self.send_response(200 if is_known else 401)
        self.end_headers()
http.server.HTTPServer((sys.argv[2], int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_server_is_asked_under_the_address_of_its_host_with_its_token(pair: Hosts) -> None:
    """A server that listens as a target's does; what it says is not looked at."""
    first, second = pair.first, pair.second
    ensure_agent(first, "support")
    version = ensure_base(first, "support", "base", "f")
    folder = first.home.path / "deployments" / "embedded" / "server"

    def command(port: int, token: str) -> tuple[list[str], dict[str, str]]:
        return [sys.executable, "-c", SERVER, str(port), "0.0.0.0"], {"TOKEN": token}

    with processes.locked(folder):
        server = processes.start(
            folder,
            command,
            lambda running: running.answers("v1"),
            what="a server",
            wait=120,
            bind="0.0.0.0",
        )
    try:
        details = {"place": str(folder), "is_reachable": server.is_reachable}
        endpoint = Endpoint(f"{server.url}/v1", "support-v0", details)
        remote_token.share(first, "embedded", endpoint)

        def insert(connection: sa.Connection) -> None:
            folder = hosts.folder_id(first.home)
            new = deployment_store.insert(connection, version, None, "embedded", "n", {}, folder)
            (row,) = deployment_store.find(connection, first.home, deployment_store.by_id(new))
            deployment_store.set_state(
                connection, first.home, row, DeploymentState.WARM, endpoint, {}
            )

        first.db.write(insert)
        text = json.dumps(dump(first)["deployments"], default=str)
        assert str(first.home.path) not in text and "127.0.0.1" not in text
        (here,) = routing.deployments(first, Agent.named("support"))
        assert here.endpoint == endpoint and here.host is None
        (there,) = routing.deployments(second, Agent.named("support"))
        assert there.host == os.uname().nodename
        with pytest.raises(Conflict, match=r"on loopback.*Set host\.address there"):
            upstream_of(second, there)

        hosts.set_address(first.db, first.home, ADDRESS)
        (there,) = routing.deployments(second, Agent.named("support"))
        upstream = upstream_of(second, there)
        assert (upstream.url, upstream.secret) == (
            f"http://{ADDRESS}:{server.port}/v1",
            server.token,
        )
        for token, status in ((upstream.secret, 200), ("wrong", 401)):
            headers = {"authorization": f"Bearer {token}"}
            answer = httpx2.get(upstream.url, headers=headers, timeout=60, trust_env=False)
            assert answer.status_code == status
        with pytest.raises(Conflict, match=r"runs on host .*Run the same command there"):
            routing.require_here(there)
        assert deployments_running.stop(second, Agent.named("support")) == []
    finally:
        processes.stop(folder)


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "localhost", "http://gpu-1", "gpu-1:80", "0.0.0.0"]
)
def test_an_address_that_leads_nowhere_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"is no name or address|leads every other host to itself"):
        hosts.HostConfig(address=address)


def test_a_dataset_of_another_host_is_no_traceback(pair: Hosts, tmp_path: Path) -> None:
    lines = [line for person in range(12) for line in lines_of(person)]
    ingest(pair.first, AGENT, "jsonl", write(tmp_path / "lines.jsonl", lines))
    dataset = build(pair.first, AGENT, "labels")
    with pytest.raises(StorageError, match="it is not in this home"):
        split_rows(pair.second, dataset, "train")


def test_a_run_whose_host_is_silent_is_stopped_and_comes_back_with_a_sign(pair: Hosts) -> None:
    first, second = pair.first, pair.second
    ensure_agent(first, "support")
    dataset = record(first, datasets, "support", shape="pairs")
    values = {"algorithm": "dpo", "dataset_id": dataset, "base": "base", "state": "running"}
    folder = hosts.folder_id(first.home)
    record(first, runs, "support", id="run_a", folder=folder, beat=None, **values)

    def state() -> tuple[RunState, str | None]:
        run = train.find_run(second, "run_a")
        return run.state, run.reason

    now = [0.0]
    watch, watch_of_first = (RunWatch(ws, 15.0, lambda: now[0]) for ws in (second, first))
    assert watch.look() == []
    with beat.beating(first, "run_a"):
        until(lambda: train.find_run(first, "run_a").beat == 1)
        now[0] = 16.0
        assert watch.look() == []  # it gave a sign meanwhile
    now[0] = 30.0
    assert watch.look() == []
    now[0] = 32.0
    assert len(watch.look()) == 1 and watch_of_first.look() == []
    assert state() == (RunState.STOPPED, store.SILENT)
    assert watch.look() == []
    first.db.write(lambda connection: store.beat(connection, "run_a"))
    assert state() == (RunState.RUNNING, None)


def test_an_erasure_reaches_the_folder_of_the_other_host(pair: Hosts, tmp_path: Path) -> None:
    first, second = pair.first, pair.second
    lines = [line for person in range(12) for line in lines_of(person)]
    ingest(first, AGENT, "jsonl", write(tmp_path / "lines.jsonl", lines))
    build(first, AGENT, "labels")
    # what the first host has beside rows: its cache, refused lines, lines that are no rows yet
    (first.home.cache / "answers").mkdir(parents=True)
    (first.home.cache / "answers" / "1.json").write_text(f"about {word(3)}")
    refused = {"reason": "it contradicts", "text": json.dumps({"subject": name(3)})}
    rejected = first.home.inbox / "rejected.jsonl"
    rejected.write_text(
        json.dumps(refused) + "\n" + json.dumps({"reason": "a", "text": "b"}) + "\n"
    )

    erasure = erase(second, Agent.named(AGENT), name(3))
    first_name = os.uname().nodename
    assert any("other hosts are removed by their servers" in note for note in erasure.notes)
    assert waiting_hosts(second, str(erasure.id)) == [first_name]
    assert find(first.home.path, word(3)), "nothing was there to remove"
    with first.db.read() as connection:
        sealed = connection.execute(sa.select(cluster_keys)).all()
    assert word(3) not in str(sealed)
    repeated = erase(second, Agent.named(AGENT), name(3))
    assert repeated.state == "already" and first_name in str(repeated.notes)

    assert purge_here(second) == []
    (line,) = purge_here(first)
    assert str(erasure.id) in line
    assert find(first.home.path, word(3)) == []
    assert len(rejected.read_text().splitlines()) == 1
    assert waiting_hosts(second, str(erasure.id)) == [] and purge_here(first) == []


def test_a_host_that_will_not_come_back_is_forgotten(pair: Hosts, tmp_path: Path) -> None:
    first, second = pair.first, pair.second
    ingest(first, AGENT, "jsonl", write(tmp_path / "lines.jsonl", lines_of(3)))
    erasure = erase(second, Agent.named(AGENT), name(3))
    listed = {host.is_this: host for host in cluster_hosts(second)}
    assert (listed[False].erasures, listed[True].erasures) == ([erasure.id], [])
    with pytest.raises(Conflict, match="it is this one"):
        forget_host(second, listed[True].folder)
    with pytest.raises(NotFound, match=listed[False].folder):
        forget_host(second, "another")
    assert forget_host(second, listed[False].folder).name == os.uname().nodename
    assert [host.folder for host in cluster_hosts(second)] == [listed[True].folder]
    assert waiting_hosts(second, str(erasure.id)) == []


def test_who_waits_for_a_file_of_a_host_without_workers_is_told(pair: Hosts) -> None:
    first, second = pair.first, pair.second
    folder, now = hosts.folder_id(first.home), datetime.now(UTC)
    job = queue.enqueue(second, "import", {}, folder=folder)
    assert "no worker is alive" in str(queue.standstill(second, -1.0))
    host = f"{hosts.folder_id(second.home)}@boot"
    worker = WorkerRow("wrk_1", host, 1, 1, "settings", 0, now, now)
    second.db.write(lambda connection: jobs_store.add_worker(connection, worker))
    message = str(queue.standstill(second, -1.0))
    assert job.id in message and f"for a file of host {os.uname().nodename}" in message
    queue.cancel(second, job.id)
    queue.enqueue(second, "import", {})
    assert queue.standstill(second, -1.0) is None


def test_a_newer_schema_refuses_who_starts_and_lets_go_on_who_runs(
    pair: Hosts, tmp_path: Path
) -> None:
    newer = sa.text("UPDATE alembic_version SET version_num = 'tw9999'")
    pair.first.db.write(lambda connection: connection.execute(newer))
    with pytest.raises(StorageError, match=r"a newer version .* \(schema tw9999; this one knows"):
        pair.opened(pair.second)
    ingest(pair.first, AGENT, "jsonl", write(tmp_path / "lines.jsonl", lines_of(1)))
    assert len(_external_ids(pair.second)) > 0


def test_an_endpoint_of_an_earlier_version_is_migrated() -> None:
    migration = import_module("thumbwheel.db.migrations.versions.v0012_files_of_hosts")
    details = {"place": "/srv/home/deployments/ollama", "host": "http://127.0.0.1:11434"}
    earlier = {"url": "http://127.0.0.1:11434/v1", "model": "m", "details": details, "body": {}}
    assert migration._portable(earlier) == {
        "url": "http://$HOST:11434/v1",
        "model": "m",
        "details": {
            "place": "$THUMBWHEEL_HOME/deployments/ollama",
            "host": "http://$HOST:11434",
        },
        "body": {},
    }
    assert migration._portable({}) == {}


@pytest.mark.slow
def test_what_is_acknowledged_by_rows_outlives_its_host(pair: Hosts) -> None:
    """The server is killed amid requests, and its folder removed."""
    with pair.opened(pair.first) as ws:
        secret = keys.add(ws, "app", verbs=("call", "rate")).secret
    environment = pair.environment | {"THUMBWHEEL_CAPTURE__ACKNOWLEDGE": "rows"}
    acknowledged = []
    with running(pair.first.home.path, environment) as server:
        for number in range(6):
            (stored,) = _send(server, secret, f"t{number}")
            acknowledged.append(stored)
            # not a moment later
            assert _external_ids(pair.second) == acknowledged
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait(60)
        shutil.rmtree(pair.first.home.path)
    assert _external_ids(pair.second) == acknowledged


def _send(server: ThumbwheelServer, secret: str, trace: str) -> list[str]:
    line: dict[str, Any] = {"id": trace, "agent": AGENT, "input": "a", "output": "b"}
    answer = httpx2.post(
        f"{server.url}/api/traces",
        json=line,
        headers={"authorization": f"Bearer {secret}"},
        timeout=120,
        trust_env=False,
    )
    assert answer.status_code == 202, answer.text
    ids: list[str] = answer.json()["ids"]
    return ids


def _external_ids(ws: Workspace) -> list[str]:
    query = sa.select(traces.c.external_id).order_by(traces.c.external_id)
    with ws.db.read() as connection:
        return list(connection.execute(query).scalars())
