"""The dialects of the server, asked as the clients of the replaced systems ask."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi import FastAPI
from fastapi.testclient import TestClient

from test_ocd import DONE, FILER, row
from tests.hostile_requests import hostile_requests
from thumbwheel.access.gate import opened_gate
from thumbwheel.access.needs import check_routes
from thumbwheel.access.settings import AccessConfig
from thumbwheel.app.dialects import DIALECTS
from thumbwheel.capture.feedback import feedback_stats
from thumbwheel.capture.ingest import ingest
from thumbwheel.compat import ocd
from thumbwheel.compat.ocd import decision_function
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import NotFound
from thumbwheel.db.schema import traces
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import EndpointAddress
from thumbwheel.models.versions import add_endpoint
from thumbwheel.server.api.routers import dialect_router
from thumbwheel.server.application import api_application

FORMS = ("/api/policies", "/api")


@pytest.fixture(scope="module")
def api() -> FastAPI:
    """All dialects; each test gives it a home."""
    api = api_application([dialect_router(DIALECTS.names())])
    check_routes(api)
    return api


@contextmanager
def client_of(api: FastAPI, ws: Workspace) -> Iterator[TestClient]:
    """A client of a server of this home, without workers, with the token of the home."""
    with opened_gate(ws, AccessConfig(), local=True, apps=True) as gate:
        api.state.workspace, api.state.gate = ws, gate
        headers = {"authorization": f"Bearer {ws.home.access_token.read_text().strip()}"}
        yield TestClient(api, headers=headers, raise_server_exceptions=False)


@pytest.fixture
def client(api: FastAPI, empty_ws: Workspace) -> Iterator[TestClient]:
    with client_of(api, empty_ws) as client:
        yield client


def test_a_dialect_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(NotFound, match="Known: command-center, n3, ocd"):
        dialect_router(["n4"])


def test_dialects_are_off_until_they_are_asked_for() -> None:
    assert dialect_router(()).routes == []


# n3: scores, and policies trained from them


def post(number: int, **changes: Any) -> dict[str, Any]:
    """A post of their example: scores .5 to .9, three times each."""
    return {
        "prompt": f"Question {number}?",
        "response": f"Answer {number}.",
        "score": 0.5 + 0.1 * (number % 5),
        "runId": f"run_{number}",
        "notes": None,
    } | changes


@pytest.mark.parametrize("form", FORMS)
def test_scores_come_in_by_both_forms_and_are_counted_at_once(
    form: str, client: TestClient, empty_ws: Workspace
) -> None:
    assert client.get("/api/policies/Desk").json() == []
    answer = client.post(f"{form}/feedback/Desk", json=post(1, notes="so"))
    assert answer.status_code == 200
    content = answer.json()
    assert content["status"] == "submitted" and content["id"]
    assert (content["agentId"], content["score"]) == ("Desk", 0.6)
    assert content["createdAt"].startswith("20")

    # the same text once more is once more feedback, as in their table
    several = client.post(f"{form}/feedback/Desk", json=[post(1), post(1), post(2)])
    assert [item["status"] for item in several.json()] == ["submitted"] * 3
    refused = client.post(f"{form}/train_policy/Desk", json={})
    assert refused.status_code == 400
    assert refused.json()["detail"] == "Insufficient feedback: 4 samples (minimum 10 required)"
    assert feedback_stats(empty_ws, "desk").signals["score"].count == 4


def test_a_request_that_is_sent_again_with_its_key_adds_nothing(
    client: TestClient, empty_ws: Workspace
) -> None:
    headers = {"idempotency-key": "k1"}
    answers = []
    for _ in range(2):
        answer = client.post(
            "/api/policies/feedback/desk", json=[post(1), post(2)], headers=headers
        )
        answers.append([item["id"] for item in answer.json()])
    assert answers[0] == answers[1]
    assert feedback_stats(empty_ws, "desk").signals["score"].count == 2


@pytest.mark.parametrize(
    "body",
    [
        post(1, score=1.5),
        post(1, score=-0.1),
        post(1, score=None),
        post(1, prompt=""),
        post(1, response=""),
        post(1, projectId=7),
        post(1, runId=None),
        post(1, prompt="a\x00b"),
        {"prompt": "only"},
        [],
        [post(1), post(2, score=7)],
        "text",
        7,
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_scored_answer_is_refused_and_nothing_of_it_stored(
    form: str, body: Any, client: TestClient, empty_ws: Workspace
) -> None:
    answer = client.post(f"{form}/feedback/desk", json=body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["detail"]
    with pytest.raises(NotFound):
        feedback_stats(empty_ws, "desk")


def test_numbers_that_json_does_not_have_are_refused(client: TestClient) -> None:
    for number in ("NaN", "Infinity", "1e999"):
        content = json.dumps(post(1)).replace("0.6", number)
        headers = {"content-type": "application/json"}
        answer = client.post("/api/feedback/desk", content=content, headers=headers)
        assert answer.status_code == 422, number
        order = f'{{"learningRate": {number}}}'
        assert client.post("/api/train_policy/desk", content=order, headers=headers).is_error


@pytest.mark.parametrize("name", ["..%2F..%2Fetc", "a%00b", "%20", "x" * 500])
def test_an_agent_is_no_path(name: str, client: TestClient) -> None:
    for method, path in (
        ("POST", f"/api/policies/feedback/{name}"),
        ("POST", f"/api/policies/train_policy/{name}"),
        ("GET", f"/api/policies/{name}"),
    ):
        content = {"json": post(1)} if method == "POST" else {}
        assert 400 <= client.request(method, path, **content).status_code < 500


@pytest.mark.parametrize(
    ("field", "change"),
    [("response", {"response": ""}), ("score", {"score": 2}), ("prompt", {"prompt": ""})],
)
def test_a_refusal_names_the_field(field: str, change: dict[str, Any], client: TestClient) -> None:
    answer = client.post("/api/policies/feedback/desk", json=post(1, **change))
    assert answer.status_code == 422 and field in str(answer.json()["detail"])


def test_what_is_no_json_is_the_clients_error(client: TestClient) -> None:
    headers = {"content-type": "application/json"}
    answer = client.post("/api/policies/feedback/desk", content='{"prompt": ', headers=headers)
    assert answer.status_code in (400, 422) and "JSON" in str(answer.json())
    order = client.post("/api/policies/train_policy/desk", content="{dryRun", headers=headers)
    assert order.status_code in (400, 422) and "JSON" in str(order.json())


def test_the_project_of_an_answer_is_stored(client: TestClient, empty_ws: Workspace) -> None:
    answer = client.post("/api/policies/feedback/desk", json=post(1, projectId="shop"))
    assert answer.is_success
    with empty_ws.db.read() as connection:
        (trace,) = connection.execute(sa.select(traces.c.metadata)).scalars()
    assert trace["projectId"] == "shop"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"score": 0.5}, "score is the same in all 10 samples"),
        ({"prompt": "One?"}, "1 different prompt (minimum 2 required for PPO, 1 missing)"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is(
    changes: dict[str, Any], words: str, client: TestClient
) -> None:
    posts = [post(number, **changes) for number in range(10)]
    assert client.post("/api/policies/feedback/desk", json=posts).is_success
    for order in ({}, {"dryRun": True}):
        answer = client.post("/api/policies/train_policy/desk", json=order)
        assert answer.status_code == 400, answer.text
        assert words in answer.json()["detail"]


def linked_base(ws: Workspace, base: Path) -> None:
    """Let requests name the base as `small`."""
    ws.home.bases.mkdir(parents=True)
    (ws.home.bases / "small").symlink_to(base, target_is_directory=True)


def test_a_dry_run_is_made_of_numbers(
    client: TestClient, empty_ws: Workspace, tiny_model: Path
) -> None:
    linked_base(empty_ws, tiny_model)
    posts = [post(number) for number in range(15)]
    assert client.post("/api/policies/feedback/desk", json=posts).is_success
    order = {"dryRun": True, "baseModel": "small"}
    estimate = client.post("/api/policies/train_policy/desk", json=order)
    assert estimate.status_code == 200, estimate.text
    figures = estimate.json()
    assert (figures["status"], figures["feedbackCount"]) == ("dry_run", 15)
    assert (round(figures["scoreMean"], 4), round(figures["scoreStd"], 4)) == (0.7, 0.1414)
    assert figures["estimatedTimeMinutes"] > 0
    assert figures["modelConfig"]["learning_rate"] > 0
    longer = client.post("/api/policies/train_policy/desk", json=order | {"maxSteps": 10**5})
    assert longer.json()["estimatedTimeMinutes"] > figures["estimatedTimeMinutes"]
    unknown = client.post("/api/policies/train_policy/desk", json={"baseModel": "large"})
    assert unknown.status_code == 404 and "HOME/bases" in unknown.json()["detail"]
    outside = client.post("/api/policies/train_policy/desk", json={"baseModel": "../../etc"})
    assert outside.is_client_error


@pytest.mark.slow
def test_the_minimum_of_ten_scores_trains(
    client: TestClient, empty_ws: Workspace, tiny_model: Path
) -> None:
    linked_base(empty_ws, tiny_model)
    posts = [post(number) for number in range(10)]
    assert client.post("/api/policies/feedback/desk", json=posts).is_success
    order = {"maxSteps": 1, "baseModel": "small"}
    answer = client.post("/api/policies/train_policy/desk", json=order)
    assert answer.status_code == 200, answer.text
    policy = answer.json()
    assert (policy["status"], policy["version"]) == ("trained", "v1")
    # all ten were trained on, the two in the middle of the scale too
    assert policy["feedbackCount"] == 10
    model, judge = Path(policy["modelPath"]), Path(policy["rewardModelPath"])
    assert model.parts[-4:] == ("models", "desk", "v1", "policy")
    assert (model / "config.json").is_file()
    assert judge == model.with_name("reward_model") and (judge / "reward_head.pt").is_file()
    (listed,) = client.get("/api/policies/desk").json()
    assert listed["metrics"]["feedbackCount"] == 10


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Hugging Face cache without models, also for the processes of jobs."""
    cache = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    return cache


