"""Before a version goes live, its target is held against what last week's calls used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import Run
from tests.worlds.deploy_world import DeployWorld
from tests.worlds.sealed_calls import record_calls
from thumbwheel.capture.call_feature import CallFeature
from thumbwheel.capture.recorded_use import recent_calls
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import Conflict, InputError
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import fitness
from thumbwheel.deploy.switch import promote
from thumbwheel.deploy.types import Deployment, DeploymentState, Endpoint
from thumbwheel.gateway.protocols import PROTOCOLS
from thumbwheel.gateway.record import Timing, trace_line
from thumbwheel.gateway.routing import Choice, Upstream
from thumbwheel.models import versions
from thumbwheel.models.types import Agent, EndpointAddress

NUMBERS = count()
AGENT = Agent.named("support")
HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
CHOICE = Choice("v0", "dep_0", Upstream("v0", "dep_0", "remote", "https://api.example.com/v1", "m"))
FUNCTION = {"type": "function", "function": {"name": "move"}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}


@pytest.fixture
def endpoint_ws(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace.open(Home(tmp_path / "home"), Sources({}, "", {})) as ws:
        versions.add_endpoint(ws, AGENT.slug, EndpointAddress("https://api.example.com/v1", "m"))
        yield ws


def record(
    ws: Workspace, protocol: str = "openai_chat", agent: str = AGENT.slug, **body: Any
) -> None:
    """Record a call that was answered with 15 tokens in all."""
    body = {"model": "support", "messages": HELLO, **body}
    call = PROTOCOLS[protocol].request(body, {})
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    message = {"content": "Yes."}
    reader = PROTOCOLS["openai_chat"].request({}, {}).reply_reader()
    choice = {"message": message, "finish_reason": "stop"}
    reader.feed(json.dumps({"choices": [choice], "usage": usage}).encode())
    timing = Timing(datetime.now(UTC), None, 1.0)
    name = f"call-{next(NUMBERS)}"
    line = trace_line(call, reader.finish(), CHOICE, timing, agent=agent, trace_id=name)
    record_calls(ws, [line])


def features(ws: Workspace) -> list[set[CallFeature]]:
    calls = recent_calls(ws, AGENT, datetime.now(UTC) - timedelta(days=7))
    return [set(call.features) for call in reversed(calls)]


CALLS: list[tuple[str, dict[str, Any], set[CallFeature]]] = [
    ("openai_chat", {"temperature": 0.2, "n": 1, "frequency_penalty": 0}, set()),
    ("openai_chat", {"response_format": SCHEMA}, {CallFeature.STRUCTURED_OUTPUT}),
    ("openai_chat", {"response_format": {"type": "text"}}, set()),
    ("openai_chat", {"n": 2}, {CallFeature.SEVERAL_ANSWERS}),
    ("openai_chat", {"logit_bias": {"5": 1}}, {CallFeature.PENALTIES}),
    ("openai_chat", {"presence_penalty": 0.5}, {CallFeature.PENALTIES}),
    ("openai_chat", {"tools": [FUNCTION]}, {CallFeature.TOOLS}),
    ("openai_chat", {"messages": [{"role": "user", "content": [PICTURE]}]}, {CallFeature.MEDIA}),
    (
        "openai_chat",
        {"messages": [{"role": "user", "content": [PICTURE]}, *HELLO]},
        {CallFeature.MEDIA},
    ),
    (
        "openai_responses",
        {"input": "Hi", "tools": [{"type": "web_search"}], "previous_response_id": "r"},
        {CallFeature.TOOLS, CallFeature.PROVIDER_TOOLS, CallFeature.STORED_STATE},
    ),
    (
        "openai_responses",
        {"input": "Hi", "text": {"format": {"type": "json_object"}}},
        {CallFeature.STRUCTURED_OUTPUT},
    ),
    (
        "anthropic_messages",
        {"output_config": {"format": SCHEMA}},
        {CallFeature.STRUCTURED_OUTPUT},
    ),
    ("ollama_chat", {"format": "json"}, {CallFeature.STRUCTURED_OUTPUT}),
    ("ollama_chat", {"options": {"repeat_penalty": 1.1}}, {CallFeature.PENALTIES}),
    ("ollama_generate", {"prompt": "Hi", "raw": True}, {CallFeature.OWN_PROMPT}),
    ("openai_embeddings", {"input": "Hi"}, {CallFeature.EMBEDDINGS}),
]


@pytest.mark.parametrize(("protocol", "body", "expected"), CALLS)
def test_a_recorded_call_says_what_it_used(
    endpoint_ws: Workspace, protocol: str, body: dict[str, Any], expected: set[CallFeature]
) -> None:
    record(endpoint_ws, protocol, **body)
    assert features(endpoint_ws) == [expected]


def deployed(target: str, context: int | None) -> Deployment:
    endpoint = Endpoint("http://127.0.0.1:9/v1", "support-v0", {"context": context})
    return Deployment(
        "dep_1",
        AGENT.slug,
        "v0",
        "ver",
        False,
        None,
        target,
        "support-v0",
        {},
        endpoint,
        DeploymentState.WARM,
        None,
        datetime.now(UTC),
        None,
    )


def test_what_the_target_cannot_do_is_said_with_its_share(endpoint_ws: Workspace) -> None:
    for _ in range(8):
        record(endpoint_ws)
    for _ in range(2):
        record(endpoint_ws, n=3, messages=[{"role": "user", "content": [PICTURE]}])
    (media,) = fitness.misfits(endpoint_ws, AGENT, "embedded")
    assert media == (
        "20 % of last week's calls used pictures, sounds or files, which this target cannot"
    )
    assert len(fitness.misfits(endpoint_ws, AGENT, "ollama")) == 2
    assert fitness.misfits(endpoint_ws, AGENT, "remote") == []
    version = versions.version(endpoint_ws, AGENT.slug, "v0")
    with pytest.raises(Conflict, match="20 % of last week's calls used pictures") as refusal:
        fitness.require_fit(endpoint_ws, version, "embedded")
    assert "thumbwheel deploy v0 --agent support --target embedded --accept" in refusal.value.fix
    assert "vllm" in refusal.value.fix
    fitness.require_fit(endpoint_ws, version, "vllm")


def test_lengths_are_held_against_the_context(endpoint_ws: Workspace) -> None:
    for _ in range(4):
        record(endpoint_ws)
    assert fitness.misfits(endpoint_ws, AGENT, "embedded", deployed("embedded", 15)) == []
    assert fitness.misfits(endpoint_ws, AGENT, "embedded", deployed("embedded", None)) == []
    (remark,) = fitness.misfits(endpoint_ws, AGENT, "embedded", deployed("embedded", 14))
    assert remark == "100 % of last week's calls had more tokens than its context of 14"


def test_older_calls_failed_ones_and_imports_do_not_count(endpoint_ws: Workspace) -> None:
    record(endpoint_ws, messages=[{"role": "user", "content": [PICTURE]}])
    for change in (
        {"recorded_at": datetime.now(UTC) - timedelta(days=8)},
        {"recorded_at": datetime.now(UTC), "status": "error"},
        {"status": "ok", "seal": None},
    ):
        endpoint_ws.db.write(
            lambda connection, change=change: connection.execute(
                schema.traces.update().values(**change)
            )
        )
        assert fitness.misfits(endpoint_ws, AGENT, "embedded") == []


@pytest.mark.slow
def test_a_dry_run_says_what_the_target_cannot_do(deployed: DeployWorld, command_line: Run) -> None:
    version = deployed.version(0)
    record(deployed.ws, agent=deployed.agent, logit_bias={"5": 1})
    asked = ("deploy", version.name, "--agent", deployed.agent, "--dry-run")
    home = ("--home", str(deployed.ws.home.path))
    code, out, err = command_line(*home, *asked)
    assert code == 0, err
    text = " ".join(out.split())
    assert "100 % of last week's calls used penalties" in text and "--accept" in text
    canary = json.loads(command_line(*home, *asked, "--alias", "canary", "--json")[1])
    assert canary["misfits"] == []


@pytest.mark.slow
def test_a_version_goes_live_there_only_if_somebody_accepts_it(deployed: DeployWorld) -> None:
    version = deployed.version(0)
    deployed.deploy(version, None)
    record(deployed.ws, agent=deployed.agent, logit_bias={"5": 1})
    for go_live in (deployed.deploy, lambda version: promote(deployed.ws, version)):
        with pytest.raises(Conflict, match="100 % of last week's calls used penalties"):
            go_live(version)
    assert deployed.live() is None
    promote(deployed.ws, version, "canary")  # which few callers get
    with pytest.raises(InputError, match="name and a reason"):
        promote(deployed.ws, version, accept="yes")
    switch = promote(deployed.ws, version, accept="Ada: nobody needs the bias")
    assert switch.evidence["accepted"] == "Ada: nobody needs the bias"
    assert deployed.live() == version.name
    # what is live cannot do it either, so another version there is no loss
    assert fitness.misfits(deployed.ws, deployed.learner, "embedded") == []
    assert fitness.misfits(deployed.ws, deployed.learner, "vllm") == []
