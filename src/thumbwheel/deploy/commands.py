"""`thumbwheel deploy`, `deployments`, `rollback`, `promote`, `undeploy`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thumbwheel.core import present
from thumbwheel.core.options import Here
from thumbwheel.deploy.types import (
    DeployedVersion,
    Deployment,
    DeploymentHistory,
    DeployPlan,
    ListedDeployment,
)
from thumbwheel.jobs.request import JobRequest
from thumbwheel.models.types import Switch

if TYPE_CHECKING:
    from thumbwheel.deploy.prepare import DeploymentPlan

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
) -> JobRequest[DeployedVersion, DeployedVersion] | present.Answer[DeployPlan]:
    """Serve a version on a target, check that it is the one, and switch the alias.

    What the target needs is exported, unless there is an export already. A canary then asks prompts
    on which the version differs from its base and from the version before. Only if the answers are
    those of the version does the alias move. Whatever fails, the old version still serves.

    Example: thumbwheel deploy v3 --agent support --target llamacpp --quant Q4_K_M
    """
    from thumbwheel.deploy.jobs import DeploySpec

    alias_name = None if alias == "none" else alias
    settings = _settings(set_ or [])
    if dry_run:
        from thumbwheel.deploy import deploy as verbs
        from thumbwheel.models import versions

        with ctx.obj() as ws:
            model_version = versions.version(ws, agent, version)
            deploy_plan = verbs.plan(ws, model_version, target, alias_name, quant)
        return _plan_answer(deploy_plan, alias_name)
    spec = DeploySpec(
        version=version,
        agent=agent,
        target=target,
        alias=alias,
        quant=quant,
        set=settings,
        accept=accept,
    )

    def show(deployed: DeployedVersion) -> present.Answer[DeployedVersion]:
        title = f"{agent} {deployed.version} on {target}"
        return present.record(deployed, title, _result_rows(deployed, alias_name))

    return JobRequest("deploy", spec, show, here=here)


def _result_rows(deployed: DeployedVersion, alias: str | None) -> list[present.Row]:
    from pydantic import TypeAdapter

    from thumbwheel.deploy.canary import Canary

    canary = TypeAdapter(Canary).validate_python(deployed.canary)
    return [
        ("answers at", deployed.endpoint and deployed.endpoint.url),
        ("as", deployed.name),
        ("canary", f"{canary.verdict}: {canary.summary()}"),
        ("alias", f"{alias} -> {deployed.version}" if alias else "none: warm"),
    ]


def _settings(options: list[str]) -> dict[str, Any]:
    import yaml

    from thumbwheel.core.errors import InputError

    settings = {}
    for option in options:
        name, equals, text = option.partition("=")
        if not equals:
            raise InputError(f"--set {option!r}", "it has no value", "Write it as threads=2")
        settings[name.strip()] = yaml.safe_load(text)
    return settings


def _plan_answer(deploy_plan: DeploymentPlan, alias: str | None) -> present.Answer[DeployPlan]:
    export = deploy_plan.export
    planned = DeployPlan(
        version=deploy_plan.version,
        target=deploy_plan.target,
        kind=deploy_plan.format,
        quant=deploy_plan.quant,
        export=None if export is None else export.id,
        folder=deploy_plan.folder,
        alias=alias,
        misfits=list(deploy_plan.misfits),
    )
    title = f"would deploy {deploy_plan.version} on {deploy_plan.target}"
    return present.record(planned, title, _plan_rows(deploy_plan, alias))


def _plan_rows(deploy_plan: DeploymentPlan, alias: str | None) -> list[present.Row]:
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
) -> present.Answer[list[ListedDeployment] | DeploymentHistory]:
    """List the deployments: whether each answers, and which alias points at it.

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
    empty = f"nothing is deployed; deploy a version: thumbwheel deploy latest --agent {agent}"
    answer = present.records(listed, f"deployments of {agent}", COLUMNS, empty=empty)
    if history:
        columns: dict[str, Callable[[Switch], object]] = {
            "when": lambda move: f"{move.recorded_at:%Y-%m-%d %H:%M:%S}",
            "alias": lambda move: move.alias,
            "from": lambda move: names.get(move.from_id or "", ""),
            "to": lambda move: names.get(move.to_id),
            "basis": lambda move: move.evidence.get("basis", ""),
            "why": lambda move: move.reason,
        }
        empty = "no alias was moved yet"
        switches = present.records(moves, "switches", columns, empty=empty)
        with_moves = DeploymentHistory(listed, moves)
        return present.page(with_moves, [*answer.parts, *switches.parts])
    return present.page(listed, answer.parts)


def _listed(deployment: Deployment, serving: Mapping[str, Deployment | None]) -> ListedDeployment:
    from thumbwheel.deploy.running import health

    aliases = [alias for alias, row in serving.items() if row and row.id == deployment.id]
    state = health(deployment)
    return ListedDeployment(**vars(deployment), aliases=aliases, alive=state.alive, why=state.why)


def _state(row: ListedDeployment) -> str:
    state: str = row.state
    if row.host is not None:
        state = f"{state}, on host {row.host}"
    elif row.alive:
        state = "answers"
    elif state == "warm":
        state = f"{state}, does not answer: {row.why}"
    return f"TAINTED, not served any more; {state}" if row.tainted else state


COLUMNS: dict[str, Callable[[ListedDeployment], object]] = {
    "version": lambda row: row.version,
    "target": lambda row: row.target,
    "aliases": lambda row: ", ".join(row.aliases),
    "state": lambda row: _state(row),
    "canary": lambda row: (row.canary or {}).get("verdict"),
    "answers at": lambda row: row.endpoint and row.endpoint.url,
    "since": lambda row: f"{row.recorded_at:%Y-%m-%d %H:%M}",
}


def rollback(ctx: typer.Context, agent: Agent, alias: Alias = "live") -> present.Answer[Switch]:
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
) -> present.Answer[Switch]:
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
) -> present.Answer[Sequence[Deployment]]:
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