def test_their_base_is_the_default_where_it_is_here(
    client: TestClient, hub_cache: Path, tiny_model: Path
) -> None:
    commit = "0" * 40
    repository = hub_cache / "models--gpt2"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    shutil.copytree(tiny_model, repository / "snapshots" / commit)
    posts = [post(number) for number in range(15)]
    assert client.post("/api/policies/feedback/desk", json=posts).is_success
    answer = client.post("/api/policies/train_policy/desk", json={"dryRun": True, "maxSteps": 2})
    assert answer.status_code == 200, answer.text
    assert answer.json()["modelConfig"]["base_model"] == "gpt2"
    assert answer.json()["estimatedTimeMinutes"] > 0


def test_without_weights_there_is_no_policy_to_train(
    client: TestClient, empty_ws: Workspace, hub_cache: Path
) -> None:
    assert not hub_cache.exists()
    posts = [post(number) for number in range(15)]
    assert client.post("/api/policies/feedback/desk", json=posts).is_success
    for _ in range(2):  # before and after somebody else's endpoint is its model
        for order in ({}, {"dryRun": True}):
            answer = client.post("/api/policies/train_policy/desk", json=order)
            assert answer.status_code == 409
            assert "section loop, setting base" in answer.json()["detail"]
            assert "send its name as baseModel" in answer.json()["detail"]
        add_endpoint(empty_ws, "desk", EndpointAddress("http://127.0.0.1:9/v1", "large"))


