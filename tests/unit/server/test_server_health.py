"""Health tells the truth: each part that stands still is named while it does, and no longer."""

from __future__ import annotations

import re
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.servers.scripted_upstream import ScriptedUpstream
from tests.unit.server.conftest import Serve
from tests.waiting import until
from tests.worlds.gateway_world import GatewayWorld
from thumbwheel.jobs import claims, queue, schedules
from thumbwheel.jobs.types import JobsConfig, JobState
from thumbwheel.server import serve as serve_module
from thumbwheel.server.health import HealthCheck, ServerHealth, TimeLimited


def test_a_server_that_works_is_green(gateway: GatewayWorld) -> None:
    gateway.ask()
    health = gateway.client.get("/health")
    assert health.status_code == 200
    assert health.json()["status"] == "green"
    assert health.json()["problems"] == {}
    for path in ("/ready", "/live"):
        assert gateway.client.get(path).json()["status"] == "green"


def test_lines_that_nobody_drains(gateway: GatewayWorld) -> None:
    """The drainer of this server looks once an hour."""
    old = gateway.ws.home.inbox / f"spool-{int(1000 * (time.time() - 60)):013}-1-0.jsonl"
    old.write_text("{}\n")
    health = gateway.client.get("/health")
    assert health.status_code == 503
    waits = re.fullmatch(
        r"recorded lines wait for (\d+) s to become rows", health.json()["problems"]["drainer"]
    )
    assert waits and int(waits[1]) >= 60
    assert gateway.client.get("/ready").status_code == 200, "calls are answered all the same"
    old.unlink()
    assert gateway.client.get("/health").status_code == 200


def test_a_write_that_waits(gateway: GatewayWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_module, "BACKLOG_SECONDS", 0.05)
    over = threading.Event()
    write = gateway.ws.db.submit(lambda connection: over.wait(60))
    until(lambda: gateway.ws.db.oldest_waiting() > serve_module.BACKLOG_SECONDS)
    health = gateway.client.get("/health")
    over.set()
    write.result(60)
    assert "a write waits" in health.json()["problems"]["writer"]
    assert gateway.client.get("/health").status_code == 200


@pytest.mark.parametrize("require_capture", [False, True])
def test_calls_that_cannot_be_recorded(
    serve: Serve, upstream: ScriptedUpstream, require_capture: bool, tmp_path: Path
) -> None:
    gateway = serve(require_capture=require_capture)
    inbox = gateway.ws.home.inbox
    inbox.rename(inbox.with_name("elsewhere"))
    inbox.write_text("no folder")
    try:
        assert gateway.ask().status_code == (503 if require_capture else 200)
        until(gateway.application.gateway.recorder.problem)
        health = gateway.client.get("/health").json()
        assert "not recorded" in health["problems"]["recording"]
        assert health["lost_calls"] == 1
        ready = gateway.client.get("/ready")
        assert ready.status_code == (503 if require_capture else 200)
    finally:
        inbox.unlink()
        inbox.with_name("elsewhere").rename(inbox)


def test_a_server_that_leaves_is_alive_and_not_ready(gateway: GatewayWorld) -> None:
    gateway.application.health.leaving.set()
    ready = gateway.client.get("/ready")
    assert ready.status_code == 503
    assert ready.headers["connection"] == "close"
    assert "takes no new calls" in ready.json()["problems"]["server"]
    assert gateway.client.get("/live").status_code == 200
    assert gateway.ask().status_code == 200


def test_jobs_and_schedules_that_nobody_looks_at(
    gateway: GatewayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This server has no workers."""
    monkeypatch.setattr(serve_module, "standstill", lambda ws: queue.standstill(ws, 0.0))
    queue.enqueue(gateway.ws, "train", {})
    schedules.add(gateway.ws, "nightly", "import", {}, "0 3 * * *")
    late = datetime.now(UTC) + timedelta(days=2)
    monkeypatch.setattr(serve_module, "overdue", lambda ws: schedules.overdue(ws, now=late))
    problems = gateway.client.get("/health").json()["problems"]
    assert problems["jobs"].endswith("no worker is alive")
    assert problems["schedules"].startswith("a schedule is ")
    metrics = gateway.client.get("/metrics", headers=gateway.owner).text
    assert 'thumbwheel_jobs{state="queued"} 1.0' in metrics
    assert "thumbwheel_workers 0.0" in metrics
    schedules.pause(gateway.ws, "nightly")
    assert "schedules" not in gateway.client.get("/health").json()["problems"]


def test_jobs_that_crash_one_after_the_other(gateway: GatewayWorld) -> None:
    ws = gateway.ws
    error = {"kind": "Crash", "what": "job", "why": "SystemError: of a person", "fix": "Report it"}
    config = JobsConfig()

    def end(state: JobState, error: dict[str, str] | None) -> None:
        queue.enqueue(ws, "import", {})
        now = datetime.now(UTC)

        def work(connection: sa.Connection) -> None:
            job = claims.claim(connection, "wrk_a", {"import": ()}, config, now)
            assert job is not None
            claims.finish(connection, job, state, now, error=error)

        ws.db.write(work)

    for _ in range(queue.CRASHES_IN_A_ROW):
        assert "attempts" not in gateway.client.get("/health").json()["problems"]
        end(JobState.FAILED, error)
    problem = gateway.client.get("/health").json()["problems"]["attempts"]
    assert "the last 3 jobs crashed" in problem and problem.count("SystemError") == 1
    assert "of a person" not in problem, "health is public"
    end(JobState.SUCCEEDED, None)
    assert "attempts" not in gateway.client.get("/health").json()["problems"]


def test_a_database_that_does_not_answer_keeps_nobody_waiting() -> None:
    """However often it is asked meanwhile, one thread waits; then its answer counts again."""
    n_readings = 0
    answers = threading.Event()

    def problem() -> str | None:
        nonlocal n_readings
        n_readings += 1
        answers.wait(60)
        return None

    check = TimeLimited(problem, seconds=0.05)
    for _ in range(3):
        assert check() == "its state could not be read within 0.05 s"
    until(lambda: n_readings == 1)
    answers.set()
    until(lambda: check() is None)


def test_a_busy_database_is_as_it_was_for_a_while() -> None:
    blocked = threading.Event()
    answers = ["first"]

    def problem() -> str | None:
        if not answers:
            blocked.wait(60)
            return "second"
        return answers.pop()

    check = TimeLimited(problem, seconds=0.05, known_seconds=3600)
    until(lambda: check() == "first")
    assert check() == "first", "the next reading waits"
    forgetful = TimeLimited(problem, seconds=0.05, known_seconds=0)
    assert forgetful() == "its state could not be read within 0.05 s"
    blocked.set()
    until(lambda: check() == "second")


def test_what_a_limited_check_raises_is_heard() -> None:
    def problem() -> str | None:
        raise ValueError("no such table")

    with pytest.raises(ValueError, match="no such table"):
        TimeLimited(problem)()


def test_a_check_that_fails_tells_strangers_no_more_than_its_kind() -> None:
    def fail() -> str | None:
        raise OSError("connection to postgresql://wheel:hidden@db.internal failed")

    problems = ServerHealth([HealthCheck("jobs", fail)], {}).problems()
    assert problems == {"jobs": "its state cannot be read (OSError); see the log"}
