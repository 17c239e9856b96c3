"""`thumbwheel deploy`, `deployments`, `rollback`, `promote`, `undeploy`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thumbwheel.core import present
from thumbwheel.core.options import Here

if TYPE_CHECKING:
    from thumbwheel.deploy.prepare import Plan
    from thumbwheel.deploy.types import Deployment, Health
    from thumbwheel.models.types import Switch

Agent = Annotated[str, typer.Option(help="The agent.")]
Version = Annotated[str, typer.Argument(help="v3, an alias, or latest.")]
Alias = Annotated[str, typer.Option(help="The alias; everybody gets live.")]


def deploy(
    ctx: typer.Context,
    version: Version,
    agent: Agent,
    target: Annotated[
        str, typer.Option(help="embedded, llamacpp, ollama, vllm or remote.")
    ] = "embedded",
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
        typer.Option(
            help="Take a failed parity, an inconclusive canary, or a target that could not have "
            'answered last week\'s calls: "your name: why".'
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    here: Here = False,
) -> present.Answer[Any]:
    """Serve a version on a target, check that it is the one, and switch the alias.

    What the target needs is exported, unless there is an export already. A canary then asks prompts
    on which the version differs from its base and from the version before. Only if the answers are
    those of the version does the alias move. Whatever fails, the old version still serves.

    Example: thumbwheel deploy v3 --agent support --target llamacpp --quant Q4_K_M
    """
    alias_name = None if alias == "none" else alias
    settings = _settings(set_ or [])
    if dry_run:
        from thumbwheel.deploy import deploy as verbs
        from thumbwheel.models import versions

        with ctx.obj() as ws:
            model_version = versions.version(ws, agent, version)
            deploy_plan = verbs.plan(ws, model_version, target, alias_name, quant)
        return _plan_answer(deploy_plan, alias_name)
    spec = {
        "version": version,
        "agent": agent,
        "target": target,
        "alias": alias,
        "quant": quant,
        "set": settings,
        "accept": accept,
    }
    data = ctx.obj.run("deploy", spec, here=here)
    title = f"{agent} {data['version']} on {target}"
    return present.record(data, title, _result_rows(data, alias_name))


def _result_rows(data: Mapping[str, Any], alias: str | None) -> list[present.Row]:
    from pydantic import TypeAdapter

    from thumbwheel.deploy.canary import Canary

    canary = TypeAdapter(Canary).validate_python(data["canary"])
    return [
        ("answers at", data["endpoint"] and data["endpoint"]["url"]),
        ("as", data["name"]),
        ("canary", f"{canary.verdict}: {canary.summary()}"),
        ("alias", f"{alias} -> {data['version']}" if alias else "none: warm"),
    ]


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


def _plan_answer(deploy_plan: Plan, alias: str | None) -> present.Answer[Any]:
    export = deploy_plan.export
    data = {
        "version": deploy_plan.version,
        "target": deploy_plan.target,
        "kind": deploy_plan.format,
        "quant": deploy_plan.quant,
        "export": export and export.id,
        "folder": deploy_plan.folder,
        "alias": alias,
        "misfits": list(deploy_plan.misfits),
    }
    title = f"would deploy {deploy_plan.version} on {deploy_plan.target}"
    return present.record(data, title, _plan_rows(deploy_plan, alias))


def _plan_rows(deploy_plan: Plan, alias: str | None) -> list[present.Row]:
    ends: list[present.Row] = [
        ("alias", f"{alias} -> {deploy_plan.version}" if alias else "none: kept warm")
    ]
    if deploy_plan.misfits:
        ends += [("refused", misfit) for misfit in deploy_plan.misfits]
        ends.append(("go on", 'all the same with --accept "your name: why"'))
    if deploy_plan.folder is None:
        return [("form", "as somebody else serves it"), *ends]
    if deploy_plan.export:
        origin = "used again"
    elif deploy_plan.folder.exists():
        origin = "as it is"
    else:
        origin = "exported"
    form = deploy_plan.format
    if deploy_plan.quant:
        form = f"{form} {deploy_plan.quant}"
    return [
        ("form", form),
        ("files", f"{deploy_plan.folder} ({origin})"),
        ("canary", "asked before the switch"),
        *ends,
    ]


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
            help="Stop the agent's models on all targets (in Ollama they are deleted); they stay "
            "stopped, also under `thumbwheel serve`, until --restart brings them back.",
        ),
    ] = False,
    deployment: Annotated[str | None, typer.Option(hidden=True)] = None,
    history: Annotated[
        bool, typer.Option("--history", help="Show the switches of all aliases too.")
    ] = False,
) -> present.Answer[Any]:
    """What is deployed, whether it answers, and which alias points at it.

    Example: thumbwheel deployments --agent support --history
    """
    from thumbwheel.deploy import routing, running
    from thumbwheel.models import versions

    with ctx.obj() as ws:
        learner = versions.require_agent(ws, agent)
        rows = routing.deployments(ws, learner)
        if stop:
            running.stop(ws, learner, stays=True)
        if deployment is not None:
            running.start_again(ws, routing.by_id(ws, deployment))
        if restart:
            running.restart(ws, learner)
            rows = routing.deployments(ws, learner)
        aliases = versions.aliases_of(ws, learner)
        serving = {alias: routing.route(ws, learner, alias).deployment for alias in sorted(aliases)}
        listed = [_listed(row, serving) for row in rows]
        moves: list[Switch] = []
        if history:
            for alias in aliases:
                moves += versions.switches(ws, learner, alias)
        names = {version.id: version.name for version in versions.versions(ws, learner)}
    data: object = [row.to_json() for row in listed]
    if history:
        data = {"deployments": data, "switches": moves}
    answer = present.records(listed, f"deployments of {agent}", COLUMNS, data=data)
    if history:
        columns: dict[str, Callable[[Switch], object]] = {
            "when": lambda move: f"{move.recorded_at:%Y-%m-%d %H:%M:%S}",
            "alias": lambda move: move.alias,
            "from": lambda move: names.get(move.from_id or "", ""),
            "to": lambda move: names.get(move.to_id),
            "basis": lambda move: move.evidence.get("basis", ""),
            "why": lambda move: move.reason,
        }
        switches = present.records(moves, "switches", columns)
        answer = present.page(data, [*answer.parts, *switches.parts])
    return answer


@dataclass(frozen=True)
class _Listed:
    """A deployment in the list of an agent's."""

    deployment: Deployment
    aliases: list[str]
    health: Health

    def to_json(self) -> dict[str, Any]:
        status = {"alive": self.health.alive, "why": self.health.why}
        return {**asdict(self.deployment), "aliases": self.aliases, **status}

    @property
    def state(self) -> str:
        state: str = self.deployment.state
        if self.health.alive:
            state = "answers"
        elif state == "warm":
            state = f"{state}, does not answer: {self.health.why}"
        return f"TAINTED, not served any more; {state}" if self.deployment.tainted else state


