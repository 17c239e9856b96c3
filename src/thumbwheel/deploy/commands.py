"""`thumbwheel deploy`, `deployments`, `rollback`, `undeploy`, `serve`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from thumbwheel.deploy.types import Deployment

Agent = Annotated[str, typer.Option(help="The agent whose versions are meant.")]
Version = Annotated[str, typer.Argument(help="v3, an alias, or latest.")]
AsJson = Annotated[bool, typer.Option("--json", help="The answer as JSON on standard output.")]
Alias = Annotated[str, typer.Option(help="The alias that is meant; live is what everybody gets.")]


def deploy(
    ctx: typer.Context,
    version: Version,
    agent: Agent,
    target: Annotated[str, typer.Option(help="embedded, llamacpp, ollama or vllm.")] = "embedded",
    alias: Annotated[
        str,
        typer.Option(
            help="The alias that shall point at it once it is proven; 'none' only keeps it warm."
        ),
    ] = "live",
    quant: Annotated[
        str | None,
        typer.Option(help="Precision of a GGUF: Q4_K_M, Q8_0, ...; see thumbwheel export."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the target, as threads=2; may be repeated."),
    ] = None,
    accept: Annotated[
        str | None,
        typer.Option(help='Take a failed parity or an inconclusive canary: "your name: why".'),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Let a version answer on a target, prove that it is the one, and switch.

    What the target needs is exported, or an export that is there is used again. A canary then asks
    it prompts on which it differs from its base and from the version before; only where the answers
    are its own is the alias moved. Whatever fails, the old version still serves.

    Example: thumbwheel deploy v3 --agent support --target llamacpp --quant Q4_K_M
    """
    from thumbwheel.core import log
    from thumbwheel.deploy import switch

    to = None if alias == "none" else alias
    with ctx.obj() as ws:
        if dry_run:
            _show_plan(switch.plan(ws, agent, version, target, to, quant), to, json)
            return
        done = switch.deploy(
            ws,
            agent,
            version,
            target,
            to,
            quant=quant,
            settings=_settings(set_ or []),
            accept=accept,
        )
    if json:
        log.answer(asdict(done.deployment) | {"switch": done.switch and asdict(done.switch)})
        return
    rows = [
        ("answers at", done.deployment.endpoint and done.deployment.endpoint.url),
        ("as", done.deployment.name),
    ]
    rows += [
        ("canary", f"{done.canary.verdict}: {done.canary.says()}"),
        ("alias", f"{to} -> {done.deployment.version}" if to else "none: warm"),
    ]
    log.table(f"{agent} {done.deployment.version} on {target}", ("", ""), rows)


def _settings(given: list[str]) -> dict[str, Any]:
    import yaml

    from thumbwheel.core.errors import InputError

    found = {}
    for one in given:
        name, equals, text = one.partition("=")
        if not equals:
            raise InputError(
                f"--set {one!r}", "it is no setting with a value", "Write it as threads=2"
            )
        found[name.strip()] = yaml.safe_load(text)
    return found


def _show_plan(planned: Any, alias: str | None, json: bool) -> None:
    from thumbwheel.core import log

    if json:
        log.answer(
            {**asdict(planned), "export": planned.export and planned.export.id, "alias": alias}
        )
        return
    files = (
        f"{planned.folder} "
        f"({'used again' if planned.export else 'as it is' if planned.folder.exists() else 'exported'})"
    )
    rows = [
        ("form", planned.kind.value + (f" {planned.quant}" if planned.quant else "")),
        ("files", files),
    ]
    rows += [
        ("canary", "asked before the switch"),
        ("alias", f"{alias} -> {planned.version}" if alias else "none: kept warm"),
    ]
    log.table(f"would deploy {planned.version} on {planned.target}", ("", ""), rows)


