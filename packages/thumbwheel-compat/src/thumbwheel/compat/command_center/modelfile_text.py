"""The text of a Modelfile, read: base, system, template and parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from thumbwheel.core.errors import InputError
from thumbwheel.deploy.modelfile import Modelfile

INSTRUCTION = re.compile(r"^(FROM|PARAMETER|SYSTEM|TEMPLATE)\s+(.*)$", re.IGNORECASE)
INTEGER = re.compile(r"-?[0-9]+")
QUOTES = '"""'


def read_modelfile(content: str) -> Modelfile:
    """Return the model of a Modelfile with FROM, SYSTEM, TEMPLATE and PARAMETER lines. Raises
    InputError for another line, and without a FROM."""
    texts: dict[str, str] = {}
    parameters: dict[str, Any] = {}
    stops: list[str] = []
    for instruction, value in _instructions(content):
        name, _, setting = value.partition(" ")
        if instruction != "PARAMETER":
            texts[instruction] = value
        elif name == "stop":
            stops.append(setting.strip().strip('"'))
        else:
            parameters[name] = _number(setting.strip())
    if "FROM" not in texts:
        raise _unreadable("it has no FROM")
    if stops:
        parameters["stop"] = tuple(stops)
    return Modelfile(
        texts["FROM"],
        template=texts.get("TEMPLATE"),
        system=texts.get("SYSTEM"),
        parameters=parameters,
    )


def _instructions(content: str) -> Iterator[tuple[str, str]]:
    """Yield instruction and value of every line. A text in triple quotes goes on to the line that
    ends with three more."""
    lines = iter(content.splitlines())
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        match = INSTRUCTION.match(line)
        if match is None:
            raise _unreadable(f"the line {line[:60]!r} cannot be read")
        instruction, value = match[1].upper(), match[2].strip()
        if value.startswith(QUOTES):
            value = value[len(QUOTES) :]
            while not value.endswith(QUOTES):
                following = next(lines, None)
                if following is None:
                    raise _unreadable(f"the text of {instruction} does not end")
                value += f"\n{following}"
            value = value[: -len(QUOTES)]
        yield instruction, value


def _number(text: str) -> int | float | str:
    if INTEGER.fullmatch(text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


def _unreadable(why: str) -> InputError:
    return InputError("a Modelfile", why, "Make it with create_ollama_modelfile")
