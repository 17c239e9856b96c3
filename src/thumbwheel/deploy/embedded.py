"""The process of the embedded target: an OpenAI-compatible server over one base, on loopback,
protected by a token.

`python -m thumbwheel.deploy.embedded FOLDER PORT`, with the token in the environment. Models are
loaded and unloaded while it runs, with the same calls as vLLM's. `models.json` in its folder lists
them, so that a server that was killed comes back with all of them.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from thumbwheel.core import ids, log
from thumbwheel.core.config import build
from thumbwheel.core.errors import DataError, InputError, NotFound, ThumbwheelError
from thumbwheel.deploy.processes import write
from thumbwheel.deploy.streaming_generator import (
    Piece,
    StreamingGenerator,
    TokenStream,
    sampling_of,
)
from thumbwheel.deploy.targets.embedded import MODELS, SPEC, TOKEN
from thumbwheel.engine.libraries import load_libraries
from thumbwheel.llm.port import HOST
from thumbwheel.models.template_settings import TemplateSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 16 << 20
"""Bytes of a request; 128 k tokens of text are about half a megabyte."""
TOO_LARGE = f"the body is larger than {MAX_BODY} bytes, which no context of this model can hold"
MAX_TOP_LOGPROBS = 20
"""Most likely tokens that are returned with each sampled one; OpenAI's limit."""
POLL = 0.2
"""Seconds between two checks whether the client is still connected."""
CLIENT_LEFT = 499
"""Status of a request whose client left, as other servers log it; nobody reads it."""
REFUSED = (
    "logit_bias",
    "frequency_penalty",
    "presence_penalty",
    "response_format",
    "functions",
    "suffix",
    "echo",
)
"""Parameters of OpenAI's API that would change the answer and are not supported. A request with one
is refused."""


class CompletionRequest(BaseModel):
    """A request to either endpoint. Unknown fields that change nothing (user, metadata) are
    ignored."""

    model_config = ConfigDict(extra="allow")

    model: str
    messages: list[dict[str, Any]] = []
    prompt: str | list[int] = ""
    tools: list[dict[str, Any]] | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    logprobs: bool | Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    """For a chat whether to return them; for a plain completion, for how many of the most likely
    tokens."""
    top_logprobs: int = Field(default=0, ge=0, le=MAX_TOP_LOGPROBS)
    n: int = 1

    def check(self) -> None:
        """Raise InputError for a parameter that is not supported."""
        extra = self.model_extra or {}
        unsupported = [
            name
            for name in REFUSED
            if extra.get(name) not in (None, False, 0, {}, {"type": "text"})
        ]
        if self.n != 1:
            unsupported.append("n")
        if unsupported:
            names = ", ".join(unsupported)
            raise InputError(f"parameter {names}", "it is not supported here", "Leave it out")


class LoadRequest(BaseModel):
    """The request of vLLM's API to load or unload; without a path the name means the base."""

    lora_name: str
    lora_path: str | None = None
    template: dict[str, Any] | None = None
    """Settings of the chat template of a whole model; an adapter's were saved with it."""


def _load_request(name: str, model: Any) -> LoadRequest:
    """Read a model of models.json: a path, or a mapping with the settings of its template."""
    if isinstance(model, dict):
        return LoadRequest(lora_name=name, lora_path=model["path"], template=model["template"])
    return LoadRequest(lora_name=name, lora_path=model)


