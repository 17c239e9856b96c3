"""Statements in somebody else's name: given, corrected and taken back by who is not them."""

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
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.capture.ingest import ingest
from thumbwheel.capture.traces import show_trace
from thumbwheel.core.errors import InputError
from thumbwheel.db.feedback_in_force import newest_words
from thumbwheel.db.schema import feedback, raters
from thumbwheel.db.workspace import Workspace
from thumbwheel.loop.erase import erase
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import ensure_agent
from thumbwheel.rewards.agreement import agreement
from thumbwheel.rewards.learn import person_labels
from thumbwheel.server.serve import assembled

PASSWORD = "correct horse battery"
URL = "http://127.0.0.1:8787"
AGENT = "support"
WORDS = f"/api/agents/{AGENT}/feedback"


@dataclass
class Forum:
    """A server with two users, two apps and a trace that all of them may judge."""

    ws: Workspace
    ann: TestClient
    bob: TestClient
    app: TestClient
    other_app: TestClient
    stranger: TestClient

    def say(self, who: TestClient, **row: Any) -> Any:
        """A statement about the trace, stored as a row where it is taken."""
        reply = who.post(f"/a/{AGENT}/api/feedback", json={"trace": "t1", **row})
        drain_inbox(self.ws)
        return reply

    def words(self) -> list[tuple[str | None, str | None, Any]]:
        """(rater, sender, value) of what is in force, oldest first."""
        in_force = newest_words(Agent.named(AGENT).id)
        query = (
            sa.select(raters.c.external_id, feedback.c.sender, feedback.c.value)
            .select_from(feedback.outerjoin(raters, raters.c.id == feedback.c.rater_id))
            .where(feedback.c.id.in_(in_force))
            .order_by(feedback.c.recorded_at, feedback.c.id)
        )
        with self.ws.db.read() as connection:
            return [tuple(row) for row in connection.execute(query)]

    def id_of(self, value: Any) -> str:
        """The row of the statement with this value."""
        query = sa.select(feedback.c.id, feedback.c.value)
        with self.ws.db.read() as connection:
            rows = connection.execute(query).all()
        return str(next(row.id for row in rows if row.value == value))


@pytest.fixture
def forum(tmp_path: Path) -> Iterator[Forum]:
    with opened_home(tmp_path / "home") as ws:
        ensure_agent(ws, AGENT)
        for name in ("ann", "bob"):
            users.add(ws, name, password=PASSWORD, role="rater", agent=AGENT)
        with assembled(ws, "0.0.0.0", drain_every=3600) as application:

            def client(key: str | None = None) -> TestClient:
                client = TestClient(application, base_url=URL)
                if key is not None:
                    secret = keys.add(ws, key, agents=[AGENT]).secret
                    client.headers["authorization"] = f"Bearer {secret}"
                return client

            def logged_in(name: str) -> TestClient:
                person = client()
                person.headers["origin"] = URL
                login = person.post("/api/login", json={"name": name, "password": PASSWORD})
                person.headers["x-csrf-token"] = login.json()["csrf"]
                return person

            apps = client("app"), client("other-app")
            forum = Forum(ws, logged_in("ann"), logged_in("bob"), *apps, client())
            trace = {"id": "t1", "input": "Where is it?", "output": "There."}
            for app in apps:
                wait_for_key(app, trace)
            drain_inbox(ws)
            yield forum


def wait_for_key(app: TestClient, trace: dict[str, Any]) -> None:
    """Send the trace once the server knows the key."""
    for _ in range(200):
        if app.post(f"/a/{AGENT}/api/traces", json=trace).status_code == 202:
            return
    raise AssertionError("the key is not known")


def name_of(forum: Forum, user: str) -> str:
    """The id of a user."""
    return next(row.id for row in users.listed(forum.ws) if row.name == user)


def test_a_user_speaks_in_no_name_but_their_own(forum: Forum) -> None:
    reply = forum.say(forum.ann, correction="Poison.", rater="bob")
    assert reply.status_code == 422 and "ann" in reply.text
    reply = forum.say(forum.ann, thumb=True, rater={"id": "bob", "weight": 1000.0})
    assert reply.status_code == 422
    assert forum.say(forum.ann, correction="Here.").status_code == 202
    reply = forum.ann.post(WORDS, json={"target": "t1", "thumb": "up", "rater": "bob"})
    assert reply.status_code == 403
    assert forum.ann.post(WORDS, json={"target": "t1", "thumb": "up"}).status_code == 200
    ann = name_of(forum, "ann")
    assert forum.words() == [("ann", ann, "Here."), ("ann", ann, True)]


