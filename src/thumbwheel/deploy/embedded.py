"""The process of the embedded target: an OpenAI-compatible server over one base, on loopback,
protected by a token.

`python -m thumbwheel.deploy.embedded FOLDER PORT`, with the token in the environment. Models are
loaded and unloaded while it runs, with the same calls as vLLM's. `models.json` in its folder lists
them, so that a server that was killed comes back with all of them.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from thumbwheel.core import ids, log
from thumbwheel.core.config import build
from thumbwheel.core.errors import DataError, InputError, MissingExtra, NotFound, ThumbwheelError
from thumbwheel.deploy.answer_parser import THINK, AnswerParser, ParsedCall, Part, Thought
from thumbwheel.deploy.constraint import AnswerForm
from thumbwheel.deploy.processes import write
from thumbwheel.deploy.streaming_generator import (
    Piece,
    StreamingGenerator,
    TokenStream,
    sampling_of,
)
from thumbwheel.deploy.targets.embedded import MODELS, SPEC, TOKEN
from thumbwheel.engine.libraries import load_libraries
from thumbwheel.engine.rollout import Sampling
from thumbwheel.gateway.patience import Patience, allow_many_files
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
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "repeat_penalty": (1,),
    "min_p": (0,),
    "typical_p": (1,),
    "functions": ([],),
    "function_call": ("none",),
    "suffix": ("",),
    "echo": (False,),
    "best_of": (1,),
    "audio": (),
    "prediction": (),
}
"""Parameters of APIs that would change the answer and are not supported, and the values with which
they would not. A request with another value is refused."""
MAX_ANSWERS = 16
MAX_STOPS, MAX_STOP_LENGTH = 64, 1000
"""Texts at which an answer stops, and characters of each: all are looked for after every token."""
LEAST_TEMPERATURE = 1e-6
"""Below it the most likely token is the only one, and numbers overflow."""
MAX_INPUTS = 2048
"""Texts of one request for embeddings; OpenAI's limit."""


class CompletionRequest(BaseModel):
    """A request to either endpoint. Unknown fields that change nothing (user, metadata) are
    ignored."""

    model_config = ConfigDict(extra="allow")

    model: str
    messages: list[dict[str, Any]] = []
    prompt: str | list[int] = ""
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    """vLLM's: tokens that end an answer, besides the model's own."""
    return_token_ids: bool | None = None
    """vLLM's: whether a choice has the ids of its tokens, `token_ids`."""
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    logprobs: bool | Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    """For a chat whether to return them; for a plain completion, for how many of the most likely
    tokens."""
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None

    def check(self) -> None:
        """Raise InputError for a parameter that is not supported."""
        extra = self.model_extra or {}
        unsupported = [
            name
            for name, neutral in NEUTRAL.items()
            if extra.get(name) is not None and extra[name] not in neutral
        ]
        if unsupported:
            names = ", ".join(unsupported)
            raise InputError(f"parameter {names}", "it is not supported here", "Leave it out")
        lengths = [len(text) for text in self.stops]
        if len(lengths) > MAX_STOPS or max(lengths, default=0) > MAX_STOP_LENGTH:
            why = f"it has {len(lengths)} texts of up to {max(lengths)} characters"
            fix = f"Send at most {MAX_STOPS} of {MAX_STOP_LENGTH}"
            raise InputError("parameter stop", why, fix)
        for value in (self.messages, self.prompt, self.tools, self.stop):
            _check_encodable(value)

    @property
    def stops(self) -> tuple[str, ...]:
        """Return the texts at which an answer stops."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def offered(self) -> dict[str, dict[str, Any]]:
        """Return the tools that the model may call: name -> JSON schema of the arguments; raises
        InputError for what is no function."""
        if self.tool_choice == "none":
            return {}
        offered: dict[str, dict[str, Any]] = {}
        for tool in self.tools or []:
            function = tool.get("function")
            name = function.get("name") if isinstance(function, dict) else None
            if not isinstance(function, dict) or not isinstance(name, str):
                raise InputError("a tool", "it is not a function with a name", "Leave it out")
            parameters = function.get("parameters")
            offered[name] = parameters if isinstance(parameters, dict) else {"type": "object"}
        return offered

    @property
    def must_call(self) -> bool:
        """Whether the answer has to be the call of a tool."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, dict)

    def form(self) -> AnswerForm | None:
        """Return the form that the answer must have; None if it may be any text. Raises InputError
        for an unknown form."""
        offered = self.offered
        choice = self.tool_choice
        if isinstance(choice, dict):
            function = choice.get("function")
            name = function.get("name") if isinstance(function, dict) else None
            if not isinstance(name, str) or name not in offered:
                raise InputError(f"tool_choice {name!r:.80}", "no such tool", "Offer it in tools")
            return AnswerForm(calls={name: offered[name]})
        if choice == "required":
            if not offered:
                raise InputError("tool_choice 'required'", "no tool is offered", "Offer tools")
            return AnswerForm(calls=offered)
        schema = _schema_of(self.response_format)
        return None if schema is None else AnswerForm((schema,), offered)


