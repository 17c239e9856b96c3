"""Puts the server together and runs it until it is stopped.

On SIGTERM or Ctrl-C it takes no new calls, lets those that run end (at most `GRACE` seconds),
writes what was recorded to disk and makes rows of it. Where a successor takes its place, it waits
for them as long as they take.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import uvicorn
from fastapi import FastAPI

from thumbwheel.access.gate import AccessGate, opened_gate
from thumbwheel.access.settings import AccessConfig
from thumbwheel.app.dialects import DIALECTS
from thumbwheel.app.routing_table import RoutingTable
from thumbwheel.app.service_settings import LogConfig, McpConfig, ServerConfig
from thumbwheel.capture.acknowledged import AcknowledgedSegment
from thumbwheel.capture.feedback_token import FeedbackTokens
from thumbwheel.capture.gateway_seal import sealed_line
from thumbwheel.capture.inbox import Drainer
from thumbwheel.capture.quota import QuotaConfig, Quotas
from thumbwheel.capture.redact import CaptureConfig, RedactedSegment, Redactor
from thumbwheel.capture.routes import router as capture_router
from thumbwheel.capture.routes import unbounded
from thumbwheel.capture.traces import count_traces
from thumbwheel.core import log
from thumbwheel.core.addresses import is_loopback
from thumbwheel.core.errors import Conflict, public_reason
from thumbwheel.core.seal import make_seal
from thumbwheel.core.usage import UsageFile
from thumbwheel.db.host_software import as_row, software_of_host
from thumbwheel.db.hosts import HostConfig, set_address, set_software
from thumbwheel.db.leadership import Leadership
from thumbwheel.db.shared_counts import CallWindows, DayCounts
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.watch import DeploymentWatch
from thumbwheel.gateway.application import Exchange, Gateway
from thumbwheel.gateway.budget import Budgets, CallTimes
from thumbwheel.gateway.patience import Patience, allow_many_files
from thumbwheel.gateway.recorded_call import recorded_call
from thumbwheel.gateway.recorder import Recorder
from thumbwheel.gateway.settings import GatewayConfig
from thumbwheel.gateway.upstream import Upstreams
from thumbwheel.jobs.queue import counts, crashing, live_workers, standstill
from thumbwheel.jobs.schedules import overdue
from thumbwheel.jobs.supervisor import Supervisor
from thumbwheel.loop.experiment_runner import ExperimentRunner
from thumbwheel.models.blob_location import require_fit
from thumbwheel.sdk.segment import Segment
from thumbwheel.sdk.spool_files import waiting_bytes
from thumbwheel.server.application import (
    Application,
    allowed_hosts,
    api_application,
)
from thumbwheel.server.dialect_origins import DialectOrigins
from thumbwheel.server.entrance import login_url
from thumbwheel.server.growing_api import GrowingApi
from thumbwheel.server.handover import notify_manager, offered, passed_socket, take
from thumbwheel.server.health import HealthCheck, ServerHealth, TimeLimited
from thumbwheel.server.health import router as health_router
from thumbwheel.server.host_duties import HostDuties
from thumbwheel.server.maintenance import Maintenance
from thumbwheel.server.metrics import PREFIX, Metrics, MetricSample
from thumbwheel.server.metrics import router as metrics_router
from thumbwheel.server.notifier import Notifier
from thumbwheel.server.uvicorn_server import HomeServer

GRACE = 30
"""Seconds that calls which run have to end in once the server stops."""
KEEP_ALIVE = 75
"""Seconds that a client's unused connection stays open."""
BACKLOG = 2048
"""Connections that may wait to be accepted."""
DRAIN_EVERY = 0.1
"""Seconds between two looks into the inbox."""
BACKLOG_SECONDS = 10.0
"""Seconds after which a waiting write means that the database stands still."""
SWITCH_INTERVAL = 0.001
"""Seconds after which the thread that writes down lets the one that answers go on."""
NO_NEWS = (
    "ASGI callable returned without completing response.",  # the upstream did not complete it
    "Unsupported upgrade request.",  # and anybody could fill a log with these
    "No supported WebSocket library detected",
)
"""Beginnings of what uvicorn logs though all is as it should be."""


