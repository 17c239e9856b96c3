"""The Atom feed over HTTP: who may read it, and what a feed reader finds in it."""

from __future__ import annotations

import base64
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.unit.notify.test_delivery import ask, home
from tests.worlds.gateway_world import running
from thumbwheel.access import keys

ATOM = "{http://www.w3.org/2005/Atom}"


def basic(secret: str) -> dict[str, str]:
    """What a feed reader presents for a user name and a password."""
    return {"authorization": "Basic " + base64.b64encode(f"feed:{secret}".encode()).decode()}


def test_a_feed_reader_reads_the_notices_with_a_key(tmp_path: Path) -> None:
    with home(tmp_path, {}) as ws:
        ask(ws, tmp_path)
        reader = keys.add(ws, "reader", agents=["support"], verbs=["read"]).secret
        app = keys.add(ws, "app", agents=["support"]).secret
        with running(ws) as server:
            path = "/api/agents/support/feed.atom"
            assert server.client.get(path).status_code == 401
            assert server.client.get(path, headers=basic(app)).status_code == 403
            answer = server.client.get(path, headers=basic(reader))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/atom+xml"
    feed = ET.fromstring(answer.content)
    assert feed.findtext(f"{ATOM}title") == "Thumbwheel: support"
    (entry,) = feed.findall(f"{ATOM}entry")
    assert entry.findtext(f"{ATOM}id") == "urn:thumbwheel:support:decision%20dec_1"
    assert entry.findtext(f"{ATOM}title") == "support: Make v1 live?"
    assert entry.findtext(f"{ATOM}updated") == "2026-11-28T09:00:00+00:00"
    link = entry.find(f"{ATOM}link")
    assert link is not None
    assert link.get("href") == "https://wheel.example/agents/support"