def _check_encodable(value: Any) -> None:
    """Raise InputError for texts with half of a surrogate pair, which no tokenizer takes."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        why = "it holds half of a surrogate pair, which is no text"
        raise InputError("the request", why, "Send whole characters") from None


def _schema_of(response_format: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the schema of a response format; None for plain text. Raises InputError."""
    kind = (response_format or {"type": "text"}).get("type")
    if response_format is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    described = response_format.get("json_schema")
    schema = described.get("schema") if isinstance(described, dict) else None
    if kind == "json_schema" and isinstance(schema, dict):
        return schema
    raise InputError(
        f"response_format {kind!r:.80}",
        "it must be text, json_object or json_schema with a schema",
        'Send {"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}',
    )


class EmbeddingRequest(BaseModel):
    """A request for the vectors of texts, or of texts as token ids."""

    model_config = ConfigDict(extra="allow")

    model: str
    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None

    def texts(self) -> list[str | list[int]]:
        """Return the texts. Raises InputError for too many of them."""
        if isinstance(self.input, str):
            return [self.input]
        if self.input and isinstance(self.input[0], int):
            return [[id for id in self.input if isinstance(id, int)]]
        if not 0 < len(self.input) <= MAX_INPUTS:
            why = f"it has {len(self.input)} texts"
            raise InputError("the input", why, f"Send 1 to {MAX_INPUTS}")
        return [entry for entry in self.input if not isinstance(entry, int)]


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


