"""What is too much is refused with what to do, and a call is answered all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.servers.scripted_upstream import ScriptedUpstream
from tests.waiting import until
from tests.worlds.gateway_world import LOOPBACK, GatewayWorld, running, serve_remote
from thumbwheel.capture.quota import QuotaConfig, QuotaExceeded, Quotas
from thumbwheel.core import usage
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.usage import UsageFile
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import EndpointAddress

Serve = Callable[..., GatewayWorld]


@pytest.fixture
def serve(upstream: ScriptedUpstream, tmp_path: Path) -> Iterator[Serve]:
    with ExitStack() as stack:

        def start(require_capture: bool = False, **agents: Any) -> GatewayWorld:
            sections = {
                "quotas": {"agents": agents},
                "gateway": {"require_capture": require_capture},
                "endpoints": LOOPBACK,
            }
            sources = Sources(sections, "thumbwheel.yaml", {})
            ws = stack.enter_context(Workspace.open(Home(tmp_path / "home"), sources))
            serve_remote(ws, EndpointAddress(upstream.url, "large"))
            return stack.enter_context(running(ws))

        yield start


def send(gateway: GatewayWorld, agent: str = "support", rows: int = 1) -> Any:
    trace = {"agent": agent, "input": "Hello?", "output": "Hello."}
    return gateway.client.post("/api/traces", json=[trace] * rows)


def test_a_days_rows(serve: Serve) -> None:
    gateway = serve(support={"rows_per_day": 3})
    assert send(gateway, rows=2).status_code == 202
    refused = send(gateway, rows=2)
    assert refused.status_code == 429
    assert "3 rows a day" in refused.json()["detail"]
    assert refused.headers["retry-after"]
    assert send(gateway).status_code == 202, "of what was refused nothing is counted"
    assert send(gateway, agent="Support").status_code == 429, "by the name that rows have"
    assert send(gateway, agent="other").status_code == 202
    assert len(gateway.lines(4)) == 4


def test_a_days_bytes(serve: Serve) -> None:
    gateway = serve(support={"bytes_per_day": 200})
    statuses = [send(gateway).status_code for _ in range(4)]
    assert statuses == [202] * statuses.count(202) + [429] * statuses.count(429)
    assert statuses[0] == 202 and statuses[-1] == 429


def test_stored_traces(serve: Serve) -> None:
    gateway = serve(support={"traces": 2})
    assert send(gateway, rows=2).status_code == 202
    refused = send(gateway)
    assert refused.status_code == 507
    assert "retention" in refused.json()["detail"]


def test_a_call_beyond_the_quota_is_answered(serve: Serve) -> None:
    gateway = serve(support={"rows_per_day": 1})
    assert [gateway.ask().status_code for _ in range(3)] == [200] * 3
    until(lambda: gateway.application.gateway.recorder.losses.count >= 2)
    assert len(gateway.lines(1)) == 1
    problems = gateway.client.get("/health").json()["problems"]
    assert "QuotaExceeded" in problems["recording"]
    metrics = gateway.client.get("/metrics", headers=gateway.owner).text
    assert "thumbwheel_quota_refusals_total 2.0" in metrics


def test_with_require_capture_it_is_refused(serve: Serve) -> None:
    gateway = serve(require_capture=True, support={"rows_per_day": 1})
    assert [gateway.ask().status_code for _ in range(2)] == [200, 503]


def test_keys_and_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = QuotaConfig.model_validate({"keys": {"app": {"rows_per_day": 3}}})
    with UsageFile(tmp_path) as used:
        Quotas(config, used, lambda agent: 0).admit("app", [("a", 10), ("b", 10)])
    second = Quotas(config, UsageFile(tmp_path), lambda agent: 0)
    with pytest.raises(QuotaExceeded, match="key app"):
        second.admit("app", [("a", 10)] * 2)
    second.admit("other", [("a", 10)] * 5)
    second.admit("app", [("a", 10)])
    with pytest.raises(QuotaExceeded):
        second.admit("app", [("a", 10)])
    monkeypatch.setattr(usage, "_today", lambda: "2999-01-01")
    second.admit("app", [("a", 10)])
