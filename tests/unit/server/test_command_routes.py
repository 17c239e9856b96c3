"""The commands over HTTP: the same results, what is refused, and what changed meanwhile."""

from __future__ import annotations

import io
import json
import tarfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from httpx2 import Response

from tests.worlds.api_world import commands_client
from thumbwheel.access.protocol import PAGE
from thumbwheel.capture.jobs import ImportSpec, run_import
from thumbwheel.core.present import json_text
from thumbwheel.db.schema import request_keys
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs import claims, queue
from thumbwheel.jobs.types import Job, JobsConfig, JobState
from thumbwheel.rewards.jobs import RewardRunSpec, run_rewards
from thumbwheel.server.api import endpoint
from thumbwheel.server.api.bodies import MOST_BYTES
from thumbwheel.server.api.invocation import run

LINES = (
    {"type": "trace", "id": "t1", "input": "Where is it?", "output": "On its way."},
    {"type": "trace", "id": "t2", "input": "And now?", "output": "Here."},
    {"type": "feedback", "target": {"trace": "t1"}, "kind": "thumb", "value": True, "rater": "c"},
)
RATINGS = "\n".join(json.dumps(line) for line in LINES).encode()
AGENT = "/api/agents/support"


@pytest.fixture
def client(empty_ws: Workspace) -> Iterator[TestClient]:
    """Of a home with two traces and a thumb."""
    with commands_client(empty_ws) as client:
        answer = client.post(f"{AGENT}/imports?source=jsonl&path=ratings.jsonl", content=RATINGS)
        assert answer.json()["stored"] == 3, answer.text
        yield client


def test_an_upload_is_called_as_its_sender_called_it(
    empty_ws: Workspace, client: TestClient
) -> None:
    answer = client.post(f"{AGENT}/imports?source=jsonl&path=r.jsonl", content=b"{}\n" + RATINGS)
    assert answer.json()["path"] == "r.jsonl"
    assert (answer.json()["duplicates"], answer.json()["refused"]) == (3, 1)
    assert answer.headers["x-thumbwheel-exit"] == "4"
    unknown = client.post(f"{AGENT}/imports?source=nothing&path=r.jsonl", content=RATINGS)
    assert unknown.status_code == 404
    assert str(empty_ws.home.path) not in answer.text + unknown.text
    assert not list(empty_ws.home.uploads.iterdir())


def test_an_upload_is_a_job_where_workers_are(empty_ws: Workspace, client: TestClient) -> None:
    client.app.state.has_workers = True  # type: ignore[attr-defined]
    imports = f"{AGENT}/imports?source=jsonl&path=r.jsonl"
    key = {"idempotency-key": "k"}
    accepted = client.post(imports, content=RATINGS, headers=key)
    assert accepted.status_code == 202
    job = accepted.json()
    assert (job["kind"], job["asked_by"], job["spec"]["path"]) == ("import", "local", "r.jsonl")
    assert str(empty_ws.home.path) not in accepted.text
    (folder,) = empty_ws.home.uploads.iterdir()
    assert (folder / "r.jsonl").read_bytes() == RATINGS

    # the same again is the same job, with the file or without
    for content in (RATINGS, b""):
        again = client.post(imports, content=content, headers=key)
        assert (again.status_code, again.json()["id"]) == (202, job["id"])
    other = client.post(imports, content=RATINGS + b"\n", headers=key)
    assert other.status_code == 409
    elsewhere = client.post(imports.replace("support", "sales"), content=RATINGS, headers=key)
    assert elsewhere.status_code == 409
    assert list(empty_ws.home.uploads.iterdir()) == [folder]

    assert run_import(empty_ws, ImportSpec(**job["spec"])).duplicates == 3
    assert not list(empty_ws.home.uploads.iterdir())


