"""Login by an OIDC provider, against one that runs, and one that goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from fastapi.testclient import TestClient

from tests.servers.oidc_provider import CLIENT_ID, CLIENT_SECRET, EMAIL, provider
from thumbwheel.access import users
from thumbwheel.access.rate_limits import LOGINS_OF_ADDRESS, LOGINS_OF_NAME
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.secret_store import SecretStore
from thumbwheel.db.workspace import Workspace
from thumbwheel.server.application import Application
from thumbwheel.server.serve import assembled

URL = "http://127.0.0.1:8787"
SECRET = "PROVIDER"


@dataclass(frozen=True)
class ProviderWorld:
    """A server, and the provider by which people log in to it."""

    ws: Workspace
    application: Application
    issuer: str

    def browser(self) -> TestClient:
        return TestClient(self.application, base_url=URL, follow_redirects=False)

    def callback(self, browser: TestClient) -> str:
        """Where the provider sends the browser back to."""
        begun = browser.get("/login/provider")
        assert begun.status_code == 303, begun.text
        url = begun.headers["location"]
        query = parse_qs(urlsplit(url).query)
        assert query["code_challenge_method"] == ["S256"] and query["nonce"] and query["state"]
        returned = httpx2.get(url, follow_redirects=False)
        assert returned.status_code == 302, returned.text
        return str(returned.headers["location"])

    def fault(self, name: str) -> None:
        httpx2.post(f"{self.issuer}/fault", content=name)


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    with provider() as issuer:
        yield issuer


@pytest.fixture
def provider_login(issuer: str, tmp_path: Path) -> Iterator[ProviderWorld]:
    settings = {"provider": {"issuer": issuer, "client_id": CLIENT_ID, "secret": SECRET}}
    sources = Sources({"access": settings}, "thumbwheel.yaml", {})
    with Workspace.open(Home(tmp_path / "home"), sources) as ws:
        SecretStore(ws.home.secrets).set(SECRET, CLIENT_SECRET)
        users.add(ws, EMAIL, password=None, role="viewer", agent="support")
        with assembled(ws, "127.0.0.1", drain_every=3600) as application:
            world = ProviderWorld(ws, application, issuer)
            world.fault("")
            yield world


def test_a_login_and_the_next_one(provider_login: ProviderWorld) -> None:
    browser = provider_login.browser()
    entered = browser.get(provider_login.callback(browser))
    assert entered.status_code == 303 and entered.headers["location"] == "/"
    who = browser.get("/api/whoami").json()
    assert (who["name"], who["may"]) == (EMAIL, {"support": ["read"]})
    (user,) = users.listed(provider_login.ws)
    assert user.provider == provider_login.issuer
    again = provider_login.browser()
    assert again.get(provider_login.callback(again)).status_code == 303


@pytest.mark.parametrize(
    "fault",
    ["nonce", "foreign key", "alg none", "issuer", "audience", "expired", "unverified"],
)
def test_what_the_provider_must_not_say(provider_login: ProviderWorld, fault: str) -> None:
    browser = provider_login.browser()
    callback = provider_login.callback(browser)
    provider_login.fault(fault)
    refused = browser.get(callback)
    assert refused.status_code == 401, refused.text
    assert browser.get("/api/whoami").status_code == 401
    (user,) = users.listed(provider_login.ws)
    assert user.provider is None


def test_a_login_that_another_browser_began_is_none(provider_login: ProviderWorld) -> None:
    browser, victim = provider_login.browser(), provider_login.browser()
    callback = provider_login.callback(browser)
    provider_login.callback(victim)
    assert victim.get(callback).status_code == 401, "the state is not that of its attempt"
    assert provider_login.browser().get(callback).status_code == 404, "it began none"
    forged = provider_login.browser()
    forged.cookies.set("thumbwheel_login", "e30=.0000", path="/login/provider/callback")
    assert forged.get(callback).status_code == 401
    assert browser.get(callback).status_code == 303
    assert browser.get(callback).status_code in (401, 404), "a code counts once"


def test_strangers_use_up_no_login(provider_login: ProviderWorld) -> None:
    browser, stranger = provider_login.browser(), provider_login.browser()
    callback = provider_login.callback(browser)
    for _ in range(LOGINS_OF_NAME + LOGINS_OF_ADDRESS):
        assert stranger.get(callback).status_code == 404
    assert browser.get(callback).status_code == 303


def test_somebody_whom_nobody_added(provider_login: ProviderWorld) -> None:
    users.remove(provider_login.ws, EMAIL)
    browser = provider_login.browser()
    refused = browser.get(provider_login.callback(browser))
    assert refused.status_code == 401 and "users add NAME --by-provider" in refused.text
    assert users.listed(provider_login.ws) == []


def test_a_user_with_a_password_is_not_taken_over(provider_login: ProviderWorld) -> None:
    users.set_password(provider_login.ws, EMAIL, "correct horse battery")
    browser = provider_login.browser()
    assert browser.get(provider_login.callback(browser)).status_code == 401


def test_no_answer_of_the_provider(
    provider_login: ProviderWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = provider_login.browser()
    callback = provider_login.callback(browser)
    denied = callback.partition("?")[0] + "?error=access_denied&state="
    state = parse_qs(urlsplit(callback).query)["state"][0]
    refused = browser.get(denied + state)
    assert refused.status_code == 401 and "access_denied" in refused.text
