"""Requests of some kilobytes that name one thing many times, or very much at once: it is read and
changed once, others do not wait for it, and too much is refused."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.gateway_world import AGENT, GatewayWorld
from thumbwheel.access import audit, keys
from thumbwheel.access.work_shares import AT_ONCE
from thumbwheel.capture import cases, store, trace_queries
from thumbwheel.capture.exclusion import exclude, readmit
from thumbwheel.capture.ingest import ingest
from thumbwheel.core.errors import InputError
from thumbwheel.models.types import Agent
from thumbwheel.rewards.functions.regex import compiled
from thumbwheel.server.api import events
from thumbwheel.server.api.events import MOST_POINTS
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.types import Run, RunState


@pytest.fixture
def trace(gateway: GatewayWorld, tmp_path: Path) -> str:
    """The id of a trace with a like."""
    file = tmp_path / "lines.jsonl"
    file.write_text(
        '{"type": "trace", "id": "t", "input": "Why?", "output": "So."}\n'
        '{"type": "feedback", "kind": "thumb", "value": true, "target": {"trace": "t"}}\n'
    )
    ingest(gateway.ws, AGENT, "jsonl", file)
    with gateway.ws.db.read() as connection:
        return trace_queries.trace_ids(connection, Agent.named(AGENT), ["t"])[0]


def beginnings(trace: str) -> list[str]:
    """Return names of one trace: its id, beginnings of it, and that of its source, each twice."""
    return 2 * [trace, *(trace[:end] for end in range(len(trace) - 8, len(trace))), "t"]


def test_a_trace_that_is_excluded_by_many_names_is_changed_once(
    gateway: GatewayWorld, trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    set_metadata = store.set_metadata

    def note(connection: Any, trace_id: str, metadata: Any) -> None:
        written.append(trace_id)
        set_metadata(connection, trace_id, metadata)

    monkeypatch.setattr(store, "set_metadata", note)
    agent = Agent.named(AGENT)
    assert exclude(gateway.ws, agent, beginnings(trace), "wrong", "ann").traces == [trace]
    assert readmit(gateway.ws, agent, beginnings(trace)).traces == [trace]
    assert written == [trace, trace]


def test_traces_are_looked_up_before_others_wait(
    gateway: GatewayWorld, trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes holds the lock that all writers of a home wait for."""
    is_writing = threading.Event()
    write = gateway.ws.db.write

    def noted(*arguments: Any, **options: Any) -> Any:
        is_writing.set()
        return write(*arguments, **options)

    def looked_up(connection: Any, agent: Agent, names: Any) -> list[str]:
        assert not is_writing.is_set()
        return [trace]

    monkeypatch.setattr(gateway.ws.db, "write", noted)
    monkeypatch.setattr(trace_queries, "trace_ids", looked_up)
    exclude(gateway.ws, Agent.named(AGENT), ["t"], "wrong", "ann")
    assert is_writing.is_set()


@pytest.mark.parametrize("path", ["exclusions", "cases/traces"])
def test_too_many_names_are_refused(gateway: GatewayWorld, trace: str, path: str) -> None:
    names = [f"trc_{number}" for number in range(trace_queries.MOST_NAMES + 1)]
    body = {"traces": names, "reason": "wrong"} if path == "exclusions" else {"traces": names}
    url = f"/api/agents/{AGENT}/{path}"
    answer = gateway.client.post(url, json=body, headers=gateway.owner)
    assert answer.status_code == 422
    assert trace not in answer.text


def test_a_trace_that_is_named_many_times_becomes_one_case(
    gateway: GatewayWorld, trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent.named(AGENT)
    (draft,) = cases.case_drafts(gateway.ws, agent, beginnings(trace))
    assert draft.trace == trace
    monkeypatch.setattr(cases, "MOST_BYTES", 10)
    with pytest.raises(InputError, match="MB already"):
        cases.case_drafts(gateway.ws, agent, [trace])
    with pytest.raises(InputError, match="MB already"):
        cases.draw_drafts(gateway.ws, agent, 1)


def test_a_run_that_is_named_many_times_is_one_curve(
    gateway: GatewayWorld, trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run("run_1", AGENT, "sft", "dst_1", "base", None, {}, RunState.FINISHED, None, None)
    monkeypatch.setattr(events, "runs", lambda ws, agent: [run])
    folder = RunDir(gateway.ws.home.runs / run.id)
    folder.path.mkdir(parents=True)
    folder.metrics.write_text('{"step": 1, "loss": 0.5}\n')
    url = f"/api/agents/{AGENT}/curves"
    answer = gateway.client.get(url, params={"run": 150 * ["run_1"]}, headers=gateway.owner)
    assert [curve["run_id"] for curve in answer.json()] == ["run_1"]
    many = {"run": [f"run_{number}" for number in range(1 + MOST_POINTS // 2000)], "points": 2000}
    answer = gateway.client.get(url, params=many, headers=gateway.owner)
    assert answer.status_code == 422 and "points" in answer.text


@pytest.mark.parametrize(
    "pattern", ["(?:" + "a?" * 480 + "){20000}", "(?:(?:" + "a?" * 400 + "){100}){100}"]
)
def test_a_pattern_that_repeats_much_is_not_compiled(pattern: str) -> None:
    """It took 4.7 GB, and the lock of the interpreter for as long."""
    with pytest.raises(ValueError, match="written out"):
        compiled(pattern, False)


def test_changes_of_one_sender_are_written_down_in_its_own_turns(
    gateway: GatewayWorld, trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While others hold the lock of the audit log, its changes do not take all threads."""
    waiting, most = set[int](), []
    is_open = threading.Event()
    record = audit.record

    def blocked(*arguments: Any) -> None:
        waiting.add(threading.get_ident())
        most.append(len(waiting))
        is_open.wait(30)
        waiting.discard(threading.get_ident())
        record(*arguments)

    monkeypatch.setattr(audit, "record", blocked)
    key = keys.add(gateway.ws, "k", agents=[AGENT], verbs=["edit", "read"]).secret
    headers = {"authorization": f"Bearer {key}"}

    def change(number: int) -> int:
        url = f"/api/agents/{AGENT}/prompts/p{number}"
        return int(gateway.client.put(url, json={"text": "Hi"}, headers=headers).status_code)

    with ThreadPoolExecutor(4 * AT_ONCE) as pool:
        changes = [pool.submit(change, number) for number in range(4 * AT_ONCE)]
        while len(most) < AT_ONCE:
            time.sleep(0.01)
        is_open.set()
        assert {each.result() < 300 for each in changes} == {True}
    assert max(most) == AT_ONCE