def test_the_table_of_jobs_names_who_asked(empty_ws: Workspace, client: TestClient) -> None:
    client.app.state.has_workers = True  # type: ignore[attr-defined]
    key = client.post("/api/keys", json={"name": "nightly", "verb": ["run", "read"]})
    bearer = {"authorization": f"Bearer {key.json()['secret']}"}
    assert (
        client.post(f"{AGENT}/datasets", json={"shape": "chats"}, headers=bearer).status_code == 202
    )
    page = client.get("/api/jobs", headers={"accept": PAGE}).json()
    table = page["parts"][0]
    assert table["rows"][0][table["columns"].index("by")] == "nightly"
    schedule = {"name": "n", "cron": "1 2 * * *", "job": "reward pending"}
    added = client.post(f"{AGENT}/schedules", json=schedule, headers=bearer)
    assert added.json()["asked_by"] == key.json()["id"]


@pytest.mark.parametrize("name", ["", "..", "../r.jsonl", "/etc/passwd", "http://h/", "a\\b", ".x"])
def test_no_path_of_the_server_is_read(client: TestClient, name: str) -> None:
    answer = client.post(
        f"{AGENT}/imports", params={"source": "jsonl", "path": name}, content=RATINGS
    )
    assert answer.status_code == 422
    assert client.post("/api/plan", params={"file": name}, content=RATINGS).status_code == 422


BASES = ("/etc", "../home", ".", "~", "src/thumbwheel", "no-such", "x" * 300)