def test_a_key_is_refused_where_nothing_would_remember_it(api: FastAPI, tmp_path: Path) -> None:
    settings = Sources({"loop": {"base": str(tmp_path / "nowhere")}}, "none", {})
    with (
        Workspace.open(Home(tmp_path / "home"), settings) as ws,
        client_of(api, ws) as client,
    ):
        posts = [post(number) for number in range(15)]
        assert client.post("/api/policies/feedback/desk", json=posts).is_success
        key = {"idempotency-key": "monday"}
        answer = client.post("/api/policies/train_policy/desk", json={"maxSteps": 1}, headers=key)
        assert answer.status_code == 409
        assert "no worker is alive" in answer.json()["detail"]


def test_a_training_that_fails_is_told_as_theirs(api: FastAPI, tmp_path: Path) -> None:
    settings = Sources({"loop": {"base": str(tmp_path / "nowhere")}}, "none", {})
    with (
        Workspace.open(Home(tmp_path / "home"), settings) as ws,
        client_of(api, ws) as client,
    ):
        posts = [post(number) for number in range(15)]
        assert client.post("/api/policies/feedback/desk", json=posts).is_success
        answer = client.post("/api/policies/train_policy/desk", json={"maxSteps": 1})
        assert answer.status_code == 500
        assert answer.json()["detail"].startswith("Training failed: ")
        assert "nowhere" in answer.json()["detail"]


# Command Center: ratings of widgets


def entry(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "entry_id": f"e{number:05}",
        "question_id": "q1",
        "question": "How is pump 4?",
        "scenario": "kpi",
        "fixture": f"dial-{number}",
        "size": "normal",
        "natural": number == 1,
        "forced": number != 1,
    } | changes


@pytest.fixture
def widgets(client: TestClient, empty_ws: Workspace, tmp_path: Path) -> TestClient:
    """Of a home with two runs, whose entries have the same ids."""
    for name in ("run1", "run2"):
        folder = tmp_path / name
        folder.mkdir()
        data = {"run_id": name, "entries": [entry(number) for number in (1, 2, 3)]}
        (folder / "exhaustive_data.json").write_text(json.dumps(data))
        ingest(empty_ws, "panel", "widgets", folder)
    return client