@contextmanager
def assembled(
    ws: Workspace,
    host: str,
    drain_every: float = DRAIN_EVERY,
    supervisor: Supervisor | None = None,
    start_command: Sequence[str] = (),
    drain_command: Sequence[str] = (),
    dialects: Sequence[str] = (),
) -> Iterator[Application]:
    """Yield the application of a server that listens on `host`, while its background parts run.
    Raises NotFound for an unknown dialect."""
    for name in dialects:
        DIALECTS.get(name)
    config = ws.settings(GatewayConfig, "gateway")
    with ExitStack() as stack:
        day_counts = stack.enter_context(DayCounts(ws.db)) if ws.is_shared else None
        used = day_counts or stack.enter_context(UsageFile(ws.home.path))
        windows = CallWindows(ws.db) if ws.is_shared else CallTimes()
        budgets = Budgets(used, windows, is_shared=ws.is_shared)
        gate = stack.enter_context(_gate(ws, host, config))
        table = stack.enter_context(RoutingTable(ws, config))
        watch = stack.enter_context(
            DeploymentWatch(ws, table.served, table.read_again, start_command)
        )
        # Left in the reverse order: what is recorded last is on disk before the last drain.
        drainer = stack.enter_context(Drainer(ws, drain_every, drain_command))
        leadership = stack.enter_context(Leadership(ws.db))
        runner = stack.enter_context(ExperimentRunner(ws, leadership))
        redactor = Redactor.of_home(ws)
        seal = make_seal(ws.home.signing)
        # its lines are redacted and sealed before they are bytes
        capture_config = ws.settings(CaptureConfig, "capture")

        def spool() -> AcknowledgedSegment:
            return AcknowledgedSegment(Segment(ws.home.inbox), drainer, capture_config)

        recorder = stack.enter_context(Recorder(spool))
        maintenance = stack.enter_context(Maintenance(ws, leadership))
        duties = None
        if ws.is_shared:
            set_address(ws.db, ws.home, ws.settings(HostConfig, "host").address)
            set_software(ws.db, ws.home, as_row(software_of_host()))
            duties = stack.enter_context(HostDuties(ws))
        notifier = stack.enter_context(Notifier(ws, watch))

        quotas = Quotas(ws.settings(QuotaConfig, "quotas"), used, partial(count_traces, ws))

        def line(exchange: Exchange) -> bytes | None:
            record = recorded_call(exchange, budgets)
            if record is None:
                return None
            # after the redaction, which may change the trace's name
            sealed = sealed_line(seal, redactor.line(record))
            content = json.dumps(sealed, ensure_ascii=False, allow_nan=False).encode()
            if quotas.is_bounded:
                # beyond its quota a call is answered, and counts as lost
                quotas.admit(exchange.key, [(exchange.agent, len(content))])
            return content

        gateway = Gateway(
            config=config,
            choose=table.choose,
            names=table.names,
            recorder=recorder,
            gate=gate,
            budgets=budgets,
            upstreams=Upstreams(config),
            trace_name=redactor.name,
            line=line,
            charge=lambda exchange: recorded_call(exchange, budgets),
        )

        call_samples = _samples_of_calls(gateway, recorder, drainer)
        figures = {sample.name.removeprefix(PREFIX): sample.read for sample in call_samples}
        checks = [
            # a call that is refused for not being recorded is a call that is not answered
            HealthCheck("recording", recorder.problem, is_needed=config.require_capture),
            HealthCheck("routing", table.problem),
            HealthCheck("deployments", watch.problem),
            HealthCheck("access", gate.directory.problem),
            HealthCheck("drainer", lambda: _standstill(drainer)),
            HealthCheck("writer", lambda: _backlog(ws)),
            HealthCheck("workers", lambda: supervisor.problem() if supervisor else None),
            HealthCheck("jobs", TimeLimited(lambda: standstill(ws))),
            HealthCheck("attempts", TimeLimited(lambda: crashing(ws))),
            HealthCheck("schedules", TimeLimited(lambda: overdue(ws))),
            HealthCheck("retention", maintenance.problem),
            HealthCheck("hosts", lambda: duties.problem() if duties else None, is_needed=False),
            HealthCheck("notices", notifier.problem, is_needed=False),
            HealthCheck("experiments", runner.problem, is_needed=False),
        ]
        health = ServerHealth(checks, figures)
        metrics = Metrics()
        metrics.add(*call_samples, *_samples(ws, recorder, drainer, health))
        refused = "Requests and records beyond a quota."
        metrics.add(
            MetricSample(f"{PREFIX}quota_refusals", refused, lambda: quotas.refused, counts=True)
        )
        segment = AcknowledgedSegment(
            RedactedSegment(ws.home.inbox, redactor), drainer, capture_config
        )
        stack.callback(segment.close)
        tokens = FeedbackTokens.with_key(ws.home.feedback_key)
        routers = [
            health_router(health),
            metrics_router(metrics),
            capture_router(segment, tokens, quotas.admit_lines if quotas.is_bounded else unbounded),
        ]
        hosts = allowed_hosts(host, config.hosts)
        logs_requests = ws.settings(LogConfig, "log").requests
        api = api_application(routers)
        api.state.workspace = ws
        api.state.started_with = ws.sources
        api.state.leaving = health.leaving
        api.state.admit = quotas.admit_lines
        api.state.waits_for_imports = capture_config.acknowledge == "rows"
        api.state.has_workers = supervisor is not None and supervisor.n_workers > 0
        api.state.supervisor = supervisor
        api.state.gate = gate
        api.state.watch = watch
        api.state.gateway = gateway
        growing_api = GrowingApi(api, partial(_add_further_routes, dialects))
        server = ws.settings(ServerConfig, "server")
        api.state.dialect_origins = frozenset(server.dialect_origins)
        pages = DialectOrigins(growing_api, dialects, server.dialect_origins)
        yield Application(gateway, pages, health, metrics, hosts, logs_requests, server.proxies)


