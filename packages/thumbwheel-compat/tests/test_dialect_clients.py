"""A client of the n3 server, as its documentation shows it, with nothing changed but URL and key: a
reward model and a policy are really trained."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.models.tiny_models import tiny_base
from tests.servers.thumbwheel_server import running
from thumbwheel.core.config import Home

AGENT = "support"


def fifteen_posts(client: httpx2.Client) -> None:
    for number in range(15):
        body = {
            "prompt": f"Question {number}?",
            "response": f"Answer {number}.",
            "score": 0.5 + 0.1 * (number % 5),
            "runId": f"run_{number}",
        }
        answer = client.post(f"/api/policies/feedback/{AGENT}", json=body)
        assert answer.status_code == 200, answer.text


def train(client: httpx2.Client, **order: Any) -> dict[str, Any]:
    answer = client.post(f"/api/policies/train_policy/{AGENT}", json=order)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


@pytest.mark.repeat
def test_fifteen_posts_become_a_policy(tmp_path: Path) -> None:
    base = tiny_base(tmp_path / "base")
    home = Home(tmp_path / "home")
    environment = {"THUMBWHEEL_SERVER__DIALECTS": "[n3]", "THUMBWHEEL_LOOP__BASE": str(base)}
    with running(home.path, environment, workers=1) as server:
        assert server.health()["status"]  # it answers once all of it is there
        key = {"authorization": f"Bearer {home.access_token.read_text().strip()}"}
        with httpx2.Client(base_url=server.url, headers=key, timeout=580) as client:
            fifteen_posts(client)
            estimate = train(client, dryRun=True, maxSteps=1)
            assert (estimate["status"], estimate["feedbackCount"]) == ("dry_run", 15)
            assert estimate["scoreMean"] == pytest.approx(0.7)
            assert estimate["scoreStd"] == pytest.approx(0.1414, abs=1e-4)
            assert estimate["estimatedSteps"] == 1 and estimate["estimatedTimeMinutes"] > 0
            assert estimate["modelConfig"]["base_model"] == str(base)
            assert estimate["modelConfig"]["learning_rate"] > 0

            # where files lie is for who owns the home; for others they are named from there
            runner = {"name": "runner", "agent": [AGENT], "verb": ["run"]}
            secret = client.post("/api/keys", json=runner).json()["secret"]
            key = {"authorization": f"Bearer {secret}"}
            with httpx2.Client(base_url=server.url, headers=key, timeout=580) as other:
                estimate = train(other, dryRun=True, maxSteps=1)
                assert estimate["modelConfig"]["base_model"] == base.name

            policy = train(client, maxSteps=1)
            assert (policy["status"], policy["version"]) == ("trained", "v1")
            assert policy["trainingSteps"] == 1
            assert policy["feedbackCount"] == 15
            assert Path(policy["modelPath"], "model.safetensors").is_file()
            assert Path(policy["rewardModelPath"], "reward.json").is_file()

            (listed,) = client.get(f"/api/policies/{AGENT}").json()
            assert (listed["id"], listed["version"]) == (policy["policyId"], "v1")
            assert listed["agentId"] == AGENT and listed["createdAt"]
            assert listed["metrics"] == listed["trainedOn"]
            assert listed["metrics"]["rewardMean"] == policy["rewardMean"]

            # once more by the other form, without waiting: a job, which another request stops
            path, order = f"/api/train_policy/{AGENT}?wait=0", {"maxSteps": 1000}
            key = {"idempotency-key": "monday"}
            accepted = client.post(path, json=order, headers=key)
            assert accepted.status_code == 202
            location = accepted.headers["location"]
            again = client.post(path, json=order, headers=key)
            assert again.headers["location"] == location
            other = client.post(path, json={"maxSteps": 999}, headers=key)
            assert other.status_code == 409
            until = time.monotonic() + 120
            while client.get(location).json()["state"] == "queued":
                assert time.monotonic() < until, "no worker takes the job"
                time.sleep(0.05)
            assert client.post(f"{location}/cancel").is_success
