"""`/metrics` counts what was asked, in the form that is asked for."""

from __future__ import annotations

import time

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.leaving_client import asked
from tests.servers.scripted_upstream import HANG, ScriptedUpstream, reply
from tests.unit.server.conftest import Serve
from tests.waiting import until
from tests.worlds.gateway_world import CHAT, HELLO, GatewayWorld

OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0"}


def samples(gateway: GatewayWorld, name: str) -> dict[tuple[str, ...], float]:
    """The values of a metric by those of its labels, in the order of the labels' names."""
    answer = gateway.client.get("/metrics", headers=OPENMETRICS | gateway.owner)
    values = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            if sample.name == name:
                values[tuple(value for _, value in sorted(sample.labels.items()))] = sample.value
    return values


def test_calls_and_requests_are_counted(gateway: GatewayWorld, upstream: ScriptedUpstream) -> None:
    gateway.ask()
    upstream.script = lambda request: [reply({"error": {"message": "busy"}}, "503 Unavailable")]
    gateway.ask()
    gateway.client.post("/api/feedback", json={"agent": "support", "trace": "t", "thumb": True})
    gateway.client.get("/nothing/here")
    gateway.client.request("PROPFIND", "/nothing/here")
    assert samples(gateway, "thumbwheel_calls_total") == {
        ("support", "200", "v0"): 1.0,
        ("support", "503", "v0"): 1.0,
    }
    requests = samples(gateway, "thumbwheel_http_requests_total")
    assert requests["POST", "/v1/chat/completions", "200"] == 1
    assert requests["POST", "/api/feedback", "202"] == 1
    assert requests["GET", "other", "404"] == 1
    assert requests["other", "other", "404"] == 1
    assert samples(gateway, "thumbwheel_http_request_seconds_count")[("/v1/chat/completions",)] == 2


def test_a_bucket_names_a_trace_that_fell_into_it(gateway: GatewayWorld) -> None:
    trace_id = gateway.ask().headers["x-thumbwheel-trace"]
    text = gateway.client.get("/metrics", headers=OPENMETRICS | gateway.owner).text
    for family in text_string_to_metric_families(text):
        if family.name == "thumbwheel_call_seconds":
            exemplars = [sample.exemplar.labels for sample in family.samples if sample.exemplar]
    assert exemplars == [{"trace_id": trace_id}]


def test_prometheus_own_form_is_the_default(gateway: GatewayWorld) -> None:
    gateway.ask()
    answer = gateway.client.get("/metrics", headers=gateway.owner)
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'thumbwheel_calls_total{agent="support",status="200",version="v0"} 1.0' in answer.text
    assert "trace_id" not in answer.text


def test_who_may_not_read_sees_no_agent(gateway: GatewayWorld) -> None:
    assert gateway.client.get("/metrics").status_code == 401


def test_the_state_of_the_parts(gateway: GatewayWorld) -> None:
    gateway.ask()
    gateway.lines(1)
    time.sleep(0.01)
    assert samples(gateway, "thumbwheel_inbox_bytes")[()] > 100
    assert samples(gateway, "thumbwheel_drain_lag_seconds")[()] > 0
    assert samples(gateway, "thumbwheel_lost_calls_total")[()] == 0
    problems = samples(gateway, "thumbwheel_problem")
    assert problems[("drainer",)] == 0.0
    assert samples(gateway, "process_resident_memory_bytes")[()] > 1e6


def test_a_client_that_left_is_no_success(serve: Serve, upstream: ScriptedUpstream) -> None:
    gateway = serve()
    upstream.script = lambda request: [HANG]
    with asked(f"{gateway.url}{CHAT}", HELLO):
        until(lambda: upstream.requests)
    until(lambda: samples(gateway, "thumbwheel_calls_total"))
    assert list(samples(gateway, "thumbwheel_calls_total")) == [("support", "left", "v0")]


def test_a_figure_that_cannot_be_read_hides_no_other(gateway: GatewayWorld) -> None:
    gateway.ws.home.inbox.rename(gateway.ws.home.path / "elsewhere")
    gateway.ws.home.inbox.write_text("no folder")
    try:
        assert samples(gateway, "thumbwheel_inbox_bytes") == {}
        assert samples(gateway, "thumbwheel_unread_samples_total")[()] >= 1
        assert samples(gateway, "thumbwheel_writer_queue") == {(): 0.0}
    finally:
        gateway.ws.home.inbox.unlink()
        (gateway.ws.home.path / "elsewhere").rename(gateway.ws.home.inbox)