def _add_further_routes(dialects: Sequence[str], api: FastAPI) -> None:
    """Add the routes of the commands, the dialects, the pages and MCP, and put all behind the
    gate."""
    from starlette.routing import Route

    from thumbwheel.server.access import protect
    from thumbwheel.server.api.routers import api_router, dialect_router
    from thumbwheel.server.mcp_endpoint import router as mcp_router
    from thumbwheel.server.pages.routes import router as pages_router
    from thumbwheel.server.pages.routes import unknown_page_router
    from thumbwheel.server.playground_calls import router as playground_router

    # include_router would make each route of the commands a second time
    api.router.routes.extend(api_router().routes)
    routes = dialect_router(dialects)
    paths = (route.path for route in routes.routes if isinstance(route, Route))
    api.state.dialect_paths = frozenset(paths)
    api.include_router(routes)
    api.include_router(pages_router())
    api.include_router(playground_router())
    api.include_router(mcp_router(api.state.workspace.settings(McpConfig, "mcp")))
    protect(api, api.state.gate, unknown_page_router())


def _samples_of_calls(gateway: Gateway, recorder: Recorder, drainer: Drainer) -> list[MetricSample]:
    """Return the samples about model calls, for both `/metrics` and `/health`."""
    return [
        MetricSample(
            f"{PREFIX}running_calls", "Calls to models that run now.", lambda: gateway.running
        ),
        MetricSample(
            f"{PREFIX}lost_calls",
            "Answered calls that are not recorded.",
            lambda: recorder.losses.count,
            counts=True,
        ),
        MetricSample(
            f"{PREFIX}drain_lag_seconds",
            "Age of the oldest recorded line that is no row yet.",
            lambda: round(drainer.lag(), 3),
        ),
    ]


