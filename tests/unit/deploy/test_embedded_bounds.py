"""What a client may ask of the embedded server: bodies, texts and figures within bounds, and no
work for a client that has gone."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import uvicorn

from tests.waiting import until
from thumbwheel.deploy import embedded
from thumbwheel.deploy.embedded import MAX_BODY, EmbeddedServer, application
from thumbwheel.deploy.targets.embedded import SPEC
from thumbwheel.llm.port import free_port

TOKEN = "t" * 32
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
CHAT = {
    "model": "base",
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 3,
    "temperature": 0,
}


@pytest.fixture(scope="module")
def served(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[EmbeddedServer, str]]:
    """The server on a real socket, in a thread of this process."""
    folder = tmp_path_factory.mktemp("place")
    (folder / SPEC).write_text(
        json.dumps({"base": str(tiny_model), "dtype": "float32", "device": "cpu"})
    )
    server = EmbeddedServer(folder)
    server.load(embedded.LoadRequest(lora_name="base"))
    port = free_port()
    assert port is not None
    running = uvicorn.Server(
        uvicorn.Config(application(server, TOKEN), host="127.0.0.1", port=port, log_level="error")
    )
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    yield server, f"http://127.0.0.1:{port}/v1"
    running.should_exit = True
    thread.join()


def post(url: str, body: dict[str, object], path: str = "chat/completions") -> httpx2.Response:
    return httpx2.post(f"{url}/{path}", json=body, headers=HEADERS, timeout=60)


def test_a_body_is_refused_by_its_stated_length_and_by_what_comes(
    served: tuple[EmbeddedServer, str],
) -> None:
    _, url = served
    headers = HEADERS | {"content-type": "application/json"}

    def flowing() -> Iterator[bytes]:
        yield b'{"model": "'
        for _ in range(2 * MAX_BODY >> 20):
            yield b"a" * (1 << 20)

    for content in (b"x" * (MAX_BODY + 1), flowing()):
        reply = httpx2.post(f"{url}/chat/completions", content=content, headers=headers, timeout=60)
        assert reply.status_code == 413 and str(MAX_BODY) in reply.text
    assert post(url, CHAT).status_code == 200


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_a_text_beyond_the_context_meets_no_tokenizer(
    served: tuple[EmbeddedServer, str], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, url = served

    def never(*_: object, **__: object) -> None:
        raise AssertionError("the text was tokenised")

    monkeypatch.setattr(server.generator.builder, "prompt", never)
    monkeypatch.setattr(type(server.generator.tokenizer), "__call__", never)
    text = "word " * 1_000_000
    for body in (
        {"prompt": text, "messages": [{"role": "user", "content": text}]},
        {"prompt": "", "messages": [{"role": "u"}] * 100_000},
    ):
        if path == "completions" and not body["prompt"]:
            continue
        reply = post(url, {"model": "base", "max_tokens": 1, **body}, path)
        assert reply.status_code == 400 and "model's context of" in reply.json()["error"]["message"]


def test_log_probabilities_are_asked_for_none_to_twenty(served: tuple[EmbeddedServer, str]) -> None:
    _, url = served
    for number, status in ((0, 200), (20, 200), (21, 422), (-1, 422), (1 << 40, 422)):
        reply = post(
            url,
            {
                "model": "base",
                "prompt": "The quick",
                "max_tokens": 2,
                "temperature": 0,
                "logprobs": number,
            },
            "completions",
        )
        assert reply.status_code == status, (number, reply.text[:200])
        if status == 422:
            assert reply.json()["error"]["message"].startswith("logprobs")
        if status == 200:
            logprobs = reply.json()["choices"][0]["logprobs"]
            assert len(logprobs["token_logprobs"]) == 2
        chat = post(url, {**CHAT, "logprobs": True, "top_logprobs": number})
        assert chat.status_code == status
        if status == 200:
            assert (
                len(chat.json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == number
            )


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_is_gone_ends_the_computing(
    served: tuple[EmbeddedServer, str], stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, url = served
    computed = 0
    pieces = server.generator._pieces

    def slow(*arguments: object) -> Iterator[object]:
        nonlocal computed
        for piece in pieces(*arguments):  # type: ignore[arg-type]
            computed += 1
            time.sleep(0.02)
            yield piece

    monkeypatch.setattr(server.generator, "_pieces", slow)
    body = {**CHAT, "max_tokens": 200, "temperature": 1.5, "seed": 3, "stream": stream}
    with (
        httpx2.Client(timeout=httpx2.Timeout(10, read=0.5), headers=HEADERS) as client,
        pytest.raises(httpx2.ReadTimeout),
    ):
        if not stream:
            client.post(f"{url}/chat/completions", json=body)
        with client.stream("POST", f"{url}/chat/completions", json=body) as reply:
            next(reply.iter_lines())
        raise httpx2.ReadTimeout("left")
    until(lambda: not server.generator._busy.locked())
    assert 0 < computed < 150, "it went on without anybody to read it"
