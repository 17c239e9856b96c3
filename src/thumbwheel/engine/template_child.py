"""Renders chat templates in a process of its own: `python -m thumbwheel.engine.template_child
MEMORY LONGEST`.

A template is a program that came with a model: it may loop for ever, or ask for more memory than
there is. So the memory of this process is bounded, and the parent (render.py) stops waiting after
its time limit. A request and its answer are lines of JSON; the rendering is transformers' own.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

from thumbwheel.core.child import limit_memory


def main(memory: int, longest: int) -> None:
    """Answer requests until standard input ends; the first line reports that the library is
    loaded."""
    from transformers.utils.chat_template_utils import render_jinja_template

    # Ctrl-C is for the parent, which may want one more answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_memory(memory)
    _write({"ready": True})
    for line in sys.stdin:
        _write(_answer(render_jinja_template, json.loads(line), longest))


def _write(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _answer(render: Any, request: dict[str, Any], longest: int) -> dict[str, Any]:
    """Return `text`, or why the template `refused` these messages, or its `fault` with any
    messages."""
    try:
        rendered, _ = render(
            conversations=[request["messages"]],
            tools=request["tools"],
            chat_template=request["template"],
            add_generation_prompt=request["generation"],
            **request["variables"],
        )
    except MemoryError:
        return {"fault": "it takes more memory than a chat template may take"}
    except RecursionError:
        return {"fault": "it calls itself without end"}
    except Exception as error:  # noqa: BLE001 - a template may raise anything
        return {"refused": str(error)[:500] or type(error).__name__}
    if len(rendered[0]) > longest:
        size = f"{len(rendered[0]):,} characters, more than the {longest:,} that are taken"
        return {"fault": f"it writes {size}"}
    return {"text": rendered[0]}


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
