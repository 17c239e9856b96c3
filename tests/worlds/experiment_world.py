"""An agent with two versions behind one scripted upstream, and people who ask it and rate answers:
recorded calls and feedback take the road of the server, through the inbox into rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2

from tests.servers.scripted_upstream import ScriptedUpstream
from tests.worlds.gateway_world import AGENT, HELLO, opened_home, serve_remote
from thumbwheel.app.routing_table import RoutingTable
from thumbwheel.capture.gateway_seal import sealed_line
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.core.seal import make_seal
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import switch
from thumbwheel.experiments.types import Experiment
from thumbwheel.gateway.protocols import protocol_of
from thumbwheel.gateway.record import Timing, trace_line
from thumbwheel.gateway.routing import Choice, RoutingRequest
from thumbwheel.gateway.settings import GatewayConfig
from thumbwheel.loop import experiment as verbs
from thumbwheel.models import versions
from thumbwheel.models.types import Agent, EndpointAddress
from thumbwheel.sdk.segment import Segment

START = datetime(2026, 3, 2, 9, tzinfo=UTC)


@dataclass
class ExperimentWorld:
    """`ask` and `rate` write lines into the inbox; `drain` makes rows of them."""

    ws: Workspace
    table: RoutingTable
    names: list[str] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    number: int = 0

    @property
    def agent(self) -> Agent:
        return Agent.named(AGENT)

    def begin(
        self, *arms: str, guards: Sequence[str] = (), despite: str = "", **options: Any
    ) -> Experiment:
        """Start an experiment; the table knows it afterwards."""
        plan, forecast = verbs.draft(
            self.ws, self.agent, "live", arms or ("v0", "v1"), guards, options
        )
        salt = f"salt {self.number}"  # the same people get the same arms in every run
        experiment = verbs.start(self.ws, self.agent, "live", plan, forecast, despite, salt)
        self.refresh()
        return experiment

    def refresh(self) -> None:
        """Have the routing table follow what was written."""
        self.table._is_due = True
        self.table._read_at = float("-inf")
        self.table.refresh()

    def ask(
        self,
        user: str | None,
        *,
        session: str | None = None,
        parent: str | None = None,
        headers: Mapping[str, str] | None = None,
        asked_at: datetime | None = None,
        seconds: float = 0.5,
        fails: bool = False,
        falls_back: str = "",
    ) -> tuple[str, Choice]:
        """A call by a user: (id of its trace, who answered)."""
        self.number += 1
        trace_id = f"call-{self.number}"
        request = RoutingRequest(
            AGENT,
            "live",
            AGENT,
            session=session,
            subject=user,
            headers=headers or {},
            trace=trace_id,
            parent=parent,
        )
        choice = self.table.choose(request)
        if falls_back:
            choice = choice.fall_back(choice.fallbacks[0], falls_back)
        self.lines.append(
            _call_line(trace_id, request, choice, asked_at or datetime.now(UTC), seconds, fails)
        )
        return trace_id, choice

    def rate(self, trace_id: str, value: Any, rater: Any = None, **fields: Any) -> None:
        """A word about a call."""
        self.number += 1
        line = {
            "agent": AGENT,
            "type": "feedback",
            "id": f"word-{self.number}",
            "kind": "thumb",
            "value": value,
            "target": {"trace": trace_id},
        }
        if rater is not None:
            line["rater"] = rater
        self.lines.append(line | fields)

    def drain(self) -> None:
        """Bring what was recorded into the database."""
        segment, seal = Segment(self.ws.home.inbox), make_seal(self.ws.home.signing)
        for line in self.lines:
            if line["type"] == "trace":
                line = sealed_line(seal, line)
            segment.append(json.dumps(line, default=str).encode())
        segment.close()
        self.lines.clear()
        drain_inbox(self.ws)

    def turn(self, now: datetime | None = None) -> dict[str, Any]:
        """What is recorded into rows, and one look at every experiment."""
        self.drain()
        decisions = verbs.turn_all(self.ws, now)
        self.refresh()
        return decisions

    def live(self) -> str:
        """The version that the alias points at."""
        return versions.by_id(self.ws, versions.aliases_of(self.ws, self.agent)["live"]).name


def _call_line(
    trace_id: str,
    request: RoutingRequest,
    choice: Choice,
    asked_at: datetime,
    seconds: float,
    fails: bool,
) -> dict[str, Any]:
    body = {"model": AGENT, "messages": [{"role": "user", "content": f"Question {trace_id}"}]}
    protocol = protocol_of("POST", "/v1/chat/completions")
    assert protocol is not None
    call = protocol.request(body, {})
    reader = call.reply_reader()
    reply_body = {
        "id": "r",
        "model": choice.version,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": f"by {choice.version}"},
                "finish_reason": "stop",
            }
        ],
    }
    if fails:
        reply_body = {"error": {"message": "overloaded"}}
    reader.feed(json.dumps(reply_body).encode())
    line = trace_line(
        call,
        reader.finish("the upstream failed" if fails else None),
        choice,
        Timing(asked_at, None, seconds),
        agent=AGENT,
        trace_id=trace_id,
    )
    for key, value in (("subject", request.subject), ("session", request.session)):
        if value is not None:
            line[key] = value
    return line


@contextmanager
def experiment_world(
    folder: Path, models: Sequence[str] = ("large", "small"), live: str = "v0", **settings: Any
) -> Iterator[ExperimentWorld]:
    """A home whose agent answers with `live`; every model is a version of it."""
    # these people come within seconds, and a machine that stands still delays no verdict
    options = {"min_hours": 0.0, "maturation_hours": 0.0}
    home = opened_home(folder / "home", experiment=options)
    with ScriptedUpstream() as upstream, home as ws:
        for model in models:
            serve_remote(ws, EndpointAddress(upstream.url, model), alias=None)
        names = [f"v{number}" for number in range(len(models))]
        switch.promote(ws, versions.version(ws, AGENT, live))
        with RoutingTable(ws, GatewayConfig(), 3600.0) as table:
            yield ExperimentWorld(ws, table, names)


def ask_over_http(client: httpx2.Client, user: str) -> tuple[str, str]:
    """A call of a running server: (id of its trace, the version that answered)."""
    headers = {"x-thumbwheel-subject": user}
    reply = client.post("/v1/chat/completions", json=HELLO, headers=headers)
    assert reply.status_code == 200, reply.text
    assert "x-thumbwheel-trace" in reply.headers, (reply.headers, reply.text)
    return reply.headers["x-thumbwheel-trace"], reply.headers["x-thumbwheel-version"]


def rate_over_http(client: httpx2.Client, trace_id: str, thumb: bool) -> None:
    """A word about a call, to a running server."""
    word = {"trace": trace_id, "thumb": thumb}
    reply = client.post(f"/a/{AGENT}/api/feedback", json=word)
    assert reply.status_code == 202, reply.text


def later(hours: float) -> datetime:
    """A moment from now."""
    return datetime.now(UTC) + timedelta(hours=hours)
