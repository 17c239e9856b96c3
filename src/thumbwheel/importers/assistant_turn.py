"""One turn of an assistant as apps keep it in one message: what it thought, the tools that it
called with their results, and what it said, in their order.

Lives here: the turn as steps of a trace and as messages of a later prompt. Not here: how an app
writes it (`openwebui_messages.py`, `sources/librechat.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from thumbwheel.importers.fields import unpacked
from thumbwheel.importers.messages import Messages


@dataclass(frozen=True)
class ToolUse:
    """A tool that the model called, with its result; None where it is unknown."""

    id: str
    name: str
    arguments: Any
    result: Any

    def as_call(self) -> dict[str, Any]:
        """Return the call in OpenAI's format."""
        arguments = self.arguments
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        function = {"name": self.name, "arguments": arguments}
        return {"id": self.id, "type": "function", "function": function}

    def as_result(self) -> dict[str, Any]:
        """Return the tool's message with the result of the call."""
        result = self.result if self.result is not None else ""
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        return {"role": "tool", "content": text, "tool_call_id": self.id}


@dataclass
class AssistantTurn:
    """What the assistant did in one turn: texts and calls in their order, and its thoughts."""

    thoughts: list[str] = field(default_factory=list)
    parts: list[str | ToolUse] = field(default_factory=list)

    @property
    def answer(self) -> str:
        """What it said last, after all calls; what it said before them where it said no more."""
        texts = [part for part in self.parts if isinstance(part, str)]
        return texts[-1] if texts else ""

    def messages(self) -> Messages:
        """Return the turn as it is shown to a model again: without thoughts."""
        messages: Messages = []
        text = ""
        for part in self.parts:
            if isinstance(part, str):
                text = f"{text}\n\n{part}" if text else part
                continue
            message = {"role": "assistant", "content": text or None}
            messages += [message | {"tool_calls": [part.as_call()]}, part.as_result()]
            text = ""
        return [*messages, {"role": "assistant", "content": text}] if text else messages

    def steps(self, model: str | None) -> list[dict[str, Any]]:
        """Return the thoughts as steps, then every call of the model, each followed by the tool it
        called."""
        steps: list[dict[str, Any]] = [
            {"kind": "reasoning", "output": thought} for thought in self.thoughts
        ]
        since: Messages = []
        text = ""
        for part in self.parts:
            if isinstance(part, str):
                text = part
                continue
            output = {"content": text, "tool_calls": [part.as_call()]}
            step_input = {"messages": since} if since else None
            steps.append({"served_model": model, "input": step_input, "output": output})
            tool = {"name": part.name, "input": unpacked(part.arguments), "output": part.result}
            steps.append({"kind": "tool", **tool})
            since, text = [part.as_result()], ""
        last: dict[str, Any] = {"served_model": model}
        if since:
            last |= {"input": {"messages": since}, "output": text or None}
        return [*steps, last] if text or not since else steps
