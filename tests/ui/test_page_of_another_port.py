"""A rating page that is served at another port: in a browser its scripts may ask the routes of a
dialect where the settings name its origin, and nothing else."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.worlds.gateway_world import GatewayWorld, running
from thumbwheel.capture.feedback import feedback_stats
from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import ConfigError
from thumbwheel.db.workspace import Workspace

ENTRY = {
    "entry_id": "e1",
    "question_id": "q1",
    "question": "How is pump 4?",
    "scenario": "kpi",
    "fixture": "dial",
    "size": "normal",
    "natural": False,
    "forced": True,
}
ASK = """async ([url, path, options]) => {
  try {
    const answer = await fetch(url + path, {
      method: "POST", headers: {"Content-Type": "application/json"},
      body: JSON.stringify({entry_id: "e1", rating: "up", tags: ["perfect"], device_id: "tablet"}),
      ...options,
    });
    return [answer.status, await answer.text()];
  } catch (error) {
    return [0, String(error)];
  }
}"""


class BlankPage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>Rate</title>")

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def page_server() -> Iterator[str]:
    """Somebody's page, at a port of its own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), BlankPage)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@contextmanager
def rating_server(folder: Path, origins: list[str]) -> Iterator[GatewayWorld]:
    """A server with a rated entry and the dialect of the page."""
    run = folder / "run1"
    run.mkdir()
    data = {"run_id": "run1", "entries": [ENTRY]}
    (run / "exhaustive_data.json").write_text(json.dumps(data))
    sources = Sources({"server": {"dialect_origins": origins}}, "thumbwheel.yaml", {})
    with Workspace.open(Home(folder / "home"), sources) as ws:
        ingest(ws, "panel", "widgets", run)
        with running(ws, dialects=["command-center"]) as world:
            yield world


def test_a_named_page_rates_and_no_other_does(browser: Browser, tmp_path: Path) -> None:
    with (
        page_server() as origin,
        page_server() as stranger,
        rating_server(tmp_path, [origin]) as world,
        browser.new_context() as context,
    ):
        page = context.new_page()
        page.goto(origin)
        status, text = page.evaluate(ASK, [world.url, "/api/ratings/", {}])
        assert status == 201, text
        assert json.loads(text)["rating"] == "up"
        # without the slash there is a preflight, a redirect, and the same answer
        assert page.evaluate(ASK, [world.url, "/api/ratings", {}])[0] == 200
        assert feedback_stats(world.ws, "panel").signals["thumb"].count == 1

        # a cookie is not for this page, and neither are other routes
        with_cookie = {"credentials": "include"}
        assert page.evaluate(ASK, [world.url, "/api/ratings/", with_cookie])[0] == 0
        assert page.evaluate(ASK, [world.url, "/api/agents/panel/queues", {}])[0] == 0

        page.goto(stranger)
        assert page.evaluate(ASK, [world.url, "/api/ratings/", {}])[0] == 0
        assert feedback_stats(world.ws, "panel").signals["thumb"].count == 1


def test_preflights_name_the_page_and_never_everybody(tmp_path: Path) -> None:
    origin = "http://localhost:3000"
    asks = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type",
    }
    with rating_server(tmp_path, [origin]) as world:
        for path in ("/api/ratings/", "/api/ratings/bulk/", "/a/panel/api/ratings/"):
            answer = world.client.options(path, headers=asks)
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == origin
            assert "access-control-allow-credentials" not in answer.headers
        for changes in ({"origin": "http://localhost:3001"}, {"origin": "null"}):
            answer = world.client.options("/api/ratings/", headers=asks | changes)
            assert "access-control-allow-origin" not in answer.headers
        answer = world.client.options("/api/agents", headers=asks)
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "origin", ["*", "http://*", "localhost:3000", "http://localhost:3000/", "null", "file://x"]
)
def test_what_is_no_exact_origin_is_refused(origin: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="origin"), rating_server(tmp_path, [origin]):
        pass
