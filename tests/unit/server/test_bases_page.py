"""Base models are listed on a page, and downloaded there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.servers.package_index import CONTENT, Index
from tests.worlds.gateway_world import AGENT, opened_home
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs.queue import enqueue
from thumbwheel.models import fetch, known_bases
from thumbwheel.models.versions import ensure_agent
from thumbwheel.server.serve import assembled

PAGE = {"accept": "text/html"}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index with a base, and caches in which nothing is."""
    server = Index.with_base(tmp_path)
    monkeypatch.setattr(fetch, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setenv("PIP_INDEX_URL", server.url)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(fetch, "ATTEMPTS", 1)
    entry = server.base()
    for name in list(known_bases.KNOWN_BASES):
        monkeypatch.delitem(known_bases.KNOWN_BASES, name)
    monkeypatch.setitem(known_bases.KNOWN_BASES, entry.id, entry)
    yield server
    server.close()


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[Workspace]:
    with opened_home(tmp_path / "home") as ws:
        ensure_agent(ws, AGENT)
        yield ws


@pytest.fixture
def client(ws: Workspace) -> Iterator[TestClient]:
    """The whole server without workers, asked by the home's owner."""
    with (
        assembled(ws, "127.0.0.1") as application,
        TestClient(application, base_url="http://127.0.0.1") as client,
    ):
        client.headers["authorization"] = f"Bearer {ws.home.access_token.read_text().strip()}"
        yield client


def row(client: TestClient) -> str:
    page = client.get("/bases", headers=PAGE).text
    return page.partition("<tbody>")[2].partition("</tbody>")[0]


def test_a_base_is_downloaded_on_the_page(client: TestClient, index: Index) -> None:
    assert "to be fetched" in row(client) and ">Download<" in row(client)
    assert "135 M" in row(client) and "Apache-2.0" in row(client) and "comfortably" in row(client)
    index.cut = 400
    broken = client.post("/api/bases/small", json={})
    assert broken.status_code == 503 and "run the same command again" in broken.text
    assert "Continue, 400 bytes are here" in row(client)
    whole = client.post("/api/bases/small", json={})
    assert whole.status_code == 200, whole.text
    assert Path(whole.json()["path"]).read_bytes() == CONTENT
    assert index.asked == [None, "bytes=400-"]
    assert "fetched" in row(client) and "<button" not in row(client)
    train = client.get(f"/agents/{AGENT}/train", headers=PAGE).text
    assert '<option value="small"' in train
    listed = client.get("/api/bases").json()
    assert [entry["name"] for entry in listed] == ["small"]
    assert client.post("/api/bases/other", json={}).status_code == 404


def test_a_download_under_way_leads_to_its_job(
    client: TestClient, index: Index, ws: Workspace
) -> None:
    job = enqueue(ws, "models fetch", {"base": "small"})
    assert f'href="/jobs/{job.id}"' in row(client) and "<button" not in row(client)
