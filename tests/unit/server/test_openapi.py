"""The API keeps what its OpenAPI document says, whatever is sent: schemathesis makes requests from
the document, valid ones and broken ones. `make fuzz` makes thousands."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.worlds.api_world import opened_api
from thumbwheel.capture import routes
from thumbwheel.capture.feedback_token import FeedbackTokens
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.sdk.segment import Segment

N_OPERATIONS = 18
EXAMPLES = int(os.environ.get("THUMBWHEEL_FUZZ", "200")) // N_OPERATIONS or 1
"""Requests for each operation."""
TAKEN = "differs from what is stored under that id"
CHECKS = (
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)


@contextmanager
def application(folder: Path) -> Iterator[tuple[FastAPI, Workspace]]:
    """The API of a new home."""
    with Workspace.open(Home(folder), Sources({}, "none", {})) as ws:
        segment = Segment(ws.home.inbox)
        router = routes.router(segment, FeedbackTokens.with_key(ws.home.feedback_key))
        with opened_api(folder, router) as api:
            yield api, ws
        segment.close()


def test_the_document_names_every_route_with_an_example(tmp_path: Path) -> None:
    with application(tmp_path) as (api, _):
        document = TestClient(api).get("/api/openapi.json").json()
    posts = {path for path, operations in document["paths"].items() if "post" in operations}
    assert len(posts) == N_OPERATIONS
    for path in posts:
        operation = document["paths"][path]["post"]
        content = operation["requestBody"]["content"]
        assert "application/x-protobuf" in content or content["application/json"]["example"]
        assert {"413", "415", "422", "429"} <= operation["responses"].keys()


def test_every_example_is_taken(tmp_path: Path) -> None:
    with application(tmp_path) as (api, ws):
        client = TestClient(api)
        document = client.get("/api/openapi.json").json()
        for path, operations in document["paths"].items():
            content = operations.get("post", {}).get("requestBody", {}).get("content", {})
            example = content.get("application/json", {}).get("example")
            if example is not None and path.startswith("/a/"):
                answer = client.post(path.replace("{agent}", "desk"), json=example)
                assert answer.status_code in (200, 201, 202, 207), (path, answer.text)
        drain_inbox(ws)
        assert not (ws.home.inbox / "rejected.jsonl").exists()


@pytest.mark.slow
def test_the_api_keeps_its_word(tmp_path: Path) -> None:
    with application(tmp_path) as (api, ws):
        schema = schemathesis.openapi.from_asgi("/api/openapi.json", api)
        for operation in schema.include(method="POST").get_all_operations():
            _check(operation.ok())
        drain_inbox(ws)
        # of many requests some use an id twice, and the second is set aside
        reasons = [line["reason"] for line in _rejected(ws)]
        assert all(reason.endswith(TAKEN) for reason in reasons), set(reasons)


def _rejected(ws: Workspace) -> list[dict[str, Any]]:
    path = ws.home.inbox / "rejected.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def _check(operation: schemathesis.APIOperation) -> None:
    """Send requests to one operation, valid ones and others."""

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        case=st.sampled_from(list(schemathesis.GenerationMode)).flatmap(
            lambda mode: operation.as_strategy(generation_mode=mode)
        )
    )
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate(checks=list(CHECKS))

    check()
