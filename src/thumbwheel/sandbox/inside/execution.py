"""How a program of Python comes to its end: by its last line, or by what it raised."""

from __future__ import annotations

import builtins
import sys
import traceback
from types import ModuleType
from typing import Any

MAX_TEXT = 2000


def new_main_namespace() -> dict[str, Any]:
    """Return the names of a new main module."""
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = [""]
    return vars(module)


def run_program(code: str, space: dict[str, Any]) -> dict[str, Any]:
    """Run a program in `space`; return {"done": True}, or its exception. Printed output is
    flushed."""
    try:
        exec(compile(code, "<answer>", "exec", dont_inherit=True), space)
        result: dict[str, Any] = {"done": True}
    except BaseException as error:  # noqa: BLE001 - a program may end in any way
        result = describe_error(error)
    flush()
    return result


def describe_error(error: BaseException) -> dict[str, Any]:
    """Describe a raised error under the name of its nearest built-in class."""
    try:
        kind = ""
        for base in type(error).__mro__:
            if getattr(builtins, base.__name__, None) is base:
                kind = base.__name__
                break
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
        if isinstance(error, SystemExit):
            return {
                "raised": kind,
                "text": f"the program left by exit ({text})"[:MAX_TEXT],
                "exit": True,
            }
        return {"raised": kind, "text": text[:MAX_TEXT]}
    except BaseException:  # noqa: BLE001 - an exception whose text raises
        return {"raised": "Exception", "text": "an exception that cannot be described"}


def flush() -> None:
    """Flush printed output."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - they may have been replaced or closed
        return
