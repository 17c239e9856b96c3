"""Calls that no bound meets: vectors that no budget is charged for, tokens that nobody counts, and
an upstream that is this very server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.scripted_upstream import ScriptedUpstream, reply
from tests.waiting import until
from tests.worlds.gateway_world import AGENT, GatewayWorld, opened_home, running, serve_remote
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import deploy
from thumbwheel.gateway.protocols import protocol_of
from thumbwheel.gateway.token_count import prompt_tokens
from thumbwheel.models import versions
from thumbwheel.models.types import EndpointAddress

TOKENS = 40
OLLAMA = {"family": "ollama"}


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as server:
        yield server


@pytest.mark.parametrize("has_count", [True, False])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/embed", {"input": ["a" * 60, "b" * 60]}),
        ("/api/embeddings", {"prompt": "a" * 120}),
    ],
)
def test_vectors_of_ollama_are_charged(
    tmp_path: Path, upstream: ScriptedUpstream, path: str, body: dict[str, Any], has_count: bool
) -> None:
    answer: dict[str, Any] = {"embeddings": [[0.5]], "embedding": [0.5]}
    if has_count:
        answer["prompt_eval_count"] = TOKENS
    upstream.script = lambda request: [reply(answer)]
    settings = {"agents": {AGENT: {"tokens_per_day": TOKENS}}}
    with opened_home(tmp_path / "home", settings) as ws:
        serve_remote(ws, EndpointAddress(upstream.url, "large", family="ollama"))
        with running(ws) as gateway:
            body = {"model": AGENT, **body}
            assert gateway.client.post(path, json=body).status_code == 200
            until(lambda: gateway.client.post(path, json=body).status_code == 402)
    assert len(upstream.requests) < 50


def test_tokens_that_a_prompt_gives_by_their_ids_are_counted() -> None:
    for name, key in (("/v1/completions", "prompt"), ("/v1/embeddings", "input")):
        protocol = protocol_of("POST", name)
        assert protocol is not None
        for prompt in ([5] * 700, [[5] * 300, [6] * 400]):
            call = protocol.request({"model": AGENT, key: prompt}, {})
            assert prompt_tokens(call) >= 700


def test_a_server_does_not_ask_itself(tmp_path: Path) -> None:
    with opened_home(tmp_path / "home") as ws, running(ws) as gateway:
        version = versions.add_endpoint(ws, AGENT, EndpointAddress(f"{gateway.url}/v1", AGENT))
        deploy.deploy(ws, version, "remote", "live")
        until(lambda: AGENT in gateway.client.get("/api/tags").text)
        asked = gateway.ask()
        assert asked.status_code == 508 and "back to this gateway" in asked.text
        assert len(gateway.lines()) == 1, "the call itself is recorded, and no further ones"


def test_two_servers_do_not_ask_each_other(tmp_path: Path) -> None:
    with (
        opened_home(tmp_path / "first") as first_home,
        opened_home(tmp_path / "second") as second_home,
        running(first_home) as first,
        running(second_home) as second,
    ):
        for ws, other in ((first_home, second), (second_home, first)):
            _point_at(ws, other)
        until(lambda: first.ask().status_code == 508)
        forged = {"via": "1.1 thumbwheel-0000, 1.0 proxy"}
        assert first.ask(headers=forged).status_code == 508


def _point_at(ws: Workspace, other: GatewayWorld) -> None:
    version = versions.add_endpoint(ws, AGENT, EndpointAddress(f"{other.url}/v1", AGENT))
    deploy.deploy(ws, version, "remote", "live")
