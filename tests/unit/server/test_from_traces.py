"""Traces are put before people and made gold by one request; the form of the loop is filled in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from tests.worlds.gateway_world import AGENT, opened_home
from tests.worlds.pages_world import fill, small_home
from thumbwheel.capture.cases import find_case
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import Agent
from thumbwheel.review.queues import all_queues
from thumbwheel.server.serve import assembled
from thumbwheel.training.base_picker import AvailableBase, Origin

SUPPORT = Agent.named(AGENT)
API = f"/api/agents/{AGENT}"


@pytest.fixture(scope="module")
def ws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    folder = tmp_path_factory.mktemp("home")
    with opened_home(folder / "home") as ws:
        fill(ws, folder, small_home())
        yield ws


@pytest.fixture(scope="module")
def client(ws: Workspace) -> Iterator[TestClient]:
    """The whole server, asked by the home's owner."""
    with (
        assembled(ws, "127.0.0.1") as application,
        TestClient(application, base_url="http://127.0.0.1") as client,
    ):
        client.headers["authorization"] = f"Bearer {ws.home.access_token.read_text().strip()}"
        yield client


def test_a_queue_is_created_by_what_is_put_into_it(ws: Workspace, client: TestClient) -> None:
    path = f"{API}/queues/to-review/items"
    assert client.post(path, json={"traces": ["q0"]}).status_code == 404
    assert client.post(path, json={"traces": ["nothing"], "create": True}).status_code == 404
    assert all_queues(ws, SUPPORT) == []
    answer = client.post(path, json={"traces": ["q0", "q1"], "create": True})
    assert answer.json() == {"added": 2}
    again = client.post(path, json={"traces": ["q1", "q2"], "create": True})
    assert again.json() == {"added": 1}
    (queue,) = all_queues(ws, SUPPORT)
    assert (queue.name, queue.items, queue.config.ask) == ("to-review", 3, ("thumb",))
    bad = client.post(f"{API}/queues/No%20Name/items", json={"traces": ["q0"], "create": True})
    assert bad.status_code == 422


def test_traces_become_gold_with_the_correction_or_the_answer(
    ws: Workspace, client: TestClient
) -> None:
    answer = client.post(
        f"{API}/cases/traces", json={"traces": ["order-42", "q0"], "reviewer": "ann"}
    )
    assert answer.status_code == 200, answer.text
    corrected, answered = (find_case(ws, SUPPORT, case) for case in answer.json()["ids"])
    assert corrected.reference == "It has shipped, and comes on Monday."
    assert [message["role"] for message in corrected.input] == ["system", "user"]
    assert str(answered.reference).startswith("Yes. Can I pay by invoice?")
    assert (answered.basis, answered.reviewer) == ("gold", "ann")
    refused = client.post(f"{API}/cases/traces", json={"traces": ["q1", "nothing"]})
    assert refused.status_code == 404
    again = client.post(f"{API}/cases/traces", json={"traces": ["q0"], "reviewer": "ann"})
    assert again.json()["ids"] == answer.json()["ids"][1:]


def test_the_form_of_the_loop_is_filled_in_and_asks_for_the_base(client: TestClient) -> None:
    page = client.get(f"/agents/{AGENT}/loop", headers={"accept": "text/html"}).text
    least = page.partition('id="f-least"')[2].partition("</div>")[0]
    assert 'value="10"' in least and "data-always" in least
    assert "are new now; 10 is proposed." in least
    base = page.partition('<select id="f-base"')[2].partition("</div>")[0]
    assert "required" in base and "data-always" in base
    assert "a cycle needs to know its base model" in base


def test_the_form_of_training_offers_the_bases_that_are_here(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    bases = [
        AvailableBase("vendor/large", Origin.HUB, 7_000_000_000, 14.2, None, fits=False),
        AvailableBase("ollama:tiny", Origin.OLLAMA, 135_000_000, 0.27, "apache-2.0", fits=True),
        AvailableBase("far", Origin.TO_FETCH, 135_000_000, 0.1, "apache-2.0", fits=True),
    ]
    monkeypatch.setattr("thumbwheel.server.pages.training.available_bases", lambda: bases)
    page = client.get(f"/agents/{AGENT}/train", headers={"accept": "text/html"}).text
    offered = page.partition('<datalist id="bases">')[2].partition("</datalist>")[0]
    assert "ollama:tiny: Ollama, 270 MB, 135 M parameters, apache-2.0" in offered
    assert "7,000 M parameters, large for this machine" in offered
    assert offered.index("ollama:tiny") < offered.index("vendor/large") and "far" not in offered


def test_markdown_is_shown_without_the_html_of_the_text(client: TestClient) -> None:
    texts = ["**bold** <script>alert(1)</script>", "[a](javascript:alert(1))"]
    answer = client.post("/api/markdown", json={"texts": texts})
    first, second = answer.json()["html"]
    assert "<strong>bold</strong>" in first and "<script" not in first
    assert "href" not in second
    del client.headers["authorization"]
    assert client.post("/api/markdown", json={"texts": ["a"]}).status_code == 401