class Server:
    """The models of this process, which are listed in its folder."""

    def __init__(self, folder: Path) -> None:
        spec = json.loads((folder / SPEC).read_text(encoding="utf-8"))
        self._file = folder / MODELS
        self.generator = StreamingGenerator(spec["base"], spec["dtype"], spec["device"])
        self._models: dict[str, LoadRequest] = {}
        if self._file.exists():
            for name, model in json.loads(self._file.read_text(encoding="utf-8")).items():
                self._models[name] = _load_request(name, model)
        for name, request in list(self._models.items()):
            try:
                self._load(request)
            except ThumbwheelError as error:  # the other models are served all the same
                log.complain(f"{name} is not served: {error}")
                del self._models[name]

    def load(self, request: LoadRequest) -> None:
        """Serve a model from now on, after a restart as well."""
        name = request.lora_name
        if self._models.get(name) != request:
            self._load(request)
            self._store(self._models | {name: request})

    def _load(self, request: LoadRequest) -> None:
        template = None
        if request.template is not None:
            template = build(TemplateSettings, request.template, "template")
        path = Path(request.lora_path) if request.lora_path else None
        self.generator.load(request.lora_name, path, template)

    def unload(self, name: str) -> None:
        """Stop serving a model."""
        self.generator.unload(name)
        self._store({other: model for other, model in self._models.items() if other != name})

    def _store(self, models: dict[str, LoadRequest]) -> None:
        stored: dict[str, Any] = {}
        for name, request in models.items():
            stored[name] = request.lora_path
            if request.template is not None:
                stored[name] = {"path": request.lora_path, "template": request.template}
        write(self._file, json.dumps(stored, indent=1))
        self._models = models

    def begin(self, completion: CompletionRequest, chat: bool) -> Reply:
        """Start computing an answer."""
        completion.check()
        self.generator.check(completion.model)
        prompt = self._prompt(completion, chat)
        top_count = completion.top_logprobs if chat else int(completion.logprobs or 0)
        if isinstance(completion.stop, str):
            stop: tuple[str, ...] = (completion.stop,)
        else:
            stop = tuple(completion.stop or ())
        remaining = max(1, self.generator.context - len(prompt))
        limit = completion.max_completion_tokens or completion.max_tokens or remaining
        seed = completion.seed
        if seed is None:
            seed = int.from_bytes(os.urandom(4), "big")
        sampling = sampling_of(
            {
                "temperature": completion.temperature,
                "top_p": completion.top_p,
                "top_k": completion.top_k,
                "stop": stop,
                "seed": seed,
                "max_new_tokens": min(limit, 1 << 16),
                "stop_ids": self.generator.builder_of(completion.model).stop_ids,
            }
        )
        pieces = self.generator.generate(completion.model, prompt, sampling, top_count)
        return Reply(completion, chat, len(prompt), self.generator.tokenizer, pieces)

    def _prompt(self, completion: CompletionRequest, chat: bool) -> list[int]:
        self.generator.check_length(completion.messages, completion.tools, completion.prompt)
        if chat:
            if not completion.messages:
                raise DataError("the request", "it has no messages", "Give it at least one")
            builder = self.generator.builder_of(completion.model)
            return builder.prompt(completion.messages, completion.tools)
        if isinstance(completion.prompt, str):
            return list(self.generator.tokenizer(completion.prompt)["input_ids"])
        if not all(0 <= id < self.generator.vocabulary for id in completion.prompt):
            raise DataError(
                "the prompt",
                f"a token id is not below {self.generator.vocabulary}",
                "Send ids of this model's tokenizer",
            )
        return completion.prompt


