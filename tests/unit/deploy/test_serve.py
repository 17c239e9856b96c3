"""The front door."""

from __future__ import annotations

import json
import threading

import pytest
from fastapi.testclient import TestClient

from tests.worlds.deploy_world import QUESTION, World
from thumbwheel.deploy import switch
from thumbwheel.deploy.embedded import REFUSED
from thumbwheel.deploy.serve import application


@pytest.mark.slow
def test_a_request_goes_where_the_alias_points(world: World):
    first, second = world.version(0), world.version(1)
    assert world.ask().status_code == 404
    world.deploy(first)
    world.deploy(second, "canary")
    live, canary = world.ask(), world.ask(f"{world.agent}:canary")
    assert (live.headers["x-thumbwheel-version"], canary.headers["x-thumbwheel-version"]) == (
        "v1",
        "v2",
    )
    assert (
        live.json()["model"] == f"{world.agent}-v1"
        and canary.json()["model"] == f"{world.agent}-v2"
    )
    assert [row["id"] for row in world.door.get("/v1/models").json()["data"]] == [
        world.agent,
        f"{world.agent}:canary",
        f"{world.agent}:live",
    ]
    for model, status in (
        ("somebody-else", 404),
        (f"{world.agent}:nothing", 404),
        (f"{world.agent}:Ä", 404),
    ):
        assert world.ask(model).status_code == status
    assert world.door.post("/v1/chat/completions", content=b"no json").status_code == 400
    assert (
        world.door.post(
            "/v1/chat/completions", json={"messages": QUESTION}, headers={"host": "evil.example"}
        ).status_code
        == 400
    )
    page = world.door.post(
        "/v1/chat/completions", json={"messages": QUESTION}, headers={"content-type": "text/plain"}
    )
    assert page.status_code == 400 and "content type is text/plain" in page.text
    for host, status in (("0.0.0.0", 200), ("inside.example", 200), ("127.0.0.1", 400)):
        door = TestClient(
            application(world.ws, world.agent, host), base_url="http://inside.example"
        )
        assert door.get("/v1/models").status_code == status


@pytest.mark.slow
def test_streams_pass_through_and_say_what_the_whole_says(world: World):
    world.deploy(world.version(0))
    whole = world.ask(max_tokens=12).json()
    stream = world.ask(
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
    assert (
        "".join(part["delta"].get("content", "") for part in parts)
        == whole["choices"][0]["message"]["content"]
    )
    assert parts[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert chunks[-1]["usage"] == whole["usage"]
    assert len(parts[1]["logprobs"]["content"][0]["top_logprobs"]) == 2


@pytest.mark.slow
def test_what_cannot_be_done_is_refused_and_not_left_out(world: World):
    world.deploy(world.version(0))
    for name in REFUSED:
        reply = world.ask(**{name: {"x": 1} if name in ("logit_bias", "response_format") else 1.5})
        assert reply.status_code == 400 and name in reply.text
    assert world.ask(n=2).status_code == 400
    assert world.ask(temperature=-1).status_code == 400
    assert world.ask(max_tokens=0).status_code == 422
    assert world.door.post("/v1/chat/completions", json={"messages": []}).status_code == 400
    text = world.door.post(
        "/v1/completions",
        json={"prompt": "The quick", "max_tokens": 3, "temperature": 0, "logprobs": 1},
    ).json()
    assert len(text["choices"][0]["logprobs"]["token_ids"]) == 3
    for ids, status in (([5, 6], 200), ([-1], 400), ([1 << 30], 400)):
        assert (
            world.door.post("/v1/completions", json={"prompt": ids, "max_tokens": 1}).status_code
            == status
        )


@pytest.mark.slow
def test_a_switch_loses_no_request_and_mixes_no_versions(world: World):
    world.deploy(world.version(0))
    world.deploy(world.version(1), alias=None)
    expected = {"v1": world.text()}
    switch.promote(world.ws, world.agent, "v2")
    expected["v2"] = world.text()
    replies, over = [], threading.Event()

    def client() -> None:
        while not over.is_set():
            replies.append(world.ask())

    threads = [threading.Thread(target=client) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        switch.rollback(world.ws, world.agent)
        switch.promote(world.ws, world.agent, "v2")
    over.set()
    for thread in threads:
        thread.join()
    seen = {
        (reply.headers["x-thumbwheel-version"], reply.json()["choices"][0]["message"]["content"])
        for reply in replies
    }
    assert {reply.status_code for reply in replies} == {200} and seen <= set(expected.items())


@pytest.mark.slow
def test_the_servers_of_targets_want_their_token(world: World):
    import httpx

    endpoint = world.deploy(world.version(0)).deployment.endpoint
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        for path in ("models", "load_lora_adapter", "chat/completions"):
            assert httpx.post(f"{endpoint.url}/{path}", json={}, headers=headers).status_code == 401
