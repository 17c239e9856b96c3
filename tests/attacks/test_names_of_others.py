"""Answers to who may see one agent, and the names of other agents and people in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.waiting import until
from tests.worlds.forum_world import AGENT, Forum, forum_world
from thumbwheel.access import keys, users
from thumbwheel.models.versions import ensure_agent

OTHERS = ("payroll", "zoe", "payroll-key")
"""An agent, an owner of it and a key for it, of which owners of another agent hear nothing."""
CALL = {"model": "any", "messages": [{"role": "user", "content": "Hello"}]}
REQUESTS: tuple[tuple[str, str, Any], ...] = (
    ("DELETE", "/api/keys/payrol-key", None),
    ("POST", "/api/keys", {"name": "k", "agent": ["ghost"], "user": "zo"}),
    ("PUT", "/api/users/zo/role", {"role": "viewer", "agent": "ghost"}),
    ("GET", "/api/agents/ghost/traces", None),
    ("GET", "/api/agents/ghost/models", None),
    ("POST", "/a/ghost/v1/chat/completions", CALL),
    ("POST", "/v1/chat/completions", CALL),
)


@pytest.fixture
def forum(tmp_path: Path) -> Iterator[Forum]:
    with forum_world(tmp_path) as forum:
        ensure_agent(forum.ws, "payroll")
        users.add(forum.ws, "zoe", password="correct horse battery", role="owner", agent="payroll")
        keys.add(forum.ws, "payroll-key", agents=["payroll"])
        yield forum


def as_owner(forum: Forum, *agents: str) -> TestClient:
    """A client with a key that owns these agents, or the home."""
    verbs = ["read", "rate", "edit", "run", "deploy", "own", "call"]
    secret = keys.add(forum.ws, f"owner-{len(agents)}", agents=agents, verbs=verbs).secret
    forum.app.headers["authorization"] = f"Bearer {secret}"
    until(lambda: forum.app.get("/api/whoami").status_code == 200)
    return forum.app


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_no_answer_names_what_its_reader_may_not_see(
    forum: Forum, method: str, path: str, body: Any
) -> None:
    owner = as_owner(forum, "ghost")  # of which nothing is recorded yet
    for accept in ("application/json", "text/html"):
        reply = owner.request(method, path, json=body, headers={"accept": accept})
        assert reply.status_code == 404
        assert not [name for name in (*OTHERS, AGENT, "bob") if name in reply.text]


def test_an_owner_of_the_home_is_helped_by_names(forum: Forum) -> None:
    owner = as_owner(forum)
    assert "payroll-key" in owner.delete("/api/keys/payrol-key").text
    assert "payroll" in owner.get("/api/agents/ghost/traces").text


def test_roles_for_other_agents_are_not_shown(forum: Forum) -> None:
    users.set_role(forum.ws, "bob", "owner", agent="payroll")
    owner = as_owner(forum, AGENT)
    shown = {user["name"]: user["roles"] for user in owner.get("/api/users").json()}
    assert shown == {"ann": {AGENT: "rater"}, "bob": {AGENT: "rater"}}
    changed = owner.put("/api/users/bob/role", json={"role": "viewer", "agent": AGENT})
    assert changed.json()["roles"] == {AGENT: "viewer"}