RATING = {
    "entry_id": "e00001",
    "rating": "up",
    "tags": ["perfect"],
    "notes": "so",
    "rated_at": "2026-02-02T10:00:00Z",
    "device_id": "tablet",
}


@pytest.mark.parametrize("prefix", ["", "/a/panel"])
def test_a_rating_is_made_and_changed(
    prefix: str, widgets: TestClient, empty_ws: Workspace
) -> None:
    created = widgets.post(f"{prefix}/api/ratings/", json=RATING)
    assert created.status_code == 201, created.text
    stored = created.json()
    shown = {key: stored[key] for key in ("entry_id", "rating", "tags", "notes", "device_id")}
    assert shown == {key: RATING[key] for key in shown}
    assert stored["run_id"] == "run2", "the newest run has the entry"
    later = RATING | {"rating": "down", "rated_at": "2026-02-02T11:00:00Z", "tags": []}
    changed = widgets.post(f"{prefix}/api/ratings/", json=later)
    assert (changed.status_code, changed.json()["rating"]) == (200, "down")
    elsewhere = widgets.post(f"{prefix}/api/ratings/", json=RATING | {"device_id": "phone"})
    assert elsewhere.status_code == 201
    ratings = widgets.get(f"{prefix}/api/ratings/").json()
    assert [(rating["device_id"], rating["rating"]) for rating in ratings] == [
        ("phone", "up"),
        ("tablet", "down"),
    ]
    # a natural entry is a fixture and a choice of a widget, and both were judged
    assert feedback_stats(empty_ws, "panel").signals["thumb"].count == 4


def test_many_ratings_at_once_and_a_bad_one_among_them(widgets: TestClient) -> None:
    plain = {key: RATING[key] for key in ("rating", "tags", "notes", "rated_at")}
    body: dict[str, Any] = {
        "ratings": {"e00001": plain, "e00002": plain | {"rating": "down"}},
        "device_id": "tablet",
    }
    assert widgets.post("/api/ratings/bulk/", json=body).json() == {
        "created": 2,
        "updated": 0,
        "total": 2,
    }
    body["ratings"] |= {"e00003": {"tags": []}, "e99999": plain, "e00002": plain}
    counts = widgets.post("/api/ratings/bulk/", json=body).json()
    assert (counts["created"], counts["updated"], counts["total"]) == (0, 2, 4)
    assert [refusal["entry_id"] for refusal in counts["refused"]] == ["e00003", "e99999"]
    earlier = widgets.post("/api/ratings/", json=RATING | {"entry_id": "e00003", "run_id": "run1"})
    assert (earlier.status_code, earlier.json()["run_id"]) == (201, "run1")


@pytest.mark.parametrize(
    "body",
    [
        RATING | {"rating": "sideways"},
        RATING | {"rating": None},
        RATING | {"rated_at": "yesterday"},
        RATING | {"notes": "a\x00b"},
        RATING | {"tags": "perfect"},
        RATING | {"entry_id": ""},
        {"rating": "up"},
        [RATING],
        None,
    ],
)
def test_what_is_no_rating_is_refused(body: Any, widgets: TestClient) -> None:
    answer = widgets.post("/api/ratings/", json=body)
    assert answer.status_code == 422, answer.text
    assert widgets.get("/api/ratings/").json() == []
    if isinstance(body, dict) and body.get("entry_id"):
        many = {"ratings": {"e00001": body}, "device_id": "tablet"}
        assert widgets.post("/api/ratings/bulk/", json=many).status_code == 422
    assert widgets.post("/api/ratings/bulk/", json={"ratings": [RATING]}).status_code == 422


def test_an_entry_that_nobody_imported_or_several_agents_have(
    widgets: TestClient, empty_ws: Workspace, tmp_path: Path
) -> None:
    unknown = widgets.post("/api/ratings/", json=RATING | {"entry_id": "e7"})
    assert unknown.status_code == 404 and "thumbwheel import widgets" in unknown.json()["detail"]
    ingest(empty_ws, "other", "widgets", tmp_path / "run1")
    several = widgets.post("/api/ratings/", json=RATING)
    assert several.status_code == 409 and "/a/AGENT/api/ratings/" in several.json()["detail"]
    assert widgets.post("/a/other/api/ratings/", json=RATING).status_code == 201
    assert widgets.get("/a/panel/api/ratings/").json() == []
    assert widgets.get("/a/nobody/api/ratings/").status_code == 404


