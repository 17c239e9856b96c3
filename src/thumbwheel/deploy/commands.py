"""`thumbwheel deploy`, `deployments`, `rollback`, `undeploy`, `serve`."""

from __future__ import annotations

from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from thumbwheel.deploy.prepare import Plan
    from thumbwheel.deploy.types import Deployment, Health
    from thumbwheel.models.types import Switch

Agent = Annotated[str, typer.Option(help="The agent.")]
Version = Annotated[str, typer.Argument(help="v3, an alias, or latest.")]
AsJson = Annotated[bool, typer.Option("--json", help="The answer as JSON on standard output.")]
Alias = Annotated[str, typer.Option(help="The alias; everybody gets live.")]


def deploy(
    ctx: typer.Context,
    version: Version,
    agent: Agent,
    target: Annotated[str, typer.Option(help="embedded, llamacpp, ollama or vllm.")] = "embedded",
    alias: Annotated[
        str,
        typer.Option(
            help="The alias to point at it once its canary passed; 'none' only keeps it warm."
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
    """Serve a version on a target, check that it is the one, and switch the alias.

    What the target needs is exported, unless there is an export already. A canary then asks prompts
    on which the version differs from its base and from the version before. Only if the answers are
    those of the version does the alias move. Whatever fails, the old version still serves.

    Example: thumbwheel deploy v3 --agent support --target llamacpp --quant Q4_K_M
    """
    from thumbwheel.core import log
    from thumbwheel.deploy import switch

    alias_name = None if alias == "none" else alias
    with ctx.obj() as ws:
        if dry_run:
            deploy_plan = switch.plan(ws, agent, version, target, alias_name, quant)
            _show_plan(deploy_plan, alias_name, json)
            return
        result = switch.deploy(
            ws,
            agent,
            version,
            target,
            alias_name,
            quant=quant,
            settings=_settings(set_ or []),
            accept=accept,
        )
    deployment = result.deployment
    if json:
        alias_switch = result.switch and asdict(result.switch)
        log.answer(asdict(deployment) | {"switch": alias_switch})
        return
    rows = [
        ("answers at", deployment.endpoint and deployment.endpoint.url),
        ("as", deployment.name),
        ("canary", f"{result.canary.verdict}: {result.canary.summary()}"),
        ("alias", f"{alias_name} -> {deployment.version}" if alias_name else "none: warm"),
    ]
    log.table(f"{agent} {deployment.version} on {target}", ("", ""), rows)


def _settings(options: list[str]) -> dict[str, Any]:
    import yaml

    from thumbwheel.core.errors import InputError

    settings = {}
    for option in options:
        name, equals, text = option.partition("=")
        if not equals:
            raise InputError(
                f"--set {option!r}", "it is no setting with a value", "Write it as threads=2"
            )
        settings[name.strip()] = yaml.safe_load(text)
    return settings


def _show_plan(deploy_plan: Plan, alias: str | None, json: bool) -> None:
    from thumbwheel.core import log

    export = deploy_plan.export
    if json:
        log.answer(
            {
                "version": deploy_plan.version,
                "target": deploy_plan.target,
                "kind": deploy_plan.format,
                "quant": deploy_plan.quant,
                "export": export and export.id,
                "folder": deploy_plan.folder,
                "alias": alias,
            }
        )
        return
    if export:
        origin = "used again"
    elif deploy_plan.folder.exists():
        origin = "as it is"
    else:
        origin = "exported"
    form = deploy_plan.format
    if deploy_plan.quant:
        form = f"{form} {deploy_plan.quant}"
    rows = [
        ("form", form),
        ("files", f"{deploy_plan.folder} ({origin})"),
        ("canary", "asked before the switch"),
        ("alias", f"{alias} -> {deploy_plan.version}" if alias else "none: kept warm"),
    ]
    log.table(f"would deploy {deploy_plan.version} on {deploy_plan.target}", ("", ""), rows)


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
            help="Stop the agent's models on all targets (in Ollama they are deleted); --restart "
            "brings them back.",
        ),
    ] = False,
    history: Annotated[
        bool, typer.Option("--history", help="Show the switches of all aliases too.")
    ] = False,
    json: AsJson = False,
) -> None:
    """What is deployed, whether it answers, and which alias points at it.

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
        health = {row.id: switch.health(row) for row in rows}
        alias_names = versions.aliases_of(ws, agent)
        aliases: dict[str, list[str]] = {row.id: [] for row in rows}
        for alias in sorted(alias_names):
            serving = switch.route(ws, agent, alias).deployment
            if serving is not None and serving.id in aliases:
                aliases[serving.id].append(alias)
        version_names = {version.id: version.name for version in versions.versions(ws, agent)}
        switches = [versions.switches(ws, agent, alias) for alias in alias_names if history]
    moves = list(chain.from_iterable(switches))
    if json:
        objects = []
        for row in rows:
            status = {"alive": health[row.id].alive, "why": health[row.id].why}
            objects.append({**asdict(row), "aliases": aliases[row.id], **status})
        if history:
            log.answer({"deployments": objects, "switches": [asdict(move) for move in moves]})
        else:
            log.answer(objects)
        return
    columns = ("version", "target", "aliases", "state", "canary", "answers at", "since")
    cells = [_cells(row, aliases[row.id], health[row.id]) for row in rows]
    log.table(f"deployments of {agent}", columns, cells)
    if history:
        switch_cells = [_switch_cells(move, version_names) for move in moves]
        log.table("switches", ("when", "alias", "from", "to", "why"), switch_cells)


def _switch_cells(move: Switch, version_names: dict[str, str]) -> tuple[object, ...]:
    when = f"{move.recorded_at:%Y-%m-%d %H:%M:%S}"
    before = version_names.get(move.from_id or "", "")
    return when, move.alias, before, version_names.get(move.to_id), move.reason


def _cells(deployment: Deployment, aliases: list[str], health: Health) -> tuple[object, ...]:
    state: str = deployment.state
    if health.alive:
        state = "answers"
    elif deployment.state == "warm":
        state = f"{deployment.state}, does not answer: {health.why}"
    if deployment.tainted:
        state = f"TAINTED, not served any more; {state}"
    return (
        deployment.version,
        deployment.target,
        ", ".join(aliases),
        state,
        (deployment.canary or {}).get("verdict"),
        deployment.endpoint and deployment.endpoint.url,
        f"{deployment.recorded_at:%Y-%m-%d %H:%M}",
    )


def rollback(ctx: typer.Context, agent: Agent, alias: Alias = "live", json: AsJson = False) -> None:
    """Point an alias back at the version before, in one step; given again, at the one before that.

    Example: thumbwheel rollback --agent support
    """
    from thumbwheel.core import log
    from thumbwheel.deploy import switch
    from thumbwheel.models import versions

    with ctx.obj() as ws:
        alias_switch = switch.rollback(ws, agent, alias)
        names = {version.id: version.name for version in versions.versions(ws, agent)}
    if json:
        log.answer(asdict(alias_switch))
        return
    before = f"; it was {names[alias_switch.from_id]}" if alias_switch.from_id else ""
    log.say(f"{alias} is {names[alias_switch.to_id]} again{before}")


def promote(
    ctx: typer.Context, version: Version, agent: Agent, alias: Alias = "live", json: AsJson = False
) -> None:
    """Point an alias at a version that is deployed and passed its canary, in one step.

    Example: thumbwheel promote v3 --agent support
    """
    from thumbwheel.core import log
    from thumbwheel.deploy import switch

    with ctx.obj() as ws:
        alias_switch = switch.promote(ws, agent, version, alias)
    if json:
        log.answer(asdict(alias_switch))
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
            "--forget",
            help="Remove the record also where the target does not answer, because it is gone.",
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Take a version off its targets; refused while an alias needs it.

    Example: thumbwheel undeploy v2 --agent support
    """
    from thumbwheel.core import log
    from thumbwheel.deploy import switch

    with ctx.obj() as ws:
        removed = switch.undeploy(ws, agent, version, target, forget=forget)
    if json:
        log.answer([asdict(row) for row in removed])
    else:
        log.say(", ".join(f"{row.name} is gone from {row.target}" for row in removed))


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
