"""`thumbwheel modelfile`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from thumbwheel.core import present
from thumbwheel.core.config import options as options_of
from thumbwheel.deploy.modelfile import ModelConfig


@dataclass(frozen=True)
class WrittenModelfile:
    """The parts of a Modelfile, and the variables with which `ollama serve` starts."""

    base: str
    """Model or file that FROM names."""
    adapter: str | None
    """File that ADAPTER names; null for a whole model."""
    template: str | None
    """Chat template in Ollama's syntax; null where Ollama takes the model's own."""
    system: str | None
    """System prompt; null without one."""
    parameters: dict[str, Any]
    """Parameter of the Modelfile -> value."""
    environment: dict[str, str]
    """Variable -> value with which `ollama serve` has to be started."""


@options_of(ModelConfig)
def modelfile(
    ctx: typer.Context,
    version: Annotated[str, typer.Argument(help="v3, an alias, or latest.")],
    agent: Annotated[str, typer.Option(help="The agent whose version is meant.")],
    quant: Annotated[
        str | None,
        typer.Option(help="Precision of the GGUF file: Q4_K_M, Q8_0, ...; see thumbwheel export."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="File to write [default: standard output].")
    ] = None,
    template: Annotated[
        bool,
        typer.Option(help="Write the chat template in Go. Ollama 0.30 and newer can do without."),
    ] = True,
    system: Annotated[
        str | None,
        typer.Option(help="System text [default: what all of the agent's prompts begin with]."),
    ] = None,
    options: dict[str, Any] | None = None,
) -> present.Answer[WrittenModelfile]:
    """Write the Modelfile of a version, for `ollama create NAME -f FILE`. Its GGUF file is exported
    where there is none.

    `thumbwheel deploy --target ollama` needs no such file and checks what answers; this command is
    for an Ollama that it cannot reach.

    Example: thumbwheel modelfile v3 --agent support --quant Q4_K_M --to Modelfile
    """
    from dataclasses import asdict, replace

    from thumbwheel.core.config import build
    from thumbwheel.deploy import modelfile as files
    from thumbwheel.deploy import prepare
    from thumbwheel.deploy.chat_template import go_text
    from thumbwheel.deploy.deploy import plan
    from thumbwheel.models import versions

    settings = build(ModelConfig, options or {}, "options")
    with ctx.obj() as ws:
        model_version = versions.version(ws, agent, version)
        deploy_plan = plan(ws, model_version, "ollama", None, quant)
        package = prepare.files(ws, model_version, deploy_plan)
    if system is not None:
        package = replace(package, system=system)
    model = files.of(package, settings, go_text(package) if template else None)
    environment = settings.hosting().ollama_environment()
    text = model.text()
    first: present.Part = present.File(text)
    if to is not None:
        to.write_text(text, encoding="utf-8")
        first = present.Note(f"written: {to}; next: ollama create {package.name} -f {to}")
    variables = " ".join(f"{name}={value}" for name, value in environment.items())
    how = f"profile {settings.hosting().name}: start the server as {variables} ollama serve"
    written = WrittenModelfile(**asdict(model), environment=dict(environment))
    return present.page(written, [first, present.Note(how)])
