"""Requests of some kilobytes that keep the server busy for seconds: one sender occupies neither the
threads, nor the event loop, nor what writes down the rows of everybody."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import iter_route_contexts

from tests.waiting import until
from tests.worlds.gateway_world import AGENT, HELLO, GatewayWorld, opened_home, running
from thumbwheel.access import keys, work_shares
from thumbwheel.access.needs import Need, needs_of
from thumbwheel.access.types import ANONYMOUS, Principal
from thumbwheel.access.work_shares import (
    AT_ONCE,
    MOST_WAITING,
    MOST_WAITING_BYTES,
    WorkShares,
    share_of,
)
from thumbwheel.capture import received, redact
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.capture.redact import Redactor
from thumbwheel.core.errors import Busy
from thumbwheel.datasets import preview
from thumbwheel.gateway import application, recorder, request
from thumbwheel.gateway.recorder import PendingCall, Recorder
from thumbwheel.importers.types import MOST_MESSAGES, MOST_STEPS
from thumbwheel.models.versions import ensure_agent
from thumbwheel.server.api import import_preview
from thumbwheel.server.pages import routes as page_routes

OTHER = "other"
THREADS = 40
"""Of the server, for everything that does not run on the event loop."""
MANY = THREADS + 10
PATIENCE = 300.0
"""Seconds in which requests that take turns are answered."""
LARGE = "".join(random.Random(0).choices("abcdefgh ", k=400_000))
"""A text that makes a body large wherever one may be, and is packed as texts are."""


def bearer(
    gateway: GatewayWorld, agent: str, *verbs: Any, name: str | None = None
) -> dict[str, str]:
    secret = keys.add(gateway.ws, name or f"of-{agent}", agents=[agent], verbs=verbs).secret
    return {"authorization": f"Bearer {secret}"}


class Held:
    """Work that does not end before `over` is set, for inputs that `is_held` says; `begun` counts
    how often it began."""

    def __init__(self, work: Callable[..., Any], is_held: Callable[..., bool]) -> None:
        self._work, self._is_held = work, is_held
        self.over = threading.Event()
        self.begun = 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self._is_held(*args, **options):
            self.begun += 1
            assert self.over.wait(120)
        return self._work(*args, **options)


@contextmanager
def sent(held: Held, send: Callable[[], Any], count: int) -> Iterator[list[Future[Any]]]:
    """Requests that are sent at once, and end with the block."""
    with ThreadPoolExecutor(count) as pool:
        answers = [pool.submit(send) for _ in range(count)]
        try:
            until(lambda: held.begun > 0)
            yield answers
        finally:
            held.over.set()


def require_answers(gateway: GatewayWorld, other: dict[str, str]) -> None:
    """Whoever asks for anything else is answered."""
    assert gateway.client.get("/live").status_code == 200
    assert gateway.client.get("/health").status_code in (200, 503)
    traces = gateway.client.get(f"/api/agents/{OTHER}/traces", headers=other)
    assert traces.status_code == 200
    rows = [{"agent": OTHER, "input": "Hello", "output": text} for text in ("Yes.", "No.")]
    assert gateway.client.post("/api/traces", json=rows, headers=other).status_code == 202
    call = dict(HELLO) | {"model": OTHER}
    assert gateway.client.post("/v1/chat/completions", json=call, headers=other).status_code == 404


@pytest.fixture
def other(gateway: GatewayWorld) -> dict[str, str]:
    """Headers of somebody who has nothing to do with the first agent."""
    for agent in (AGENT, OTHER):
        ensure_agent(gateway.ws, agent)
    return bearer(gateway, OTHER, "read", "rate", "call", name="somebody-else")


def test_previews_take_no_threads_of_others(
    gateway: GatewayWorld, other: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(import_preview.preview_file, lambda *args, **options: True)
    monkeypatch.setattr(import_preview, "preview_file", held)
    editors = [bearer(gateway, AGENT, "run", name=f"editor-{number}") for number in range(MANY)]
    waiting = iter(editors)

    def send() -> Any:
        row = b'{"prompt": "a", "response": "b"}\n'
        path = f"/api/agents/{AGENT}/imports/previews?path=a.jsonl"
        return gateway.client.post(path, content=row, headers=next(waiting), timeout=PATIENCE)

    with sent(held, send, MANY) as answers:
        require_answers(gateway, other)
        assert held.begun == 1, "keys of the same agent wait for each other"
    assert {answer.result().status_code for answer in answers} == {200}


def test_texts_to_show_take_no_threads_of_others(
    gateway: GatewayWorld, other: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(page_routes.markdown_of_all, lambda texts: True)
    monkeypatch.setattr(page_routes, "markdown_of_all", held)
    reader = bearer(gateway, AGENT, "read")

    def send() -> Any:
        texts = {"texts": ["*a*"]}
        return gateway.client.post("/api/markdown", json=texts, headers=reader, timeout=PATIENCE)

    with sent(held, send, MANY) as answers:
        require_answers(gateway, other)
        assert held.begun == 1
    assert {answer.result().status_code for answer in answers} == {200}


def test_every_route_that_works_in_a_thread_takes_turns(gateway: GatewayWorld) -> None:
    api = gateway.application.api
    gated = {path for path, need in needs_of(api).items() if isinstance(need, Need)}
    unbounded = [
        route.path
        for route in iter_route_contexts(api.routes)
        if any(f"{method} {route.path}" in gated for method in route.methods or ())
        and not iscoroutinefunction(route.endpoint)
    ]
    assert len(gated) > 150 and unbounded == []


def test_a_share_gets_a_few_threads() -> None:
    shares = WorkShares()
    over = asyncio.Event()
    begun = {"a": 0, "b": 0}

    async def work(name: str) -> None:
        async with shares.thread_turn(name):
            begun[name] += 1
            await over.wait()

    async def main() -> None:
        tasks = [asyncio.create_task(work("a")) for _ in range(MOST_WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await work("a")
        tasks.append(asyncio.create_task(work("b")))
        await asyncio.sleep(0)
        assert begun == {"a": AT_ONCE, "b": 1}
        over.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert begun == {"a": MOST_WAITING, "b": 1}
    assert not shares._shares, "what nobody uses is forgotten"


def test_what_waits_holds_a_bounded_memory() -> None:
    shares = WorkShares()

    async def main() -> None:
        async with shares.reading_turn("a", "rows", 2 * MOST_WAITING_BYTES):
            with pytest.raises(Busy):
                async with shares.reading_turn("a", "rows", 1):
                    pass
            async with shares.reading_turn("b", "rows", 1):
                pass
        async with shares.reading_turn("a", "rows", MOST_WAITING_BYTES):
            pass

    asyncio.run(main())
    assert not shares._shares


def test_what_is_large_is_read_for_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(work_shares.asyncio, "sleep", sleep)
    monkeypatch.setattr(work_shares.time, "monotonic", lambda: 1000.0)

    async def main() -> None:
        shares = WorkShares()
        for name in ("a", "a", "b"):
            async with shares.reading_turn(name, "rows") as turn:
                turn.seconds += 3.0
        async with shares.reading_turn("a", "call"):
            pass

    asyncio.run(main())
    assert pauses == [0.0, 3.0, 0.0, 0.0]


def test_keys_of_the_same_agents_have_one_share() -> None:
    verbs = frozenset({"call"})

    def key(name: str, *agents: str) -> Principal:
        return Principal(name, name, "key", dict.fromkeys(agents, verbs))  # type: ignore[arg-type]

    assert share_of(key("a", "x")) == share_of(key("b", "x"))
    assert share_of(key("a", "x", "y")) == share_of(key("b", "y", "x"))
    assert share_of(key("a", "x")) != share_of(key("a", "y"))
    assert share_of(key("a", "*")) != share_of(key("b", "*"))
    assert share_of(ANONYMOUS) == ANONYMOUS.id


def test_a_large_row_is_read_off_the_event_loop(
    gateway: GatewayWorld, other: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(received.rows_of, lambda content, are_lines: LARGE.encode() in content)
    monkeypatch.setattr(received, "rows_of", held)
    app = bearer(gateway, AGENT, "call")
    row = {"agent": AGENT, "input": LARGE, "output": "Yes."}
    packed = gzip.compress(json.dumps(row).encode())
    headers = {**app, "content-type": "application/json", "content-encoding": "gzip"}

    def send() -> Any:
        path = "/api/traces"
        return gateway.client.post(path, content=packed, headers=headers, timeout=PATIENCE)

    with sent(held, send, MANY) as answers:
        require_answers(gateway, other)
        assert held.begun == 1
        small = {"agent": AGENT, "input": "Hello", "output": "Yes."}
        reply = gateway.client.post("/api/traces", json=small, headers=app)
        assert reply.status_code == 202, "what is small does not wait for what is large"
    assert {answer.result().status_code for answer in answers} == {202}


def test_a_large_row_is_redacted_while_others_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(Redactor.line, lambda redactor, line: line.get("input") == LARGE)
    monkeypatch.setattr(
        redact.Redactor, "line", lambda redactor, line: held(redactor, line), raising=True
    )
    with opened_home(tmp_path / "home", redaction="on") as ws, running(ws) as gateway:
        for agent in (AGENT, OTHER):
            ensure_agent(ws, agent)
        app, other = (bearer(gateway, agent, "call", "read") for agent in (AGENT, OTHER))
        row = {"agent": AGENT, "input": LARGE, "output": "Mail bob@example.com"}

        def send() -> Any:
            return gateway.client.post("/api/traces", json=row, headers=app)

        with sent(held, send, 3) as answers:
            require_answers(gateway, other)
        assert {answer.result().status_code for answer in answers} == {202}
        lines = gateway.lines(5)
        large = [line for line in lines if line["input"] == LARGE]
        assert len(large) == 3
        assert all("bob@example.com" not in json.dumps(line) for line in large)


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_large_call_is_read_off_the_event_loop(
    gateway: GatewayWorld,
    other: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    is_packed: bool,
) -> None:
    held = Held(application.read_object, lambda body, headers: LARGE.encode() in body)
    monkeypatch.setattr(application, "read_object", held)
    app = bearer(gateway, AGENT, "call")
    call = dict(HELLO) | {"messages": [{"role": "user", "content": LARGE}]}
    body = json.dumps(call).encode()
    headers = {**app, "content-type": "application/json"}
    if is_packed:
        body, headers = gzip.compress(body), {**headers, "content-encoding": "gzip"}

    def send() -> Any:
        return gateway.client.post("/v1/chat/completions", content=body, headers=headers)

    with sent(held, send, 3) as answers:
        require_answers(gateway, other)
        assert held.begun == 1
    assert {answer.result().status_code for answer in answers} == {404}


def test_a_call_of_many_lists_is_refused_unread(
    gateway: GatewayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list takes ten times as long to read as a number."""
    monkeypatch.setattr(request, "parsed", lambda body: pytest.fail("it was read"))
    lists = b",".join([b"[]"] * (request.MOST_CONTAINERS + 1))
    body = b'{"model": "nobody", "metadata": {"list": [' + lists + b"]}}"
    headers = {"content-type": "application/json"}
    reply = gateway.client.post("/v1/chat/completions", content=body, headers=headers)
    assert reply.status_code == 413


