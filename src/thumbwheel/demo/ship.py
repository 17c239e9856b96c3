"""The end of the demo: the approved version is deployed, rolled back, deployed again, and written
as a file for llama.cpp.

Only public verbs are used, as in run.py. The server is stopped at the end, so that a demo leaves no
process behind.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from thumbwheel.core import log
from thumbwheel.db.workspace import Workspace
from thumbwheel.demo.app import DemoApp
from thumbwheel.deploy.types import Deployment
from thumbwheel.evaluation.types import ChangedAnswer
from thumbwheel.models.types import Agent, ModelVersion

TARGET, QUANT = "embedded", "Q8_0"
NEEDED = ("converter", "library", "bindings")
"""Tools of llama.cpp that write and compare a GGUF file."""


@dataclass(frozen=True)
class Shown:
    """What a client of the agent saw: its message and the answers to it."""

    url: str
    message: str
    before: str
    after: str
    rolled_back: str
    """The answer after the rollback."""
    rollback: float
    """Seconds from the rollback until the old version answered for the same name."""


def show_deployment(
    ws: Workspace,
    app: DemoApp,
    base: ModelVersion,
    version: ModelVersion,
    changed: Sequence[ChangedAnswer],
) -> Shown:
    """Deploy the base, then `version`, ask both about a message that they file differently, roll
    back, ask again, go forward."""
    from thumbwheel.deploy.deploy import deploy
    from thumbwheel.deploy.running import stop
    from thumbwheel.deploy.switch import promote, rollback

    agent = Agent.named(version.agent)
    message = changed[0].prompt
    try:
        deploy(ws, base, TARGET)
        before = answer(ws, app, agent, message)
        deployed = deploy(ws, version, TARGET)
        log.say(f"  canary {deployed.canary.verdict}: {deployed.canary.summary()}")
        after = answer(ws, app, agent, message)
        start = time.monotonic()
        rollback(ws, agent)
        rolled_back = answer(ws, app, agent, message)
        seconds = time.monotonic() - start
        promote(ws, version)
        url = deployed.deployment.endpoint.url if deployed.deployment.endpoint else ""
    finally:
        stop(ws, agent)
    return Shown(url, message, before, after, rolled_back, seconds)


def answer(ws: Workspace, app: DemoApp, agent: Agent, message: str) -> str:
    """Return the answer that a client of the agent gets for `message` now, whichever version is
    live."""
    from thumbwheel.deploy.routing import resolve

    return ask(ws, app, resolve(ws, agent.slug), message)


def ask(ws: Workspace, app: DemoApp, deployment: Deployment, message: str) -> str:
    from thumbwheel.deploy.routing import require_endpoint, secret
    from thumbwheel.llm.client import Client

    endpoint = require_endpoint(deployment)
    client = Client(endpoint.url, endpoint.model, api_key=secret(ws, deployment))
    try:
        reply = client.post(
            "chat/completions",
            {"messages": app.chat(message), "temperature": 0, "max_tokens": 64, **endpoint.body},
        )
    finally:
        client.close()
    return str(reply["choices"][0]["message"]["content"])


def write_gguf(ws: Workspace, version: ModelVersion, folder: Path) -> str:
    """Write `version` for llama.cpp if its tools are found, and describe how it compares; otherwise
    describe the missing tools."""
    from thumbwheel.core.errors import ThumbwheelError
    from thumbwheel.export.package import export
    from thumbwheel.llm import tools

    missing = [name for name in NEEDED if tools.find(name) is None]
    if missing:
        command = (
            f"thumbwheel tools install, then: thumbwheel export {version.name} --agent "
            f"{version.agent} --format gguf --quant {QUANT}"
        )
        return f"none, for llama.cpp's tools are not here ({', '.join(missing)}): {command}"
    try:
        exported = export(ws, version, "gguf", folder, QUANT)
    except ThumbwheelError as error:
        return f"none: {error}"
    parity = exported.parity
    return (
        f"{exported.path} ({QUANT}): {100 * parity.top1:.1f} % same tokens, "
        f"mean KL {parity.mean_kl:.2g} over {parity.tokens} tokens"
    )


def show_llama_server(
    ws: Workspace, app: DemoApp, version: ModelVersion, message: str
) -> str | None:
    """Return the answer of `version` from the GGUF file in a llama-server, which then ends; None if
    there is no llama-server."""
    from thumbwheel.core.errors import ThumbwheelError
    from thumbwheel.deploy.deploy import deploy
    from thumbwheel.deploy.running import stop
    from thumbwheel.llm import tools

    if tools.find("llama-server") is None:
        return None
    try:
        deployed = deploy(ws, version, "llamacpp", None, quant=QUANT)
        return f"{ask(ws, app, deployed.deployment, message)} (canary {deployed.canary.verdict})"
    except ThumbwheelError as error:
        return f"none: {error}"
    finally:
        stop(ws, Agent.named(version.agent))
