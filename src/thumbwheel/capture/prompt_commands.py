"""The commands `prompt list|show|store`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from thumbwheel.capture.commands import Agent
from thumbwheel.capture.prompts import PromptVersion
from thumbwheel.core import present

prompt = typer.Typer()


PromptName = Annotated[
    str, typer.Argument(metavar="PROMPT", help="A name, whose newest version is meant, or an id.")
]


@prompt.command("list")
def prompt_list(ctx: typer.Context, agent: Agent) -> present.Answer[Sequence[PromptVersion]]:
    """List the system prompts of the newest 5,000 traces and the named ones, with the share of good
    answers under each.

    Example: thumbwheel prompt list --agent support
    """
    from thumbwheel.capture.prompts import prompts
    from thumbwheel.models.versions import require_agent

    with ctx.obj() as ws:
        versions = prompts(ws, require_agent(ws, agent))
    columns: dict[str, Callable[[PromptVersion], object]] = {
        "prompt": lambda version: version.title,
        "text": lambda version: " ".join(version.text.split())[:60],
        "traces": lambda version: version.traces,
        "rated": lambda version: version.rated,
        "good": _share,
        "last seen": lambda version: f"{version.last_seen:%Y-%m-%d}" if version.last_seen else "",
    }
    empty = f"no recorded call has one; store one: thumbwheel prompt store NAME --agent {agent}"
    return present.records(versions, f"prompts of {agent}", columns, data=versions, empty=empty)


def _share(version: PromptVersion) -> str:
    if version.share is None or version.low is None or version.high is None:
        return ""
    return f"{version.share:.0%} ({version.low:.0%} to {version.high:.0%})"


@prompt.command("show")
def prompt_show(
    ctx: typer.Context, prompt: PromptName, agent: Agent
) -> present.Answer[PromptVersion]:
    """Show a prompt with its text. Apps fetch the newest version of a name this way.

    Example: thumbwheel prompt show greeting --agent support
    """
    from thumbwheel.capture.prompts import prompt_of
    from thumbwheel.models.versions import require_agent

    with ctx.obj() as ws:
        version = prompt_of(ws, require_agent(ws, agent), prompt)
    return present.page(version, [version.text])


@prompt.command("store")
def prompt_store(
    ctx: typer.Context,
    prompt: Annotated[str, typer.Argument(metavar="NAME", help="Its name: a-z, 0-9, - and _.")],
    agent: Agent,
    text: Annotated[str, typer.Option(help="The system prompt.")],
    note: Annotated[str, typer.Option(help="What is new about it.")] = "",
) -> present.Answer[PromptVersion]:
    """Store a system prompt as the newest version of a name. No call is changed: an app that wants
    it asks for it by its name.

    Example: thumbwheel prompt store greeting --agent support --text "You help customers."
    """
    from thumbwheel.capture.prompts import store_prompt
    from thumbwheel.models.versions import require_agent

    with ctx.obj() as ws:
        version = store_prompt(ws, require_agent(ws, agent), prompt, text, note)
    return present.message(version, f"stored {version.title}")
