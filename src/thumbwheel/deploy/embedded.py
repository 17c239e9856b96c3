"""The process of the embedded target: an OpenAI-compatible server over one base, on loopback, behind a token.

`python -m thumbwheel.deploy.embedded FOLDER PORT`, the token in the environment. Models come and go while it runs, by the calls that vLLM
has for it; `models.json` in its folder remembers them, so that a server that was killed comes back with all of them.
"""

from __future__ import annotations

import hmac
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from thumbwheel.core import ids
from thumbwheel.core.errors import DataError, InputError, NotFound, ThumbwheelError
from thumbwheel.deploy.processes import write
from thumbwheel.deploy.speaker import Piece, Speaker, finite
from thumbwheel.deploy.targets.embedded import MODELS, SPEC, TOKEN
from thumbwheel.llm.port import HOST

REFUSED = ("logit_bias", "frequency_penalty", "presence_penalty", "response_format", "functions", "suffix", "echo")
"""Parameters of OpenAI's that would change the answer and are not supported: a request with one is refused, never half obeyed."""


class Ask(BaseModel):
    """A request to either endpoint; what is not known here and changes nothing (user, metadata) is left alone."""

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
    logprobs: bool | int | None = None
    top_logprobs: int = Field(default=0, ge=0, le=20)
    n: int = 1

    def check(self) -> None:
        """Raise InputError for what would have to be ignored."""
        extra = self.model_extra or {}
        given = [name for name in REFUSED if extra.get(name) not in (None, False, 0, {}, {"type": "text"})]
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
        self.speaker = Speaker(spec["base"], spec["dtype"], spec["device"])
        self._paths: dict[str, str | None] = json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else {}
        for name, path in list(self._paths.items()):
            try:
                self.speaker.load(name, Path(path) if path else None)
            except ThumbwheelError as error:  # one damaged adapter takes no other model down
                sys.stderr.write(f"{name} is not served: {error}\n")
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

    def answer(self, ask: Ask, chat: bool) -> Any:
        """The reply, whole or streamed."""
        ask.check()
        self.speaker.check(ask.model)
        prompt = self._prompt(ask, chat)
        tops = ask.top_logprobs if chat else int(ask.logprobs or 0)
        stop = (ask.stop,) if isinstance(ask.stop, str) else tuple(ask.stop or ())
        limit = ask.max_completion_tokens or ask.max_tokens or max(1, self.speaker.room - len(prompt))
        seed = int.from_bytes(os.urandom(4), "big") if ask.seed is None else ask.seed
        drawn = {"temperature": ask.temperature, "top_p": ask.top_p, "top_k": ask.top_k, "stop": stop, "seed": seed}
        sampling = finite(drawn | {"max_new_tokens": min(limit, 1 << 16), "stop_ids": self.speaker.builder.stop_ids})
        pieces = self.speaker.speak(ask.model, prompt, sampling, tops)
        reply = _Reply(ask, chat, len(prompt), self.speaker.tokenizer)
        if ask.stream:
            return StreamingResponse(reply.events(pieces), media_type="text/event-stream")
        return reply.whole(list(pieces))

    def _prompt(self, ask: Ask, chat: bool) -> list[int]:
        if chat:
            if not ask.messages:
                raise DataError("the request", "it has no messages", "Give it at least one")
            return self.speaker.builder.prompt(ask.messages, ask.tools)
        if isinstance(ask.prompt, str):
            return list(self.speaker.tokenizer(ask.prompt)["input_ids"])
        if not all(0 <= id < self.speaker.vocabulary for id in ask.prompt):
            raise DataError("the prompt", f"a token id is not below {self.speaker.vocabulary}", "Send ids of this model's tokenizer")
        return ask.prompt


