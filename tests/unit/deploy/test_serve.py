"""What the server answers with versions that were trained here, on the embedded target."""

from __future__ import annotations

import json
import threading

import httpx2
import pytest

from tests.worlds.deploy_world import DeployWorld
from tests.worlds.gateway_world import CHAT
from thumbwheel.deploy import switch
from thumbwheel.deploy.embedded import NEUTRAL


@pytest.mark.slow
def test_a_request_goes_where_the_alias_points(deployed: DeployWorld):
    first, second = deployed.version(0), deployed.version(1)
    assert deployed.ask().status_code == 404
    deployed.deploy(first)
    deployed.deploy(second, "canary")
    with deployed.served() as client:
        live = client.post(CHAT, json=deployed.question())
        canary = client.post(CHAT, json=deployed.question(f"{deployed.agent}:canary"))
        versions = [answer.headers["x-thumbwheel-version"] for answer in (live, canary)]
        assert versions == ["v1", "v2"]
        assert live.json()["model"] == f"{deployed.agent}-v1"
        assert canary.json()["model"] == f"{deployed.agent}-v2"
        listed = client.get(f"/a/{deployed.agent}/v1/models").json()["data"]
        assert [row["id"] for row in listed] == [
            deployed.agent,
            f"{deployed.agent}:canary",
            f"{deployed.agent}:live",
        ]
        for model in ("somebody-else", f"{deployed.agent}:nothing", f"{deployed.agent}:Ä"):
            assert client.post(CHAT, json=deployed.question(model)).status_code == 404


@pytest.mark.slow
def test_streams_pass_through_and_say_what_the_whole_says(deployed: DeployWorld):
    deployed.deploy(deployed.version(0))
    whole = deployed.ask(max_tokens=12).json()
    stream = deployed.ask(
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
        top_logprobs=2,
    )
    assert stream.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in stream.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    parts = [choice for chunk in chunks for choice in chunk["choices"]]
    text = "".join(part["delta"].get("content", "") for part in parts)
    assert text == whole["choices"][0]["message"]["content"]
    assert parts[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert chunks[-1]["usage"] == whole["usage"]
    assert len(parts[1]["logprobs"]["content"][0]["top_logprobs"]) == 2


@pytest.mark.slow
def test_what_cannot_be_done_is_refused_and_not_left_out(deployed: DeployWorld):
    deployed.deploy(deployed.version(0))
    with deployed.served() as client:

        def ask(**more: object) -> httpx2.Response:
            return client.post(CHAT, json=deployed.question(**more))

        for name in (*NEUTRAL, "response_format"):
            value = {"x": 1} if name in ("logit_bias", "response_format") else 1.5
            reply = ask(**{name: value})
            assert reply.status_code == 400 and name in reply.text
        assert len(ask(n=2).json()["choices"]) == 2
        assert ask(n=0).status_code == ask(n=17).status_code == 422
        assert ask(temperature=-1).status_code == 422
        assert ask(max_tokens=0).status_code == 422
        assert ask(messages=[]).status_code == 400
        body = {"model": deployed.agent, "max_tokens": 3, "temperature": 0, "logprobs": 1}
        text = client.post("/v1/completions", json={"prompt": "The quick", **body}).json()
        assert len(text["choices"][0]["logprobs"]["token_ids"]) == 3
        for ids, status in (([5, 6], 200), ([-1], 400), ([1 << 30], 400)):
            body = {"model": deployed.agent, "prompt": ids, "max_tokens": 1}
            assert client.post("/v1/completions", json=body).status_code == status


@pytest.mark.slow
def test_a_switch_loses_no_request_and_mixes_no_versions(deployed: DeployWorld):
    deployed.deploy(deployed.version(0))
    deployed.deploy(deployed.version(1), alias=None)
    expected = {"v1": deployed.text()}
    switch.promote(deployed.ws, deployed.find("v2"))
    expected["v2"] = deployed.text()
    replies, over = [], threading.Event()
    with deployed.served() as client:

        def ask() -> None:
            while not over.is_set():
                replies.append(client.post(CHAT, json=deployed.question()))

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(4):
            switch.rollback(deployed.ws, deployed.learner)
            switch.promote(deployed.ws, deployed.find("v2"))
        over.set()
        for thread in threads:
            thread.join()
    seen = set()
    for reply in replies:
        assert reply.status_code == 200
        text = reply.json()["choices"][0]["message"]["content"]
        seen.add((reply.headers["x-thumbwheel-version"], text))
    assert seen <= set(expected.items())


@pytest.mark.slow
def test_the_servers_of_targets_want_their_token(deployed: DeployWorld):
    endpoint = deployed.deploy(deployed.version(0)).deployment.endpoint
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        for path in ("models", "load_lora_adapter", "chat/completions"):
            reply = httpx2.post(f"{endpoint.url}/{path}", json={}, headers=headers)
            assert reply.status_code == 401
