"""Switches of the alias under load: no request fails, no answer is of two versions, each names the
version that gave it, and it is recorded under that name.

    make bench-swap
    make bench-swap ARGS="--requests 1000 --switches 10"

Two versions stand behind one alias. Their upstream says the name of its model in every piece of an
answer, a stream of twenty pieces or a whole one in turn. Clients ask `thumbwheel serve` all the
time while another process, this one, promotes the other version again and again. A request that
began more than 50 ms after a switch was acknowledged has to be answered by the new version.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import raw
import sqlalchemy as sa

from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.core.config import Home, Sources
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.deploy import deploy
from thumbwheel.deploy.switch import promote
from thumbwheel.llm.port import free_port
from thumbwheel.models import versions
from thumbwheel.models.types import EndpointAddress, ModelVersion

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.servers.thumbwheel_server import running

AGENT = "support"
MODELS = ("red", "blue")
PIECES = 20
STALE = 0.05
"""Seconds that an answer may still be the old version's."""


async def upstream(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the name of the model that is asked, in every piece."""
    if scope["type"] != "http":
        return
    message = await receive()
    body = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
    request = json.loads(body or b'{"model": ""}')  # a list of models is asked for by GET
    model, is_stream = request["model"], request.get("stream", False)
    kind = b"text/event-stream" if is_stream else b"application/json"
    headers = [(b"content-type", kind)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if is_stream:
        for number in range(PIECES):
            choice = {"index": 0, "delta": {"content": f"{model} "}, "finish_reason": None}
            event = b"data: " + json.dumps({"model": model, "choices": [choice]}).encode() + b"\n\n"
            await send({"type": "http.response.body", "body": event, "more_body": True})
            if number % 5 == 0:
                await asyncio.sleep(0.005)
        last = b"data: [DONE]\n\n"
    elif not model:
        entries = [{"id": name, "object": "model"} for name in MODELS]
        last = json.dumps({"object": "list", "data": entries}).encode()
    else:
        answer = {"role": "assistant", "content": f"{model} " * PIECES}
        choice = {"index": 0, "message": answer, "finish_reason": "stop"}
        last = json.dumps({"model": model, "choices": [choice]}).encode()
    await send({"type": "http.response.body", "body": last, "more_body": False})


@dataclass
class Seen:
    """What the clients saw."""

    failures: list[str] = field(default_factory=list)
    mixed: int = 0
    misnamed: int = 0
    late: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    """Trace -> the version that the answer named."""


@dataclass
class Load:
    """Clients that ask until `total` requests are answered, and the switches beside them."""

    url: str
    total: int
    names: dict[str, str]
    """Version -> what its model says."""
    seen: Seen = field(default_factory=Seen)
    begun: int = 0
    switched_at: float = 0.0
    live: str = ""
    is_switching: bool = False
    begun_switches: int = 0

    async def client(self, session: aiohttp.ClientSession) -> None:
        """Ask, a stream and a whole answer in turn."""
        while self.begun < self.total:
            self.begun += 1
            body = {
                "model": AGENT,
                "messages": [{"role": "user", "content": f"Question {self.begun}"}],
                "stream": self.begun % 2 == 0,
            }
            await self._ask(session, body)

    async def _ask(self, session: aiohttp.ClientSession, body: dict[str, Any]) -> None:
        is_settled = not self.is_switching and time.monotonic() > self.switched_at + STALE
        expected, begun_switches = self.live, self.begun_switches
        try:
            async with session.post(f"{self.url}/v1/chat/completions", json=body) as answer:
                content = (await answer.read()).decode()
        except aiohttp.ClientError as error:
            self.seen.failures.append(repr(error))
            return
        if answer.status != 200:
            self.seen.failures.append(f"{answer.status} {content[:100]}")
            return
        version = answer.headers["x-thumbwheel-version"]
        self.seen.versions[answer.headers["x-thumbwheel-trace"]] = version
        counts = {model: content.count(f"{model} ") for model in MODELS}
        self.seen.mixed += sorted(counts.values()) != [0, PIECES]
        self.seen.misnamed += counts[self.names[version]] != PIECES
        if is_settled and self.begun_switches == begun_switches:
            self.seen.late += version != expected

    async def run(self, ws: Workspace, both: list[ModelVersion], switches: int) -> None:
        """Ask and switch."""
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            clients = [asyncio.create_task(self.client(session)) for _ in range(16)]
            for number in range(switches):
                due = self.total * (number + 1) // (switches + 1)
                while self.begun < due:
                    await asyncio.sleep(0.002)
                version = both[number % 2]
                self.is_switching = True
                self.begun_switches += 1
                await asyncio.to_thread(promote, ws, version)
                self.live, self.switched_at = version.name, time.monotonic()
                self.is_switching = False
            await asyncio.gather(*clients)


def recorded(ws: Workspace) -> dict[str, str]:
    """Trace -> the version that its row names."""
    drain_inbox(ws)
    query = sa.select(schema.traces.c.external_id, schema.traces.c.id, schema.model_versions).where(
        schema.steps.c.trace_id == schema.traces.c.id,
        schema.steps.c.model_version_id == schema.model_versions.c.id,
    )
    rows = {}
    with ws.db.read() as connection:
        for row in connection.execute(query).mappings():
            rows[row["external_id"]] = f"v{row['number']}"
    return rows


async def measured(folder: Path, requests: int, switches: int) -> dict[str, Any]:
    """The counts of one run."""
    import uvicorn

    port = free_port()
    config = uvicorn.Config(upstream, port=port, lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    answering = asyncio.create_task(server.serve())
    home = folder / "home"
    with Workspace.open(
        Home(home), Sources({"endpoints": {"private": ["127.0.0.1"]}}, "none", {})
    ) as ws:
        both = []
        for model in MODELS:
            address = EndpointAddress(f"http://127.0.0.1:{port}/v1", model)
            version = versions.add_endpoint(ws, AGENT, address)
            await asyncio.to_thread(deploy, ws, version, "remote", None)
            both.append(version)
        await asyncio.to_thread(promote, ws, both[1])
        started = running(home)
        gateway = await asyncio.to_thread(started.__enter__)
        load = Load(
            gateway.url,
            requests,
            names={version.name: model for version, model in zip(both, MODELS, strict=True)},
        )
        load.live = both[1].name
        try:
            await load.run(ws, both, switches)
        finally:
            await asyncio.to_thread(started.__exit__, None, None, None)
        rows = recorded(ws)
    server.should_exit = True
    await answering
    seen = load.seen
    wrong_rows = sum(rows.get(trace) != version for trace, version in seen.versions.items())
    return {
        "requests": requests,
        "switches": switches,
        "failed": len(seen.failures),
        "first_failure": seen.failures[:1],
        "mixed": seen.mixed,
        "misnamed": seen.misnamed,
        "late": seen.late,
        "recorded_wrongly": wrong_rows,
        "answers": dict(Counter(seen.versions.values())),
    }


def run(requests: int, switches: int) -> dict[str, Any]:
    """The counts of one run, in a home of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(measured(Path(folder), requests, switches))


def main() -> None:
    """Measure, print the table, keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--switches", type=int, default=50)
    raw.option(parser, "swap")
    options = parser.parse_args()
    figures = run(options.requests, options.switches)
    for name, value in figures.items():
        print(f"{name:18} {value}")
    raw.write(options.json, **figures)
    wrong = ("failed", "mixed", "misnamed", "late", "recorded_wrongly")
    if any(figures[name] for name in wrong):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
