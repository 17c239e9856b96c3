"""Twenty raters at once over HTTP: everybody gets what the overlap leaves them, and nothing is lost
or doubled, also where every request comes twice."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.worlds.gateway_world import opened_home, running
from tests.worlds.pages_world import AGENT, fill
from tests.worlds.rating_world import in_force, queue_of, traces
from thumbwheel.access import users
from thumbwheel.models.versions import require_agent
from thumbwheel.review.queues import require_queue

ITEMS, OVERLAP, RATERS = 40, 3, 20
API = f"/api/agents/{AGENT}/queues/all"
PASSWORD = "correct horse battery staple"


def test_twenty_raters_at_once(tmp_path: Path) -> None:
    with opened_home(tmp_path / "home") as ws:
        fill(ws, tmp_path, traces(ITEMS))
        queue_of(ws, "all", overlap=OVERLAP)
        with running(ws) as server:

            def work(rater: str) -> list[tuple[str, str]]:
                rated = []
                with httpx2.Client(base_url=server.url, headers=server.owner, timeout=60) as client:
                    while items := _next(client, rater):
                        for item in items:
                            for _ in range(2):  # as a client does that got no answer
                                _rate(client, item["id"], rater)
                            rated.append((item["id"], rater))
                return rated

            with ThreadPoolExecutor(RATERS) as pool:
                names = [f"rater {number}" for number in range(RATERS)]
                pairs = [pair for done in pool.map(work, names) for pair in done]
        assert len(pairs) == len(set(pairs)) == ITEMS * OVERLAP
        assert set(Counter(item for item, _ in pairs).values()) == {OVERLAP}
        statements = in_force(ws)
        assert len(statements) == ITEMS * OVERLAP
        assert set(Counter(row.trace for row in statements).values()) == {OVERLAP}
        assert require_queue(ws, require_agent(ws, AGENT), "all").done == ITEMS


def _next(client: httpx2.Client, rater: str) -> list[dict[str, str]]:
    response = client.post(f"{API}/next", json={"rater": rater, "limit": 2})
    assert response.status_code == 200, response.text
    items: list[dict[str, str]] = response.json()["items"]
    return items


def _rate(client: httpx2.Client, item: str, rater: str) -> None:
    body = {"rater": rater, "key": f"{item} {rater}", "thumb": "up"}
    response = client.post(f"{API}/items/{item}/rating", json=body)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("role", ["rater", "viewer"])
def test_a_user_rates_in_their_own_name_alone(tmp_path: Path, role: str) -> None:
    with opened_home(tmp_path / "home") as ws:
        fill(ws, tmp_path, traces(2))
        queue_of(ws, "all")
        users.add(ws, "dora", password=PASSWORD, role=role, agent=AGENT)
        with running(ws) as server:
            login = {"name": "dora", "password": PASSWORD}
            csrf = server.client.post("/api/login", json=login).json()["csrf"]
            statuses = []
            for rater in ("dora", "ann"):
                response = server.client.post(
                    f"{API}/next", json={"rater": rater}, headers={"x-csrf-token": csrf}
                )
                statuses.append(response.status_code)
    assert statuses == ([200, 403] if role == "rater" else [403, 403])


def test_what_a_request_says_is_what_is_stored(tmp_path: Path) -> None:
    """A request brings the words of choices, and not their members."""
    with opened_home(tmp_path / "home") as ws:
        rows = [row | {"input": "The same?"} for row in traces(2)]
        fill(ws, tmp_path, rows)
        with running(ws) as server:
            queues = f"/api/agents/{AGENT}/queues"
            for body in ({"name": "all"}, {"name": "duel", "of": "comparisons"}):
                response = server.client.post(queues, json=body, headers=server.owner)
                assert response.status_code == 200, response.text
            assert response.json()["kind"] == "comparison"
            for thumb in ("up", "down"):
                next_item = server.client.post(
                    f"{API}/next", json={"rater": "ann"}, headers=server.owner
                )
                (item,) = next_item.json()["items"]
                body = {"rater": "ann", "key": item["id"], "thumb": thumb}
                server.client.post(
                    f"{API}/items/{item['id']}/rating", json=body, headers=server.owner
                )
        assert sorted(row.value for row in in_force(ws)) == [False, True]
