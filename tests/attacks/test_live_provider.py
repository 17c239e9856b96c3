"""Login by an OIDC provider where provider and server are processes of their own: what the provider
must not say, what strangers try between the two, and a provider that dies in the middle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest

from tests.servers import thumbwheel_server
from tests.servers.oidc_provider import CLIENT_ID, CLIENT_SECRET, EMAIL, provider
from thumbwheel.access import users
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.secret_store import SecretStore
from thumbwheel.db.workspace import Workspace

pytestmark = pytest.mark.repeat

FAULTS = ("nonce", "foreign key", "alg none", "issuer", "audience", "expired", "unverified")
CALLBACK = "/login/provider/callback"


@dataclass(frozen=True)
class Live:
    """A server, and the provider that its settings name."""

    url: str
    issuer: str
    stack: ExitStack
    """What ends the provider."""

    def browser(self, **headers: str) -> httpx2.Client:
        return httpx2.Client(
            base_url=self.url, follow_redirects=False, trust_env=False, headers=headers, timeout=60
        )

    def callback(self, browser: httpx2.Client) -> str:
        """Begin a login, and let the provider send the browser back; returns where to."""
        begun = browser.get("/login/provider")
        assert begun.status_code == 303, begun.text
        returned = httpx2.get(begun.headers["location"], follow_redirects=False)
        return str(returned.headers["location"])

    def fault(self, name: str) -> None:
        """Let the provider go wrong in this way."""
        httpx2.post(f"{self.issuer}/fault", content=name)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    home = tmp_path_factory.mktemp("live") / "home"
    with ExitStack() as of_server, ExitStack() as of_provider:
        issuer = of_provider.enter_context(provider())
        with Workspace.open(Home(home), Sources({}, "", {})) as ws:
            SecretStore(ws.home.secrets).set("PROVIDER", CLIENT_SECRET)
            users.add(ws, EMAIL, password=None, role="viewer", agent="support")
        settings = {"issuer": issuer, "client_id": CLIENT_ID, "secret": "PROVIDER"}
        environment = {
            "THUMBWHEEL_ACCESS__PROVIDER": json.dumps(settings),
            "AUTHLIB_INSECURE_TRANSPORT": "1",
        }
        server = of_server.enter_context(thumbwheel_server.running(home, environment))
        yield Live(server.url, issuer, of_provider)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_provider_must_not_say_logs_nobody_in(live: Live, fault: str) -> None:
    with live.browser() as browser:
        callback = live.callback(browser)
        live.fault(fault)
        try:
            assert browser.get(callback).status_code == 401
            assert browser.get("/api/whoami").status_code == 401
        finally:
            live.fault("")


def test_a_login_belongs_to_its_browser_and_counts_once(live: Live) -> None:
    with live.browser() as ann, live.browser() as stranger, live.browser() as victim:
        callback = live.callback(ann)
        live.callback(victim)
        assert stranger.get(callback).status_code == 404
        assert victim.get(callback).status_code == 401
        entered = ann.get(callback)
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        assert ann.get("/api/whoami").json()["name"] == EMAIL
        assert ann.get(callback).status_code in (401, 404)
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=lax" in cookie


def test_parts_of_a_callback_that_were_changed_log_nobody_in(live: Live) -> None:
    changes: dict[str, list[dict[str, str | None]]] = {
        "state": [{"state": None}, {"state": ""}, {"state": "x" * 43}, {"state": "\x00"}],
        "code": [{"code": None}, {"code": ""}, {"code": "x" * 10_000}],
        "issuer": [{"iss": "https://another.example"}],
        "error": [{"error": "<script>alert(1)</script>"}],
    }
    tried = 0
    for attempts in changes.values():
        for change in attempts:
            with live.browser(accept="text/html") as browser:
                callback = live.callback(browser)
                query = {k: v[0] for k, v in parse_qs(urlsplit(callback).query).items()} | change
                wanted = {name: value for name, value in query.items() if value is not None}
                refused = browser.get(f"{CALLBACK}?{urlencode(wanted)}")
                assert refused.status_code == 401, (change, refused.text)
                assert "<script>alert" not in refused.text
                assert browser.get("/api/whoami").status_code == 401
                tried += 1
    assert tried == 9


def test_no_other_host_gets_the_code(live: Live) -> None:
    with live.browser() as browser:
        for host in ("evil.example", "127.0.0.1.evil.example", f"{urlsplit(live.url).netloc}@evil"):
            assert browser.get("/login/provider", headers={"host": host}).status_code == 400
        forwarded = {"x-forwarded-host": "evil.example", "x-forwarded-proto": "https"}
        begun = browser.get("/login/provider", headers=forwarded)
        (redirect_uri,) = parse_qs(urlsplit(begun.headers["location"]).query)["redirect_uri"]
        assert redirect_uri == f"{live.url}{CALLBACK}"


def test_a_provider_that_dies_takes_nobody_along(live: Live) -> None:
    with live.browser() as browser, live.browser() as later:
        entered = live.browser()
        assert entered.get(live.callback(entered)).status_code == 303
        callback = live.callback(browser)
        live.stack.close()
        refused = browser.get(callback)
        assert refused.status_code == 401 and "does not" in refused.text
        assert later.get("/login/provider").status_code in (303, 401)
        assert later.get("/health").status_code == 200
        assert entered.get("/api/whoami").json()["name"] == EMAIL
        entered.close()
