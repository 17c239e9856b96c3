"""When a line is acknowledged: on the disk, or as a row; and what a full spool says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from starlette.testclient import TestClient

from tests.unit.capture.test_received import client_of
from thumbwheel.capture import acknowledged, inbox
from thumbwheel.capture.acknowledged import AcknowledgedSegment
from thumbwheel.capture.inbox import Drainer, Unstored
from thumbwheel.capture.redact import CaptureConfig
from thumbwheel.capture.traces import count_traces
from thumbwheel.core.errors import StorageError
from thumbwheel.db.workspace import Workspace
from thumbwheel.sdk.segment import Segment

TRACE = {"agent": "desk", "id": "t1", "input": "Opening hours?", "output": "Nine to five."}
LINE = json.dumps({"type": "trace", **TRACE}).encode()


def segment(ws: Workspace, drainer: Drainer, **settings: object) -> AcknowledgedSegment:
    config = CaptureConfig.model_validate(settings)
    return AcknowledgedSegment(Segment(ws.home.inbox), drainer, config)


def test_a_row_is_in_the_database_when_it_is_acknowledged(empty_ws: Workspace) -> None:
    with Drainer(empty_ws, every=3600.0) as drainer:
        segment(empty_ws, drainer, acknowledge="rows").append(LINE).result(60)
        assert count_traces(empty_ws, "desk") == 1
        # by itself it would look an hour later
        segment(empty_ws, drainer).append(LINE.replace(b"t1", b"t2")).result(60)
        assert count_traces(empty_ws, "desk") == 1


def test_what_the_database_does_not_take_is_not_acknowledged(
    empty_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StorageError("the database", "it is away", "Wait")

    monkeypatch.setattr(inbox, "STORED_WITHIN", 0.0)
    monkeypatch.setattr(inbox, "save", refuse)
    with Drainer(empty_ws, every=0.01) as drainer:
        spool = segment(empty_ws, drainer, acknowledge="rows")
        with client_of(spool, empty_ws.home.path) as client:
            answer = client.post("/api/traces", json=TRACE)
        assert answer.status_code == 503
        assert "It waits in the spool of this server" in answer.text
        monkeypatch.undo()
        spool = segment(empty_ws, drainer, acknowledge="rows")
        spool.append(LINE.replace(b"t1", b"t2")).result(60)
    assert count_traces(empty_ws, "desk") == 2


def test_who_waits_is_answered_when_the_server_stops(empty_ws: Workspace) -> None:
    with Drainer(empty_ws) as drainer:
        pass
    late: Future[None] = Future()
    drainer.resolve_when_stored(late)
    with pytest.raises(Unstored):
        late.result(10)


@pytest.fixture
def small_spool(empty_ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """A server whose database is away, and whose spool takes a few hundred bytes."""
    monkeypatch.setattr(acknowledged, "LOOK_EVERY", -1.0)
    spool = segment(empty_ws, Drainer(empty_ws), spool_gb=1e-7)
    with client_of(spool, empty_ws.home.path) as client:
        yield client


def test_a_full_spool_takes_nothing_more(small_spool: TestClient, empty_ws: Workspace) -> None:
    assert small_spool.post("/api/traces", json=TRACE).status_code == 202
    answer = small_spool.post("/api/traces", json={**TRACE, "id": "t2"})
    assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
    assert "too many rows wait for the database" in answer.text
    inbox.drain_inbox(empty_ws)
    assert small_spool.post("/api/traces", json={**TRACE, "id": "t2"}).status_code == 202
