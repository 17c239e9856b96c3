"""A server with two users, two apps and a trace that all of them may judge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from fastapi.testclient import TestClient

from tests.worlds.gateway_world import opened_home
from thumbwheel.access import keys, users
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.db.feedback_in_force import newest_words
from thumbwheel.db.schema import feedback, raters
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import ensure_agent
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


@contextmanager
def forum_world(folder: Path) -> Iterator[Forum]:
    """A server that others reach, with its users, apps and trace."""
    with opened_home(folder / "home") as ws:
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


def key_id(forum: Forum, name: str) -> str:
    """The id of a key."""
    return next(key.id for key in keys.listed(forum.ws) if key.name == name)