def test_a_text_full_of_brackets_is_no_list(gateway: GatewayWorld) -> None:
    body = {"model": "nobody", "input": "[{" * request.MOST_CONTAINERS}
    assert gateway.client.post("/v1/embeddings", json=body).status_code == 404


@pytest.mark.parametrize(
    "content",
    [
        {"input": [{"role": "user", "content": "x"}] * (MOST_MESSAGES + 1)},
        {"input": "x", "steps": [{"kind": "tool", "name": "a"}] * (MOST_STEPS + 1)},
    ],
)
def test_a_trace_of_countless_parts_is_refused(
    gateway: GatewayWorld, content: dict[str, Any]
) -> None:
    """All parts of a trace are stored in one transaction, for which everybody waits."""
    row = {"agent": AGENT, "output": "Yes."} | content
    reply = gateway.client.post("/api/traces", json=row)
    assert reply.status_code == 422, reply.text
    whole = {key: value[:-1] if isinstance(value, list) else value for key, value in row.items()}
    assert gateway.client.post("/api/traces", json=whole).status_code == 202
    assert drain_inbox(gateway.ws)


def test_a_preview_reads_a_bounded_number_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preview, "MOST_PREVIEWED", 10)
    rows = [json.dumps({"question": f"q{number}", "answer": "a"}) for number in range(25)]
    files = {"rows.jsonl": rows, "rows.csv": ["question,answer", *(f"q{n},a" for n in range(25))]}
    for name, lines in files.items():
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        shown = preview.preview_file(path, AGENT, case_rule=lambda *_: None)  # type: ignore[arg-type]
        assert (shown.read, shown.importable) == (10, 10)
        assert "only the first 10 rows were read" in shown.notes


def test_the_calls_of_one_share_leave_room_in_the_queue_of_the_recorder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With `require_capture` all calls are refused while the recorder has a problem."""
    monkeypatch.setattr(recorder, "MOST_BYTES", 1000)
    over = threading.Event()
    charged: list[str] = []

    def line() -> None:
        assert over.wait(60)

    class NoDisk:
        """Nothing is written."""

        def append(self, line: bytes) -> Future[None]:
            raise AssertionError

        def close(self) -> None:
            pass

    with Recorder(NoDisk) as recording:
        for number in range(20):
            charge = partial(charged.append, f"a{number}")
            recording.add(PendingCall(line, 100, charge, share="a"))
        assert recording.waiting == 7 and recording.losses.count == 13
        assert charged == [f"a{number}" for number in range(7, 20)]
        assert recording.problem() is None
        recording.add(PendingCall(line, 100, share="b"))
        assert recording.waiting == 8 and recording.losses.count == 13
        for _ in range(20):
            recording.add(PendingCall(line, 100, share="c"))
        assert recording.losses.count > 13 and recording.problem() is None
        over.set()
    assert recording.waiting == 0
