"""A model for Ollama: base, adapter, template, system, parameters. As the fields of /api/create,
and as a Modelfile for `ollama create -f`.

A Modelfile has no escapes: a value in triple quotes ends at the first line end after three quotes,
and its reader drops characters that cannot be printed. Texts that a Modelfile cannot hold are
refused; the API, which takes JSON, has no such limits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from thumbwheel.core.config import Config
from thumbwheel.core.errors import InputError
from thumbwheel.core.hardware import machine
from thumbwheel.deploy.profiles import Choice, Profile, choose
from thumbwheel.deploy.types import Package
from thumbwheel.export.types import GGUF_ADAPTER

QUOTES = '"""'
PLAIN = re.compile(r'[^\s"](?:[^\r\n]*[^\s])?')
"""A value that needs no quotes: one line that neither begins nor ends with a space, and begins with
no quote."""
PARAMETER = re.compile(r"[A-Za-z0-9_]+")

Value = str | int | float | tuple[str, ...]


class ModelConfig(Config):
    """How Ollama hosts a model, as far as the model itself sets it; the hosting profile decides
    what is not set."""

    profile: Choice = "auto"
    """How this machine hosts models: auto finds the one that suits it"""
    context: int | None = Field(default=None, ge=256)
    """Tokens of one answer with its prompt; Ollama cuts longer prompts"""
    threads: int | None = Field(default=None, ge=1)
    """Processor threads"""
    gpu_layers: int | None = Field(default=None, ge=0)
    """Layers on the accelerator; 0 keeps the model on the processor"""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature where a request has none [default: Ollama's]"""
    repeat_penalty: float = Field(default=1.0, ge=0)
    """Penalty on repeated tokens; the model was trained and evaluated without one, and Ollama has
    one by default"""

    def hosting(self) -> Profile:
        """Return the profile of this machine."""
        return choose(self.profile, machine())

    def parameters(self) -> dict[str, int | float]:
        """Return all PARAMETER lines but the stops."""
        set_here = {
            "num_ctx": self.context,
            "num_thread": self.threads,
            "num_gpu": self.gpu_layers,
            "temperature": self.temperature,
        }
        explicit = {name: value for name, value in set_here.items() if value is not None}
        return {
            **self.hosting().ollama_parameters(),
            "repeat_penalty": self.repeat_penalty,
            **explicit,
        }


@dataclass(frozen=True)
class Modelfile:
    """`base` is a model's name or a GGUF file, `adapter` a GGUF file; a parameter with several
    values (`stop`) is a tuple."""

    base: str
    adapter: str | None = None
    template: str | None = None
    system: str | None = None
    parameters: Mapping[str, Value] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """Return the fields of /api/create besides the files."""
        fields = {
            "template": self.template,
            "system": self.system,
            "parameters": dict(self.parameters),
        }
        return {name: value for name, value in fields.items() if value}

    def text(self) -> str:
        """Return the text of the Modelfile. Raises InputError for a value that a Modelfile cannot
        hold."""
        lines = [f"FROM {quoted('FROM', self.base)}"]
        texts = {"ADAPTER": self.adapter, "TEMPLATE": self.template, "SYSTEM": self.system}
        for name, text in texts.items():
            if text:
                lines.append(f"{name} {quoted(name, text)}")
        for name, setting in self.parameters.items():
            if not PARAMETER.fullmatch(name):
                raise InputError(
                    f"parameter {name!r}",
                    "a name has letters, digits and underscores",
                    "Correct it",
                )
            values = setting if isinstance(setting, tuple) else (setting,)
            lines += [f"PARAMETER {name} {quoted(name, str(value))}" for value in values]
        return "\n".join(lines) + "\n"


def of(package: Package, settings: ModelConfig, template: str | None = None) -> Modelfile:
    """Return the model over the files of `package`; `template` is for versions of Ollama that need
    a Go template."""
    parameters: dict[str, Value] = dict(settings.parameters())
    if package.stops:
        parameters["stop"] = package.stops
    if package.kind == GGUF_ADAPTER:
        base, adapter = package.base, str(package.model)
    else:
        base, adapter = package.model, None
    return Modelfile(str(base), adapter, template, package.system, parameters)


def quoted(what: str, text: str) -> str:
    """Return `text` as the value of the command `what`, in quotes if it needs them. Raises
    InputError if no quoting preserves it."""
    unprintable = {character for character in text if not character.isprintable()}
    lost = sorted(unprintable - set("\t\r\n"))
    if lost:
        codes = ", ".join(f"U+{ord(character):04X}" for character in lost)
        raise InputError(
            f"{what} {text[:60]!r}",
            f"readers of a Modelfile drop {codes}",
            "Deploy it with --target ollama, which sends it whole, or take these characters out",
        )
    if PLAIN.fullmatch(text):
        return text
    for quote in (QUOTES, '"'):
        if not _breaks_out(text, quote):
            return f"{quote}{text}{quote}"
    raise InputError(
        f"{what} {text[:60]!r}",
        "it has a line that ends with quotes, where a Modelfile ends the value",
        "Deploy it with --target ollama, which sends it whole, or put something after those quotes",
    )


def _breaks_out(text: str, quote: str) -> bool:
    """Return whether the reader, which looks at every line end, takes an earlier line end for the
    end of `text`. Also return True if a text in single quotes would look like one in triple
    quotes."""
    if quote == '"' and f'"{text}"'.startswith(QUOTES):
        return True
    for index, character in enumerate(text):
        if character not in "\r\n":
            continue
        beginning = f"{quote}{text[:index]}".strip()
        if len(beginning) >= 2 * len(quote) and beginning.endswith(quote):
            return True
    return False