def test_a_path_without_its_slash_leads_there(widgets: TestClient) -> None:
    answer = widgets.post("/api/ratings", json=RATING, follow_redirects=False)
    assert answer.status_code == 307
    assert answer.headers["location"].endswith("/api/ratings/")
    assert widgets.post("/api/ratings", json=RATING).status_code == 201


def test_sizes_and_issues_are_said_about_the_newest_widget(
    widgets: TestClient, empty_ws: Workspace
) -> None:
    body = {
        "scenario": "kpi",
        "variant": "dial-2",
        "size_mode": "normal",
        "feedback_type": "size",
        "data": {"preferred": "hero"},
        "device_id": "tablet",
    }
    answer = widgets.post("/api/feedback/", json=body)
    assert answer.status_code == 201, answer.text
    assert {key: answer.json()[key] for key in body} == body
    issue = body | {"variant": "", "size_mode": "", "feedback_type": "issue", "data": "too dark"}
    assert widgets.post("/a/panel/api/feedback", json=issue).status_code == 201
    listed = widgets.get("/api/feedback/").json()
    assert [row["data"] for row in listed] == [{"preferred": "hero"}, "too dark"]
    stats = feedback_stats(empty_ws, "panel").signals
    assert stats["label size"].count == stats["label issue"].count == 1
    assert widgets.get("/api/ratings/").json() == [], "neither is a thumb"
    for wrong, status in (
        ({"variant": "none"}, 404),
        ({"feedback_type": "colour"}, 422),
        ({"scenario": ""}, 422),
        ({"data": {"a": "\x00"}}, 422),
    ):
        answer = widgets.post("/api/feedback/", json=body | wrong)
        assert answer.is_client_error, answer.text
        assert answer.status_code in (status, 400), answer.text


# OCD: decisions of agents


@pytest.fixture
def decisions(client: TestClient, empty_ws: Workspace, tmp_path: Path) -> TestClient:
    """Of a home with decisions of two of the five."""
    filer = {"modelVersion": "filer-v1", "confidence": 0.8, "itemId": "i1"}
    rows = [
        row(1, "CONFIRMED", feedbackAt="2026-01-06T08:00:00Z", outcomeMetrics=DONE, **filer),
        row(2, modelVersion="filer-v2", itemId="i2"),
        row(3, reward=-2.5, rewardComponents={"immediate": {"userFeedback": -0.5}}),
        row(4, agentType="PRIORITIZER", action={"recommended_item_id": "i1", "confidence": 0.5}),
    ]
    path = tmp_path / "decisions.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in rows))
    ingest(empty_ws, "filer", "decisions", path)
    return client


def by_id(client: TestClient) -> dict[str, Any]:
    return {row["id"]: row for row in client.get("/api/training/decisions").json()}


def test_decisions_have_the_rewards_of_the_original(decisions: TestClient) -> None:
    rows = by_id(decisions)
    assert list(rows) == ["d4", "d3", "d2", "d1"], "the newest first"
    assert rows["d1"]["reward"] == pytest.approx(1.63)
    assert rows["d1"]["rewardComponents"]["immediate"]["userFeedback"] == 1.0
    assert rows["d1"]["outcomeMetrics"] == DONE
    assert (rows["d1"]["modelVersion"], rows["d1"]["userFeedback"]) == ("filer-v1", "CONFIRMED")
    assert rows["d1"]["action"]["swimlane"] == "PROJECT" and rows["d1"]["state"]["item"]
    assert rows["d3"]["reward"] == -2.5
    assert rows["d2"]["reward"] is None and rows["d2"]["userFeedback"] is None
    ask = decisions.get
    assert [row["id"] for row in ask("/api/training/decisions?agentType=PRIORITIZER").json()] == [
        "d4"
    ]
    query = "requireReward=true&minReward=-2&limit=5"
    assert [row["id"] for row in ask(f"/api/training/decisions?{query}").json()] == ["d1"]
    assert ask("/api/training/decisions?agentType=NOBODY").status_code == 422


LATE = [
    row(10, "OVERRIDDEN", feedbackAt="2026-01-07T08:00:00Z", reward=1.0)
    | {"rewardComputedAt": "2026-01-06T08:00:00Z"},
    row(11, "CONFIRMED", feedbackAt="2026-01-05T09:00:00Z", reward=-0.3)
    | {"rewardComputedAt": "2026-01-06T08:00:00Z"},
    row(12, "IGNORED", feedbackAt="2026-01-05T09:00:00Z", modelVersion="filer-v2"),
]
"""A word after the stored reward, one before it, and no stored reward."""


