"""Requests by which a client makes the embedded server fail, or hold up the calls of others.

An arm that fails where another does not loses an experiment, so what a client sends wrongly has to
be its own failure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.models.tiny_models import tiny_base
from thumbwheel.deploy.embedded import EmbeddedServer, LoadRequest, application
from thumbwheel.deploy.targets.embedded import SPEC

URL = "http://127.0.0.1:8000"
CHAT, PLAIN, VECTORS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
QUESTION = [{"role": "user", "content": "Hello"}]
HALF = "\\ud800"
"""Half of a surrogate pair, as JSON spells it."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    base = tiny_base(tmp_path_factory.mktemp("base"))
    folder = tmp_path_factory.mktemp("embedded")
    (folder / SPEC).write_text(json.dumps({"base": str(base), "dtype": "float32", "device": "cpu"}))
    server = EmbeddedServer(folder)
    server.load(LoadRequest(lora_name="base"))
    headers = {"authorization": "Bearer token", "content-type": "application/json"}
    with TestClient(application(server, "token"), URL, headers=headers) as client:
        yield client


def ask(client: TestClient, path: str = CHAT, **fields: Any) -> int:
    body = {"model": "base", "messages": QUESTION, "max_tokens": 3, **fields}
    return client.post(path, content=json.dumps(body).replace("HALF", HALF)).status_code


@pytest.mark.parametrize("temperature", [1e-320, 1e-40, 1e-9])
def test_a_temperature_next_to_zero_is_zero(client: TestClient, temperature: float) -> None:
    assert ask(client, temperature=temperature) == 200


@pytest.mark.parametrize("temperature", [float("nan"), float("inf"), -1])
def test_a_temperature_that_is_none_is_refused(client: TestClient, temperature: float) -> None:
    assert ask(client, temperature=temperature) == 422


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "a HALF"}]}),
        (CHAT, {"messages": [{"role": "HALF", "content": "a"}]}),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "HALF"}}]}),
        (CHAT, {"stop": ["HALF"]}),
        (PLAIN, {"prompt": "HALF"}),
        (VECTORS, {"input": ["HALF"]}),
    ],
)
def test_half_a_character_is_no_failure_of_the_server(
    client: TestClient, path: str, fields: dict[str, Any]
) -> None:
    assert ask(client, path, **fields) == 400


def test_many_or_long_texts_to_stop_at_hold_up_nobody(client: TestClient) -> None:
    for stop in (["a" * 900 + str(number) for number in range(10_000)], "a" * 100_000):
        assert ask(client, stop=stop) == 400
    assert ask(client, stop=["###"] * 64) == 200
