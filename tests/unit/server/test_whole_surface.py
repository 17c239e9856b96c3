"""Every operation of the API keeps what its document says, whatever is sent. `make fuzz` sends
thousands."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyStrategyDefinition
from schemathesis.checks import not_a_server_error
from schemathesis.generation.stateful.state_machine import APIStateMachine
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    missing_required_header,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
    use_after_free,
)

from tests.hostile_requests import COUNT, ROUNDS, VALUES
from tests.worlds.api_world import commands_client
from thumbwheel.app.dialects import DIALECTS
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    use_after_free,
    negative_data_rejection,
    missing_required_header,
    unsupported_method,
    allow_header_conformance,
)
"""Not positive_data_acceptance: what is well formed may name what does not exist here. Nor
ignored_auth: test_every_route.py asks every route without a key."""
STEPS = 8
"""Requests of one scenario, each of which uses what those before it gave."""
HOSTILE_IDS = (
    "..",
    "../../etc/passwd",
    "%2e%2e%2f",
    "a\x00b",
    "\ud800",
    "\u202e",
    "' OR 1=1 --",
    "x" * 5000,
    "latest",
    "v0",
    "-1",
    "CON",
    "~",
    "/etc",
    "C:\\",
)
LINES = (
    {"type": "trace", "id": "t1", "subject": "ann", "input": "Where?", "output": "Here."},
    {"type": "feedback", "target": {"trace": "t1"}, "kind": "thumb", "value": True, "rater": "c"},
)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    """Of a home with an agent, which has a little of everything that is short to make."""
    with (
        Workspace.open(Home(tmp_path / "home"), Sources({}, "none", {})) as ws,
        commands_client(ws, DIALECTS.names()) as client,
    ):
        agent = "/api/agents/support"
        content = "\n".join(json.dumps(line) for line in LINES).encode()
        body = {"url": "http://127.0.0.1:9/v1", "model": "m"}
        assert client.post(f"{agent}/imports?source=jsonl&path=r.jsonl", content=content).is_success
        assert client.post(f"{agent}/versions", json=body).is_success
        yield client


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(method, path, what the document says) of every operation."""
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            yield method.upper(), path, described


def test_the_document_is_whole(client: TestClient) -> None:
    document = client.get("/api/openapi.json").json()
    schemathesis.openapi.from_dict(document).validate()
    names = [described["operationId"] for _, _, described in operations(document)]
    assert len(names) == len(set(names))
    for _, path, described in operations(document):
        assert described["summary"] or described["description"], path
        assert (
            {"400", "401", "403"} <= described["responses"].keys()
            or "login" in path
            or path in ("/",)
        ), path


@pytest.mark.slow
def test_the_api_keeps_its_word(client: TestClient) -> None:
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", client.app)
    everything = [result.ok() for result in schema.get_all_operations()]
    each = max(1, COUNT // len(everything))
    for operation in everything:
        _check(operation, each, dict(client.headers))


def _check(operation: schemathesis.APIOperation, count: int, headers: dict[str, str]) -> None:
    """Send requests to one operation, valid ones and others."""

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        case=st.sampled_from(list(schemathesis.GenerationMode)).flatmap(
            lambda mode: operation.as_strategy(generation_mode=mode)
        )
    )
    def check(case: schemathesis.Case) -> None:
        authorization = {"authorization": headers["authorization"]}
        case.call_and_validate(checks=list(CHECKS), headers=authorization)

    check()


@pytest.mark.repeat
def test_what_one_request_makes_the_next_ones_use(client: TestClient) -> None:
    """By the links of the document: a key is made and revoked, a schedule paused and removed."""
    givers, targets = set(), set()
    for _, _, described in operations(client.get("/api/openapi.json").json()):
        for response in described["responses"].values():
            links = response.get("links", {}).keys()
            targets |= links
            givers |= {described["operationId"]} if links else set()
    # A short walk over all operations may meet no link, so it goes over those that have one.
    everything = schemathesis.openapi.from_asgi("/api/openapi.json", client.app)
    schema = everything.include(operation_id=sorted(givers | targets))
    authorization = {"authorization": client.headers["authorization"]}
    linked: Counter[str] = Counter()
    chance = random.Random(1)
    machine: type[APIStateMachine] = schema.as_state_machine()

    class Scenario(machine):  # type: ignore[misc, valid-type]
        def get_call_kwargs(self, case: schemathesis.Case) -> dict[str, Any]:
            return {"headers": authorization}

        def before_call(self, case: schemathesis.Case) -> None:
            if "agent" in case.path_parameters and chance.random() < 0.9:
                case.path_parameters["agent"] = "support"

        def validate_response(self, response: Any, case: Any, *_: Any, **__: Any) -> None:
            if response.status_code < 300:
                linked[case.operation.definition.raw["operationId"]] += 1
            case.validate_response(response, checks=list(CHECKS))

    # The home remembers, so that hypothesis now and then ends with a scenario that is not the same
    # the second time. What the server did wrong raises something else.
    with suppress(FlakyStrategyDefinition):
        Scenario.run(
            settings=settings(
                max_examples=COUNT // STEPS,
                stateful_step_count=STEPS,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=list(HealthCheck),
            )
        )
    assert targets & linked.keys(), linked  # what was made was used


def test_no_id_and_no_value_makes_it_fail(client: TestClient) -> None:
    """Ids that are paths, and values of every wrong kind, in each operation."""
    chance = random.Random(1)
    statuses: Counter[int] = Counter()
    document = client.get("/api/openapi.json").json()
    for method, path, described in operations(document):
        names = _body_names(document, described)
        for _ in range(ROUNDS):
            target = path
            for name in [part[1:-1] for part in path.split("/") if part.startswith("{")]:
                is_known = name == "agent" and chance.random() < 0.7
                value = "support" if is_known else chance.choice(HOSTILE_IDS)
                shown = quote(value.encode("utf-8", "surrogatepass"), safe="")
                target = target.replace(f"{{{name}}}", shown)
            query = {}
            for parameter in described.get("parameters", []):
                if parameter["in"] == "query" and chance.random() < 0.5:
                    query[parameter["name"]] = str(chance.choice(HOSTILE_IDS))[:2000]
            body = {name: chance.choice(VALUES) for name in names if chance.random() < 0.3}
            content = json.dumps(body).encode() if names else None
            headers = {"content-type": "application/json"} if names else {}
            query = {name: value for name, value in query.items() if "\ud800" not in value}
            answer = client.request(method, target, params=query, content=content, headers=headers)
            statuses[answer.status_code] += 1
            assert answer.status_code < 500 or answer.status_code == 501, (
                method,
                target,
                query,
                body,
                answer.text,
            )
            assert "/etc/passwd:" not in answer.text and "root:x:" not in answer.text
    assert statuses[422] and statuses[404]


def _body_names(document: dict[str, Any], described: dict[str, Any]) -> list[str]:
    content = described.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    reference = schema.get("$ref")
    if reference:
        schema = document["components"]["schemas"][reference.rpartition("/")[2]]
    return list(schema.get("properties", {}))
