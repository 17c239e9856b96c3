"""The gateway as a bare ASGI application: each call is passed on unchanged, its reply comes back as
it comes, and a copy of both is recorded.

Of a request only the model's name changes, and the fields that a deployment forces; of a reply
nothing. A version on a target of ours is asked by a chat request, whatever API the client speaks,
and its reply is translated (`translated_call`). A call neither waits nor fails for being recorded,
unless `require_capture` is set.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, ParamSpec, TypeVar

import aiohttp

from thumbwheel.access.credentials import Credentials
from thumbwheel.access.gate import AccessGate
from thumbwheel.access.types import ANONYMOUS, ANY_AGENT, Principal
from thumbwheel.access.work_shares import share_of
from thumbwheel.core import log
from thumbwheel.core.errors import Busy, InputError, ThumbwheelError
from thumbwheel.gateway.budget import Account, Budgets
from thumbwheel.gateway.held_bytes import CallBytes, HeldBytes
from thumbwheel.gateway.protocol import CallRequest, Protocol, ReplyReader
from thumbwheel.gateway.protocols import protocol_of
from thumbwheel.gateway.record import trace_id_of
from thumbwheel.gateway.recorder import PendingCall, Recorder
from thumbwheel.gateway.refusal import Refusal, error_body
from thumbwheel.gateway.reply_draft import CLIENT_LEFT
from thumbwheel.gateway.request import (
    SMALL,
    ClientLeft,
    Message,
    Path,
    Receive,
    is_large,
    read_body,
    read_object,
    split_path,
    unpacked_body,
)
from thumbwheel.gateway.routing import Choice, ChooseModel, RoutingRequest, Upstream
from thumbwheel.gateway.settings import GatewayConfig
from thumbwheel.gateway.spent import require_price
from thumbwheel.gateway.translated_call import (
    needs_translation,
    require_tools_shown,
    server_reply_reader,
    translated_reply,
    translated_request,
)
from thumbwheel.gateway.unrecorded import unrecorded_of
from thumbwheel.gateway.upstream import (
    OURS,
    VIA,
    Reply,
    UpstreamError,
    Upstreams,
    request_headers,
    shown_reply,
)
from thumbwheel.models.types import LIVE, Family
from thumbwheel.sdk.version import __version__

P = ParamSpec("P")
T = TypeVar("T")

Scope = dict[str, Any]
Send = Callable[[Message], Awaitable[None]]
Names = Callable[[str | None], Sequence[str]]
"""The models that clients may ask for: of one agent, or of all."""

LISTS = frozenset(["/v1/models", "/api/tags", "/api/ps", "/api/version"])
SHOW = "/api/show"
"""Where Ollama's clients ask what a model can do."""
FALLS_BACK = frozenset([408, 429, 500, 502, 503, 504, 529])
"""Statuses of an upstream after which a fallback is asked."""
REFUSES = frozenset([400, 401, 403, 404, 405, 409, 411, 413, 414, 415, 422])
"""Statuses by which an upstream says that the request is wrong. In an experiment the control is
asked then, too: who sends nonsense would otherwise end the arm that it was sent to."""
WHOLE = 1 << 16
"""Denominator of the shares of sessions."""
UPSTREAM_BROKE = "the upstream ended the connection"
TOO_LONG = "the call took longer than is allowed"
STOPPED = "the gateway was stopped"
TOO_MUCH = "the upstream's answer is too large to be held until it is recorded (require_capture)"
MOST_HELD_OF_REPLY = 64 << 20
"""Bytes of an answer that waits until it is on disk."""
LOOPS = "the URL of an upstream leads back to this gateway: correct it (thumbwheel models endpoint)"
NOT_CAPTURED = "the call could not be recorded, and require_capture is set"
EXCHANGE = "thumbwheel.exchange"
"""Key of a request's scope under which whoever runs the gateway finds its `Exchange`."""
ADMITTED = "thumbwheel.admitted"
"""Key of a request's scope under which whoever runs the gateway puts an `AdmittedCall`."""


