"""Sides behind HTTP: an OpenAI-compatible endpoint, or a GGUF file that a llama-server of our own
serves while questions last.

They are asked as an app would ask them: messages to the chat endpoint, the server's own template.
Servers tell no log-probabilities of given texts, so these sides have none. What stands behind a
name at an endpoint may change: its answers are kept under the version that it was asked as, and
under what the server says of the model's content.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from thumbwheel.core import ids, log
from thumbwheel.core.errors import InputError, ModelError
from thumbwheel.evaluation.types import Answer, Answers, Ask, Known, Sums
from thumbwheel.llm.client import Client, Refused

TOLD = 5.0
"""Seconds for what a server says of its models."""
CONTENT = ("digest", "root", "parent", "meta")
"""What Ollama, vLLM and llama-server list of a model that changes with its content."""
Line = tuple[Client, Callable[[], None]]
"""A client, and what lets go of it and of what it talks to."""


@dataclass
class Served:
    """See the module. `connect` is called when the first question is asked."""

    name: str
    identity: str
    connect: Callable[[], Line]
    parallel: int
    batch: int = 32
    scores: bool = False
    _line: list[Line] = field(default_factory=list)

    def answers(self, asks: Sequence[Ask]) -> list[Answers]:
        """Each in a request of its own, `parallel` at once; none to a question that the server
        refuses for good, such as a long one."""
        if not self._line:
            self._line.append(self.connect())
        client, _ = self._line[0]
        jobs = [(one, number) for one in asks for number in range(one.samples)]
        at_once = min(self.parallel, len(jobs)) or 1
        with ThreadPoolExecutor(at_once) as pool:
            replies = list(pool.map(lambda job: _answer(client, job[0], job[1], at_once), jobs))
        refused = [one for one in replies if isinstance(one, Refused)]
        if refused:
            log.say(
                f"{self.name} gives no answer to {len(refused)} of {len(replies)} questions: "
                f"{refused[0].why}"
            )
        each = iter(replies)
        several = [[next(each) for _ in range(one.samples)] for one in asks]
        answered = [tuple(one for one in some if isinstance(one, Answer)) for some in several]
        return [
            some if len(some) == one.samples else ()
            for some, one in zip(answered, asks, strict=True)
        ]

    def log_probabilities(self, asks: Sequence[Known]) -> list[Sums]:
        """None are known."""
        return [()] * len(asks)

    def close(self) -> None:
        """End the connection, and the server if it is ours."""
        while self._line:
            self._line.pop()[1]()


def endpoint(
    name: str, url: str, model: str, api_key: str | None, parallel: int, version_id: str
) -> Served:
    """`model` at `url`, as http://127.0.0.1:8000/v1, in the place of a version."""

    def connect() -> Line:
        client = Client(url, model, api_key=api_key)
        return client, client.close

    identity = [
        "endpoint",
        url.rstrip("/"),
        model,
        version_id,
        _content(url.rstrip("/"), model, api_key),
    ]
    return Served(name, ids.fingerprint(identity), connect, parallel)


def _content(url: str, model: str, api_key: str | None) -> Any:
    """What tells this model from another one of its name: its digest in Ollama, else its file or
    adapter; None where nobody says."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    with httpx.Client(headers=headers, timeout=TOLD) as client:
        tagged = _listed(
            client,
            f"{url.removesuffix('/v1')}/api/tags",
            "models",
            "name",
            {model, f"{model}:latest"},
        )
        listed = tagged or _listed(client, f"{url}/models", "data", "id", {model})
    return {key: listed[key] for key in CONTENT if listed.get(key)} or None


def _listed(
    client: httpx.Client, address: str, within: str, key: str, names: set[str]
) -> dict[str, Any]:
    try:
        found = client.get(address).raise_for_status().json()[within]
        return next((one for one in found if one[key] in names), {})
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return {}


def gguf(name: str, file: Path) -> Served:
    """A GGUF file through a llama-server; one question at a time, since answers depend on what else
    is in a batch."""
    from thumbwheel.llm.llama_server import LlamaServer

    if not file.is_file():
        raise InputError(
            f"GGUF file {str(file)!r}",
            "there is no such file",
            "Make one: thumbwheel export VERSION --format gguf",
        )

    def connect() -> Line:
        server = LlamaServer(file)
        server.start()
        client = Client(server.url, file.stem)

        def close() -> None:
            client.close()
            server.stop()

        return client, close

    return Served(name, ids.fingerprint(["gguf", ids.file_hash(file)]), connect, 1)


def _answer(client: Client, asked: Ask, number: int, at_once: int) -> Answer | Refused:
    body = {
        "messages": asked.prompt,
        "max_tokens": asked.max_new_tokens,
        "temperature": asked.temperature,
        "seed": number,
    }
    began = time.perf_counter()
    try:
        reply = client.post("chat/completions", body)
    except Refused as error:
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
    return Answer(
        text,
        finish,
        usage.get("completion_tokens"),
        usage.get("prompt_tokens"),
        seconds,
        busy=seconds / at_once,
    )
