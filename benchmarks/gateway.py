"""What the recording gateway costs: CPU a recorded call, time that it adds, many streams at once,
memory over a long time; beside LiteLLM's proxy in the same run.

    make bench-gateway
    make bench-gateway ARGS="--litellm /path/to/python --soak-minutes 10"

The upstream is a process that answers at once (a stream: 20 chunks, a millisecond apart), the
clients are this process, and the gateway is `thumbwheel serve` with recording on, in a home of its
own. CPU is user and system time of the gateway's process. Added time is the difference of the
percentiles through the gateway and directly, at a rate that does not wait for answers; both run in
turn, because machines are shared. LiteLLM's proxy runs with its defaults and without a database, so
it records nothing: `python -m venv V && V/bin/pip install 'litellm[proxy]'`, then `--litellm
V/bin/python`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import aiohttp
import psutil
import raw

from tests.servers.thumbwheel_server import serve_command
from thumbwheel.llm.port import free_port

ROOT = Path(__file__).parents[1]
CHUNKS = 20
MESSAGES = [
    {"role": "system", "content": "You answer questions about orders."},
    {"role": "user", "content": "Where is my order 1234? " * 20},
]
ANSWER = "It left our warehouse this morning. " * 10
JSON_CALL: dict[str, Any] = {"model": "support", "messages": MESSAGES}
STREAM_CALL: dict[str, Any] = JSON_CALL | {"stream": True}
ROUNDS = 3
"""Turns of gateway and direct calls in the measurement of added time."""


def reply_body() -> bytes:
    """A whole answer."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": ANSWER},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": 120, "completion_tokens": 80, "total_tokens": 200}
    reply = {"id": "c1", "object": "chat.completion", "created": 1, "model": "large"}
    return json.dumps({**reply, "choices": [choice], "usage": usage}).encode()