def test_rewards_are_read_in_one_way(
    decisions: TestClient, empty_ws: Workspace, tmp_path: Path
) -> None:
    """By Python, over HTTP and by the export."""
    path = tmp_path / "decisions.jsonl"
    with path.open("a") as stream:
        stream.writelines(json.dumps(line) + "\n" for line in LATE)
    ingest(empty_ws, "filer", "decisions", path)
    python = ocd.get_training_stats("FILER", source=path)
    http = decisions.get("/api/training/stats?agentType=FILER").json()
    assert http["avgReward"] == pytest.approx(python["avg_reward"])
    assert http["decisionsWithReward"] == python["decisions_with_reward"] == 5
    assert http["totalDecisions"] == python["total_decisions"] == 6
    report = ocd.export_training_data("FILER", tmp_path / "lines.jsonl", source=path)
    assert (report["count"], report["avg_reward"]) == (5, pytest.approx(python["avg_reward"]))
    lines = decisions.get("/api/training/export-file?agentType=FILER").text.splitlines()
    exported = {json.loads(line)["metadata"]["decisionId"]: json.loads(line) for line in lines}
    for line in (tmp_path / "lines.jsonl").read_text().splitlines():
        line_of_python = json.loads(line)
        decision_id = line_of_python["metadata"]["decisionId"]
        assert exported[decision_id]["reward"] == pytest.approx(line_of_python["reward"]), (
            decision_id
        )
    assert exported["d10"]["reward"] < 0, "the later word counts"
    assert exported["d11"]["reward"] == -0.3, "the stored reward is of after the word"

    by_python = ocd.get_ab_test("FILER", source=path)
    by_http = decisions.get("/api/training/ab-test?agentType=FILER").json()
    assert by_http["overallAvgReward"] == pytest.approx(by_python["overallAvgReward"])
    stats = [
        {entry["version"]: entry["stats"]["avgReward"] for entry in test["versions"]}
        for test in (by_python, by_http)
    ]
    assert stats[0] == pytest.approx(stats[1])


def test_stored_components_survive_a_later_word(
    decisions: TestClient, empty_ws: Workspace, tmp_path: Path
) -> None:
    stored = {"immediate": {"userFeedback": -0.5}, "delayed": {"completionSuccess": 1.0}}
    path = tmp_path / "late.jsonl"
    line = row(20, reward=0.0, rewardComponents=stored) | {
        "rewardComputedAt": "2026-01-05T09:00:00Z"
    }
    path.write_text(json.dumps(line) + "\n")
    ingest(empty_ws, "filer", "decisions", path)
    answer = decisions.patch("/api/decisions/d20/feedback", json={"feedback": "CONFIRMED"})
    components = answer.json()["rewardComponents"]
    assert components["immediate"]["userFeedback"] == 1.0, "the word"
    assert components["delayed"]["completionSuccess"] == 1.0, "what was stored"


def test_ten_decisions_cost_what_ten_cost(
    client: TestClient, empty_ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [f"2026-01-{number // 24 + 1:02}T{number % 24:02}:00:00Z" for number in range(300)]
    rows = [
        row(number, "CONFIRMED", createdAt=times[number], feedbackAt=times[number])
        for number in range(300)
    ]
    path = tmp_path / "many.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in rows))
    ingest(empty_ws, "filer", "decisions", path)
    judged: list[int] = []
    score = decision_function.DecisionFunction.score

    def counted(function: Any, cases: Any) -> Any:
        judged.append(len(cases))
        return score(function, cases)

    monkeypatch.setattr(decision_function.DecisionFunction, "score", counted)
    newest = client.get("/api/training/decisions?limit=10").json()
    assert [entry["id"] for entry in newest] == [f"d{299 - number}" for number in range(10)]
    assert sum(judged) <= 20
    judged.clear()
    filtered = client.get("/api/training/decisions?limit=10&agentType=PRIORITIZER").json()
    assert filtered == [] and judged == []
    assert len(client.get("/api/training/decisions").json()) == 300


def test_a_word_about_a_decision_counts_at_once_and_the_last_one_counts(
    decisions: TestClient,
) -> None:
    path = "/api/decisions/d2/feedback"
    for word, value in (("CONFIRMED", 1.0), ("OVERRIDDEN", -0.8), ("IGNORED", 0.0)):
        answer = decisions.patch(path, json={"feedback": word})
        assert answer.status_code == 200, answer.text
        assert (answer.json()["userFeedback"], answer.json()["id"]) == (word, "d2")
        assert answer.json()["rewardComponents"]["immediate"]["userFeedback"] == value
    correction = {"feedback": "CORRECTED", "correction": {"swimlane": "HOME"}}
    corrected = decisions.patch(path, json=correction).json()
    assert corrected["userCorrection"] == {"swimlane": "HOME"}
    assert by_id(decisions)["d2"]["userFeedback"] == "CORRECTED"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"feedback": "FINE"},
        {"feedback": None},
        {"feedback": "CORRECTED", "correction": "HOME"},
        {"feedback": "CORRECTED", "correction": {"swimlane": "a\x00b"}},
        [],
        7,
    ],
)
def test_what_is_no_word_about_a_decision_is_refused(body: Any, decisions: TestClient) -> None:
    answer = decisions.patch("/api/decisions/d2/feedback", json=body)
    assert answer.status_code == 422, answer.text
    assert by_id(decisions)["d2"]["userFeedback"] is None
    good = {"feedback": "CONFIRMED"}
    assert decisions.patch("/api/decisions/unknown/feedback", json=good).status_code == 404