class Reply:
    """An answer in the form of OpenAI's API, made from the `pieces` of the generator."""

    def __init__(
        self,
        completion: CompletionRequest,
        chat: bool,
        prompt: int,
        tokenizer: Any,
        pieces: TokenStream,
    ) -> None:
        self._completion = completion
        self._chat = chat
        self._prompt_tokens = prompt
        self._tokenizer = tokenizer
        self.pieces = pieces
        self._head = {
            "id": ids.new("cmpl"),
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()),
            "model": completion.model,
        }

    def whole(self) -> dict[str, Any]:
        """The whole answer, once it has ended."""
        pieces = list(self.pieces)
        text = "".join(piece.text for piece in pieces)
        body = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        return {
            **self._head,
            "choices": [self._choice(body, pieces, pieces[-1].finish)],
            "usage": self._usage(len(pieces)),
        }

    def events(self) -> Iterator[str]:
        """Server-sent events as the answer comes; a reader that leaves stops its computation."""
        try:
            yield from self._events()
        finally:
            self.pieces.close()

    def _events(self) -> Iterator[str]:
        head = self._head | ({"object": "chat.completion.chunk"} if self._chat else {})
        count = 0
        if self._chat:
            role = {"delta": {"role": "assistant", "content": ""}}
            yield _event({**head, "choices": [self._choice(role, [], None)]})
        for piece in self.pieces:
            count += 1
            body = {"delta": {"content": piece.text}} if self._chat else {"text": piece.text}
            yield _event({**head, "choices": [self._choice(body, [piece], piece.finish)]})
        if (self._completion.stream_options or {}).get("include_usage"):
            yield _event({**head, "choices": [], "usage": self._usage(count)})
        yield "data: [DONE]\n\n"

    def _choice(
        self, body: dict[str, Any], pieces: list[Piece], finish: str | None
    ) -> dict[str, Any]:
        requested = self._completion.logprobs
        # 0 requests them too, without other likely tokens
        wants_logprobs = requested is not None and requested is not False
        return {
            "index": 0,
            **body,
            "logprobs": self._logprobs(pieces) if wants_logprobs and pieces else None,
            "finish_reason": finish,
        }

    def _logprobs(self, pieces: list[Piece]) -> dict[str, Any]:
        if self._chat:
            content = []
            for piece in pieces:
                top = [self._token(id, logp) for id, logp in piece.top]
                content.append(self._token(piece.id, piece.logp) | {"top_logprobs": top})
            return {"content": content}
        return {
            "tokens": [self._text(piece.id) for piece in pieces],
            "token_ids": [piece.id for piece in pieces],
            "token_logprobs": [piece.logp for piece in pieces],
            "top_logprobs": [self._top(piece) for piece in pieces],
        }

    def _top(self, piece: Piece) -> dict[str, float]:
        return {self._text(id): logp for id, logp in piece.top}

    def _token(self, id: int, logp: float) -> dict[str, Any]:
        return {
            "id": id,
            "token": self._text(id),
            "logprob": logp,
            "bytes": list(self._text(id).encode()),
        }

    def _text(self, id: int) -> str:
        return str(self._tokenizer.decode([id]))

    def _usage(self, count: int) -> dict[str, int]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": count,
            "total_tokens": self._prompt_tokens + count,
        }


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def application(server: Server, token: str) -> FastAPI:
    """The app of `server`; every path needs the token."""
    app = FastAPI(openapi_url=None)
    app.add_middleware(Guard, token=token)

    @app.exception_handler(ThumbwheelError)
    def refuse(request: Request, error: ThumbwheelError) -> JSONResponse:
        status = 404 if isinstance(error, NotFound) else 400
        return JSONResponse(
            {"error": {"message": str(error), "type": "invalid_request_error", "why": error.why}},
            status,
        )

    @app.get("/v1/models")
    async def models() -> Any:  # not in a thread: all of them may be busy with answers
        names = server.generator.names
        return {
            "object": "list",
            "data": [{"id": name, "object": "model", "owned_by": "thumbwheel"} for name in names],
        }

    @app.post("/v1/load_lora_adapter")
    def load(request: LoadRequest) -> Any:
        server.load(request)
        return {"ok": True}

    @app.post("/v1/unload_lora_adapter")
    def unload(request: LoadRequest) -> Any:
        server.unload(request.lora_name)
        return {"ok": True, "left": len(server.generator.names)}

    @app.post("/v1/chat/completions")
    async def chat(completion: CompletionRequest, request: Request) -> Any:
        return await _reply(server, completion, request, chat=True)

    @app.post("/v1/completions")
    async def completions(completion: CompletionRequest, request: Request) -> Any:
        return await _reply(server, completion, request, chat=False)

    return app


async def _reply(
    server: Server, completion: CompletionRequest, request: Request, chat: bool
) -> Any:
    """The reply, whole or streamed. A client that leaves stops the computation of either."""
    reply = await run_in_threadpool(server.begin, completion, chat)
    if completion.stream:
        return EventStream(reply)
    whole = asyncio.create_task(run_in_threadpool(reply.whole))
    try:
        while not (await asyncio.wait({whole}, timeout=POLL))[0]:
            if await request.is_disconnected():
                reply.pieces.close()
                await asyncio.wait({whole})
                return Response(status_code=CLIENT_LEFT)
        return whole.result()
    finally:
        reply.pieces.close()


class EventStream(StreamingResponse):
    """A reply as server-sent events. However the response ends, it stops the computation at once,
    and not when the garbage collector finds the reply."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.events(), media_type="text/event-stream")
        self._reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response (ASGI)."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._reply.pieces.close()


class Guard:
    """Middleware: every request needs the token, and none may be larger than `MAX_BODY`. It works
    on ASGI messages, so that a body is measured while it arrives."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, and pass it on (ASGI)."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Request(scope).headers
        if not hmac.compare_digest(headers.get("authorization", "").encode(), self._expected):
            message = "the bearer token is missing or wrong"
            response = _error_response(message, "authentication_error", 401)
            await response(scope, receive, send)
            return
        stated = headers.get("content-length", "0")
        if not stated.isdecimal() or int(stated) > MAX_BODY:
            await _error_response(TOO_LARGE, "invalid_request_error", 413)(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > MAX_BODY:
                raise HTTPException(413, TOO_LARGE)
            return message

        await self._app(scope, counted, send)


def _error_response(message: str, kind: str, status: int) -> JSONResponse:
    return JSONResponse(
        {"error": {"message": message, "type": kind}}, status, headers={"connection": "close"}
    )


def main(arguments: list[str]) -> None:
    """Serve until stopped."""
    import uvicorn

    load_libraries()
    folder, port = Path(arguments[0]), int(arguments[1])
    app = application(Server(folder), os.environ.pop(TOKEN))
    uvicorn.run(app, host=HOST, port=port, log_level="warning")


if __name__ == "__main__":
    main(sys.argv[1:])