class EmbeddedServer:
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

    def begin(self, completion: CompletionRequest, chat: bool) -> EmbeddedReply:
        """Start computing an answer."""
        completion.check()
        self.generator.check(completion.model)
        form = completion.form() if chat else None
        if form is not None and completion.must_call:
            self._require_tools_in_template(completion)
        prompt = self._prompt(completion, chat)
        constraint = None if form is None else self.generator.grammars.compile(form)
        top_count = completion.top_logprobs or 0
        if not chat:
            top_count = int(completion.logprobs or 0)
        sampling = self._sampling(completion, len(prompt))

        def answer(number: int) -> TokenStream:
            copy = constraint.copy() if constraint else None
            return self.generator.generate(
                completion.model, prompt, sampling, top_count, number=number, constraint=copy
            )

        answers = Answers(answer, completion.n or 1)
        opens_thought = chat and self._opens_thought(prompt)
        return EmbeddedReply(
            completion, chat, len(prompt), self.generator.tokenizer, answers, opens_thought
        )

    def _require_tools_in_template(self, completion: CompletionRequest) -> None:
        """Raise InputError if the model would have to call tools that its template does not show
        it: it would call any of them, with any arguments."""
        if not self.generator.builder_of(completion.model).shows_tools:
            raise InputError(
                f"tool_choice {completion.tool_choice!r:.80}",
                f"the chat template of {completion.model} shows the model no tools, so it cannot "
                "know which one to call, and with what",
                "Leave tool_choice out, or train over a base whose chat template has tools",
            )

    def _sampling(self, completion: CompletionRequest, n_prompt: int) -> Sampling:
        temperature = 1.0 if completion.temperature is None else completion.temperature
        remaining = max(1, self.generator.context - n_prompt)
        limit = completion.max_completion_tokens or completion.max_tokens or remaining
        seed = completion.seed
        if seed is None:
            seed = int.from_bytes(os.urandom(4), "big")
        own_stops = self.generator.builder_of(completion.model).stop_ids
        return sampling_of(
            {
                "temperature": 0.0 if temperature < LEAST_TEMPERATURE else temperature,
                "top_p": 1.0 if completion.top_p is None else completion.top_p,
                "top_k": completion.top_k or 0,
                "stop": completion.stops,
                "seed": seed,
                "max_new_tokens": min(limit, 1 << 16),
                "stop_ids": (*own_stops, *(completion.stop_token_ids or ())),
            }
        )

    def _opens_thought(self, prompt: list[int]) -> bool:
        """Return whether the chat template begins the answer with a thought, as the templates of
        models that always think do."""
        end: str = self.generator.tokenizer.decode(prompt[-8:])
        return end.rstrip().endswith(THINK)

    def embed(self, request: EmbeddingRequest) -> dict[str, Any]:
        """Return the vectors of texts, in OpenAI's form."""
        self.generator.check(request.model)
        _check_encodable(request.input)
        if request.dimensions is not None:
            why = "the model's vectors have one length"
            raise InputError("parameter dimensions", why, "Leave it out")
        rows, count = [], 0
        for index, text in enumerate(request.texts()):
            self.generator.check_length(text)
            ids = self._text_ids(text)
            count += len(ids)
            vector: Any = self.generator.embed(request.model, ids)
            if request.encoding_format == "base64":
                vector = base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()
            rows.append({"object": "embedding", "index": index, "embedding": vector})
        usage = {"prompt_tokens": count, "total_tokens": count}
        return {"object": "list", "data": rows, "model": request.model, "usage": usage}

    def _prompt(self, completion: CompletionRequest, chat: bool) -> list[int]:
        self.generator.check_length(completion.messages, completion.tools, completion.prompt)
        if chat:
            if not completion.messages:
                raise DataError("the request", "it has no messages", "Give it at least one")
            _check_texts(completion.messages)
            if len(completion.messages) > self.generator.context:
                why = (
                    f"they are {len(completion.messages):,}, and the model's context has "
                    f"{self.generator.context} tokens"
                )
                raise DataError("the messages", why, "Send the newest ones")
            tools = completion.tools if completion.offered else None
            return self.generator.builder_of(completion.model).prompt(completion.messages, tools)
        return self._text_ids(completion.prompt)

    def _text_ids(self, text: str | list[int]) -> list[int]:
        """Return the token ids of a text. Raises DataError for ids that the model does not have."""
        if isinstance(text, str):
            return list(self.generator.tokenizer(text)["input_ids"])
        if not all(0 <= id < self.generator.vocabulary for id in text):
            raise DataError(
                "the prompt",
                f"a token id is not below {self.generator.vocabulary}",
                "Send ids of this model's tokenizer",
            )
        return text


def _check_texts(messages: list[dict[str, Any]]) -> None:
    """Raise InputError for messages with pictures, sounds or files."""
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if not isinstance(part, dict) or not isinstance(part.get("text"), str):
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                why = f"a part is of type {kind!r:.80}, and this model reads text only"
                raise InputError("the messages", why, "Leave it out, or ask a model that sees")


class Answers:
    """The answers to one prompt, computed one after another; `close`, from any thread, stops
    them."""

    def __init__(self, start: Callable[[int], TokenStream], count: int) -> None:
        self._start = start
        # the first is started at once, so that what is wrong with the prompt is raised here
        self._streams = [start(0)]
        self._is_closed = False
        self.count = count

    def answer(self, number: int) -> TokenStream:
        """Return the pieces of an answer; call it in the order of the numbers."""
        if number == len(self._streams):
            self._streams.append(self._start(number))
            if self._is_closed:
                self.close()
        return self._streams[number]

    def close(self) -> None:
        """Stop the computation."""
        self._is_closed = True
        for stream in self._streams:
            stream.close()


