"""Calls that fill the memory: each waits for a slow model with all that it asked, and what an
upstream answers waits for the disk."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.servers.scripted_upstream import Received, ScriptedUpstream, chat_reply, chunk, reply
from tests.servers.scripted_upstream import stream_head as head_of
from tests.waiting import until
from tests.worlds.gateway_world import GatewayWorld, opened_home, running, serve_remote
from thumbwheel.access import keys
from thumbwheel.core.errors import ModelError
from thumbwheel.gateway import application
from thumbwheel.gateway.held_bytes import HeldBytes
from thumbwheel.gateway.refusal import Refusal
from thumbwheel.llm import checked_transport
from thumbwheel.models.types import EndpointAddress

MIB = 1 << 20
VALUES: dict[str, Any] = {"metadata": {"list": [[] for _ in range(20_000)]}}
"""Sixty thousand bytes, and twenty thousand values that take more than a megabyte."""


def test_calls_that_wait_hold_a_bounded_memory(tmp_path: Path) -> None:
    over = threading.Event()

    def answered(request: Received) -> Iterable[Any]:
        over.wait(60)
        return [reply(chat_reply())]

    with (
        ScriptedUpstream() as upstream,
        opened_home(tmp_path / "home", {"max_held": 8 * MIB}) as ws,
    ):
        serve_remote(ws, EndpointAddress(upstream.url, "large"))
        upstream.script = answered
        with running(ws) as gateway, ThreadPoolExecutor(10) as pool:
            calls = [pool.submit(gateway.ask, VALUES) for _ in range(10)]
            until(lambda: sum(call.done() for call in calls) >= 5)
            refused = [call.result() for call in calls if call.done()]
            assert {answer.status_code for answer in refused} == {429}
            assert refused[0].headers["retry-after"] and "max_held" in refused[0].text
            assert gateway.application.gateway.held.total <= 6 * MIB
            over.set()
            statuses = [call.result().status_code for call in calls]
            assert statuses.count(200) >= 2
            # all of it is given back, also by those that were refused
            assert gateway.application.gateway.held.total == 0
            assert gateway.ask(VALUES).status_code == 200


def test_one_key_leaves_room_for_the_calls_of_others(tmp_path: Path) -> None:
    over = threading.Event()

    def answered(request: Received) -> Iterable[Any]:
        over.wait(60)
        return [reply(chat_reply())]

    with (
        ScriptedUpstream() as upstream,
        opened_home(tmp_path / "home", {"max_held": 8 * MIB}) as ws,
    ):
        serve_remote(ws, EndpointAddress(upstream.url, "large"))
        upstream.script = answered
        greedy, other = (
            {"authorization": f"Bearer {keys.add(ws, name).secret}"} for name in ("greedy", "other")
        )
        with running(ws) as gateway, ThreadPoolExecutor(12) as pool:
            calls = [pool.submit(gateway.ask, VALUES, headers=greedy) for _ in range(10)]
            until(lambda: sum(call.done() for call in calls) >= 6)
            refused = [call.result() for call in calls if call.done()]
            assert {answer.status_code for answer in refused} == {429}
            waiting = pool.submit(gateway.ask, headers=other)
            until(
                lambda: (
                    gateway.application.gateway.running
                    == 1 + sum(not call.done() for call in calls)
                )
            )
            assert not waiting.done()
            over.set()
            assert waiting.result().status_code == 200
            statuses = [call.result().status_code for call in calls]
            assert statuses.count(200) >= 2


@pytest.mark.parametrize("n_callers", [1, 2, 5])
def test_whoever_comes_next_finds_room(n_callers: int) -> None:
    held = HeldBytes(1 << 20)
    with ExitStack() as stack:
        stack.enter_context(held.of_call("bystander")).hold(16)  # so that nobody runs alone
        for number in range(n_callers):
            call = stack.enter_context(held.of_call(f"key_{number}"))
            with pytest.raises(Refusal):
                while True:
                    call.hold(16)
            assert call.count > 16
        assert held.total < 1 << 20
    assert held.total == 0


def test_a_call_that_runs_alone_is_taken_however_large(tmp_path: Path) -> None:
    with ScriptedUpstream() as upstream, opened_home(tmp_path / "home", {"max_held": MIB}) as ws:
        serve_remote(ws, EndpointAddress(upstream.url, "large"))
        with running(ws) as gateway:
            assert gateway.ask(VALUES).status_code == 200


def test_an_answer_without_an_end_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "MOST_HELD_OF_REPLY", 4 * MIB)
    endless = Endless()
    with (
        ScriptedUpstream() as upstream,
        opened_home(tmp_path / "home", {"require_capture": True}) as ws,
    ):
        serve_remote(ws, EndpointAddress(upstream.url, "large"))
        upstream.script = endless
        with running(ws) as gateway:
            answer = gateway.ask()
            assert answer.status_code == 502 and "too large" in answer.text
            assert endless.sent < 100 * MIB
            assert recorded_error(gateway) == application.TOO_MUCH


@pytest.mark.parametrize("head", [(), ("content-encoding: gzip",)])
def test_a_list_of_models_without_an_end_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: tuple[str, ...]
) -> None:
    """A deployment asks the server for its models, which an owner of one agent registered."""
    monkeypatch.setattr(checked_transport, "MOST_BYTES", 4 * MIB)
    endless = Endless(head)
    with ScriptedUpstream(endless) as upstream, opened_home(tmp_path / "home") as ws:
        with pytest.raises(ModelError, match=r"more than 4,194,304 bytes|packed"):
            serve_remote(ws, EndpointAddress(upstream.url, "large"))
        assert endless.sent < 100 * MIB


class Endless:
    """A script of an answer that goes on and on."""

    def __init__(self, head: Sequence[str] = ()) -> None:
        self.head = head
        self.sent = 0

    def __call__(self, request: Received) -> Iterable[Any]:
        yield head_of("application/json", *self.head)
        while self.sent < 200 * MIB:
            self.sent += MIB
            yield chunk(b" " * MIB)


def recorded_error(gateway: GatewayWorld) -> Any:
    """Why the recorded call failed."""
    (line,) = gateway.lines()
    return line["steps"][-1]["error"]