@pytest.mark.parametrize("base", BASES, ids=range(len(BASES)))
def test_a_base_is_no_folder_that_a_request_names(
    client: TestClient, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    answer = client.post(f"{AGENT}/runs/sft", json={"base": base, "dry_run": True})
    assert answer.status_code == 422
    assert "over the API a base is" in answer.json()["why"]
    body = {"version": "v1", "suite": ["reward"], "reward_model": base}
    assert "rm1" in client.post(f"{AGENT}/evaluations", json=body).json()["fix"]


@pytest.mark.parametrize("value", [0, 1, 0.0, "true", "yes"])
def test_in_json_only_true_and_false_are_truth(client: TestClient, value: Any) -> None:
    answer = client.post(f"{AGENT}/rewards/pending", json={"dry_run": value})
    assert answer.status_code == 422
    assert "true or false is wanted" in answer.json()["why"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"{AGENT}/runs/grpo", {"base": "a/b", "reward_functions": ["os:system"]}),
        (f"{AGENT}/runs/grpo", {"base": "a/b", "endpoint_url": "http://evil.example"}),
        (f"{AGENT}/runs/sft", {"base": "a/b", "callbacks": ["os:system"]}),
        (f"{AGENT}/evaluations", {"version": "v1", "as": "hf:/etc"}),
        (f"{AGENT}/deployments", {"version": "v1", "set": ["url=http://evil.example"]}),
        (f"{AGENT}/versions/v1/exports", {"to": "/tmp/x"}),
        (
            f"{AGENT}/schedules",
            {"name": "n", "cron": "* * * * *", "job": "import", "set": ["path=/etc/passwd"]},
        ),
        (f"{AGENT}/cases", {"file": "/etc/passwd"}),
    ],
)
def test_a_request_says_nothing_about_the_machine(
    client: TestClient, path: str, body: dict[str, object]
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 422
    assert answer.json()["why"] == "there is no such parameter"


def test_pages_follow_each_other_under_inserts(client: TestClient) -> None:
    first = client.get(f"{AGENT}/traces?limit=1").json()
    more = {"type": "trace", "id": "t3", "input": "New", "output": "Yes."}
    imported = client.post(
        f"{AGENT}/imports?source=jsonl&path=r.jsonl", content=json.dumps(more).encode()
    )
    assert imported.status_code == 200
    second = client.get(f"{AGENT}/traces", params={"limit": 1, "after": first["after"]}).json()
    names = [page["traces"][0]["external_id"] for page in (first, second)]
    assert sorted(names) == ["t1", "t2"] and second["after"] is None
    assert client.get(f"{AGENT}/traces?limit=1001").status_code == 422
    assert client.get(f"{AGENT}/traces?after=nonsense").status_code == 422
    assert client.get(f"{AGENT}/traces?nonsense=1").status_code == 422


def test_who_looked_before_somebody_else_changes_nothing(client: TestClient) -> None:
    seen = client.get(f"{AGENT}/gate")
    etag = seen.headers["etag"]
    assert client.get(f"{AGENT}/gate", headers={"if-none-match": etag}).status_code == 304
    settings = {"min_cases": 7, "reason": "few"}
    first = client.put(f"{AGENT}/gate", json=settings, headers={"if-match": etag})
    assert first.status_code == 200, first.text
    settings = {"min_cases": 8, "reason": "more"}
    late = client.put(f"{AGENT}/gate", json=settings, headers={"if-match": etag})
    assert late.status_code == 412
    assert late.json()["type"] == "urn:thumbwheel:error:Changed"
    assert client.get(f"{AGENT}/gate").json()["policy"]["min_cases"] == 7
    anyway = client.put(f"{AGENT}/gate", json=settings, headers={"if-match": "*"})
    assert anyway.status_code == 200


def test_errors_are_problems(client: TestClient) -> None:
    for answer, status, kind in (
        (client.get("/api/agents/nobody/versions"), 404, "NotFound"),
        (client.get("/api/agents/..%2f..%2fetc/versions"), 404, "NotFound"),
        (client.get("/api/agents/%2e%2e/versions"), 422, "InputError"),
        (client.get("/api/agents/a%00b/versions"), 422, "InputError"),
        (client.get("/api/nothing"), 404, "NotFound"),
        (client.patch("/api/secrets"), 405, "InputError"),
        (client.post(f"{AGENT}/cases", json={"inptu": "a"}), 422, "InputError"),
        (client.post(f"{AGENT}/cases", json=[]), 422, "InputError"),
        (client.post(f"{AGENT}/cases", content=b"[" * 100_000), 422, "InputError"),
        (client.post(f"{AGENT}/cases", content=b" " * (MOST_BYTES + 1)), 413, "InputError"),
        (client.delete(f"{AGENT}/subjects/x?yes=1"), 404, "NotFound"),
        (client.get(f"{AGENT}/versions", headers={"authorization": "no"}), 401, "Unauthenticated"),
    ):
        assert answer.status_code == status, answer.text
        problem = answer.json()
        assert answer.headers["content-type"] == "application/problem+json"
        assert problem["type"] == f"urn:thumbwheel:error:{kind}"
        assert problem["status"] == status
        assert problem["detail"].startswith(problem["what"]) and problem["why"] and problem["fix"]


def test_erasing_asks_nobody_at_the_server(client: TestClient) -> None:
    rows = [{"type": "trace", "id": "t9", "subject": "ann", "input": "a", "output": "b"}]
    content = json.dumps(rows[0]).encode()
    assert client.post(f"{AGENT}/imports?source=jsonl&path=r.jsonl", content=content).is_success
    refused = client.delete(f"{AGENT}/subjects/ann")
    assert refused.status_code == 422 and "--yes" in refused.json()["fix"]
    assert client.delete(f"{AGENT}/subjects/ann?yes=true").json()["state"] == "done"


def test_a_dataset_is_downloaded_as_its_files(empty_ws: Workspace, client: TestClient) -> None:
    built = client.post(f"{AGENT}/datasets", json={"shape": "chats"})
    assert built.status_code == 200, built.text
    answer = client.get(f"{AGENT}/datasets/chats/files")
    assert answer.headers["content-type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        names = {Path(name).name for name in archive.getnames()}
        manifest = archive.extractfile("support-chats/manifest.json")
        assert manifest is not None and json.load(manifest)["id"] == built.json()["id"]
    assert {"manifest.json", "train.jsonl", "dev.jsonl", "gate.jsonl"} <= names
    assert client.get(f"{AGENT}/datasets/chats/files?format=no").status_code == 422
    assert not list(empty_ws.home.cache.glob("download-*"))


def test_a_request_that_is_sent_again_has_its_effect_once(
    empty_ws: Workspace, client: TestClient
) -> None:
    def send(key: str, **body: object) -> Response:
        fields = {"target": "t1", "rater": "ann", **body}
        return client.post(f"{AGENT}/feedback", json=fields, headers={"idempotency-key": key})

    first, again = send("k1", thumb="down"), send("k1", thumb="down")
    assert (again.status_code, again.json()) == (200, first.json())
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert send("k2", thumb="down").json()["id"] != first.json()["id"]
    assert send("k1", thumb="up").status_code == 422
    assert send("", thumb="up").status_code == 422
    listed = client.get(f"{AGENT}/feedback").json()
    assert [row["id"] for row in listed].count(first.json()["id"]) == 1
    # what failed before it wrote anything may be sent again
    assert send("k3", thumb="sideways").status_code == 422
    assert send("k3", thumb="up").status_code == 200


def test_a_key_without_an_answer_is_refused(empty_ws: Workspace, client: TestClient) -> None:
    body = {"target": "t1", "thumb": "down"}
    headers = {"idempotency-key": "crash"}
    assert client.post(f"{AGENT}/feedback", json=body, headers=headers).status_code == 200
    empty_ws.db.write(
        lambda connection: connection.execute(request_keys.update().values(answer=None))
    )
    lost = client.post(f"{AGENT}/feedback", json=body, headers=headers)
    assert lost.status_code == 409 and "stopped before it answered" in lost.json()["why"]


def test_an_erasure_forgets_stored_answers(empty_ws: Workspace, client: TestClient) -> None:
    content = json.dumps({"type": "trace", "id": "t9", "subject": "ann", "input": "a"}).encode()
    assert client.post(f"{AGENT}/imports?source=jsonl&path=r.jsonl", content=content).is_success
    body = {"target": "t9", "correction": "planted text"}
    headers = {"idempotency-key": "k"}
    assert client.post(f"{AGENT}/feedback", json=body, headers=headers).status_code == 200
    of_other = "/api/agents/other/cases"
    case = {"input": "a", "reference": "b"}
    other_key = {"idempotency-key": "k2"}
    first = client.post(of_other, json=case, headers=other_key)
    assert first.status_code == 200
    assert client.delete(f"{AGENT}/subjects/ann?yes=true").json()["state"] == "done"
    with empty_ws.db.read() as connection:
        assert connection.execute(sa.select(request_keys.c.agent)).scalars().all() == ["other"]
    again = client.post(of_other, json=case, headers=other_key)
    assert again.json() == first.json() and again.headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize("noun", ["feedback", "cases"])
def test_lists_go_on_behind_their_last_row(client: TestClient, noun: str) -> None:
    def rows(query: str) -> list[str]:
        listed = client.get(f"{AGENT}/{noun}?{query}").json()
        return [row["id"] for row in (listed["cases"] if noun == "cases" else listed)]

    def add(number: int) -> None:
        body: dict[str, object] = {"target": "t1", "comment": f"number {number}"}
        if noun == "cases":
            body = {"input": f"1 + {number}?", "reference": "1", "checker": "exact_answer"}
        assert client.post(f"{AGENT}/{noun}", json=body).is_success

    for number in range(5):
        add(number)
    every = rows("limit=100")
    first = rows("limit=2")
    add(5)
    second = rows(f"limit=2&after={first[-1]}")
    assert [*first, *second] == every[:4]
    assert rows(f"after={every[-1]}") == []
    assert client.get(f"{AGENT}/{noun}?after=none").status_code == 422


def test_a_command_whose_job_is_awaited_is_called_once(
    empty_ws: Workspace, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.app.state.has_workers = True  # type: ignore[attr-defined]
    calls = []

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return run(*arguments)

    def claimed() -> Job | None:
        now = datetime.now(UTC)
        needs: dict[str, tuple[str, ...]] = {"reward run": ()}
        return empty_ws.db.write(
            lambda connection: claims.claim(connection, "wrk_a", needs, JobsConfig(), now)
        )

    def finish(job: Job) -> None:
        result = json.loads(json_text(run_rewards(empty_ws, RewardRunSpec(**job.spec))))
        now = datetime.now(UTC)
        empty_ws.db.write(
            lambda connection: claims.finish(
                connection, job, JobState.SUCCEEDED, now, result=result
            )
        )

    def work() -> None:
        until = time.monotonic() + 60
        while (job := claimed()) is None and time.monotonic() < until:
            time.sleep(0.02)
        if job is not None:
            finish(job)

    monkeypatch.setattr(endpoint, "run", counted)
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    answer = client.post(f"{AGENT}/rewards?wait=60", json={})
    worker.join()
    (job,) = queue.jobs(empty_ws)[0]
    assert (answer.status_code, answer.json()) == (200, job.result)
    assert len(calls) == 1
