"""Long verbs over HTTP, on a server with a worker: accepted, watched, waited for, failed, and the
same result as beside the home."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from tests.command_line import Run
from tests.servers.thumbwheel_server import running
from tests.unit.server.test_remote_commands import FILE, LINES
from tests.waiting import until
from thumbwheel.core.config import Home

AGENT = "/api/agents/support"
RATINGS = "\n".join(json.dumps(line) for line in LINES)


@dataclass(frozen=True)
class Served:
    """A server with a worker; `client` has the token of its home."""

    url: str
    client: httpx2.Client


@pytest.fixture
def served(tmp_path: Path, command_line: Run) -> Iterator[Served]:
    Path(FILE).write_text(RATINGS)
    assert command_line(*f"import jsonl {FILE} --agent support".split())[0] == 0
    home = Home(tmp_path / "home")
    with running(home.path, os.environ, workers=1) as server:
        assert server.health()["status"]  # it answers once all of it is there
        key = {"authorization": f"Bearer {home.access_token.read_text().strip()}"}
        with httpx2.Client(base_url=server.url, headers=key, timeout=60) as client:
            until(lambda: client.get("/api/jobs").json()["workers"], seconds=120)
            yield Served(server.url, client)


@pytest.mark.slow
def test_a_long_verb_is_a_job(served: Served, command_line: Run) -> None:
    client = served.client

    # accepted, watched to its end, and the same request with the same key gives the result
    body, key = {"shape": "chats"}, {"idempotency-key": "k1"}
    accepted = client.post(f"{AGENT}/datasets", json=body, headers=key)
    assert accepted.status_code == 202, accepted.text
    location = accepted.headers["location"]
    assert location == f"/api/jobs/{accepted.json()['id']}"
    stream = {"accept": "text/event-stream"}
    with client.stream("GET", f"{location}/events", headers=stream) as events:
        text = events.read().decode()
    assert '"state": "succeeded"' in text and text.endswith("event: end\ndata: {}\n\n")
    numbers = [int(line[4:]) for line in text.splitlines() if line.startswith("id: ")]
    assert numbers == list(range(1, len(numbers) + 1))
    late = {**stream, "last-event-id": str(numbers[-2])}
    with client.stream("GET", f"{location}/events", headers=late) as events:
        assert events.read().decode().startswith(f"id: {numbers[-1]}\n")
    shown = client.get(location).json()
    assert (shown["state"], shown["kind"], shown["agent"]) == (
        "succeeded",
        "dataset build",
        "support",
    )
    result = client.post(f"{AGENT}/datasets", json=body, headers=key)
    assert (result.status_code, result.json()) == (200, shown["result"])
    assert (
        client.post(f"{AGENT}/datasets", json={"shape": "prompts"}, headers=key).status_code == 409
    )

    # waited for; what fails is the error that it is
    waited = client.post(f"{AGENT}/rewards?wait=60", json={})
    assert waited.status_code == 200 and waited.json()["traces"] == 2
    failed = client.post(f"{AGENT}/datasets?wait=60", json={"shape": "pairs"})
    assert failed.status_code == 422
    assert failed.json()["type"] == "urn:thumbwheel:error:DataError"
    assert client.post(f"{AGENT}/datasets?wait=601", json=body).status_code == 422
    assert client.post(f"{AGENT}/datasets?nothing=1", json=body).status_code == 422
    ended = client.post(f"{location}/cancel")
    assert ended.status_code == 409

    # an uploaded file
    imports = f"{AGENT}/imports?source=jsonl&path=more.jsonl"
    content = json.dumps({**LINES[0], "id": "t9"}).encode()
    imported = client.post(f"{imports}&wait=60", content=content)
    assert (imported.status_code, imported.json()["stored"]) == (200, 1)
    assert imported.json()["path"] == "more.jsonl"
    unknown = client.post(f"{imports.replace('jsonl&', 'nothing&')}&wait=60", content=content)
    assert unknown.status_code == 404 and "uploads" not in unknown.text

    # the command line
    remote = ("--server", served.url)
    code, out, err = command_line(*remote, *f"import jsonl {FILE} --agent other --json".split())
    assert code == 0 and json.loads(out)["stored"] == 4 and "job job_" in err
    job = client.get("/api/jobs?kind=import").json()["jobs"][0]
    assert job["asked_by"] == "local"
    log = ["jobs", "logs", job["id"], "--follow"]
    for as_json in ([], ["--json"]):
        assert command_line(*remote, *log, *as_json)[:2] == command_line(*log, *as_json)[:2]
    build = ["dataset", "build", "--agent", "support", "--shape", "chats", "--json"]
    code, out, err = command_line(*remote, *build)
    assert code == 0 and json.loads(out)["id"] == result.json()["id"]
    assert "job job_" in err
    # the first run of rewards judges, and says so; those after it have nothing left to judge
    assert command_line("reward", "run", "--agent", "support")[0] == 0
    for command in (
        "dataset build --agent support --shape pairs",
        "reward run --agent support",
        "jobs list --kind train",
        f"jobs logs {accepted.json()['id']}",
    ):
        here = command_line(*command.split(), "--json")
        there = command_line(*remote, *command.split(), "--json")
        assert there[:2] == here[:2], (command, there)
        tables = command_line(*remote, *command.split())
        assert tables[0] == here[0], (command, tables)
        assert here[0] or tables[1] or "jobs" in command, (command, tables)


@pytest.mark.slow
def test_a_job_is_for_those_who_may_see_its_agent(served: Served, command_line: Run) -> None:
    accepted = served.client.post(f"{AGENT}/datasets", json={"shape": "chats"})
    location = (
        f"/api/jobs/{accepted.json()['id']}" if accepted.status_code == 202 else "/api/jobs/x"
    )
    # a job of an agent that somebody may not read does not exist for them
    for agent, of_job in (("support", 200), ("other", 404)):
        printed = command_line("keys", "add", agent, "--agent", agent, "--verb", "read", "--json")
        key = {"authorization": f"Bearer {json.loads(printed[1])['secret']}"}
        client = httpx2.Client(base_url=served.url, headers=key)
        for path in (location, f"{location}/events", f"{location}/log"):
            assert client.get(path).status_code == of_job, (agent, path)
        of_agent = client.get("/api/jobs?of_agent=support").status_code
        assert of_agent == (200 if agent == "support" else 403)
        assert client.get("/api/jobs").status_code == 403
        assert client.post(f"{location}/cancel").status_code == 403
