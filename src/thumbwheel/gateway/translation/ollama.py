"""Ollama's chat and generate: JSON lines, the last of which has the counts."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from thumbwheel.gateway.translation.chat_reply import CallPiece, ChatPiece, ReplyEnd
from thumbwheel.gateway.translation.translation import (
    Translation,
    arguments_object,
    json_schema_format,
    untranslatable,
)

OPTIONS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "seed",
    "stop",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""Options that chat requests have under the same name. Others, as `num_ctx`, are about how a server
runs the model."""
NDJSON = "application/x-ndjson"


def chat_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling fields of a chat request."""
    options = body.get("options")
    if not isinstance(options, Mapping):
        options = {}
    fields = {name: options[name] for name in OPTIONS if options.get(name) is not None}
    limit = options.get("num_predict")
    if type(limit) is int and limit > 0:  # -1 and -2: as many as there is room for
        fields["max_tokens"] = limit
    format = body.get("format")
    if format == "json":
        fields["response_format"] = {"type": "json_object"}
    elif isinstance(format, Mapping):
        fields["response_format"] = json_schema_format(format)
    think = body.get("think")
    if isinstance(think, bool):
        fields["chat_template_kwargs"] = {"enable_thinking": think}
    elif isinstance(think, str):
        fields["reasoning_effort"] = think
    if body.get("logprobs") is True:
        fields["logprobs"] = True
        if type(body.get("top_logprobs")) is int:
            fields["top_logprobs"] = body["top_logprobs"]
    return fields


def prompt_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling fields of a chat request for a prompt. Raises InputError for a request
    that bypasses the chat template."""
    for name in ("suffix", "template", "raw", "context"):
        if body.get(name):
            why = "this model is asked by its own chat template"
            fix = "Leave it out, or send the conversation to /api/chat"
            raise untranslatable(name, why, fix)
    return chat_fields(body)


class OllamaWriter:
    """Writes a reply of `/api/chat`. Ollama sends each tool call whole, so calls come at the
    end."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._hides_thoughts = body.get("think") is False
        self._began = time.perf_counter_ns()
        self._first_piece = 0
        """When it came, on the same clock; 0 before."""
        self._model = ""
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._logprobs: list[Mapping[str, Any]] = []
        self._calls: dict[int, list[CallPiece]] = {}

    def begin(self, id: str, model: str) -> bytes:
        """Note the model; the reply has no head."""
        self._model = model
        return b""

    def piece(self, piece: ChatPiece) -> bytes:
        """Return the bytes of a line for a piece; empty if it has neither text nor thoughts."""
        self._first_piece = self._first_piece or time.perf_counter_ns()
        for call in piece.calls:
            self._calls.setdefault(call.number, []).append(call)
        thoughts = "" if self._hides_thoughts else piece.reasoning
        if not piece.text and not thoughts:
            return b""
        self._texts.append(piece.text)
        self._thoughts.append(thoughts)
        self._logprobs += piece.logprobs
        line = self._line(self._part(piece.text, thoughts, []), done=False)
        if piece.logprobs:
            line["logprobs"] = list(piece.logprobs)
        return _bytes(line)

    def end(self, end: ReplyEnd) -> bytes:
        """Write the tool calls, and the counts."""
        calls = self._whole_calls()
        written = _bytes(self._line(self._part("", "", calls), done=False)) if calls else b""
        line = self._line(self._part("", "", []), done=True)
        return written + _bytes(line | self._ending(end))

    def whole(self, end: ReplyEnd) -> dict[str, Any]:
        """Return the reply in one line."""
        calls = self._whole_calls()
        part = self._part("".join(self._texts), "".join(self._thoughts), calls)
        line = self._line(part, done=True)
        if self._logprobs:
            line["logprobs"] = self._logprobs
        return line | self._ending(end)

    def failure(self, message: str) -> bytes:
        """Write the line of an error, which ends the stream."""
        return _bytes({"error": message})

    def _part(self, text: str, thoughts: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if thoughts:
            message["thinking"] = thoughts
        if calls:
            message["tool_calls"] = calls
        return {"message": message}

    def _line(self, part: dict[str, Any], *, done: bool) -> dict[str, Any]:
        created_at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        return {"model": self._model, "created_at": created_at, **part, "done": done}

    def _whole_calls(self) -> list[dict[str, Any]]:
        calls = []
        for number, pieces in self._calls.items():
            arguments = arguments_object("".join(piece.arguments for piece in pieces))
            function = {"index": number, "name": pieces[0].name, "arguments": arguments}
            calls.append({"id": pieces[0].id, "function": function})
        return calls

    def _ending(self, end: ReplyEnd) -> dict[str, Any]:
        """Return the reason, the counts and the times: before the first piece the server read the
        prompt."""
        now = time.perf_counter_ns()
        first = self._first_piece or now
        ending: dict[str, Any] = {
            "done_reason": "length" if end.finish_reason == "length" else "stop",
            "total_duration": now - self._began,
            "load_duration": 0,
            "prompt_eval_duration": first - self._began,
            "eval_duration": now - first,
        }
        if end.usage.prompt is not None:
            ending["prompt_eval_count"] = end.usage.prompt
        if end.usage.completion is not None:
            ending["eval_count"] = end.usage.completion
        return ending


class PromptWriter(OllamaWriter):
    """Writes a reply of `/api/generate`, whose text has no message around it."""

    def _part(self, text: str, thoughts: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        return {"response": text, "thinking": thoughts} if thoughts else {"response": text}


def _bytes(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line).encode() + b"\n"


CHAT = Translation(chat_fields=chat_fields, writer=OllamaWriter, stream_type=NDJSON)
GENERATE = Translation(chat_fields=prompt_fields, writer=PromptWriter, stream_type=NDJSON)