def _listed(deployment: Deployment, serving: Mapping[str, Deployment | None]) -> _Listed:
    from thumbwheel.deploy.running import health

    aliases = [alias for alias, row in serving.items() if row and row.id == deployment.id]
    return _Listed(deployment, aliases, health(deployment))


COLUMNS: dict[str, Callable[[_Listed], object]] = {
    "version": lambda row: row.deployment.version,
    "target": lambda row: row.deployment.target,
    "aliases": lambda row: ", ".join(row.aliases),
    "state": lambda row: row.state,
    "canary": lambda row: (row.deployment.canary or {}).get("verdict"),
    "answers at": lambda row: row.deployment.endpoint and row.deployment.endpoint.url,
    "since": lambda row: f"{row.deployment.recorded_at:%Y-%m-%d %H:%M}",
}


def rollback(ctx: typer.Context, agent: Agent, alias: Alias = "live") -> present.Answer[Any]:
    """Point an alias back at the version before, in one step; given again, at the one before that.

    Example: thumbwheel rollback --agent support
    """
    from thumbwheel.deploy import switch
    from thumbwheel.models import versions

    with ctx.obj() as ws:
        learner = versions.require_agent(ws, agent)
        alias_switch = switch.rollback(ws, learner, alias)
        names = {version.id: version.name for version in versions.versions(ws, learner)}
    before = f"; it was {names[alias_switch.from_id]}" if alias_switch.from_id else ""
    text = f"{alias} is {names[alias_switch.to_id]} again{before}"
    return present.message(alias_switch, text)


def promote(
    ctx: typer.Context,
    version: Version,
    agent: Agent,
    alias: Alias = "live",
    accept: Annotated[
        str | None,
        typer.Option(
            help="Go live on a target that could not have answered last week's calls: "
            '"your name: why".'
        ),
    ] = None,
) -> present.Answer[Any]:
    """Point an alias at a version that is deployed and passed its canary, in one step.

    Example: thumbwheel promote v3 --agent support
    """
    from thumbwheel.deploy import switch
    from thumbwheel.models import versions

    with ctx.obj() as ws:
        model_version = versions.version(ws, agent, version)
        alias_switch = switch.promote(ws, model_version, alias, accept=accept)
    return present.message(alias_switch, f"{alias} is now {version}")


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
) -> present.Answer[Any]:
    """Take a version off its targets; refused while an alias needs it.

    Example: thumbwheel undeploy v2 --agent support
    """
    from thumbwheel.deploy import deploy as verbs
    from thumbwheel.models import versions

    with ctx.obj() as ws:
        model_version = versions.version(ws, agent, version)
        removed = verbs.undeploy(ws, model_version, target, forget=forget)
    text = ", ".join(f"{row.name} is gone from {row.target}" for row in removed)
    return present.message(removed, text)