def test_nobody_takes_back_what_another_sender_said(forum: Forum) -> None:
    assert forum.say(forum.bob, correction="Bob's answer.").status_code == 202
    assert forum.say(forum.app, score=0.25, rater="carl").status_code == 202
    before = forum.words()
    bobs, carls = forum.id_of("Bob's answer."), forum.id_of(0.25)
    for statement_id, rater in ((bobs, "bob"), (carls, "carl")):
        for verb in ("retracts", "supersedes"):
            forum.say(forum.ann, thumb=False, **{verb: statement_id})
            forum.say(forum.other_app, thumb=False, rater=rater, **{verb: statement_id})
            body = {"target": "t1", "thumb": "down", verb: statement_id}
            assert forum.ann.post(WORDS, json=body).status_code in (400, 422)
            body["rater"] = rater
            assert forum.other_app.post(WORDS, json=body).status_code in (400, 422)
    assert [word for word in forum.words() if word in before] == before
    # their own words they may take back, by whatever road these came
    assert forum.bob.post(WORDS, json={"target": "t1", "retracts": bobs}).status_code == 200
    forum.say(forum.app, retracts=carls, rater="carl")
    assert not [word for word in forum.words() if word in before]


def test_a_newer_word_of_another_sender_replaces_none(forum: Forum) -> None:
    forum.say(forum.ann, thumb=True)
    forum.say(forum.app, thumb=False, rater="ann")
    assert [word[2] for word in forum.words()] == [True, False]


def test_a_file_takes_nothing_back_that_came_to_the_server(forum: Forum, tmp_path: Path) -> None:
    forum.say(forum.ann, thumb=True)
    path = tmp_path / "lines.jsonl"
    line = {
        "type": "feedback",
        "source": "sdk",
        "target": {"trace": "t1"},
        "kind": "thumb",
        "value": False,
        "rater": "ann",
        "sender": name_of(forum, "ann"),
        "retracts": forum.id_of(True),
    }
    path.write_text(json.dumps(line) + "\n")
    report_or_refusal(forum, path)
    assert [word[2] for word in forum.words()] == [True]


def test_a_model_is_no_person_whoever_sends_its_words(forum: Forum) -> None:
    for app in (forum.app, forum.other_app):
        assert forum.say(app, thumb=True, rater={"id": "gpt", "kind": "model"}).status_code == 202
    assert forum.say(forum.ann, thumb=False).status_code == 202
    assert forum.say(forum.bob, thumb=False).status_code == 202
    (panel,) = agreement(forum.ws, AGENT)
    assert len(panel.judges) == 2 and len(panel.raters) == 2
    assert {judge.agreement.share for judge in panel.judges} == {0}
    with forum.ws.db.read() as connection:
        assert list(person_labels(connection, Agent.named(AGENT)).values()) == [False]


def report_or_refusal(forum: Forum, path: Path) -> None:
    try:
        ingest(forum.ws, AGENT, "jsonl", path)
    except InputError as error:
        assert "another rater, sender or source" in str(error)


def test_a_token_is_one_rater_whatever_it_calls_itself(forum: Forum) -> None:
    reply = forum.app.post(f"/a/{AGENT}/api/feedback-tokens", json={"trace": "t1"})
    forum.stranger.headers["authorization"] = f"Bearer {reply.json()['token']}"
    for number, rater in enumerate(("ann", "bob", "x", "y")):
        assert forum.say(forum.stranger, score=number / 10, rater=rater).status_code == 202
    ((rater, sender, value),) = forum.words()
    assert rater is not None and rater.startswith("token:")
    assert (sender, value) == (key_id(forum, "app"), 0.3)
    assert forum.say(forum.stranger, retracts=forum.id_of(0.3)).status_code in (403, 422)


def key_id(forum: Forum, name: str) -> str:
    """The id of a key."""
    return next(key.id for key in keys.listed(forum.ws) if key.name == name)


def test_a_sender_that_a_client_claims_is_no_sender(forum: Forum) -> None:
    forum.say(forum.app, thumb=True, rater="carl", sender="local")
    assert forum.words() == [("carl", key_id(forum, "app"), True)]


def test_it_is_shown_who_said_it_for_whom(forum: Forum) -> None:
    forum.say(forum.app, thumb=True, rater="carl")
    forum.say(forum.ann, thumb=True)
    sentences = [word.get("said") for word in show_trace(forum.ws, AGENT, "t1")["feedback"]]
    assert sentences == ["said by app for carl", None]


def test_an_erasure_takes_what_a_user_sent_for_others(forum: Forum) -> None:
    forum.say(forum.ann, correction="Written by ann.")
    forum.say(forum.app, thumb=True, rater="carl")
    erase(forum.ws, Agent.named(AGENT), "ann")
    assert [word[0] for word in forum.words()] == ["carl"]
