"""Words about answers that come inside spans: they need what all words need, and the server knows
who sent them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.worlds.experiment_world import ExperimentWorld, experiment_world
from tests.worlds.gateway_world import AGENT, GatewayWorld, opened_home, running
from thumbwheel.access import keys, users
from thumbwheel.access.types import Verb
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.db.schema import feedback, raters, traces
from thumbwheel.db.workspace import Workspace
from thumbwheel.experiments.types import ExperimentConfig
from thumbwheel.loop import experiment as verbs

PASSWORD = "correct horse battery"
N_CALLS = 120
START = 1_790_000_000_000_000_000
"""Nanoseconds since 1970 at which the spans begin."""


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[ExperimentWorld]:
    with experiment_world(tmp_path) as world:
        yield world


def attribute(key: str, value: Any) -> dict[str, Any]:
    """An attribute as OTLP spells it."""
    kind = "doubleValue" if isinstance(value, float) else "stringValue"
    return {"key": key, "value": {kind: value}}


def judged_span(number: int, good: bool, rater: str | None) -> dict[str, Any]:
    """A call of a model, and what somebody is said to think of it."""
    word = {
        "gen_ai.evaluation.name": "user-feedback",
        "gen_ai.evaluation.score.value": float(good),
    }
    if rater is not None:
        word["user.id"] = rater
    call = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": '[{"role": "user", "parts": [{"type": "text", "content": "Q"}]}]',
        "gen_ai.output.messages": (
            '[{"role": "assistant", "parts": [{"type": "text", "content": "A"}]}]'
        ),
    }
    event = {
        "name": "gen_ai.evaluation.result",
        "timeUnixNano": str(START + 2 * 10**9),
        "attributes": [attribute(key, value) for key, value in word.items()],
    }
    return {
        "traceId": f"{number:032x}",
        "spanId": f"{number:016x}",
        "name": "chat",
        "startTimeUnixNano": str(START),
        "endTimeUnixNano": str(START + 10**9),
        "attributes": [attribute(key, value) for key, value in call.items()],
        "events": [event],
    }


def send(gateway: GatewayWorld, spans: list[dict[str, Any]], **headers: str) -> Any:
    """Send spans, and wait until they are rows."""
    resource = {"attributes": [attribute("service.name", AGENT)]}
    content = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]}
    reply = gateway.client.post("/v1/traces", json=content, headers=headers)
    assert reply.status_code == 200, reply.text
    drain_inbox(gateway.ws, everything=True)
    return reply.json()


def with_key(gateway: GatewayWorld, *verbs: Verb) -> str:
    """Send a key for these verbs from now on; returns its id."""
    new_key = keys.add(gateway.ws, "-".join(verbs), agents=[AGENT], verbs=verbs)
    gateway.client.headers["authorization"] = f"Bearer {new_key.secret}"
    return new_key.key.id


def stored_words(ws: Workspace) -> list[tuple[str | None, str | None]]:
    """(rater, sender) of all feedback."""
    query = sa.select(raters.c.external_id, feedback.c.sender).select_from(
        feedback.outerjoin(raters, raters.c.id == feedback.c.rater_id)
    )
    with ws.db.read() as connection:
        return [tuple(row) for row in connection.execute(query)]


def test_a_key_that_may_not_rate_says_nothing_inside_spans(gateway: GatewayWorld) -> None:
    with_key(gateway, "call")
    answer = send(gateway, [judged_span(1, True, "anna")])
    assert "may not rate" in answer["partialSuccess"]["errorMessage"]
    assert answer["partialSuccess"].get("rejectedSpans", "0") == "0"
    assert stored_words(gateway.ws) == []
    with gateway.ws.db.read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(traces)).scalar() == 1


def test_words_inside_spans_have_the_sender_of_the_request(gateway: GatewayWorld) -> None:
    key_id = with_key(gateway, "call", "rate")
    assert send(gateway, [judged_span(1, True, "anna")]) == {}
    assert stored_words(gateway.ws) == [("anna", key_id)]


def test_a_span_cannot_name_its_sender(gateway: GatewayWorld) -> None:
    key_id = with_key(gateway, "call", "rate")
    span = judged_span(1, True, "anna")
    span["sender"] = "local"
    for part in (span, span["events"][0]):
        part["attributes"].append(attribute("sender", "local"))
    send(gateway, [span])
    assert stored_words(gateway.ws) == [("anna", key_id)]


def test_a_user_speaks_in_no_other_name_inside_spans(tmp_path: Path) -> None:
    with opened_home(tmp_path / "home") as ws:
        user = users.add(ws, "ann", password=PASSWORD, role="owner")
        with running(ws) as gateway:
            login = {"name": "ann", "password": PASSWORD}
            csrf = gateway.client.post("/api/login", json=login).json()["csrf"]
            spans = [judged_span(1, True, "bob"), judged_span(2, True, None)]
            send(gateway, spans, **{"x-csrf-token": csrf})
        assert set(stored_words(ws)) == {("ann", user.id)}


def test_spans_of_a_key_move_no_alias(trial: ExperimentWorld) -> None:
    options = {"min_hours": ExperimentConfig().min_hours}
    plan, forecast = verbs.draft(trial.ws, trial.agent, "live", ["v0", "v1"], [], options)
    experiment = verbs.start(trial.ws, trial.agent, "live", plan, forecast, salt="salt")
    trial.refresh()
    with running(trial.ws) as gateway:
        with_key(gateway, "call", "rate")
        spans = []
        for number in range(1, N_CALLS + 1):
            headers = {
                "x-thumbwheel-subject": f"user-{number}",
                "x-thumbwheel-feedback-id": f"{number:032x}",
            }
            version = gateway.ask(headers=headers).headers["x-thumbwheel-version"]
            spans.append(judged_span(number, version == "v1", f"rater-{number}"))
        gateway.lines(N_CALLS)
        drain_inbox(trial.ws)
        send(gateway, spans)
    assert len(stored_words(trial.ws)) == N_CALLS
    trial.turn()
    decision = trial.turn(datetime.now(UTC) + timedelta(days=3))[experiment.id]
    assert decision.verdict == "undecided" and trial.live() == "v0", decision.reasons
