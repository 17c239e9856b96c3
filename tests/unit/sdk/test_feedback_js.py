"""The script for web pages, in a real browser and with the product's own routes."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from tests.pictures import dump_page
from tests.worlds.api_world import opened_api
from thumbwheel import sdk
from thumbwheel.capture import routes
from thumbwheel.capture.feedback_token import FeedbackTokens
from thumbwheel.llm.port import free_port
from thumbwheel.sdk.segment import Segment

SCRIPT = Path(sdk.__file__).with_name("feedback.js")
PAGE = """<!doctype html><title>waiting</title><script src="feedback.js"></script>
<div id="buttons"></div><script>
const target = {url: "URL/", agent: "support", trace: "t1", token: "TOKEN", rater: "ann"};
window.prompt = (question, answer) => answer + " seconds";
async function main() {
  STEPS
}
const say = (text) => { document.title = text; };
main().then((result) => say("done: " + result), (error) => say("failed: " + error));
</script>"""
OFFLINE = """
  thumbwheel.attach(buttons, target, "Ten");
  const [up, down, pencil] = buttons.children;
  for (const button of [up, pencil]) {
    button.click();
    while (!buttons.dataset.state) await new Promise((resolve) => setTimeout(resolve, 10));
  }
  const states = [await thumbwheel.send(target, {thumb: false}), buttons.dataset.state];
  return states + " " + JSON.parse(localStorage.getItem("thumbwheel-feedback")).length;
"""
ONLINE = """
  await thumbwheel.flush();
  const state = await thumbwheel.send(target, {comment: "<b>thanks</b>"});
  const other = await thumbwheel.send({...target, trace: "t2"}, {thumb: true}).catch(String);
  return state + " " + localStorage.getItem("thumbwheel-feedback") + " " + other;
"""


@contextmanager
def pages(folder: Path) -> Iterator[str]:
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,)).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@contextmanager
def product(port: int, inbox: Path, tokens: FeedbackTokens) -> Iterator[None]:
    segment = Segment(inbox)
    with opened_api(inbox.parent, routes.router(segment, tokens)) as app:
        server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield
        server.should_exit = True
        thread.join()
    segment.close()


def title_of(page: str) -> str:
    return page.partition("<title>")[2].partition("</title>")[0]


def test_it_is_small() -> None:
    assert SCRIPT.stat().st_size < 3000


@pytest.mark.slow
def test_a_page_judges_offline_and_the_feedback_arrives_later(tmp_path: Path) -> None:
    port = free_port()
    tokens = FeedbackTokens.with_key(tmp_path / "key")
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "feedback.js").write_bytes(SCRIPT.read_bytes())
    page = PAGE.replace("URL", f"http://127.0.0.1:{port}")
    page = page.replace("TOKEN", tokens.make("support", "t1", "key_1"))
    for name, steps in (("offline", OFFLINE), ("online", ONLINE)):
        (folder / f"{name}.html").write_text(page.replace("STEPS", steps))
    inbox = tmp_path / "inbox"
    profile = tmp_path / "profile"
    with pages(folder) as site:
        first = title_of(dump_page(f"{site}/offline.html", profile))

        assert first == "done: waits,waits 3"
        with product(port, inbox, tokens):
            served = urllib.request.urlopen(f"http://127.0.0.1:{port}/feedback.js", timeout=10)
            assert served.read() == SCRIPT.read_bytes()
            assert served.headers["content-type"].startswith("text/javascript")
            second = title_of(dump_page(f"{site}/online.html", profile))
    assert second.startswith("done: sent [] Error:") and "is not for trace" in second
    texts = [path.read_text() for path in inbox.glob("spool-*")]
    rows: list[dict[str, Any]] = [json.loads(line) for line in "".join(texts).splitlines()]
    lines = {row["id"]: row for row in rows}.values()
    assert sorted((line["kind"], line["value"]) for line in lines) == [
        ("comment", "<b>thanks</b>"),
        ("correction", "Ten seconds"),
        ("thumb", False),
        ("thumb", True),
    ]
    assert {(line["agent"], line["target"]["trace"]) for line in lines} == {("support", "t1")}
    (rater,) = {line["rater"] for line in lines}
    assert rater.startswith("token:"), "whoever has the token speaks for it, and as nobody else"