def _samples(
    ws: Workspace, recorder: Recorder, drainer: Drainer, health: ServerHealth
) -> list[MetricSample]:
    """Return the samples about the server's parts, for `/metrics`."""

    def problems() -> dict[str, float]:
        current = health.problems()
        return {check.part: float(check.part in current) for check in health.checks}

    return [
        MetricSample(
            f"{PREFIX}recording_calls",
            "Calls that wait to be written down.",
            lambda: recorder.waiting,
        ),
        MetricSample(
            f"{PREFIX}inbox_bytes",
            "Size of the recorded lines that are no rows yet.",
            lambda: waiting_bytes(ws.home.inbox),
        ),
        MetricSample(
            f"{PREFIX}drained_lines",
            "Lines of the inbox, by what became of them.",
            lambda: drainer.counts,
            label="result",
            counts=True,
        ),
        MetricSample(
            f"{PREFIX}writer_wait_seconds",
            "Age of the oldest write that is not on disk yet.",
            ws.db.oldest_waiting,
        ),
        MetricSample(
            f"{PREFIX}writer_queue",
            "Writes that wait for the database.",
            ws.db.waiting,
        ),
        MetricSample(f"{PREFIX}jobs", "Jobs by their state.", lambda: counts(ws), label="state"),
        MetricSample(
            f"{PREFIX}workers",
            "Workers that gave a sign of life within the last minute.",
            lambda: len(live_workers(ws)),
        ),
        MetricSample(
            f"{PREFIX}problem",
            "Whether a part of the server stands still, as /health says it.",
            problems,
            label="part",
        ),
    ]


@contextmanager
def _gate(ws: Workspace, host: str, config: GatewayConfig) -> Iterator[AccessGate]:
    """Yield the gate of a server that listens on `host`. Raises Conflict if the address is no
    loopback one and there is neither a key nor a user."""
    local = is_loopback(host)
    access = ws.settings(AccessConfig, "access")
    with opened_gate(ws, access, local=local, apps=not config.require_key) as gate:
        if not local and gate.directory.is_empty():
            raise Conflict(
                f"--host {host}",
                "others can reach that address, and there is neither a key nor a user",
                "Make one first: thumbwheel keys add NAME, or thumbwheel users add NAME --role "
                "owner",
            )
        yield gate


def _standstill(drainer: Drainer) -> str | None:
    """Return a message if the drainer has stopped making progress, else None. Health needs no key,
    so the message omits the text of an error."""
    if not drainer.stands_still():
        return None
    why = f": {public_reason(drainer.failure)}; see the log" if drainer.failure else ""
    return f"recorded lines wait for {drainer.lag():.0f} s to become rows{why}"


def _backlog(ws: Workspace) -> str | None:
    """Return a message if a database write has waited too long, else None."""
    seconds = ws.db.oldest_waiting()
    return f"a write waits for {seconds:.0f} s" if seconds > BACKLOG_SECONDS else None


@dataclass(frozen=True)
class Workers:
    """The processes that do the jobs of the home."""

    command: Sequence[str]
    number: int