def test_a_correction_that_no_database_takes(decisions: TestClient) -> None:
    headers = {"content-type": "application/json"}
    for value in ('"\\ud800"', "1e999", "NaN", '{"a": ["\\u0000"]}'):
        content = f'{{"feedback": "CORRECTED", "correction": {{"swimlane": {value}}}}}'
        path = "/api/decisions/d2/feedback"
        assert decisions.patch(path, content=content, headers=headers).status_code == 422, value


def test_statistics_count_what_is_there_and_invent_no_mean(
    decisions: TestClient, empty_ws: Workspace
) -> None:
    stats = decisions.get("/api/training/stats").json()
    assert stats == {
        "totalDecisions": 4,
        "decisionsWithReward": 2,
        "decisionsWithFeedback": 1,
        "avgReward": pytest.approx((1.63 - 2.5) / 2),
        "progressBlocks": 0,
        "progressInCurrentBlock": 4,
        "progressPercentage": 4.0,
        "byAgentType": {"FILER": 3, "PRIORITIZER": 1},
        "readyForTraining": False,
    }
    prioritizer = decisions.get("/api/training/stats?agentType=PRIORITIZER").json()
    assert (prioritizer["totalDecisions"], prioritizer["avgReward"]) == (1, None)


def test_what_waits_is_judged_and_then_nothing_waits(decisions: TestClient) -> None:
    path = "/api/training/calculate-pending"
    assert decisions.get(path).json() == {
        "pendingRewards": 4,
        "message": "4 decisions are ready for reward calculation",
    }
    assert decisions.post(path).json() == {
        "success": True,
        "processed": 4,
        "errors": 0,
        "message": "Processed 4 decisions, 0 errors",
    }
    assert decisions.get(path).json()["pendingRewards"] == 0
    decisions.patch("/api/decisions/d2/feedback", json={"feedback": "CONFIRMED"})
    assert decisions.get(path).json()["pendingRewards"] == 1, "a late word is heard"
    answer = decisions.post("/api/training/decisions", json={"decisionIds": ["d1", "d4", "no"]})
    (judged,) = answer.json()["decisions"]
    assert answer.json()["updated"] == 1
    assert (judged["id"], judged["reward"]) == ("d1", pytest.approx(1.63))
    assert judged["components"]["delayed"]["completionSuccess"] == 1.0


@pytest.mark.parametrize("path", ["track-outcomes", "outcomes"])
def test_what_became_of_an_item_is_noted_at_its_decisions(path: str, decisions: TestClient) -> None:
    url = f"/api/training/{path}"
    assert decisions.get(url).json()["pendingOutcomes"] == 1
    empty = decisions.post(url).json()
    assert (empty["success"], empty["processed"], empty["updated"]) == (True, 0, 0)
    item = {
        "id": "i2",
        "status": "COLD_STORAGE",
        "cycleCount": 3,
        "blockedAt": "2026-01-07T08:00:00Z",
        "swimlane": "PROJECT",
        "priority": "HIGH",
        "startedAt": "2026-01-06T08:00:00Z",
        "completedAt": "2026-01-06T09:00:00Z",
        "title": "what else an item has is not looked at",
    }
    answer = decisions.post(url, json={"items": [item, item | {"id": "i9"}]}).json()
    assert (answer["processed"], answer["updated"], answer["errors"]) == (2, 1, 0)
    assert answer["rewardsCalculated"] == 1
    metrics = by_id(decisions)["d2"]["outcomeMetrics"]
    assert (metrics["abandoned"], metrics["cycleCount"], metrics["wasBlocked"]) == (True, 3, True)
    assert (metrics["expectedTime"], metrics["timeToComplete"]) == (384, 60)
    decisions.patch("/api/decisions/d2/feedback", json={"feedback": "OVERRIDDEN"})
    # the word, calibration, put away, blocked, three cycles
    assert by_id(decisions)["d2"]["reward"] == pytest.approx(-1.45)
    assert decisions.get(url).json()["pendingOutcomes"] == 0
    for body in ({"items": [{"id": "i1", "status": "TODO"}]}, {"items": [{}]}, {"items": {}}):
        assert decisions.post(url, json=body).status_code == 422


