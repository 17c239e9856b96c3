"""Rendering chat templates under limits of time, memory and size, in one child process that is
started when it is first needed.

This module talks to that process, whose program is template_child.py.
"""

from __future__ import annotations

import atexit
import json
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from thumbwheel.core import child
from thumbwheel.core.errors import DataError, MissingExtra, ModelError

SECONDS = 20.0
"""Time limit of one text; the slowest of real templates takes milliseconds."""
START_SECONDS = 120.0
MEMORY = 2**30
LONGEST = 2**24
"""Characters of one text."""
LARGE = 2**16
"""Bytes of a conversation beyond which the messages are to blame where a template breaks down, and
not the template: somebody sent them to spoil it for everybody."""


def render_chat(
    template: Any,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    *,
    generation: bool,
    variables: Mapping[str, Any],
) -> str:
    """Render `messages` by a Jinja chat template, as transformers' apply_chat_template does.

    `variables` are the template's other variables: special tokens by name, options. Raises
    DataError if the template refuses the messages, ModelError if it does not end, needs too much or
    is no text.
    """
    if not isinstance(template, str):
        raise _template_error(f"it is {type(template).__name__}, not a text")

    def without_nulls(message: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in message.items() if value is not None}

    request = {
        "template": template,
        "messages": [without_nulls(message) for message in messages],
        "tools": None if tools is None else list(tools),
        "generation": generation,
        "variables": dict(variables),
    }
    answer = _RENDERER.ask(request)
    if "refused" in answer:
        roles = ", ".join(str(message.get("role")) for message in messages[-6:])
        why = f"the chat template refuses them ({answer['refused']})"
        raise DataError(f"messages with roles {roles}", why, "Change the roles or leave it out")
    if "fault" in answer:
        raise _template_error(answer["fault"])
    return str(answer["text"])


def template_of(tokenizer: Any, tools: Sequence[Mapping[str, Any]] | None = None) -> Any:
    """Return the tokenizer's template for messages, with or without tools. Raises ModelError if it
    has none, or several and no default."""
    try:
        return tokenizer.get_chat_template(tools=None if tools is None else list(tools))
    except (ValueError, TypeError, AttributeError) as error:
        raise _template_error(" ".join(str(error).split())[:300]) from None


def _template_error(why: str) -> ModelError:
    return ModelError(
        "the chat template",
        why,
        "Correct chat_template in the model's tokenizer_config.json, or choose another model",
    )


class _Renderer:
    """The child process, and the templates that broke it with few messages."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child = child.LazyChild(
            "thumbwheel.engine.template_child",
            str(MEMORY),
            str(LONGEST),
            start_seconds=START_SECONDS,
            not_started=partial(
                MissingExtra.of, "rendering chat templates", "transformers", "train"
            ),
        )
        self._broken_templates: dict[str, str] = {}

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of the child; a template that did not end, or ended the child, is not
        tried again, unless the messages are large."""
        template = request["template"]
        text = json.dumps(request, default=lambda value: f"<{type(value).__name__}>")
        line = text.encode() + b"\n"
        is_large = len(line) - len(template) > LARGE
        with self._lock:
            if template not in self._broken_templates:
                process = self._child.running()
                try:
                    answer = child.ask(process, line, SECONDS)
                    if is_large and "fault" in answer:
                        return {"refused": answer["fault"]}
                    return answer
                except TimeoutError:
                    problem = f"it did not end within {SECONDS:g} seconds"
                except (OSError, EOFError):
                    problem = "the process that renders it broke down"
                self.close()
                if is_large:
                    return {"refused": f"{problem}; they have {len(line):,} bytes"}
                self._broken_templates[template] = problem
            return {"fault": self._broken_templates[template]}

    def close(self) -> None:
        self._child.close()


_RENDERER = _Renderer()
atexit.register(_RENDERER.close)