class _Reply:
    """Pieces in OpenAI's words."""

    def __init__(self, ask: Ask, chat: bool, prompt: int, tokenizer: Any) -> None:
        self._ask, self._chat, self._prompt, self._tokenizer = ask, chat, prompt, tokenizer
        kind = "chat.completion" if chat else "text_completion"
        self._head = {"id": ids.new("cmpl"), "object": kind, "created": int(time.time()), "model": ask.model}

    def whole(self, pieces: list[Piece]) -> dict[str, Any]:
        text = "".join(piece.text for piece in pieces)
        body = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        return {**self._head, "choices": [self._choice(body, pieces, pieces[-1].finish)], "usage": self._usage(len(pieces))}

    def events(self, pieces: Iterator[Piece]) -> Iterator[str]:
        head = self._head | ({"object": "chat.completion.chunk"} if self._chat else {})
        count = 0
        if self._chat:
            yield _event({**head, "choices": [self._choice({"delta": {"role": "assistant", "content": ""}}, [], None)]})
        for piece in pieces:
            count += 1
            body = {"delta": {"content": piece.text}} if self._chat else {"text": piece.text}
            yield _event({**head, "choices": [self._choice(body, [piece], piece.finish)]})
        if (self._ask.stream_options or {}).get("include_usage"):
            yield _event({**head, "choices": [], "usage": self._usage(count)})
        yield "data: [DONE]\n\n"

    def _choice(self, body: dict[str, Any], pieces: list[Piece], finish: str | None) -> dict[str, Any]:
        asked = self._ask.logprobs not in (None, False) and pieces
        return {"index": 0, **body, "logprobs": self._logprobs(pieces) if asked else None, "finish_reason": finish}

    def _logprobs(self, pieces: list[Piece]) -> dict[str, Any]:
        if self._chat:
            return {"content": [self._token(one.id, one.logp) | {"top_logprobs": [self._token(*top) for top in one.top]} for one in pieces]}
        return {
            "tokens": [self._text(one.id) for one in pieces],
            "token_ids": [one.id for one in pieces],
            "token_logprobs": [one.logp for one in pieces],
            "top_logprobs": [{self._text(id): logp for id, logp in one.top} for one in pieces],
        }

    def _token(self, id: int, logp: float) -> dict[str, Any]:
        return {"id": id, "token": self._text(id), "logprob": logp, "bytes": list(self._text(id).encode())}

    def _text(self, id: int) -> str:
        return str(self._tokenizer.decode([id]))

    def _usage(self, count: int) -> dict[str, int]:
        return {"prompt_tokens": self._prompt, "completion_tokens": count, "total_tokens": self._prompt + count}


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def application(server: Server, token: str) -> FastAPI:
    """The app of `server`; every path needs the token."""
    app = FastAPI(openapi_url=None)

    @app.middleware("http")
    async def guard(request: Request, go_on: Any) -> Any:
        if not hmac.compare_digest(request.headers.get("authorization", "").encode(), f"Bearer {token}".encode()):
            return JSONResponse({"error": {"message": "the bearer token is missing or wrong", "type": "authentication_error"}}, 401)
        return await go_on(request)

    @app.exception_handler(ThumbwheelError)
    def refuse(request: Request, error: ThumbwheelError) -> JSONResponse:
        status = 404 if isinstance(error, NotFound) else 400
        return JSONResponse({"error": {"message": str(error), "type": "invalid_request_error", "why": error.why}}, status)

    @app.get("/v1/models")
    async def models() -> Any:  # needs no thread, all of which may be busy with answers
        return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "thumbwheel"} for name in server.speaker.names]}

    @app.post("/v1/load_lora_adapter")
    def load(asked: Loading) -> Any:
        server.load(asked)
        return {"ok": True}

    @app.post("/v1/unload_lora_adapter")
    def unload(asked: Loading) -> Any:
        server.unload(asked.lora_name)
        return {"ok": True, "left": len(server.speaker.names)}

    @app.post("/v1/chat/completions")
    def chat(ask: Ask) -> Any:
        return server.answer(ask, chat=True)

    @app.post("/v1/completions")
    def completions(ask: Ask) -> Any:
        return server.answer(ask, chat=False)

    return app


def main(arguments: list[str]) -> None:
    """Serve until ended."""
    import uvicorn

    place, port = Path(arguments[0]), int(arguments[1])
    app = application(Server(place), os.environ.pop(TOKEN))
    uvicorn.run(app, host=HOST, port=port, log_level="warning")


if __name__ == "__main__":
    main(sys.argv[1:])