class EmbeddedReply:
    """An answer, or several, in the form of OpenAI's API, made from the pieces of the
    generator."""

    def __init__(
        self,
        completion: CompletionRequest,
        chat: bool,
        prompt: int,
        tokenizer: Any,
        answers: Answers,
        opens_thought: bool = False,
    ) -> None:
        self._completion = completion
        self._chat = chat
        self._prompt_tokens = prompt
        self._tokenizer = tokenizer
        self._opens_thought = opens_thought
        self.answers = answers
        self._head = {
            "id": ids.new("cmpl"),
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()),
            "model": completion.model,
        }

    def whole(self) -> dict[str, Any]:
        """Return the whole answer, once it has ended."""
        choices, count = [], 0
        for number in range(self.answers.count):
            pieces = list(self.answers.answer(number))
            if not pieces:
                break  # closed before it began: nobody reads it
            count += len(pieces)
            text = "".join(piece.text for piece in pieces)
            finish = pieces[-1].finish
            body: dict[str, Any] = {"text": text}
            if self._chat:
                message = _ChatMessage()
                message.add(self._parser().feed(text, last=True))
                body = {"message": {"role": "assistant", **message.whole()}}
                finish = message.finish(finish)
            choices.append(self._choice(number, body, pieces, finish))
        return {**self._head, "choices": choices, "usage": self._usage(count)}

    def events(self) -> Iterator[str]:
        """Yield server-sent events as the answer comes; a reader that leaves stops its
        computation."""
        try:
            yield from self._events()
        finally:
            self.answers.close()

    def _events(self) -> Iterator[str]:
        head = self._head | ({"object": "chat.completion.chunk"} if self._chat else {})
        count = 0
        for number in range(self.answers.count):
            for choice in self._chat_chunks(number) if self._chat else self._chunks(number):
                count += bool(choice.pop("is_token"))
                yield _event({**head, "choices": [choice]})
        if (self._completion.stream_options or {}).get("include_usage"):
            yield _event({**head, "choices": [], "usage": self._usage(count)})
        yield "data: [DONE]\n\n"

    def _chunks(self, number: int) -> Iterator[dict[str, Any]]:
        for piece in self.answers.answer(number):
            choice = self._choice(number, {"text": piece.text}, [piece], piece.finish)
            yield choice | {"is_token": True}

    def _chat_chunks(self, number: int) -> Iterator[dict[str, Any]]:
        """Yield the chunks of a chat answer: one a token, and one for each tool call."""
        role = {"delta": {"role": "assistant", "content": ""}}
        yield self._choice(number, role, [], None) | {"is_token": False}
        message, parser = _ChatMessage(), self._parser()
        for piece in self.answers.answer(number):
            *deltas, last = message.add(parser.feed(piece.text, piece.finish is not None))
            for delta in deltas:
                yield self._choice(number, {"delta": delta}, [], None) | {"is_token": False}
            finish = message.finish(piece.finish)
            choice = self._choice(number, {"delta": last}, [piece], finish)
            yield choice | {"is_token": True}

    def _parser(self) -> AnswerParser:
        return AnswerParser(self._completion.offered, begins_with_thought=self._opens_thought)

    def _choice(
        self, number: int, body: dict[str, Any], pieces: list[Piece], finish: str | None
    ) -> dict[str, Any]:
        requested = self._completion.logprobs
        # 0 requests them too, without other likely tokens
        wants_logprobs = requested is not None and requested is not False
        choice = {
            "index": number,
            **body,
            "logprobs": self._logprobs(pieces) if wants_logprobs and pieces else None,
            "finish_reason": finish,
        }
        if self._completion.return_token_ids:
            choice["token_ids"] = [piece.id for piece in pieces]
        if pieces and pieces[-1].stop_text is not None:
            choice["stop_reason"] = pieces[-1].stop_text
        return choice

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


