"""What a server loads and makes before it answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.worlds.gateway_world import AGENT, opened_home
from thumbwheel.access.needs import needs_of
from thumbwheel.access.protocol import DOCUMENT
from thumbwheel.core.hardware import GPU_DEVICES
from thumbwheel.models.versions import ensure_agent
from thumbwheel.server.pages.page_table import PAGES as PAGES_OF_SERVER
from thumbwheel.server.serve import assembled

START = """
import sys
from pathlib import Path
from thumbwheel.app.open import Opener
from thumbwheel.server.serve import assembled
with Opener(Path(sys.argv[1]), None)() as ws, assembled(ws, "127.0.0.1", 3600):
    print(*sys.modules)
"""
PAGES = """
import sys
from pathlib import Path
from fastapi.testclient import TestClient
from thumbwheel.app.open import Opener
from thumbwheel.server.serve import assembled
with Opener(Path(sys.argv[1]), None)() as ws, assembled(ws, "127.0.0.1", 3600) as application:
    headers = {"authorization": f"Bearer {ws.home.access_token.read_text().strip()}"}
    client = TestClient(application, base_url="http://127.0.0.1", headers=headers)
    for path in sys.argv[2:]:
        answer = client.get(path)
        assert answer.status_code in (200, 422), (path, answer.text)
    print(*sys.modules)
"""
HEAVY = {
    "alembic",
    "authlib",
    "cryptography",
    "duckdb",
    "httpx2",
    "jinja2",
    "jwt",
    "limits",
    "numpy",
    "pyarrow",
    "scipy",
    "torch",
    "transformers",
}
STAGES = {"datasets", "engine", "evaluation", "export", "rewards", "training"}
"""Stages whose work no server does before somebody asks for it."""


def test_a_server_starts_without_what_few_requests_need(tmp_path: Path) -> None:
    with opened_home(tmp_path / "home"):
        pass
    command = [sys.executable, "-c", START, str(tmp_path / "home")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert not HEAVY & set(loaded)
    of_stages = [name for name in loaded if name.split(".")[1:2] and name.split(".")[1] in STAGES]
    verbs = [name for name in of_stages if name.endswith((".train", ".build", ".ledger", ".score"))]
    assert not verbs
    assert len(loaded) < 1250, "a server loads a quarter more modules than it did"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch is asked for accelerators")
def test_no_page_loads_torch_into_the_server(tmp_path: Path) -> None:
    """It takes 200 MB, and the second reader of the page would wait for the first one's imports."""
    if any(Path(name).exists() for name in GPU_DEVICES):
        pytest.skip("torch is asked for the accelerator")
    with opened_home(tmp_path / "home") as ws:
        ensure_agent(ws, AGENT)
    paths = [
        page.path.replace("{agent}", AGENT)
        for page in PAGES_OF_SERVER
        if page.path.replace("{agent}", "").count("{") == 0
    ]
    command = [sys.executable, "-c", PAGES, str(tmp_path / "home"), *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not {"torch", "transformers"} & set(done.stdout.splitlines()[-1].split())


def test_the_document_has_all_routes(tmp_path: Path) -> None:
    with (
        opened_home(tmp_path / "home") as ws,
        assembled(ws, "127.0.0.1", drain_every=3600) as application,
    ):
        growing = application.pages.app
        client = TestClient(growing)
        assert client.get("/ready").status_code == 200
        first = set(needs_of(growing.first))
        assert "POST /api/feedback" in first
        assert "/api/secrets" in client.get(DOCUMENT).json()["paths"]


def test_a_request_for_another_route_adds_it(tmp_path: Path) -> None:
    with (
        opened_home(tmp_path / "home") as ws,
        assembled(ws, "127.0.0.1", drain_every=3600) as application,
    ):
        growing = application.pages.app
        client = TestClient(growing)
        first = set(needs_of(growing.first))
        assert "GET /api/secrets" not in first
        assert client.get("/api/secrets").status_code == 401
        assert "GET /api/secrets" in needs_of(growing.first)
        assert client.get("/api/feedback").status_code == 405
        assert client.get("/nothing").status_code == 404
