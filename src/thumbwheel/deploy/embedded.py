"""The process of the embedded target: an OpenAI-compatible server over one base, on loopback,
behind a token.

`python -m thumbwheel.deploy.embedded FOLDER PORT`, the token in the environment. Models come and go
while it runs, by the calls that vLLM has for it; `models.json` in its folder remembers them, so
that a server that was killed comes back with all of them.
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
from thumbwheel.core.errors import DataError, InputError, NotFound, ThumbwheelError
from thumbwheel.deploy.processes import write
from thumbwheel.deploy.streaming_generator import Piece, Speech, StreamingGenerator, finite
from thumbwheel.deploy.targets.embedded import MODELS, SPEC, TOKEN
from thumbwheel.llm.port import HOST

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY = 16 << 20
"""Bytes of a request; a context of 128 k tokens of text has about half a megabyte."""
TOO_LARGE = f"the body is larger than {BODY} bytes, which no context of this model can hold"
MOST_TOPS = 20
"""Of the most likely tokens, shown beside each that was drawn; as OpenAI has it."""
LOOK = 0.2
"""Seconds between two looks whether the client is still there."""
GONE = 499
"""Status, as other servers log it, of a request whose client left; nobody reads it."""
REFUSED = (
    "logit_bias",
    "frequency_penalty",
    "presence_penalty",
    "response_format",
    "functions",
    "suffix",
    "echo",
)
"""Parameters of OpenAI's that would change the answer and are not supported: a request with one is
refused, never half obeyed."""


class Ask(BaseModel):
    """A request to either endpoint; what is not known here and changes nothing (user, metadata) is
    left alone."""

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
    logprobs: bool | Annotated[int, Field(ge=0, le=MOST_TOPS)] | None = None
    """Of a chat: whether. Of a plain completion: how many of the most likely tokens besides."""
    top_logprobs: int = Field(default=0, ge=0, le=MOST_TOPS)
    n: int = 1

    def check(self) -> None:
        """Raise InputError for what would have to be ignored."""
        extra = self.model_extra or {}
        given = [
            name
            for name in REFUSED
            if extra.get(name) not in (None, False, 0, {}, {"type": "text"})
        ]
        if given or self.n != 1:
            named = ", ".join([*given, *(["n"] if self.n != 1 else [])])
            raise InputError(f"parameter {named}", "it is not supported here", "Leave it out")


class Loading(BaseModel):
    """As vLLM has it; without a path the name means the base."""

    lora_name: str
    lora_path: str | None = None


class Server:
    """The models of one process, as they are remembered in its folder."""

    def __init__(self, place: Path) -> None:
        spec = json.loads((place / SPEC).read_text(encoding="utf-8"))
        self._file = place / MODELS
        self.speaker = StreamingGenerator(spec["base"], spec["dtype"], spec["device"])
        self._paths: dict[str, str | None] = (
            json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else {}
        )
        for name, path in list(self._paths.items()):
            try:
                self.speaker.load(name, Path(path) if path else None)
            except ThumbwheelError as error:  # one damaged adapter takes no other model down
                log.complain(f"{name} is not served: {error}")
                del self._paths[name]

    def load(self, asked: Loading) -> None:
        """Serve it from now on, after a restart as well."""
        if self._paths.get(asked.lora_name, "") != asked.lora_path:
            self.speaker.load(asked.lora_name, Path(asked.lora_path) if asked.lora_path else None)
            self._keep(self._paths | {asked.lora_name: asked.lora_path})

    def unload(self, name: str) -> None:
        """Serve it no more."""
        self.speaker.unload(name)
        self._keep({known: path for known, path in self._paths.items() if known != name})

    def _keep(self, paths: dict[str, str | None]) -> None:
        write(self._file, json.dumps(paths, indent=1))
        self._paths = paths

    def begin(self, ask: Ask, chat: bool) -> Reply:
        """The reply, which is computed from now on."""
        ask.check()
        self.speaker.check(ask.model)
        prompt = self._prompt(ask, chat)
        tops = ask.top_logprobs if chat else int(ask.logprobs or 0)
        stop = (ask.stop,) if isinstance(ask.stop, str) else tuple(ask.stop or ())
        limit = (
            ask.max_completion_tokens or ask.max_tokens or max(1, self.speaker.room - len(prompt))
        )
        seed = int.from_bytes(os.urandom(4), "big") if ask.seed is None else ask.seed
        drawn = {
            "temperature": ask.temperature,
            "top_p": ask.top_p,
            "top_k": ask.top_k,
            "stop": stop,
            "seed": seed,
        }
        sampling = finite(
            drawn
            | {"max_new_tokens": min(limit, 1 << 16), "stop_ids": self.speaker.builder.stop_ids}
        )
        pieces = self.speaker.speak(ask.model, prompt, sampling, tops)
        return Reply(ask, chat, len(prompt), self.speaker.tokenizer, pieces)

    def _prompt(self, ask: Ask, chat: bool) -> list[int]:
        self.speaker.check_length(ask.messages, ask.tools, ask.prompt)
        if chat:
            if not ask.messages:
                raise DataError("the request", "it has no messages", "Give it at least one")
            return self.speaker.builder.prompt(ask.messages, ask.tools)
        if isinstance(ask.prompt, str):
            return list(self.speaker.tokenizer(ask.prompt)["input_ids"])
        if not all(0 <= id < self.speaker.vocabulary for id in ask.prompt):
            raise DataError(
                "the prompt",
                f"a token id is not below {self.speaker.vocabulary}",
                "Send ids of this model's tokenizer",
            )
        return ask.prompt


class Reply:
    """The `pieces` of an answer in OpenAI's words."""

    def __init__(self, ask: Ask, chat: bool, prompt: int, tokenizer: Any, pieces: Speech) -> None:
        self._ask, self._chat, self._prompt, self._tokenizer = ask, chat, prompt, tokenizer
        self.pieces = pieces
        kind = "chat.completion" if chat else "text_completion"
        self._head = {
            "id": ids.new("cmpl"),
            "object": kind,
            "created": int(time.time()),
            "model": ask.model,
        }

    def whole(self) -> dict[str, Any]:
        """Once it has ended."""
        pieces = list(self.pieces)
        text = "".join(piece.text for piece in pieces)
        body = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        return {
            **self._head,
            "choices": [self._choice(body, pieces, pieces[-1].finish)],
            "usage": self._usage(len(pieces)),
        }

    def events(self) -> Iterator[str]:
        """As it comes; a reader that leaves ends it."""
        try:
            yield from self._events()
        finally:
            self.pieces.close()

    def _events(self) -> Iterator[str]:
        head = self._head | ({"object": "chat.completion.chunk"} if self._chat else {})
        count = 0
        if self._chat:
            yield _event(
                {
                    **head,
                    "choices": [
                        self._choice({"delta": {"role": "assistant", "content": ""}}, [], None)
                    ],
                }
            )
        for piece in self.pieces:
            count += 1
            body = {"delta": {"content": piece.text}} if self._chat else {"text": piece.text}
            yield _event({**head, "choices": [self._choice(body, [piece], piece.finish)]})
        if (self._ask.stream_options or {}).get("include_usage"):
            yield _event({**head, "choices": [], "usage": self._usage(count)})
        yield "data: [DONE]\n\n"

    def _choice(
        self, body: dict[str, Any], pieces: list[Piece], finish: str | None
    ) -> dict[str, Any]:
        asked = (
            self._ask.logprobs is not None and self._ask.logprobs is not False and pieces
        )  # 0 asks for no others
        return {
            "index": 0,
            **body,
            "logprobs": self._logprobs(pieces) if asked else None,
            "finish_reason": finish,
        }

    def _logprobs(self, pieces: list[Piece]) -> dict[str, Any]:
        if self._chat:
            return {
                "content": [
                    self._token(one.id, one.logp)
                    | {"top_logprobs": [self._token(*top) for top in one.top]}
                    for one in pieces
                ]
            }
        return {
            "tokens": [self._text(one.id) for one in pieces],
            "token_ids": [one.id for one in pieces],
            "token_logprobs": [one.logp for one in pieces],
            "top_logprobs": [{self._text(id): logp for id, logp in one.top} for one in pieces],
        }

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
            "prompt_tokens": self._prompt,
            "completion_tokens": count,
            "total_tokens": self._prompt + count,
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
    async def models() -> Any:  # needs no thread, all of which may be busy with answers
        return {
            "object": "list",
            "data": [
                {"id": name, "object": "model", "owned_by": "thumbwheel"}
                for name in server.speaker.names
            ],
        }

    @app.post("/v1/load_lora_adapter")
    def load(asked: Loading) -> Any:
        server.load(asked)
        return {"ok": True}

    @app.post("/v1/unload_lora_adapter")
    def unload(asked: Loading) -> Any:
        server.unload(asked.lora_name)
        return {"ok": True, "left": len(server.speaker.names)}

    @app.post("/v1/chat/completions")
    async def chat(ask: Ask, request: Request) -> Any:
        return await _answered(server, ask, request, chat=True)

    @app.post("/v1/completions")
    async def completions(ask: Ask, request: Request) -> Any:
        return await _answered(server, ask, request, chat=False)

    return app