def serve(
    ws: Workspace,
    host: str,
    port: int,
    *,
    takes_over: bool = False,
    workers: Workers = Workers((), 0),
    opens_browser: bool = False,
    start_command: Sequence[str] = (),
    drain_command: Sequence[str] = (),
    dialects: Sequence[str] = (),
) -> None:
    """Serve until stopped. Raises Conflict if the port is taken, ConfigError and StorageError for a
    bucket of blobs that is unfit or does not work. `start_command` starts a
    deployment that does not answer (deploy/watch.py), `drain_command` a process that drains the
    inbox, too (app/drain_process.py).

    With `takes_over` it listens on the socket of this home's server that runs on the port; that
    server leaves once this one answers. SIGUSR2 starts such a successor.
    """
    require_fit(ws)
    allow_many_files()
    handover = take(ws.home.path, host, port) if takes_over else None
    passed = passed_socket() if handover is None else None
    is_passed = handover.is_passed if handover is not None else passed is not None
    with ExitStack() as stack:
        if handover is not None:
            listener = stack.enter_context(handover.listener)
        elif passed is not None:
            listener = stack.enter_context(passed)
        else:
            listener = stack.enter_context(listening(host, port))
        real_port = listener.getsockname()[1]
        # Workers stop last, so that the calls that run do not wait for them.
        supervisor = stack.enter_context(Supervisor(workers.command, workers.number, GRACE))
        application = stack.enter_context(
            assembled(
                ws,
                host,
                supervisor=supervisor,
                start_command=start_command,
                drain_command=drain_command,
                dialects=dialects,
            )
        )

        def leave() -> None:
            supervisor.retire()  # jobs go on with the successor's workers
            server.hand_over()

        def introduce() -> None:
            try:
                stack.enter_context(offered(ws.home.path, host, listener, leave, is_passed))
            except OSError as error:
                log.say(f"note: no successor can take the place of this server: {error}")
            if handover is not None:
                handover.answers()
            notify_manager(f"MAINPID={os.getpid()}", "READY=1")
            _introduce(application, host, real_port)
            if opens_browser:
                url = login_url(application.pages.app.first.state.gate, _url(host, real_port))
                # some browsers run until they are closed
                threading.Thread(target=webbrowser.open, args=[url], daemon=True).start()

        leaving = application.health.leaving
        config = server_config(application)
        server = HomeServer(config, leaving, introduce, is_passed)
        signal.signal(signal.SIGUSR2, lambda *_: _start_successor(real_port))
        sys.setswitchinterval(SWITCH_INTERVAL)
        # What lives as long as the server is not looked through again and again for garbage: all
        # calls would wait for that.
        gc.collect()
        gc.freeze()
        with suppress(KeyboardInterrupt):  # uvicorn repeats the signal that it stopped for
            server.run(sockets=[listener])
        log.say("stopping: recorded calls are brought into the database")


def _start_successor(port: int) -> None:
    """Start this command once more, as the successor of this process."""
    command = [sys.executable, "-P", "-m", "thumbwheel", *sys.argv[1:]]
    if "--replace" not in command:
        command.append("--replace")
    subprocess.Popen([*command, "--port", str(port)], stdin=subprocess.DEVNULL)


def server_config(application: Application) -> uvicorn.Config:
    """Return the uvicorn configuration for the application. Uvicorn adds no `server` and `date`
    headers, because those of an upstream are passed on."""
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    return uvicorn.Config(
        application,
        loop="auto",
        http=Patience,
        ws="none",
        lifespan="on",
        access_log=False,
        log_level="warning",
        # By itself uvicorn believes whoever asks from loopback, which every program here does.
        proxy_headers=bool(application.proxies),
        forwarded_allow_ips=list(application.proxies),
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
        log_config=None,
    )


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(NO_NEWS)


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Yield a listening socket; port 0 takes any free one. Raises Conflict if the address cannot be
    bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except OSError as error:
            raise Conflict(
                f"port {port} of {host}",
                f"nothing can listen there: {error.strerror or error}",
                "Stop the program that does, or choose another: --port 8788",
            ) from None
        yield listener


def _url(host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"


def _introduce(application: Application, host: str, port: int) -> None:
    url = _url(host, port)
    agents = [name for name in application.gateway.names(None) if ":" not in name]
    log.say(f"serving {', '.join(agents) or 'no agent yet (see thumbwheel deploy)'}")
    log.say(f"export OPENAI_BASE_URL={url}/v1      # the model is the agent, or AGENT:ALIAS")
    log.say(f"or, for any model name: {url}/a/AGENT/v1      health: {url}/health")
    gate: AccessGate = application.pages.app.first.state.gate
    if gate.token is None:
        return
    if sys.stderr.isatty() and not log.is_structured():
        log.say(f"yours, for one browser within ten minutes: {login_url(gate, url)}")
    else:
        # a log is read by more people than a terminal
        log.say("to log a browser in: thumbwheel open")
