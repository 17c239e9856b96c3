"""The routes of other systems' dialects, and imports, are no way around what a name may say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from tests.worlds.gateway_world import opened_home
from thumbwheel.access import keys, users
from thumbwheel.access.types import Verb
from thumbwheel.app.dialects import DIALECTS
from thumbwheel.capture.ingest import ingest
from thumbwheel.db.schema import cases, feedback, raters
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.versions import ensure_agent
from thumbwheel.server.application import Application
from thumbwheel.server.serve import assembled

PASSWORD = "correct horse battery"
URL = "http://127.0.0.1:8787"
DECISION = {
    "id": "d1",
    "agentType": "FILER",
    "state": {"item": {"title": "the secret of bob"}},
    "action": {"swimlane": "PROJECT", "confidence": 0.8},
    "userId": "bob",
    "createdAt": "2026-01-05T08:00:00.000Z",
}
ENTRY = {
    "entry_id": "e1",
    "question_id": "q1",
    "question": "How is it?",
    "category": "status",
    "scenario": "kpi",
    "fixture": "dial",
    "size": "normal",
    "natural": False,
    "forced": True,
}
CASE = {"type": "case", "id": "c1", "input": "2 + 2?", "reference": "5", "checker": "exact_answer"}


@dataclass(frozen=True)
class Served:
    """A server with all dialects, and its home."""

    ws: Workspace
    application: Application

    def with_key(self, *verbs: Verb) -> TestClient:
        """A client with a key for these verbs."""
        secret = keys.add(self.ws, "-".join(verbs), agents=["support"], verbs=verbs).secret
        self.application.api.state.gate.directory.refresh()
        return TestClient(
            self.application, base_url=URL, headers={"authorization": f"Bearer {secret}"}
        )

    def logged_in(self, role: str) -> TestClient:
        """A browser in which ann, who has this role, is logged in."""
        users.add(self.ws, "ann", password=PASSWORD, role=role, agent="support")
        client = TestClient(self.application, base_url=URL, headers={"origin": URL})
        login = client.post("/api/login", json={"name": "ann", "password": PASSWORD})
        client.headers["x-csrf-token"] = login.json()["csrf"]
        return client

    def rater_names(self) -> set[str | None]:
        """Of all feedback."""
        query = sa.select(raters.c.external_id).select_from(
            feedback.outerjoin(raters, raters.c.id == feedback.c.rater_id)
        )
        with self.ws.db.read() as connection:
            return set(connection.execute(query).scalars())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with opened_home(tmp_path / "home") as ws:
        ensure_agent(ws, "support")
        keys.add(ws, "first", agents=["support"])
        path = tmp_path / "decisions.jsonl"
        path.write_text(json.dumps(DECISION) + "\n")
        ingest(ws, "support", "decisions", path)
        folder = tmp_path / "run"
        folder.mkdir()
        run = {"run_id": "r1", "entries": [ENTRY]}
        (folder / "exhaustive_data.json").write_text(json.dumps(run))
        ingest(ws, "support", "widgets", folder)
        names = DIALECTS.names()
        with assembled(ws, "0.0.0.0", drain_every=3600, dialects=names) as application:
            yield Served(ws=ws, application=application)


def rating(device: str) -> dict[str, Any]:
    return {"entry_id": "e1", "rating": "up", "device_id": device}


def test_a_user_speaks_in_no_other_name_in_a_dialect(served: Served) -> None:
    ann = served.logged_in("rater")
    word = {"feedback": "CORRECTED", "correction": {"swimlane": "HOME"}}
    assert ann.patch("/api/decisions/d1/feedback", json=word).status_code == 200
    assert ann.post("/api/ratings/", json=rating("bob")).status_code == 201
    many = {"ratings": {"e1": {"rating": "down"}}, "device_id": "carl"}
    assert ann.post("/api/ratings/bulk/", json=many).json()["updated"] == 1
    score = {"prompt": "Q", "response": "A", "score": 0.5, "runId": "r1"}
    refused = ann.post("/api/feedback/support", json=score)
    assert refused.status_code == 403, "a score brings its trace, which needs `call` as well"
    assert served.rater_names() == {"ann"}


def test_an_app_says_for_whom_it_speaks(served: Served) -> None:
    app = served.with_key("rate", "call")
    word = {"feedback": "CONFIRMED"}
    assert app.patch("/api/decisions/d1/feedback", json=word).status_code == 200
    assert app.post("/api/ratings/", json=rating("tablet")).status_code == 201
    assert served.rater_names() == {"bob", "tablet"}


def test_who_may_rate_and_not_read_is_shown_no_decision(served: Served) -> None:
    app = served.with_key("rate", "call")
    answer = app.patch("/api/decisions/d1/feedback", json={"feedback": "CONFIRMED"})
    assert answer.json()["userFeedback"] == "CONFIRMED"
    for secret in ("the secret of bob", "bob", "PROJECT"):
        assert secret not in answer.text
    reader = served.with_key("rate", "read")
    answer = reader.patch("/api/decisions/d1/feedback", json={"feedback": "CONFIRMED"})
    assert "the secret of bob" in answer.text


def import_case(client: TestClient, name: str, **options: Any) -> int:
    """Import a case by a request; returns the status."""
    query = {"source": "jsonl", "path": "cases.jsonl", "wait": 60, **options}
    content = json.dumps(CASE | {"id": name}).encode() + b"\n"
    return client.post("/api/agents/support/imports", params=query, content=content).status_code


def reviewers(served: Served) -> list[tuple[str, str | None]]:
    """(basis, reviewer) of all cases."""
    reviewed = cases.outerjoin(raters, raters.c.id == cases.c.reviewer_id)
    query = sa.select(cases.c.basis, raters.c.external_id).select_from(reviewed)
    query = query.order_by(cases.c.external_id)
    with served.ws.db.read() as connection:
        return [tuple(row) for row in connection.execute(query)]


def test_a_user_vouches_for_cases_of_a_file_in_no_other_name(served: Served) -> None:
    ann = served.logged_in("editor")
    assert import_case(ann, "c1", gold=True, reviewer="boss") == 403
    assert import_case(ann, "c2", gold=True) == 200
    assert reviewers(served) == [("gold", "ann")]


def test_gold_of_a_file_needs_what_gold_needs(served: Served) -> None:
    nightly = served.with_key("run", "read")
    assert import_case(nightly, "c1", gold=True) == 403
    assert import_case(nightly, "c2") == 200
    assert import_case(served.with_key("run", "edit"), "c3", gold=True, reviewer="boss") == 200
    assert reviewers(served) == [("feedback", None), ("gold", "boss")]


def test_a_score_that_brings_its_trace_needs_the_right_to_send_traces(served: Served) -> None:
    score = {"prompt": "How?", "response": "So.", "score": 1.0, "runId": "r1"}
    rater, app = served.with_key("rate"), served.with_key("rate", "call")
    for path in ("/api/feedback/support", "/api/policies/feedback/support"):
        assert rater.post(path, json=score).status_code == 403
        assert app.post(path, json=score).status_code == 200
