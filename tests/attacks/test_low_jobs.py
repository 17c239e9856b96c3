"""Jobs and schedules of another agent do not exist for whoever may not see them, and nobody asks by
the clock, or by a second try, for what they may not do themselves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.gateway_world import GatewayWorld
from thumbwheel.access import keys
from thumbwheel.jobs import queue, schedules
from thumbwheel.models import versions

NIGHTLY = {"name": "nightly", "cron": "30 3 * * *", "job": "reward pending"}
STEERED = ("cancel", "retry", "resume")


@pytest.fixture
def alpha(gateway: GatewayWorld) -> GatewayWorld:
    """A server whose client may read and run alpha, and nothing of beta."""
    for agent in ("alpha", "beta"):
        versions.ensure_agent(gateway.ws, agent)
    key = keys.add(gateway.ws, "editor", agents=["alpha"], verbs=["read", "run"])
    gateway.client.headers["authorization"] = f"Bearer {key.secret}"
    return gateway


def enqueued(world: GatewayWorld, agent: str | None, kind: str = "reward pending") -> str:
    return queue.enqueue(world.ws, kind, {}, agent=agent).id


def answered(answer: Any, job_id: str) -> tuple[int, str]:
    """Return the status, and the body without the id that was asked for."""
    return answer.status_code, answer.text.replace(job_id, "ID")


def test_whether_a_job_of_others_exists_is_not_told(alpha: GatewayWorld) -> None:
    client = alpha.client
    foreign, of_none = enqueued(alpha, "beta"), enqueued(alpha, None)
    nobodys = "job_" + "0" * 24
    for hidden in (foreign, of_none, foreign[:-2]):
        for path in ("", "/log", "/events"):
            seen = client.get(f"/api/jobs/{hidden}{path}")
            assert answered(seen, hidden) == answered(
                client.get(f"/api/jobs/{nobodys}{path}"), nobodys
            )
            assert seen.status_code == 404
        for verb in STEERED:
            steered = client.post(f"/api/jobs/{hidden}/{verb}")
            missing = client.post(f"/api/jobs/{nobodys}/{verb}")
            assert answered(steered, hidden) == answered(missing, nobodys)
        assert client.get(f"/jobs/{hidden}").status_code == 404
    # The beginning of an id of several says nothing about foreign ones, either.
    own_job = enqueued(alpha, "alpha")
    assert foreign not in client.get("/api/jobs/job_").text
    assert client.get(f"/api/jobs/{own_job}").status_code == 200


def test_what_may_only_be_read_is_not_steered(gateway: GatewayWorld) -> None:
    versions.ensure_agent(gateway.ws, "alpha")
    key = keys.add(gateway.ws, "viewer", agents=["alpha"], verbs=["read"])
    keys.add(gateway.ws, "runner", agents=["alpha"], verbs=["run"])
    bearer = {"authorization": f"Bearer {key.secret}"}
    own_job = enqueued(gateway, "alpha")
    assert gateway.client.get(f"/api/jobs/{own_job}", headers=bearer).status_code == 200
    assert gateway.client.post(f"/api/jobs/{own_job}/cancel", headers=bearer).status_code == 403


@pytest.mark.parametrize("kind", ["deploy", "loop approve", "loop run"])
def test_nobody_deploys_by_the_clock_or_by_a_second_try(alpha: GatewayWorld, kind: str) -> None:
    client = alpha.client
    path = "/api/agents/alpha/schedules"
    assert client.post(path, json={**NIGHTLY, "job": kind}).status_code == 403
    job_id = enqueued(alpha, "alpha", kind)
    for verb in STEERED:
        assert client.post(f"/api/jobs/{job_id}/{verb}").status_code == 403
    schedules.add(alpha.ws, "turn", kind, {}, "0 3 * * *", agent="alpha")
    assert client.put("/api/schedules/turn", json={"resume": True}).status_code == 403
    assert client.delete("/api/schedules/turn").status_code == 403


def test_who_makes_a_schedule_pauses_and_removes_it(alpha: GatewayWorld) -> None:
    client = alpha.client
    schedules.add(alpha.ws, "theirs", "reward pending", {}, "0 3 * * *", agent="beta")
    assert client.post("/api/agents/alpha/schedules", json=NIGHTLY).status_code == 200
    listed = client.get("/api/schedules", params={"of_agent": "alpha"})
    assert [row["name"] for row in listed.json()] == ["nightly"]
    assert client.get("/api/schedules").status_code == 403
    assert client.put("/api/schedules/nightly", json={}).json()["paused"]
    assert not client.put("/api/schedules/nightly", json={"resume": True}).json()["paused"]
    for request in ("PUT", "DELETE"):
        hidden = client.request(request, "/api/schedules/theirs", json={})
        missing = client.request(request, "/api/schedules/nobodys", json={})
        assert hidden.status_code == missing.status_code == 404
        assert hidden.text.replace("theirs", "nobodys") == missing.text
    assert client.delete("/api/schedules/nightly").status_code == 200
    assert [row.name for row in schedules.schedules(alpha.ws)] == ["theirs"]


def test_readers_of_a_job_are_not_told_where_files_lie(alpha: GatewayWorld) -> None:
    home = str(alpha.ws.home.path)
    spec = {"base": "/models/small", "to": f"{home}/exports/out_1", "prompts": ["/help me"]}
    job_id = queue.enqueue(alpha.ws, "reward pending", spec, agent="alpha").id
    shown = alpha.client.get(f"/api/jobs/{job_id}")
    assert shown.json()["spec"] == {
        "base": "small",
        "to": "exports/out_1",
        "prompts": ["/help me"],
    }
    for path in ("/api/jobs", f"/api/jobs/{job_id}/log", f"/jobs/{job_id}"):
        query = {"of_agent": "alpha"} if path == "/api/jobs" else {}
        answer = alpha.client.get(path, params=query)
        assert answer.status_code == 200
        assert home not in answer.text and "/models/" not in answer.text
    owners = alpha.client.get(f"/api/jobs/{job_id}", headers=alpha.owner)
    assert owners.json()["spec"] == spec