@pytest.mark.parametrize("path", ["export?requireReward=true", "export-file?agentType=FILER"])
def test_exported_lines_are_those_of_the_original(
    path: str, decisions: TestClient, tmp_path: Path
) -> None:
    answer = decisions.get(f"/api/training/{path}")
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert {line["metadata"]["decisionId"] for line in lines} == {"d1", "d3"}
    for line in lines:
        completion = line.get("completion") or line["messages"][-1]["content"]
        assert json.loads(completion)["swimlane"] == FILER["swimlane"]
        if "prompt" in line:
            assert line["prompt"].startswith("<|system|>\n")
            assert line["prompt"].endswith("<|assistant|>\n")
    exported = tmp_path / "exported.jsonl"
    exported.write_text(answer.text)
    read = ocd.load_training_decisions("FILER", source=exported)
    assert {record.id: record.reward for record in read} == {
        "d1": pytest.approx(1.63),
        "d3": -2.5,
    }
    assert decisions.get("/api/training/export-file").status_code == 422, "theirs asks for one"


def test_versions_are_compared_on_what_was_decided(decisions: TestClient) -> None:
    answer = decisions.get("/api/training/ab-test?agentType=FILER").json()
    assert (answer["agentType"], answer["abTestingEnabled"]) == ("FILER", False)
    assert answer["totalDecisions"] == 3
    by_version = {version["version"]: version["stats"] for version in answer["versions"]}
    assert by_version["filer-v1"]["acceptanceRate"] == 1.0
    assert by_version["filer-v2"]["avgReward"] is None
    assert answer["comparison"]["bestReward"] == "filer-v1"
    assert decisions.get("/api/training/ab-test").status_code == 422


HOSTILE_BODIES = {
    "/api/policies/feedback/desk": post(1),
    "/api/feedback/desk": [post(1), post(2)],
    "/api/train_policy/desk": {"dryRun": True, "maxSteps": 5, "learningRate": 1e-4},
    "/api/ratings/": RATING,
    "/a/panel/api/ratings/bulk/": {"ratings": {"e00001": {"rating": "up"}}, "device_id": "d"},
    "/api/training/decisions": {"decisionIds": ["d1", "d2"]},
    "/api/training/track-outcomes": {"items": [{"id": "i2", "status": "DONE", "labels": ["x"]}]},
}


def test_no_body_makes_the_server_fail(
    decisions: TestClient, widgets: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # with so many scores a training could begin, for which there is no model
    monkeypatch.setattr("thumbwheel.compat.n3.readiness.FEWEST_SCORES", 10**6)
    client = decisions
    statuses: Counter[int] = Counter()
    for request in hostile_requests(3, 250, HOSTILE_BODIES):
        headers = {name: value.encode("latin-1") for name, value in request.headers.items()}
        answer = client.post(request.path, content=request.content, headers=headers)
        statuses[answer.status_code] += 1
        assert answer.status_code < 500, (request, answer.text)
    assert statuses[422] > 50 and statuses[200] > 10
    good = {"feedback": "CORRECTED", "correction": {"swimlane": "HOME"}}
    for request in hostile_requests(4, 60, {"/api/decisions/d2/feedback": good}):
        headers = {name: value.encode("latin-1") for name, value in request.headers.items()}
        answer = client.patch(request.path, content=request.content, headers=headers)
        assert answer.status_code < 500, (request, answer.text)
    for path in ("decisions", "export", "export-file", "stats", "ab-test"):
        for name in ("agentType", "minReward", "requireReward", "limit"):
            for value in ("", "-1", "NaN", "1e999", "FILER", "\x00", "9" * 400):
                params = {name: value}
                answer = client.get(f"/api/training/{path}", params=params)
                assert answer.status_code in (200, 422), (path, params, answer.text)


def test_a_cron_job_presents_its_key_as_it_did(decisions: TestClient, empty_ws: Workspace) -> None:
    token = empty_ws.home.access_token.read_text().strip()
    bare = TestClient(decisions.app)
    path = "/api/training/calculate-pending"
    assert bare.post(path).status_code == 401
    assert bare.post(path, headers={"x-internal-api-key": "published-constant"}).status_code == 401
    assert bare.post(path, headers={"x-internal-api-key": token}).status_code == 200