async def _answered(server: Server, ask: Ask, request: Request, chat: bool) -> Any:
    """The reply, whole or streamed; a client that is gone ends the computing of either."""
    reply = await run_in_threadpool(server.begin, ask, chat)
    if ask.stream:
        return Streamed(reply)
    whole = asyncio.create_task(run_in_threadpool(reply.whole))
    try:
        while not (await asyncio.wait({whole}, timeout=LOOK))[0]:
            if await request.is_disconnected():
                reply.pieces.close()
                await asyncio.wait({whole})
                return Response(status_code=GONE)
        return whole.result()
    finally:
        reply.pieces.close()


class Streamed(StreamingResponse):
    """A reply as server-sent events; its computing ends with the response, however that ends, and
    not when a collector finds the reply."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.events(), media_type="text/event-stream")
        self._reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._reply.pieces.close()


class Guard:
    """Every request needs the token, and none may be larger than `BODY`; as ASGI, so that a body is
    counted while it comes."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Request(scope).headers
        if not hmac.compare_digest(headers.get("authorization", "").encode(), self._expected):
            await _refusal("the bearer token is missing or wrong", "authentication_error", 401)(
                scope, receive, send
            )
            return
        stated = headers.get("content-length", "0")
        if not stated.isdecimal() or int(stated) > BODY:
            await _refusal(TOO_LARGE, "invalid_request_error", 413)(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > BODY:
                raise HTTPException(413, TOO_LARGE)
            return message

        await self._app(scope, counted, send)


def _refusal(message: str, kind: str, status: int) -> JSONResponse:
    return JSONResponse(
        {"error": {"message": message, "type": kind}}, status, headers={"connection": "close"}
    )


def main(arguments: list[str]) -> None:
    """Serve until ended."""
    import uvicorn

    place, port = Path(arguments[0]), int(arguments[1])
    app = application(Server(place), os.environ.pop(TOKEN))
    uvicorn.run(app, host=HOST, port=port, log_level="warning")


if __name__ == "__main__":
    main(sys.argv[1:])