@dataclass(frozen=True)
class AdmittedCall:
    """A call whose caller and model were checked before it reached the gateway: that of a page,
    which presents a session instead of a key."""

    caller: Principal
    choice: Choice


@dataclass
class Exchange:
    """A call while it runs."""

    call: CallRequest
    raw: bytes
    caller: Principal
    agent: str
    key: str | None
    choice: Choice
    accounts: list[Account]
    trace_id: str | None
    """None for a call that is not recorded."""
    rate: float
    """Share of the agent's sessions that are recorded."""
    started_at: datetime
    began: float
    """On the clock `time.perf_counter`, as all of these."""
    first_token: float | None = None
    ended: float = 0.0
    status: int = 0
    """Of the answer; 0 while there is none."""
    size: int = 0
    """Bytes of the answer."""
    reader: ReplyReader | None = None
    cause: str | None = None
    """Why the answer ended before its end."""
    is_over: bool = False
    client_left: bool = False

    @property
    def is_counted(self) -> bool:
        """Return whether the call is charged to a budget of tokens or costs."""
        return any(account.counts for account in self.accounts)

    @property
    def is_read(self) -> bool:
        """Return whether the reply has to be read: for the record, or for what it uses."""
        return self.trace_id is not None or self.is_counted


@dataclass
class Gateway:
    """Answers the paths that `handles` names."""

    config: GatewayConfig
    choose: ChooseModel
    names: Names
    recorder: Recorder
    gate: AccessGate
    budgets: Budgets
    upstreams: Upstreams
    trace_name: Callable[[str], str]
    """The name that a trace gets in place of one that its app gave it; the same where it holds no
    personal data."""
    line: Callable[[Exchange], bytes | None]
    """The recorded line of a call that is over; making it charges the budgets."""
    charge: Callable[[Exchange], object]
    """Charges the budgets for a call that is over and is not recorded."""
    running: int = field(default=0)
    """Calls that run now."""
    held: HeldBytes = field(init=False)
    via: str = field(default_factory=lambda: f"thumbwheel-{secrets.token_hex(8)}")
    """Its name in the header `Via` of calls, by which it knows those that come back to it."""

    def __post_init__(self) -> None:
        self.held = HeldBytes(self.config.max_held)

    def handles(self, method: str, path: str) -> bool:
        """Return whether the gateway answers this path."""
        call = split_path(path).call
        is_list = call in (*LISTS, SHOW) or call.startswith("/v1/models/")
        return is_list or (protocol_of("POST", call) or unrecorded_of("POST", call)) is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request (ASGI)."""
        path = split_path(scope["path"])
        method = scope["method"]
        protocol = protocol_of(method, path.call) or unrecorded_of(method, path.call)
        family: Family = protocol.family if protocol else _family_of(path.call)
        self.running += 1
        caller: Principal | None = None
        try:
            headers = _headers_of(scope)
            caller = self._caller(scope, headers)
            with self.held.of_call(caller.id) as held:
                if path.call == SHOW and method == "POST":
                    shown_model = await self._shown(receive, path, headers, caller, held)
                    await _send_json(send, 200, shown_model)
                elif protocol is None:
                    await _send_json(send, 200, self._listing(method, path, caller))
                else:
                    await self._answer(scope, receive, send, path, protocol, headers, caller, held)
        except Refusal as refusal:
            await _refuse(send, family, refusal)
        except ThumbwheelError as error:
            sees_everything = caller is not None and caller.may("call", None)
            shown = error.shown(sees_everything=sees_everything)
            await _refuse(send, family, Refusal.of(shown))
        except ClientLeft:
            pass
        finally:
            self.running -= 1

    def _caller(self, scope: Scope, headers: dict[str, str]) -> Principal:
        """Identify the caller by their key. Raises Refusal if a key is required and missing or
        invalid, or the caller may not call any agent."""
        admitted: AdmittedCall | None = scope.get(ADMITTED)
        if admitted is not None:
            return admitted.caller
        credentials = Credentials.of_keys(headers)
        identity = self.gate.identify(credentials)
        if identity is not None:
            if not identity.principal.may_somewhere("call"):
                raise Refusal(403, f"{identity.principal.name} may not call any agent")
            return identity.principal
        if self.gate.admits(credentials):
            return ANONYMOUS
        if not credentials.keys:
            raise Refusal(401, "the call presents no key of this gateway")
        client = scope.get("client")
        self.gate.limits.count_failure(client[0] if client else "unknown")
        raise Refusal(401, "the call presents no key of this gateway that holds")

    def _listing(self, method: str, path: Path, caller: Principal) -> Any:
        """Return the answer to a request for models, or for Ollama's version. Raises Refusal for
        any other path or method, and for an unknown model."""
        name = path.call.removeprefix("/v1/models/")
        is_list = path.call in LISTS
        if method not in ("GET", "HEAD") or not (is_list or name != path.call):
            status = 405 if is_list else 404
            raise Refusal(status, f"{method} {path.call} is not answered here")
        if path.call == "/api/version":
            return {"version": __version__}
        names = self._names_for(path, caller)
        if path.call in ("/api/tags", "/api/ps"):
            return {"models": [_ollama_entry(entry) for entry in names]}
        entries = [_openai_entry(entry) for entry in names]
        if is_list:
            return {"object": "list", "data": entries}
        if name not in names:
            raise _no_model(name, names)
        return _openai_entry(name)

    async def _shown(
        self,
        receive: Receive,
        path: Path,
        headers: dict[str, str],
        caller: Principal,
        held: CallBytes,
    ) -> Any:
        """Return Ollama's description of a model. Raises Refusal for an unknown model."""
        sent = await read_body(receive, headers, self.config.max_body, held)
        _, body = await self._object(sent, headers, caller, held)
        name = str(body.get("model") or body.get("name") or "").removesuffix(":latest")
        names = self._names_for(path, caller)
        if name not in names:
            raise _no_model(name, names)
        capabilities = ["completion", "tools"]
        return {"details": {}, "model_info": {}, "template": "", "capabilities": capabilities}

    def _names_for(self, path: Path, caller: Principal) -> list[str]:
        """Return the names of the models that the caller may call."""
        names = self.names(path.agent)
        return [model for model in names if caller.may("call", model.partition(":")[0])]

    async def _answer(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        path: Path,
        protocol: Protocol,
        headers: dict[str, str],
        caller: Principal,
        held: CallBytes,
    ) -> None:
        """Pass on a call and its answer."""
        started_at, began = datetime.now(UTC), time.perf_counter()
        if self.via in headers.get(VIA, ""):
            raise Refusal(508, LOOPS)
        key = _key_name(caller)
        sent = await read_body(receive, headers, self.config.max_body, held)
        raw, body = await self._object(sent, headers, caller, held)
        call = await self._in_turn(caller, len(raw), protocol.request, body, headers)
        agent, alias = _agent_of(path, caller, call)
        name = self.trace_name(trace_id_of(call))
        admitted: AdmittedCall | None = scope.get(ADMITTED)
        if admitted is not None:
            choice = admitted.choice
        else:
            choice = self.choose(_routing_request(agent, alias, call, key, headers, name))
        accounts = self._accounts(agent, key)
        for upstream in (choice.upstream, *choice.fallbacks):
            require_price(accounts, upstream)
        if self.budgets.waits(accounts):
            await asyncio.to_thread(self.budgets.admit, accounts)
        else:
            self.budgets.admit(accounts)
        if protocol.answer is not None and choice.upstream.family != protocol.family:
            await _send_json(send, 200, protocol.answer(call))
            return
        rate = self.config.policy(agent).record if protocol.is_recorded else 0.0
        trace_id = name if _is_recorded(rate, call.context.session or name) else None
        if not protocol.is_counted:
            accounts = []
        exchange = Exchange(
            call, raw, caller, agent, key, choice, accounts, trace_id, rate, started_at, began
        )
        scope[EXCHANGE] = exchange
        if self.config.require_capture and trace_id is not None and self.recorder.problem():
            raise Refusal(503, f"{NOT_CAPTURED}: {self.recorder.problem()}")
        await self._watched(exchange, scope, receive, send)

    async def _object(
        self, sent: bytes, headers: dict[str, str], caller: Principal, held: CallBytes
    ) -> tuple[bytes, dict[str, Any]]:
        """Return (a body as it is unpacked, its JSON object). What is large is read in a thread, in
        the turn of the caller's share. Raises Refusal, and Busy if too many wait for a turn."""
        limit = self.config.max_body
        if not is_large(sent, headers):
            held.hold_values(sent)
            return sent, read_object(sent, headers)
        async with self.gate.shares.reading_turn(share_of(caller), "call") as turn:
            raw = await turn.in_thread(unpacked_body, sent, headers, limit)
            if raw is not sent:
                held.hold(len(raw))
            held.hold_values(raw)
            return raw, await turn.in_thread(read_object, raw, headers)

    async def _in_turn(
        self, caller: Principal, size: int, work: Callable[P, T], /, *args: P.args, **kw: P.kwargs
    ) -> T:
        """Return what `work` returns of a request of `size` bytes: at once for a small one, else in
        a thread, in the turn of the caller's share."""
        if size <= SMALL:
            return work(*args, **kw)
        async with self.gate.shares.reading_turn(share_of(caller), "call") as turn:
            return await turn.in_thread(work, *args, **kw)

    def _accounts(self, agent: str, key: str | None) -> list[Account]:
        accounts = []
        if agent in self.config.agents:
            accounts.append(Account(f"agent {agent}", self.config.agents[agent]))
        if key in self.config.keys:
            accounts.append(Account(f"key {key}", self.config.keys[key]))
        return accounts

    async def _watched(
        self, exchange: Exchange, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Run the exchange, and end the upstream's answer if the client leaves. However it ends, it
        is recorded."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - narrows the type: servers run calls in tasks

        async def watch() -> None:
            message = await receive()
            while message["type"] != "http.disconnect":
                message = await receive()
            if not exchange.is_over:
                exchange.client_left = True
                task.cancel()

        watcher = asyncio.ensure_future(watch())
        try:
            async with asyncio.timeout(self.config.longest):
                await self._exchange(exchange, scope, send)
        except asyncio.CancelledError:
            exchange.cause = CLIENT_LEFT if exchange.client_left else STOPPED
            if not exchange.client_left:
                raise
            task.uncancel()
        except TimeoutError:
            exchange.cause = TOO_LONG
            if exchange.status == 0:
                raise Refusal(504, TOO_LONG) from None
        finally:
            exchange.is_over = True
            watcher.cancel()
            self._record(exchange)

    async def _exchange(self, exchange: Exchange, scope: Scope, send: Send) -> None:
        """Ask the chosen upstream, or its fallbacks in turn, and send the answer on."""
        reply = await self._reply(exchange, scope)
        try:
            if needs_translation(exchange.call, exchange.choice.upstream):
                await self._translate(exchange, reply, send)
            else:
                await self._pass_on(exchange, reply, send)
        except (aiohttp.ClientError, OSError) as error:
            exchange.cause = exchange.cause or f"{UPSTREAM_BROKE} ({type(error).__name__})"
            if exchange.status == 0:
                exchange.status = 502
                raise Refusal(502, exchange.cause, dict(_marks(exchange))) from None
            # The answer has begun: what is left is to end the connection before its end.
        finally:
            reply.close()

    async def _reply(self, exchange: Exchange, scope: Scope) -> aiohttp.ClientResponse:
        """Return the first usable reply, or the last one that failed. Raises Refusal if the last
        upstream gives no reply at all."""
        waiting = [exchange.choice.upstream, *exchange.choice.fallbacks]
        while True:
            upstream = waiting.pop(0)
            try:
                reply = await self._ask(exchange, upstream, scope)
            except UpstreamError as error:
                why, status = str(error), error.status
                if not waiting:
                    _note_failure(exchange)
                    exchange.status = status
                    exchange.cause = f"{upstream.version} on {upstream.target}: {why}"
                    headers = _marks(exchange)
                    raise Refusal(status, exchange.cause, dict(headers)) from None
            else:
                is_failure = reply.status in FALLS_BACK
                if exchange.choice.draw is not None:
                    is_failure |= reply.status in REFUSES
                if not is_failure:
                    return reply
                if not waiting:
                    if exchange.choice.is_fallback or reply.status in REFUSES:
                        _note_failure(exchange)
                    return reply
                why = f"HTTP {reply.status}"
                reply.close()
            exchange.choice = exchange.choice.fall_back(waiting[0], why)

    async def _ask(
        self, exchange: Exchange, upstream: Upstream, scope: Scope
    ) -> aiohttp.ClientResponse:
        call = exchange.call
        self._require_tools_shown(exchange, upstream)
        family = call.protocol.family
        # the app's own key is for the server that it knows, not for one that stands in for it
        keeps_key = exchange.key is None and not exchange.choice.is_fallback
        headers = request_headers(
            scope["headers"], upstream, family, keeps_key=keeps_key, name=self.via
        )
        if needs_translation(call, upstream):
            request = await self._made(exchange, translated_request, call, upstream)
            headers = [header for header in headers if header[0] != "accept-encoding"]
            return await self.upstreams.post(upstream, request.path, headers, request.body)
        raw = exchange.raw
        body = await self._made(exchange, call.with_model, raw, upstream.model, upstream.body)
        path = call.protocol.path
        if query := scope.get("query_string"):
            path = f"{path}?{query.decode('latin-1')}"
        return await self.upstreams.post(upstream, path, headers, body)

    def _require_tools_shown(self, exchange: Exchange, upstream: Upstream) -> None:
        """Refuse a forced call of a tool where the upstream's model sees no tools."""
        with _refusing(exchange):
            require_tools_shown(exchange.call, upstream)

    async def _made(
        self, exchange: Exchange, make: Callable[P, T], /, *args: P.args, **options: P.kwargs
    ) -> T:
        """Return what `make` makes of the call for an upstream. Raises InputError if the call
        cannot be translated, and Busy."""
        with _refusing(exchange):
            size = len(exchange.raw)
            return await self._in_turn(exchange.caller, size, make, *args, **options)

    async def _translate(
        self, exchange: Exchange, reply: aiohttp.ClientResponse, send: Send
    ) -> None:
        """Send a reply on in the form of the client's API."""
        shown = await self._shown_reply(exchange, reply)
        content_type = reply.headers.get("content-type", "")
        translated = translated_reply(exchange.call, reply.status, content_type)
        if exchange.is_read:
            exchange.reader = server_reply_reader(exchange.call, reply.status, content_type)
        is_held = self.config.require_capture and exchange.trace_id is not None
        headers = [(b"content-type", translated.media_type.encode()), *_marks(exchange)]
        if translated.is_stream:
            exchange.status = reply.status
            start = {"type": "http.response.start", "status": reply.status, "headers": headers}
            await send(start)
        async for chunk in shown.pieces:
            exchange.size += len(chunk)
            self._feed(exchange, chunk)
            if written := translated.feed(chunk):
                await send({"type": "http.response.body", "body": written, "more_body": True})
        exchange.is_over = True
        if is_held:
            await self._captured(exchange)
        if translated.is_stream:
            body = translated.end()
        else:
            exchange.status, body = translated.whole()
            headers.append((b"content-length", str(len(body)).encode()))
            start = {
                "type": "http.response.start",
                "status": exchange.status,
                "headers": headers,
            }
            await send(start)
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _pass_on(self, exchange: Exchange, reply: aiohttp.ClientResponse, send: Send) -> None:
        shown = await self._shown_reply(exchange, reply)
        headers = shown.headers
        if exchange.is_read:
            texts = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
            exchange.reader = exchange.call.reply_reader(reply.status, texts)
        is_held = self.config.require_capture and exchange.trace_id is not None
        start = {
            "type": "http.response.start",
            "status": reply.status,
            "headers": headers + _marks(exchange),
        }
        held: list[bytes] = []
        if not is_held or exchange.call.stream:
            exchange.status = reply.status
            await send(start)
        async for chunk in shown.pieces:
            if is_held and not exchange.call.stream:
                if exchange.size + len(chunk) > MOST_HELD_OF_REPLY:
                    exchange.status, exchange.cause = 502, TOO_MUCH
                    raise Refusal(502, TOO_MUCH, dict(_marks(exchange)))
                held.append(chunk)
            else:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            exchange.size += len(chunk)
            self._feed(exchange, chunk)
        exchange.is_over = True
        if is_held:
            await self._captured(exchange)
            if exchange.status == 0:
                exchange.status = reply.status
                await send(start)
        body = b"".join(held)
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _shown_reply(self, exchange: Exchange, reply: aiohttp.ClientResponse) -> Reply:
        """Return the reply without the upstream's credentials. Raises Refusal for an answer that
        refuses without an end."""
        try:
            return await shown_reply(reply, exchange.choice.upstream.secret)
        except UpstreamError as error:
            exchange.status, exchange.cause = error.status, str(error)
            raise Refusal(error.status, str(error), dict(_marks(exchange))) from None

    def _feed(self, exchange: Exchange, chunk: bytes) -> None:
        """Read a piece of the answer. An error here is logged and does not fail the call."""
        reader = exchange.reader
        if reader is None:
            return
        try:
            reader.feed(chunk)
            if exchange.first_token is None and reader.has_token:
                exchange.first_token = time.perf_counter()
        except Exception as error:  # noqa: BLE001 - a call must not fail for being recorded
            log.logger.error("a reply of %s cannot be read: %r", exchange.choice.version, error)
            exchange.reader = None

    async def _captured(self, exchange: Exchange) -> None:
        """Wait until the call is on disk. If it cannot be stored, raises Refusal before the answer
        has begun, else ConnectionAbortedError, which ends the answer early."""
        durable: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._record(exchange, durable)
        if await durable:
            return
        if exchange.status == 0:
            exchange.status = 503
            raise Refusal(503, NOT_CAPTURED)
        raise ConnectionAbortedError(NOT_CAPTURED)

    def _record(self, exchange: Exchange, durable: asyncio.Future[bool] | None = None) -> None:
        """Hand the call to the recorder, which writes and counts it, once."""
        if exchange.ended:
            return
        exchange.ended = time.perf_counter()
        if exchange.is_read:
            size = len(exchange.raw) + exchange.size
            charge = partial(self.charge, exchange) if exchange.is_counted else None
            share = share_of(exchange.caller)
            line = partial(self.line, exchange)
            self.recorder.add(PendingCall(line, size, charge, share, durable))


def _headers_of(scope: Scope) -> dict[str, str]:
    """Return the headers of a request by name; of several the last, and of `Via` all."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name == VIA and name in headers else value
    return headers


def _agent_of(path: Path, caller: Principal, call: CallRequest) -> tuple[str, str]:
    """Return (agent, alias) of a call: the agent by path, header or key, else by the model's name.
    Raises Refusal if no agent is named or the caller may not call it."""
    named, _, alias = call.model.partition(":")
    agent = path.agent or call.context.agent or _only_agent(caller) or named
    if not agent:
        raise Refusal(400, "the call names no model: ask for an agent by its name")
    if not caller.may("call", agent):
        raise Refusal(403, f"the key {caller.name} may not call agent {agent[:200]!r}")
    return agent, (alias or LIVE) if named == agent else LIVE


def _key_name(caller: Principal) -> str | None:
    """Return the name of the caller's key, a person's id, or None for anonymous callers. The name
    of a person must not reach the records."""
    if caller is ANONYMOUS:
        return None
    return caller.name if caller.kind == "key" else caller.id


def _only_agent(caller: Principal) -> str | None:
    """Return the agent of a key that may call no other; None for any other key."""
    agents = [agent for agent, verbs in caller.grants.items() if "call" in verbs]
    return agents[0] if len(agents) == 1 and agents[0] != ANY_AGENT else None


def _routing_request(
    agent: str,
    alias: str,
    call: CallRequest,
    key: str | None,
    headers: dict[str, str],
    trace: str,
) -> RoutingRequest:
    ours = {name: value for name, value in headers.items() if name.startswith(OURS)}
    return RoutingRequest(
        agent=agent,
        alias=alias,
        model=call.model,
        session=call.context.session,
        subject=call.context.subject,
        key=key,
        headers=ours,
        trace=trace,
        parent=call.context.parent,
    )


def _is_recorded(rate: float, session: str) -> bool:
    """Return whether this session is in the recorded share: always the same for one session.

    >>> _is_recorded(1.0, "s"), _is_recorded(0.0, "s")
    (True, False)
    """
    if rate >= 1.0:
        return True
    digest = hashlib.sha256(f"record:{session}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:2], "big") < rate * WHOLE


@contextmanager
def _refusing(exchange: Exchange) -> Iterator[None]:
    """Note an InputError or Busy that is raised inside as the end of the exchange. It does not
    count against the arm of an experiment."""
    try:
        yield
    except (InputError, Busy) as error:
        _note_failure(exchange)
        exchange.status = 400 if isinstance(error, InputError) else error.http_status
        exchange.cause = str(error)
        raise


def _note_failure(exchange: Exchange) -> None:
    """Note that no upstream is left to answer the call."""
    exchange.choice = replace(exchange.choice, fails_everywhere=True)


def _marks(exchange: Exchange) -> list[tuple[bytes, bytes]]:
    """Return the gateway's headers of an answer: version, deployment, and the trace id for
    feedback."""
    choice = exchange.choice
    marks = [
        (b"x-thumbwheel-version", choice.version.encode()),
        (b"x-thumbwheel-deployment", choice.deployment.encode()),
    ]
    if exchange.trace_id is not None:
        marks.append((b"x-thumbwheel-trace", _header_text(exchange.trace_id)))
    return marks


def _header_text(text: str) -> bytes:
    """Encode `text` as a header's value in UTF-8, with line ends replaced by spaces."""
    return text.replace("\r", " ").replace("\n", " ").encode("utf-8", "replace")


def _no_model(name: str, names: Sequence[str]) -> Refusal:
    return Refusal(404, f"model {name[:200]!r} is not here; here are {', '.join(names)}")


def _family_of(call: str) -> Family:
    return "ollama" if call.startswith("/api/") else "openai"


def _openai_entry(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "thumbwheel"}


def _ollama_entry(name: str) -> dict[str, Any]:
    return {"name": name, "model": name, "size": 0, "digest": "", "details": {}}


async def _refuse(send: Send, family: Family, refusal: Refusal) -> None:
    body = error_body(family, refusal.status, str(refusal))
    await _send(send, refusal.status, body, list(refusal.headers.items()))


async def _send_json(send: Send, status: int, value: Any) -> None:
    await _send(send, status, json.dumps(value).encode(), [])


async def _send(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    start_headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": start_headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