class _ChatMessage:
    """An assistant's message as its parts come."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[dict[str, Any]] = []

    def add(self, parts: Iterable[Part]) -> list[dict[str, Any]]:
        """Add parts; return the deltas that say so, at least one."""
        deltas: list[dict[str, Any]] = []
        for part in parts:
            if isinstance(part, ParsedCall):
                function = {"name": part.name, "arguments": part.arguments}
                call = {"id": ids.new("call"), "type": "function", "function": function}
                deltas.append({"tool_calls": [{"index": len(self._calls), **call}]})
                self._calls.append(call)
            elif isinstance(part, Thought):
                self._thoughts.append(part.text)
                deltas.append({"reasoning_content": part.text})
            else:
                self._texts.append(part.text)
                deltas.append({"content": part.text})
        return deltas or [{"content": ""}]

    def finish(self, reason: str | None) -> str | None:
        """Return the finish reason in OpenAI's words."""
        return "tool_calls" if self._calls and reason == "stop" else reason

    def whole(self) -> dict[str, Any]:
        """Return the fields of the message."""
        message: dict[str, Any] = {"content": "".join(self._texts)}
        if self._thoughts:
            message["reasoning_content"] = "".join(self._thoughts)
        if self._calls:
            message["tool_calls"] = self._calls
            message["content"] = message["content"] or None
        return message


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def application(server: EmbeddedServer, token: str) -> FastAPI:
    """Return the app of `server`; every path needs the token."""
    app = FastAPI(openapi_url=None)
    app.add_middleware(TokenGuard, token=token)

    app.add_exception_handler(ThumbwheelError, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse_fields)

    @app.get("/v1/models")
    async def models() -> Any:  # not in a thread: all of them may be busy with answers
        entry: dict[str, Any] = {"object": "model", "owned_by": "thumbwheel"}
        entry["vocabulary"] = server.generator.vocabulary
        names = server.generator.names
        return {"object": "list", "data": [{"id": name, **entry} for name in names]}

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

    @app.post("/v1/embeddings")
    def embeddings(request: EmbeddingRequest) -> Any:
        return server.embed(request)

    return app


def _refuse(request: Request, error: Exception) -> JSONResponse:
    """Turn the raised error into a response."""
    assert isinstance(error, ThumbwheelError)  # noqa: S101 - narrows the type
    is_own_status = isinstance(error, NotFound | MissingExtra)
    status = error.http_status if is_own_status else 400
    content = {"message": str(error), "type": "invalid_request_error", "why": error.why}
    return JSONResponse({"error": content}, status)


def _refuse_fields(request: Request, error: Exception) -> JSONResponse:
    """Respond with the invalid fields, in OpenAI's form."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - narrows the type
    problems = []
    for problem in error.errors():
        field = ".".join(str(key) for key in problem["loc"][1:])
        problems.append(f"{field}: {problem['msg']}")
    return _error_response("; ".join(problems)[:1000], "invalid_request_error", 422)


async def _reply(
    server: EmbeddedServer, completion: CompletionRequest, request: Request, chat: bool
) -> Any:
    """Reply to a completion request, whole or streamed. A client that leaves stops the computation
    of either."""
    reply = await run_in_threadpool(server.begin, completion, chat)
    if completion.stream:
        return EventStream(reply)
    whole = asyncio.create_task(run_in_threadpool(reply.whole))
    try:
        while not (await asyncio.wait({whole}, timeout=POLL))[0]:
            if await request.is_disconnected():
                reply.answers.close()
                await asyncio.wait({whole})
                return Response(status_code=CLIENT_LEFT)
        return whole.result()
    finally:
        reply.answers.close()


class EventStream(StreamingResponse):
    """A reply as server-sent events. However the response ends, it stops the computation at once,
    and not when the garbage collector finds the reply."""

    def __init__(self, reply: EmbeddedReply) -> None:
        super().__init__(reply.events(), media_type="text/event-stream")
        self._reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response (ASGI)."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._reply.answers.close()


class TokenGuard:
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
    app = application(EmbeddedServer(folder), os.environ.pop(TOKEN))
    allow_many_files()
    uvicorn.run(app, host=arguments[2], port=port, log_level="warning", http=Patience, ws="none")


if __name__ == "__main__":
    main(sys.argv[1:])
