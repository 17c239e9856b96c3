"""Who gets in: the token of the home, a browser's session of it, and nobody else."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from fastapi import FastAPI

from tests.unit.server.conftest import Serve
from tests.worlds.gateway_world import GatewayWorld
from thumbwheel.access.credentials import COOKIE
from thumbwheel.access.local_token import LocalToken
from thumbwheel.access.login_codes import LoginCodes
from thumbwheel.access.needs import check_routes, needs
from thumbwheel.core.errors import StorageError

ROW = {"agent": "support", "trace": "t1", "thumb": True}


def test_the_token_of_the_home_opens_everything(gateway: GatewayWorld) -> None:
    path = gateway.ws.home.access_token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    token = path.read_text().strip()
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Bearer {token}x"}):
        refused = gateway.client.get("/api/whoami", headers=headers)
        assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
    admitted = gateway.client.get("/api/whoami", headers={"authorization": f"Bearer {token}"})
    assert admitted.json()["may"] == {
        "*": ["call", "decide", "deploy", "edit", "own", "rate", "read", "run"]
    }
    assert LocalToken.of_file(path).read() == token


def test_a_browser_changes_a_code_into_a_session(gateway: GatewayWorld) -> None:
    code = LoginCodes(gateway.ws.home.login_codes).make()
    assert gateway.client.get("/login?code=wrong").status_code == 401
    assert gateway.client.get("/").status_code == 401
    answer = gateway.client.get(f"/login?code={code}")
    assert answer.status_code == 303 and answer.headers["location"] == "/"
    cookie, csrf = answer.headers.get_list("set-cookie")
    assert "HttpOnly" in cookie and "SameSite=lax" in cookie and code not in cookie
    assert "HttpOnly" not in csrf and "SameSite=lax" in csrf
    assert "local token" in gateway.client.get("/").text
    assert gateway.client.get("/api/whoami").status_code == 200
    forged = {"cookie": f"{COOKIE}=forged"}
    gateway.client.cookies.clear()
    assert gateway.client.get("/api/whoami", headers=forged).status_code == 401


def test_pages_of_other_sites_change_nothing(gateway: GatewayWorld) -> None:
    foreign = {"origin": "https://evil.example"}
    assert gateway.client.post("/api/feedback", json=ROW).status_code == 202
    assert gateway.client.post("/api/feedback", json=ROW, headers=foreign).status_code == 403
    headers = {**foreign, "authorization": "Bearer unknown"}
    assert gateway.client.post("/api/feedback", json=ROW, headers=headers).status_code == 403
    code = LoginCodes(gateway.ws.home.login_codes).make()
    gateway.client.get(f"/login?code={code}")
    assert gateway.client.post("/api/feedback", json=ROW, headers=foreign).status_code == 403
    home = {"origin": gateway.url}
    assert gateway.client.post("/api/feedback", json=ROW, headers=home).status_code == 403
    home["x-csrf-token"] = gateway.client.cookies["thumbwheel_csrf"]
    assert gateway.client.post("/api/feedback", json=ROW, headers=home).status_code == 202
    assert gateway.client.post("/api/logout", headers=home).status_code == 200
    assert gateway.client.get("/api/whoami").status_code == 401


def test_apps_need_a_key_where_that_is_required(serve: Serve) -> None:
    gateway = serve(require_key=True)
    assert gateway.client.post("/api/feedback", json=ROW).status_code == 401
    token = gateway.ws.home.access_token.read_text().strip()
    headers = {"x-api-key": token}
    assert gateway.client.post("/api/feedback", json=ROW, headers=headers).status_code == 202


def read_nothing() -> str:
    return ""


def test_an_application_with_a_route_that_names_no_need_does_not_start() -> None:
    api = FastAPI(docs_url=None, redoc_url=None)
    api.add_api_route("/api/safe", read_nothing, dependencies=[needs("read")])
    check_routes(api)
    api.add_api_route("/api/open", read_nothing)
    with pytest.raises(AssertionError, match="/api/open"):
        check_routes(api)


def test_a_file_that_holds_no_token_is_no_token(tmp_path: Path) -> None:
    path = tmp_path / "access.token"
    path.write_text("")
    with pytest.raises(StorageError, match="it contains no token"):
        LocalToken.of_file(path)