def events() -> list[bytes]:
    """The events of a streamed answer."""
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "large"}
    pieces = []
    for number in range(CHUNKS):
        finish = "stop" if number == CHUNKS - 1 else None
        delta = {} if finish else {"content": ANSWER[number * 18 : number * 18 + 18]}
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        pieces.append(b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n")
    pieces[-1] += b"data: [DONE]\n\n"
    return pieces


def upstream(port: int) -> None:
    """Answer until killed: a stream where the request says so, waiting `x-pause` seconds between
    chunks."""
    import uvicorn

    whole, pieces = reply_body(), events()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        is_stream = b'"stream": true' in body
        pause = float(dict(scope["headers"]).get(b"x-pause", b"0.001"))
        kind = b"text/event-stream" if is_stream else b"application/json"
        headers = [(b"content-type", kind)]
        if not is_stream:
            headers.append((b"content-length", str(len(whole)).encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if is_stream:
            for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                await asyncio.sleep(pause)
        last = b"" if is_stream else whole
        await send({"type": "http.response.body", "body": last, "more_body": False})

    uvicorn.run(application, port=port, lifespan="off", log_level="error", access_log=False)


@dataclass
class Server:
    """A process that answers calls."""

    name: str
    url: str
    """Base of its API."""
    process: psutil.Process

    def cpu(self) -> float:
        """Seconds of CPU, user and system, its children's included."""
        total = 0.0
        for process in (self.process, *self.process.children(recursive=True)):
            times = process.cpu_times()
            total += times.user + times.system
        return total

    def memory(self) -> float:
        """MB of memory."""
        processes = (self.process, *self.process.children(recursive=True))
        n_bytes: int = sum(process.memory_info().rss for process in processes)
        return n_bytes / 2**20


@contextmanager
def started(
    name: str, command: Sequence[str], port: int, path: str, environment: dict[str, str]
) -> Iterator[Server]:
    """The server that a command starts, once `path` answers."""
    with tempfile.TemporaryFile() as log_file:
        process = subprocess.Popen(
            command, env=os.environ | environment, stdout=log_file, stderr=log_file
        )
        try:
            wait_for(f"http://127.0.0.1:{port}{path}", process, log_file)
            yield Server(name, f"http://127.0.0.1:{port}/v1", psutil.Process(process.pid))
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_for(url: str, process: subprocess.Popen[bytes], log_file: Any) -> None:
    import httpx2

    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx2.get(url, trust_env=False, timeout=2).status_code < 500:
                return
        except httpx2.HTTPError:
            time.sleep(0.1)
    log_file.seek(0)
    raise SystemExit(f"nothing answers at {url}:\n{log_file.read().decode()[-2000:]}")


def prepare_home(folder: Path, upstream_url: str) -> None:
    """A home in which `support` answers by the upstream."""
    from thumbwheel.core.config import Home, Sources
    from thumbwheel.db.workspace import Workspace
    from thumbwheel.deploy.deploy import deploy
    from thumbwheel.models import versions
    from thumbwheel.models.types import EndpointAddress

    with Workspace.open(
        Home(folder), Sources({"endpoints": {"private": ["127.0.0.1"]}}, "", {})
    ) as ws:
        address = EndpointAddress(upstream_url, "large", price_in=1.0, price_out=2.0)
        deploy(ws, versions.add_endpoint(ws, "support", address), "remote")


def recorded(folder: Path) -> int:
    """Calls that are rows of the home."""
    import sqlite3

    with sqlite3.connect(folder / "thumbwheel.db") as connection:
        return int(connection.execute("SELECT count(*) FROM traces").fetchone()[0])


@dataclass(frozen=True)
class Timed:
    """One call: when its first byte and its end came, in seconds after it was due."""

    first: float
    total: float
    failed: bool


@asynccontextmanager
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    async with aiohttp.ClientSession(connector=connector) as client:
        yield client


async def call(
    client: aiohttp.ClientSession, url: str, body: dict[str, Any], due: float, pause: str = "0.001"
) -> Timed:
    headers = {"x-pause": pause}
    try:
        async with client.post(f"{url}/chat/completions", json=body, headers=headers) as reply:
            first = 0.0
            async for _ in reply.content.iter_any():
                first = first or time.perf_counter() - due
            return Timed(first, time.perf_counter() - due, reply.status != 200)
    except aiohttp.ClientError:
        return Timed(0.0, time.perf_counter() - due, True)


async def closed_loop(url: str, body: dict[str, Any], clients: int, count: int) -> list[Timed]:
    """`count` calls by clients that each wait for their answer."""
    remaining = iter(range(count))
    results: list[Timed] = []
    async with session() as connection:

        async def work() -> None:
            for _ in remaining:
                result = await call(connection, url, body, time.perf_counter())
                results.append(result)

        await asyncio.gather(*(work() for _ in range(clients)))
    return results


async def open_loop(url: str, body: dict[str, Any], rate: float, seconds: float) -> list[Timed]:
    """`rate` calls a second, whether or not the ones before are answered."""
    calls: list[asyncio.Task[Timed]] = []
    async with session() as connection:
        begin = time.perf_counter()
        for number in range(int(rate * seconds)):
            due = begin + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            calls.append(asyncio.create_task(call(connection, url, body, due)))
        return list(await asyncio.gather(*calls))


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def machine_stalls(seconds: float) -> dict[str, float]:
    """How steadily the machine computes with nothing else to do: of the time, the share in which a
    plain loop ran at a quarter of its speed or less, and its longest turn. What the machine itself
    does not give is no fault of a gateway."""

    def turn() -> float:
        begin = time.perf_counter()
        sum(range(40_000))
        return time.perf_counter() - begin

    end = time.monotonic() + seconds
    turns = []
    while time.monotonic() < end:
        turns.append(turn())
    usual = percentile(turns, 0.5)
    slow = [length for length in turns if length > 4 * usual]
    return {
        "usual_ms": 1000 * usual,
        "share": sum(slow) / sum(turns),
        "longest_ms": 1000 * max(turns),
    }


def cpu_of_calls(server: Server, body: dict[str, Any], count: int, clients: int) -> float:
    """Milliseconds of CPU a call."""
    asyncio.run(closed_loop(server.url, body, clients, max(50, count // 10)))
    time.sleep(0.5)
    before = server.cpu()
    results = asyncio.run(closed_loop(server.url, body, clients, count))
    time.sleep(1.0)  # what is written down after the last answer counts too
    failed = sum(result.failed for result in results)
    if failed:
        raise SystemExit(f"{server.name}: {failed} of {count} calls failed")
    return 1000 * (server.cpu() - before) / count


def added_time(gateway: Server, direct: Server, rate: float, seconds: float) -> dict[str, float]:
    """Milliseconds that the gateway adds at `rate` calls a second, of whole answers and to the
    first chunk of streams."""
    totals: dict[str, list[float]] = {"gateway": [], "direct": []}
    firsts: dict[str, list[float]] = {"gateway": [], "direct": []}
    for _ in range(ROUNDS):
        for name, server in (("direct", direct), ("gateway", gateway)):
            whole = asyncio.run(open_loop(server.url, JSON_CALL, rate, seconds / ROUNDS))
            totals[name] += [result.total for result in whole]
            streams = asyncio.run(open_loop(server.url, STREAM_CALL, 20, seconds / ROUNDS))
            firsts[name] += [result.first for result in streams]
    figures = {}
    for share in (0.5, 0.99):
        label = f"p{share * 100:.0f}"
        for kind, values in (("total", totals), ("first", firsts)):
            through, straight = (percentile(values[name], share) for name in ("gateway", "direct"))
            figures[f"{kind}_{label}_direct_ms"] = 1000 * straight
            figures[f"{kind}_{label}_added_ms"] = 1000 * (through - straight)
    return figures


def many_streams(gateway: Server, count: int) -> dict[str, float]:
    """`count` streams at once, of two seconds each."""

    async def run() -> list[Timed]:
        async with session() as client:
            due = time.perf_counter()
            calls = [call(client, gateway.url, STREAM_CALL, due, "0.1") for _ in range(count)]
            return list(await asyncio.gather(*calls))

    before = gateway.memory()
    results = asyncio.run(run())
    return {
        "streams": count,
        "failed": sum(result.failed for result in results),
        "slowest_seconds": max(result.total for result in results),
        "memory_mb": gateway.memory() - before,
    }


def soak(gateway: Server, minutes: float, rate: float) -> dict[str, float]:
    """Memory that grows while calls come for a long time, after a first part of it."""
    warm = min(20.0, minutes * 15)
    asyncio.run(open_loop(gateway.url, JSON_CALL, rate, warm))
    before, failed, calls = gateway.memory(), 0, 0
    end = time.monotonic() + 60 * minutes - warm
    while time.monotonic() < end:
        body = STREAM_CALL if calls % 2 else JSON_CALL
        results = asyncio.run(open_loop(gateway.url, body, rate, 5.0))
        failed += sum(result.failed for result in results)
        calls += len(results)
    grown = gateway.memory() - before
    return {"minutes": minutes, "calls": calls, "failed": failed, "grown_mb": grown}


def idle(gateway: Server, seconds: float) -> dict[str, float]:
    """Memory, and CPU a second, of a server that nobody asks."""
    before = gateway.cpu()
    time.sleep(seconds)
    return {
        "memory_mb": gateway.memory(),
        "cpu_ms_per_second": 1000 * (gateway.cpu() - before) / seconds,
    }


def litellm(python: Path, upstream_url: str, folder: Path, arguments: Any) -> dict[str, float]:
    """CPU of the same calls through LiteLLM's proxy."""
    parameters = {"model": "openai/large", "api_base": upstream_url, "api_key": "none"}
    config = {
        "model_list": [{"model_name": "support", "litellm_params": parameters}],
        "litellm_settings": {"telemetry": False, "drop_params": True},
    }
    file = folder / "litellm.json"
    file.write_text(json.dumps(config))
    port = free_port()
    command = [str(python.parent / "litellm"), "--config", str(file), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--num_workers", "1", "--telemetry", "False"]
    environment = {
        "LITELLM_LOG": "ERROR",
        "NO_PROXY": "*",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        # as the gateway here, it asks its clients for no key
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    with started("LiteLLM", command, port, "/health/readiness", environment) as server:
        count = max(200, arguments.calls // 5)
        return {
            "json_cpu_ms": cpu_of_calls(server, JSON_CALL, count, arguments.clients),
            "stream_cpu_ms": cpu_of_calls(server, STREAM_CALL, count, arguments.clients),
            "memory_mb": server.memory(),
        }


def measured(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    upstream_port, port = free_port(), free_port()
    stalls = machine_stalls(10.0)
    here = [sys.executable, str(Path(__file__).resolve())]
    source = {"PYTHONPATH": str(ROOT / "src")}
    with started(
        "direct", [*here, "--upstream", str(upstream_port)], upstream_port, "/", {}
    ) as direct:
        home = folder / "home"
        prepare_home(home, direct.url)
        with started("gateway", serve_command(home, port), port, "/health", source) as gateway:
            figures: dict[str, Any] = {"machine": stalls, "idle": idle(gateway, 5.0)}
            figures["json_cpu_ms"] = cpu_of_calls(
                gateway, JSON_CALL, arguments.calls, arguments.clients
            )
            figures["stream_cpu_ms"] = cpu_of_calls(
                gateway, STREAM_CALL, arguments.calls, arguments.clients
            )
            figures["added"] = added_time(gateway, direct, arguments.rate, arguments.seconds)
            figures["many_streams"] = many_streams(gateway, arguments.streams)
            if arguments.soak_minutes:
                figures["soak"] = soak(gateway, arguments.soak_minutes, arguments.soak_rate)
        figures["recorded"] = recorded(home)
        if arguments.litellm:
            peer = litellm(arguments.litellm, direct.url, folder, arguments)
            figures["litellm"] = peer
    return figures


def rows(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(what, measured, wanted)."""
    added, streams = figures["added"], figures["many_streams"]
    machine = figures["machine"]
    table = [
        (
            "a plain loop at a quarter of its speed",
            f"{machine['share']:.1%} of the time, up to {machine['longest_ms']:.0f} ms",
            "0: else the slowest hundredth is the machine's",
        ),
        ("CPU a recorded call, JSON", f"{figures['json_cpu_ms']:.2f} ms", "at most 1.5 ms"),
        ("CPU a stream of 20 chunks", f"{figures['stream_cpu_ms']:.2f} ms", "at most 2.5 ms"),
        ("time added, p50", f"{added['total_p50_added_ms']:.2f} ms", "under 2 ms"),
        ("time added, p99", f"{added['total_p99_added_ms']:.2f} ms", "under 5 ms"),
        ("first chunk added, p50", f"{added['first_p50_added_ms']:.2f} ms", "under 1 ms"),
        (f"{streams['streams']} streams at once", f"{streams['failed']} failed", "0"),
        ("their memory", f"{streams['memory_mb']:.1f} MB", "under 20 MB"),
        ("idle memory", f"{figures['idle']['memory_mb']:.0f} MB", "under 150 MB"),
        ("idle CPU", f"{figures['idle']['cpu_ms_per_second']:.1f} ms/s", "under 5 ms/s"),
    ]
    if soaked := figures.get("soak"):
        what = f"{soaked['minutes']:g} minutes of soak"
        result = f"{soaked['failed']} failed, {soaked['grown_mb']:+.1f} MB"
        table.append((what, result, "0, under 20 MB"))
    if peer := figures.get("litellm"):
        for kind in ("json", "stream"):
            ratio = peer[f"{kind}_cpu_ms"] / figures[f"{kind}_cpu_ms"]
            result = f"{peer[f'{kind}_cpu_ms']:.2f} ms, {ratio:.0f} times"
            table.append((f"LiteLLM's CPU, {kind}", result, "at least 10 times"))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rate", type=float, default=200.0, help="calls a second, open loop")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each side of added time")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--soak-minutes", type=float, default=1.0)
    parser.add_argument("--soak-rate", type=float, default=100.0)
    parser.add_argument("--litellm", type=Path, help="Python of a venv that has litellm[proxy]")
    raw.option(parser, "gateway")
    parser.add_argument("--upstream", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.upstream:
        upstream(arguments.upstream)
        return
    folder = Path(tempfile.mkdtemp(prefix="bench-gateway-"))
    try:
        figures = measured(arguments, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for what, result, wanted in rows(figures):
        print(f"{what:32} {result:24} {wanted}")
    print(f"recorded: {figures['recorded']} calls")
    raw.write(arguments.json, **figures)


if __name__ == "__main__":
    main()
