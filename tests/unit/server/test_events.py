"""Events over HTTP: as a list, as a stream, and on from the last one that a client got."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa

from tests.worlds.gateway_world import GatewayWorld, opened_home, running
from thumbwheel.db import schema
from thumbwheel.models.types import EndpointAddress
from thumbwheel.models.versions import add_endpoint
from thumbwheel.training.rundir import RunDir

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
RUN = "run_1"
METRICS = f"/api/agents/support/runs/{RUN}/metrics"
DECISIONS = "/api/agents/support/decisions"
SSE = {"accept": "text/event-stream"}


@pytest.fixture
def training_server(tmp_path: Path) -> Iterator[GatewayWorld]:
    """A server of an agent with a run that trains, and no decision."""
    with opened_home(tmp_path / "home") as ws:
        version = add_endpoint(ws, "support", EndpointAddress("http://127.0.0.1:9/v1", "m"))
        now = {"agent_id": version.agent_id, "recorded_at": NOON}

        def work(connection: sa.Connection) -> None:
            row = {"id": "ds_1", "shape": "chats", "manifest": {}, "fingerprint": "f"}
            connection.execute(schema.datasets.insert().values(**row, **now))
            row = {"id": RUN, "algorithm": "sft", "dataset_id": "ds_1", "base": "b", "seed": 1}
            row |= {"config": {}, "environment": {}, "state": "running"}
            connection.execute(schema.runs.insert().values(**row, **now))
            row = {"id": "evl_1", "candidate_id": version.id, "against_id": version.id}
            row |= {"basis": "gold", "config": {}, "results": {}}
            connection.execute(schema.evaluations.insert().values(**row, **now))

        ws.db.write(work)
        RunDir(ws.home.runs / RUN).path.mkdir(parents=True)
        with running(ws) as world:
            world.client.headers.update(world.owner)
            yield world


def write_metrics(server: GatewayWorld, *steps: int) -> None:
    with RunDir(server.ws.home.runs / RUN).metrics.open("a") as stream:
        stream.writelines(json.dumps({"step": step}) + "\n" for step in steps)


def end_run(server: GatewayWorld) -> None:
    ended = schema.runs.update().values(state="finished")
    server.ws.db.write(lambda connection: connection.execute(ended))


def add_decision(server: GatewayWorld, name: str, minutes: int) -> None:
    def work(connection: sa.Connection) -> None:
        evaluation = connection.execute(sa.select(schema.evaluations)).one()
        row = {"id": name, "agent_id": evaluation.agent_id, "version_id": evaluation.candidate_id}
        row |= {"evaluation_id": "evl_1", "decision": "rejected", "reasons": ["no gain"]}
        row |= {"policy": {}, "inputs": {}, "recorded_at": NOON + timedelta(minutes=minutes)}
        connection.execute(schema.decisions.insert().values(**row))

    server.ws.db.write(work)


def stream(response: httpx2.Response, count: int) -> list[tuple[str, str, Any]]:
    """The first events of a stream: id, kind and content."""
    events: list[tuple[str, str, Any]] = []
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "event" in fields:
            events.append((fields.get("id", ""), fields["event"], json.loads(fields["data"])))
            fields = {}
            if len(events) == count:
                break
    return events


def test_a_run_is_watched_until_its_end(training_server: GatewayWorld) -> None:
    write_metrics(training_server, 1, 2)
    listed = training_server.client.get(METRICS).json()
    assert [(row["id"], row["content"]["step"]) for row in listed] == [("1", 1), ("2", 2)]

    def go_on() -> None:
        time.sleep(0.3)
        write_metrics(training_server, 3)
        end_run(training_server)

    thread = threading.Thread(target=go_on)
    thread.start()
    with training_server.client.stream(
        "GET", METRICS, headers={**SSE, "last-event-id": "1"}
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = stream(response, 3)
    thread.join()
    assert events == [
        ("2", "metrics", {"step": 2}),
        ("3", "metrics", {"step": 3}),
        ("", "end", {}),
    ]
    assert training_server.client.get(f"{METRICS}?after=3").json() == []
    assert training_server.client.get("/api/agents/support/runs").json()[0]["state"] == "finished"


def test_decisions_come_in_their_order(training_server: GatewayWorld) -> None:
    add_decision(training_server, "dec_b", 0)
    add_decision(training_server, "dec_c", 0)
    add_decision(training_server, "dec_a", 1)
    listed = training_server.client.get(DECISIONS).json()
    assert [row["id"] for row in listed] == ["dec_b", "dec_c", "dec_a"]
    assert listed[0]["content"]["version"] == "v0"
    with training_server.client.stream(
        "GET", DECISIONS, headers={**SSE, "last-event-id": "dec_b"}
    ) as late:
        assert [event[0] for event in stream(late, 2)] == ["dec_c", "dec_a"]


def test_what_is_no_event_is_refused(training_server: GatewayWorld) -> None:
    for path, last, status in (
        (METRICS, "x", 422),
        (METRICS, "-1", 422),
        (METRICS, "9" * 400, 422),
        (METRICS, "9" * 500, 422),
        (DECISIONS, "dec_none", 404),
        ("/api/agents/support/runs/run_none/metrics", "1", 404),
        ("/api/agents/support/runs/..%2f..%2fetc/metrics", "1", 404),
        ("/api/agents/nobody/decisions", "1", 404),
    ):
        for headers in ({"last-event-id": last}, {"last-event-id": last, **SSE}):
            answer = training_server.client.get(path, headers=headers)
            assert answer.status_code == status, (path, last, answer.text)


def test_a_server_that_leaves_ends_its_streams(training_server: GatewayWorld) -> None:
    write_metrics(training_server, 1)
    with training_server.client.stream("GET", METRICS, headers=SSE) as response:
        lines = response.iter_lines()
        assert next(lines) == "id: 1"
        training_server.application.health.leaving.set()
        assert "event: end" not in list(lines)
