"""Logins, and what each person may: sessions, roles by agent, forged pages, limits, the log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from tests.still_minute import still_minute
from tests.worlds.gateway_world import opened_home
from thumbwheel.access import audit, keys, users
from thumbwheel.access.credentials import COOKIE, CSRF_COOKIE
from thumbwheel.access.login_codes import LoginCodes
from thumbwheel.access.rate_limits import LOGINS_PER_MINUTE
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import Conflict
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.server.application import Application
from thumbwheel.server.serve import assembled

__all__ = ["still_minute"]
PASSWORD = "correct horse battery"
URL = "http://127.0.0.1:8787"
ROW = {"trace": "t1", "thumb": True}


@pytest.fixture
def ann_rates(tmp_path: Path) -> Iterator[Workspace]:
    with opened_home(tmp_path / "home") as ws:
        users.add(ws, "ann", password=PASSWORD, role="rater", agent="support")
        yield ws


@pytest.fixture
def application(ann_rates: Workspace) -> Iterator[Application]:
    """A server that others can reach."""
    with assembled(ann_rates, "0.0.0.0", drain_every=3600) as application:
        yield application


def browser(application: Application, url: str = URL) -> TestClient:
    client = TestClient(application, base_url=url, follow_redirects=False)
    client.headers["origin"] = url
    return client


def logged_in(application: Application, name: str = "ann", url: str = URL) -> TestClient:
    client = browser(application, url)
    answer = client.post("/api/login", json={"name": name, "password": PASSWORD})
    assert answer.status_code == 200, answer.text
    client.headers["x-csrf-token"] = answer.json()["csrf"]
    return client


def test_a_login_makes_a_session_of_its_own(application: Application) -> None:
    client = browser(application, URL.replace("http", "https"))
    login = {"name": "ann", "password": PASSWORD}
    planted = {"cookie": f"{COOKIE}=planted-by-somebody"}
    answer = client.post("/api/login", json=login, headers=planted)
    cookie, csrf = answer.headers.get_list("set-cookie")
    assert cookie.startswith(f"{COOKIE}=") and "planted" not in cookie
    assert {"HttpOnly", "SameSite=lax", "Secure"} <= set(cookie.split("; "))
    assert csrf.startswith(f"{CSRF_COOKIE}=") and "HttpOnly" not in csrf
    first = client.cookies[COOKIE]
    assert client.post("/api/login", json=login).status_code == 200
    assert client.cookies[COOKIE] != first
    assert whoami(application, planted={COOKIE: first}) == 401, "the session before has ended"
    assert whoami(application, planted={COOKIE: "planted-by-somebody"}) == 401


def whoami(application: Application, planted: dict[str, str]) -> int:
    client = browser(application)
    client.cookies.update(planted)
    return client.get("/api/whoami").status_code


def test_a_rater_of_one_agent_is_nobody_for_another(application: Application) -> None:
    client = logged_in(application)
    assert client.get("/api/whoami").json()["may"] == {"support": ["rate", "read"]}
    assert client.post("/a/support/api/feedback", json=ROW).status_code == 202
    assert client.post("/a/sales/api/feedback", json=ROW).status_code == 403
    for agent, status in (("support", 202), ("sales", 403)):
        row = ROW | {"agent": agent}
        assert client.post("/api/feedback", json=row).status_code == status
        assert client.post("/api/feedback", json=[row, row]).status_code == status
    mixed = [ROW | {"agent": "support"}, ROW | {"agent": "sales"}]
    assert client.post("/api/feedback", json=mixed).status_code == 403
    headers = {"x-thumbwheel-agent": "support"}
    assert client.post("/a/sales/api/feedback", json=ROW, headers=headers).status_code == 403
    assert client.get("/api/agents/sales/feedback").status_code == 403
    assert client.get("/api/agents/support/feedback").status_code in (200, 404)
    assert client.get("/api/users").status_code == 403


def test_a_page_of_another_site_or_without_the_proof_changes_nothing(
    application: Application,
) -> None:
    client = logged_in(application)
    path = "/a/support/api/feedback"
    foreign = {"origin": "https://evil.example"}
    rebound = {"origin": "http://rebound.example:8787"}
    for headers in (foreign, rebound, {"origin": "null"}, {"x-csrf-token": ""}):
        assert client.post(path, json=ROW, headers=headers).status_code == 403
        assert client.post("/api/logout", headers=headers).status_code == 403
    assert client.post(path, json=ROW, headers={"x-csrf-token": "0" * 64}).status_code == 403
    other = logged_in(application)
    stolen = {"x-csrf-token": other.headers["x-csrf-token"]}
    assert client.post(path, json=ROW, headers=stolen).status_code == 403, "another session's"
    login = {"name": "ann", "password": PASSWORD}
    assert browser(application).post("/api/login", json=login, headers=foreign).status_code == 403
    assert client.get("/api/whoami", headers=foreign).status_code == 200, "reading changes nothing"
    assert client.post(path, json=ROW).status_code == 202


def test_what_is_taken_away_is_gone_in_the_midst_of_a_session(
    ann_rates: Workspace, application: Application
) -> None:
    client = logged_in(application)
    directory = application.api.state.gate.directory
    users.set_role(ann_rates, "ann", "viewer", agent="support")
    directory.refresh()
    assert client.post("/a/support/api/feedback", json=ROW).status_code == 403
    users.set_password(ann_rates, "ann", PASSWORD[::-1])
    directory.refresh()
    assert client.get("/api/whoami").status_code == 401
    users.set_password(ann_rates, "ann", PASSWORD)
    client = logged_in(application)
    assert client.post("/api/logout").status_code == 200
    assert client.get("/api/whoami").status_code == 401
    client = logged_in(application)
    users.remove(ann_rates, "ann")
    directory.refresh()
    assert client.get("/api/whoami").status_code == 401
    answer = client.post("/api/login", json={"name": "ann", "password": PASSWORD})
    assert answer.status_code == 401


def test_guesses_are_slowed_down(application: Application, still_minute: None) -> None:
    client = browser(application)
    wrong = {"name": "ann", "password": "a wrong password"}
    statuses = [client.post("/api/login", json=wrong) for _ in range(LOGINS_PER_MINUTE + 1)]
    assert [answer.status_code for answer in statuses] == [401] * LOGINS_PER_MINUTE + [429]
    assert 1 <= int(statuses[-1].headers["retry-after"]) <= 60
    right = {"name": "ann", "password": PASSWORD}
    assert client.post("/api/login", json=right).status_code == 429
    headers = {"authorization": f"Bearer tw_{'x' * 43}"}
    guesses = [client.get("/api/whoami", headers=headers).status_code for _ in range(70)]
    assert guesses[:60] == [401] * 60 and guesses[-1] == 429


def test_a_key_that_asks_too_often(tmp_path: Path, still_minute: None) -> None:
    sources = Sources({"access": {"requests_per_minute": 3}}, "thumbwheel.yaml", {})
    with Workspace.open(Home(tmp_path / "home"), sources) as ws:
        headers = {"x-api-key": keys.add(ws, "often", verbs=["read"]).secret}
        with assembled(ws, "0.0.0.0", drain_every=3600) as application:
            client = TestClient(application, base_url=URL)
            answers = [client.get("/api/whoami", headers=headers) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert int(answers[-1].headers["retry-after"]) >= 1


def test_an_owner_of_one_agent_manages_that_agent_alone(
    ann_rates: Workspace, application: Application
) -> None:
    users.add(ann_rates, "olga", password=PASSWORD, role="owner", agent="support")
    keys.add(ann_rates, "everything")
    client = logged_in(application, "olga")
    created = client.post("/api/keys", json={"name": "app", "agent": ["support"]})
    assert created.status_code == 201 and created.json()["secret"].startswith("tw_")
    assert [key["name"] for key in client.get("/api/keys").json()] == ["app"]
    for body in ({"name": "wide"}, {"name": "wide", "agent": ["support", "sales"]}):
        assert client.post("/api/keys", json=body).status_code == 403
    assert client.delete("/api/keys/everything").status_code == 403
    assert client.delete("/api/keys/app").status_code == 200
    role: dict[str, Any] = {"role": "editor", "agent": "support"}
    assert client.put("/api/users/ann/role", json=role).json()["roles"] == {"support": "editor"}
    for body in (role | {"agent": "sales"}, {"role": "owner"}):
        assert client.put("/api/users/ann/role", json=body).status_code == 403
    assert client.delete("/api/users/ann").status_code == 403
    assert client.get("/api/audit").status_code == 403
    assert client.post("/api/users", json={"name": "x", "agent": "support"}).status_code == 422


def test_what_was_done_is_in_the_log_and_nobodys_name(
    ann_rates: Workspace, application: Application
) -> None:
    boss = users.add(ann_rates, "boss", password=PASSWORD, role="owner")
    client = logged_in(application, "boss")
    client.delete("/api/agents/support/deployments/v7")
    client.delete("/api/users/ann")
    entries = audit.entries(ann_rates)[::-1][2:]
    acts = [(entry.actor, entry.action, entry.agent) for entry in entries]
    assert acts == [
        (boss.id, "login", None),
        (boss.id, "undeploy", "support"),
        (boss.id, "users.remove", None),
    ]
    assert entries[1].content["version"] == "v7"
    assert client.get("/api/audit/verify").json()["whole"] is True
    ann_rates.home.audit_head.unlink()
    broken = client.get("/api/audit/verify")
    assert broken.json()["problem"] == "audit.head is missing"
    assert broken.headers["x-thumbwheel-exit"] == "4"
    with ann_rates.db.read() as connection:
        content = str(connection.execute(sa.select(schema.audit)).fetchall())
    assert "ann" not in content and "boss" not in content


def test_a_token_is_changed_for_no_other(application: Application) -> None:
    client = logged_in(application)
    created = client.post("/api/web-tokens", json={"verb": ["read"]}).json()
    assert created["seconds"] == 600
    headers = {"authorization": f"Bearer {created['token']}"}
    bare = TestClient(application, base_url=URL, headers=headers)
    assert bare.get("/api/whoami").json()["may"] == {"support": ["read"]}
    assert bare.post("/a/support/api/feedback", json=ROW).status_code == 403
    assert bare.post("/api/web-tokens", json={}).status_code == 403


def test_on_an_address_that_others_reach_somebody_has_to_be_there(tmp_path: Path) -> None:
    with opened_home(tmp_path / "empty") as ws:
        with pytest.raises(Conflict, match="thumbwheel keys add NAME"), assembled(ws, "0.0.0.0"):
            pass
        keys.add(ws, "app")
        token = ws.home.access_token
        with assembled(ws, "127.0.0.1", drain_every=3600) as application:
            rebound = TestClient(application, base_url="http://rebound.example:8787")
            assert rebound.get("/").status_code == 400
            headers = {"authorization": f"Bearer {token.read_text().strip()}"}
        with assembled(ws, "0.0.0.0", drain_every=3600) as application:
            client = TestClient(application, base_url=URL)
            assert client.get("/api/whoami", headers=headers).status_code == 401
            code = LoginCodes(ws.home.login_codes).make()
            assert client.get(f"/login?code={code}").status_code == 401
            assert client.post("/api/traces", json={"agent": "a", "input": "b"}).status_code == 401
            assert client.post("/v1/chat/completions", json={"model": "a"}).status_code == 401


def test_a_cookie_calls_no_model(application: Application, ann_rates: Workspace) -> None:
    users.set_role(ann_rates, "ann", "owner")
    application.api.state.gate.directory.refresh()
    client = logged_in(application)
    answer: httpx2.Response = client.post("/v1/chat/completions", json={"model": "support"})
    assert answer.status_code == 401


@pytest.mark.parametrize("text", ["", "\x00", "\ud800", "x" * 5000, "../x", "a\nb", "\u202e"])
def test_what_cannot_be_a_name_is_refused_and_breaks_nothing(
    ann_rates: Workspace, application: Application, text: str
) -> None:
    users.set_role(ann_rates, "ann", "owner")
    application.api.state.gate.directory.refresh()
    client = logged_in(application)
    client.headers["content-type"] = "application/json"
    bodies = {
        "/api/login": {"name": text, "password": text},
        "/api/keys": {"name": text, "user": text},
        "/api/users": {"name": text, "password": text, "role": text},
    }
    for path, body in bodies.items():
        answer = client.post(path, content=json.dumps(body))
        assert answer.status_code in (400, 401, 404, 413, 422), (path, answer.text)
    password = {"password": text}
    for name in ("ann", "%00", "..%2fx", "nobody"):
        answer = client.put(f"/api/users/{name}/password", content=json.dumps(password))
        assert answer.status_code in (400, 404, 413, 422), answer.text
    assert client.delete("/api/keys/%00").status_code == 422
    for query in ("limit=0", f"limit={10**30}", f"before={10**30}", "before=x"):
        assert client.get(f"/api/audit?{query}").status_code == 422
    assert client.post("/api/login", content=b"{" * 100_000).status_code in (400, 413, 422)
