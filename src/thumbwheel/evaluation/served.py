"""Responders behind HTTP: an OpenAI-compatible endpoint, or a GGUF file in a llama-server that runs
while questions are asked.

They are asked as an app would ask them: messages to the chat endpoint, with the server's template.
Servers return no log-probabilities of given texts, so these responders have none. The model behind
a name at an endpoint may change. So answers are stored under the version that was asked for and
under what the server reports of the model's content.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from thumbwheel.core import ids, log
from thumbwheel.core.errors import InputError, ModelError
from thumbwheel.evaluation.types import Answers, Ask, AskLikelihood, ModelAnswer, Sums
from thumbwheel.llm.checked_transport import CheckedTransport
from thumbwheel.llm.client import Client, RequestRefused

LISTING_TIMEOUT = 5.0
"""Seconds to wait for a server's list of models."""
CONTENT = ("digest", "root", "parent", "meta")
"""Fields with which Ollama, vLLM and llama-server list what a model's content is."""


@dataclass
class ServedClient:
    """A client, and how to close it together with the server that was started for it."""

    client: Client
    close: Callable[[], None]


@dataclass
class ServedResponder:
    """A model behind HTTP. `connect` is called when the first question is asked."""

    name: str
    identity: str
    connect: Callable[[], ServedClient]
    parallel: int
    batch: int = 32
    scores: bool = False
    _connection: ServedClient | None = None

    def recipe(self) -> dict[str, Any] | None:
        """Return None: the server is asked in parallel from here."""
        return None

    def answers(self, asks: Sequence[Ask]) -> list[Answers]:
        """Generate answers, one request each, `parallel` at once. A question that the server
        refuses for good, such as one that is too long, has no answer."""
        if self._connection is None:
            self._connection = self.connect()
        client = self._connection.client
        requests = [(ask, seed) for ask in asks for seed in range(ask.samples)]
        workers = min(self.parallel, len(requests)) or 1
        with ThreadPoolExecutor(workers) as pool:
            replies = list(
                pool.map(lambda request: _answer(client, request[0], request[1], workers), requests)
            )
        refusals = [reply for reply in replies if isinstance(reply, RequestRefused)]
        if refusals:
            log.say(
                f"{self.name} gives no answer to {len(refusals)} of {len(replies)} questions: "
                f"{refusals[0].why}"
            )
        answers: list[Answers] = []
        start = 0
        for ask in asks:
            samples = replies[start : start + ask.samples]
            start += ask.samples
            answered = tuple(sample for sample in samples if isinstance(sample, ModelAnswer))
            answers.append(answered if len(answered) == ask.samples else ())
        return answers

    def log_probabilities(self, asks: Sequence[AskLikelihood]) -> list[Sums]:
        """Return an empty reply per question: servers return no log-probabilities."""
        return [()] * len(asks)

    def close(self) -> None:
        """Close the connection, and stop the server if it was started here."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()


def endpoint(
    name: str,
    url: str,
    model: str,
    api_key: str | None,
    parallel: int,
    version_id: str,
    private: bool | None = None,
) -> ServedResponder:
    """Return `model` at `url`, such as http://127.0.0.1:8000/v1, as the responder of a version.

    `private`: whether the URL may lead to a loopback or private address; None for a URL of the
    command line, which may lead anywhere.
    """

    def transport() -> httpx2.BaseTransport | None:
        return None if private is None else CheckedTransport(private=private)

    def connect() -> ServedClient:
        client = Client(url, model, api_key=api_key, transport=transport())
        return ServedClient(client, client.close)

    address = url.rstrip("/")
    content = _model_content(address, model, api_key, transport())
    identity = ids.fingerprint(["endpoint", address, model, version_id, content])
    return ServedResponder(name, identity, connect, parallel)


def _model_content(
    url: str, model: str, api_key: str | None, transport: httpx2.BaseTransport | None
) -> Any:
    """Return the fields that identify the model behind this name: its digest in Ollama, else its
    file or adapter; None if the server does not name them."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    with httpx2.Client(headers=headers, timeout=LISTING_TIMEOUT, transport=transport) as client:
        tags_url = f"{url.removesuffix('/v1')}/api/tags"
        entry = _listed_model(client, tags_url, "models", "name", {model, f"{model}:latest"})
        if not entry:
            entry = _listed_model(client, f"{url}/models", "data", "id", {model})
    return {key: entry[key] for key in CONTENT if entry.get(key)} or None


def _listed_model(
    client: httpx2.Client, address: str, list_key: str, name_key: str, names: set[str]
) -> dict[str, Any]:
    """Return the entry of the model in a server's list; empty if it has none."""
    try:
        entries = client.get(address).raise_for_status().json()[list_key]
        return next((entry for entry in entries if entry[name_key] in names), {})
    except (httpx2.HTTPError, OSError, ValueError, LookupError, TypeError):
        return {}


def gguf(name: str, file: Path) -> ServedResponder:
    """Return a responder for a GGUF file in a llama-server; it asks one question at a time, because
    answers depend on the rest of a batch. Raises InputError if there is no such file."""
    from thumbwheel.llm.llama_server import LlamaServer

    if not file.is_file():
        raise InputError(
            f"GGUF file {str(file)!r}",
            "there is no such file",
            "Make one: thumbwheel export VERSION --format gguf",
        )

    def connect() -> ServedClient:
        server = LlamaServer(file)
        server.start()
        client = Client(server.url, file.stem)

        def close() -> None:
            client.close()
            server.stop()

        return ServedClient(client, close)

    return ServedResponder(name, ids.fingerprint(["gguf", ids.file_hash(file)]), connect, 1)


def _answer(client: Client, ask: Ask, seed: int, workers: int) -> ModelAnswer | RequestRefused:
    """Send one request, of which `workers` run at once, and return the answer or the refusal."""
    body = {
        "messages": ask.prompt,
        "max_tokens": ask.max_new_tokens,
        "temperature": ask.temperature,
        "seed": seed,
    }
    began = time.perf_counter()
    try:
        reply = client.post("chat/completions", body)
    except RequestRefused as error:
        return error
    seconds = time.perf_counter() - began
    try:
        choice = reply["choices"][0]
        text, finish = choice["message"].get("content") or "", str(choice.get("finish_reason"))
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ModelError(
            f"model {client.model!r} at {client.url}",
            f"its reply has no message: {str(reply)[:120]}",
            "Check that it is a chat endpoint",
        ) from None
    usage: dict[str, Any] = reply.get("usage") or {}
    return ModelAnswer(
        text,
        finish,
        usage.get("completion_tokens"),
        usage.get("prompt_tokens"),
        seconds,
        busy=seconds / workers,
    )