def deployments(
    ctx: typer.Context,
    agent: Agent,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start again what does not answer.")
    ] = False,
    stop: Annotated[
        bool,
        typer.Option(
            "--stop",
            help="Take the agent's models from all targets (in Ollama they are deleted); --restart "
            "brings them back.",
        ),
    ] = False,
    history: Annotated[
        bool, typer.Option("--history", help="Also the switches of all aliases.")
    ] = False,
    json: AsJson = False,
) -> None:
    """What is deployed, how it is, and which alias points at it.

    Example: thumbwheel deployments --agent support --history
    """
    from thumbwheel.core import log
    from thumbwheel.deploy import switch
    from thumbwheel.models import versions

    with ctx.obj() as ws:
        rows = switch.deployments(ws, agent)
        if stop:
            switch.stop(ws, agent)
        if restart:
            switch.restart(ws, agent)
            rows = switch.deployments(ws, agent)
        health = {one.id: switch.health(one) for one in rows}
        pointing = {
            alias: switch.behind(ws, agent, alias)[1] for alias in versions.aliases_of(ws, agent)
        }
        names = {one.id: one.name for one in versions.versions(ws, agent)}
        moves = (
            [move for alias in pointing for move in versions.switches(ws, agent, alias)]
            if history
            else []
        )
    aliases = {
        one.id: sorted(alias for alias, at in pointing.items() if at and at.id == one.id)
        for one in rows
    }
    if json:
        found = [
            asdict(one)
            | {"aliases": aliases[one.id], "alive": health[one.id].alive, "why": health[one.id].why}
            for one in rows
        ]
        log.answer(
            {"deployments": found, "switches": [asdict(move) for move in moves]}
            if history
            else found
        )
        return
    columns = ("version", "target", "aliases", "state", "canary", "answers at", "since")
    log.table(
        f"deployments of {agent}",
        columns,
        [_line(one, ", ".join(aliases[one.id]), health[one.id]) for one in rows],
    )
    if history:
        shown = [
            (
                f"{m.recorded_at:%Y-%m-%d %H:%M:%S}",
                m.alias,
                names.get(m.from_id or "", ""),
                names.get(m.to_id),
                m.reason,
            )
            for m in moves
        ]
        log.table("switches", ("when", "alias", "from", "to", "why"), shown)


def _line(one: Deployment, aliases: str, health: Any) -> tuple[object, ...]:
    state = (
        "answers"
        if health.alive
        else f"{one.state}, does not answer: {health.why}"
        if one.state == "warm"
        else one.state
    )
    state = f"TAINTED, not served any more; {state}" if one.tainted else state
    verdict = (one.canary or {}).get("verdict")
    return (
        one.version,
        one.target,
        aliases,
        state,
        verdict,
        one.endpoint and one.endpoint.url,
        f"{one.recorded_at:%Y-%m-%d %H:%M}",
    )


def rollback(ctx: typer.Context, agent: Agent, alias: Alias = "live", json: AsJson = False) -> None:
    """Point an alias back at the version before, in one step; given again, at the one before that.

    Example: thumbwheel rollback --agent support
    """
    from thumbwheel.core import log
    from thumbwheel.deploy import switch
    from thumbwheel.models import versions

    with ctx.obj() as ws:
        done = switch.rollback(ws, agent, alias)
        names = {one.id: one.name for one in versions.versions(ws, agent)}
    if json:
        log.answer(asdict(done))
    else:
        log.say(
            f"{alias} is {names[done.to_id]} again"
            + (f"; it was {names[done.from_id]}" if done.from_id else "")
        )


def promote(
    ctx: typer.Context, version: Version, agent: Agent, alias: Alias = "live", json: AsJson = False
) -> None:
    """Point an alias at a version that is deployed and proven, in one step.

    Example: thumbwheel promote v3 --agent support
    """
    from thumbwheel.core import log
    from thumbwheel.deploy import switch

    with ctx.obj() as ws:
        done = switch.promote(ws, agent, version, alias)
    if json:
        log.answer(asdict(done))
    else:
        log.say(f"{alias} is now {version}")


def undeploy(
    ctx: typer.Context,
    version: Version,
    agent: Agent,
    target: Annotated[str | None, typer.Option(help="Only from this target.")] = None,
    forget: Annotated[
        bool,
        typer.Option(
            "--forget", help="Also where the target is gone for good: only our record goes."
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Take a version away from its targets; refused while an alias needs it.

    Example: thumbwheel undeploy v2 --agent support
    """
    from thumbwheel.core import log
    from thumbwheel.deploy import switch

    with ctx.obj() as ws:
        found = switch.undeploy(ws, agent, version, target, forget=forget)
    if json:
        log.answer([asdict(one) for one in found])
    else:
        log.say(", ".join(f"{one.name} is gone from {one.target}" for one in found))


def serve(
    ctx: typer.Context,
    agent: Agent,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; loopback unless you know who can reach the other one."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8787,
) -> None:
    """The front door of an agent: OpenAI's API, where the model is the agent's name.

    Every request goes to what the alias points at in that moment; `support:canary` names another
    alias than live.

    Example: thumbwheel serve --agent support
    """
    from thumbwheel.core import log
    from thumbwheel.deploy.serve import serve as run

    with ctx.obj() as ws:
        log.say(
            f"export OPENAI_BASE_URL=http://{host}:{port}/v1     # model: {agent}, or {agent}:ALIAS"
        )
        run(ws, agent, host, port)
