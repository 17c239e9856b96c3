"""The commands `thumbwheel loop run`, `thumbwheel train METHOD` and `thumbwheel train auto`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import model_validator

from thumbwheel.core.config import Config, build
from thumbwheel.core.config import options as options_of
from thumbwheel.loop.cycle_types import CycleConfig
from thumbwheel.training.algorithms import ALGORITHMS
from thumbwheel.training.commands import NOT_APPROVED, method_help

if TYPE_CHECKING:
    from thumbwheel.db.workspace import Workspace
    from thumbwheel.loop.cycle_types import CycleReport

Agent = Annotated[str, typer.Option(help="Whose model learns.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Say what would be done and how long it takes; train nothing."),
]

INTERRUPTED = 130

loop = typer.Typer(
    help="Turn the wheel: plan, train, compare, evaluate, gate, export, deploy, report."
)
train = typer.Typer(help="Train a LoRA adapter over a base model, in a process of its own.")


@loop.callback()
def _group() -> None:
    """Makes `run` a subcommand."""


def run(
    ctx: typer.Context,
    agent: Agent,
    anew: Annotated[
        bool, typer.Option("--anew", help="Forget a turn that was not finished.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    options: dict[str, Any] | None = None,
) -> None:
    """Turn the wheel once: from the feedback that is there to a version that answers.

    Trains by every method that the data plan allows (or by --methods), compares the candidates,
    evaluates the best one and asks the gate. What the gate approves is exported and deployed as far
    as --export and --deploy say. A turn that was stopped or killed goes on where it was: give the
    same command again.

    Exit code 0 only if the gate approved. Example: thumbwheel loop run --agent support --base
    ./my-base --deploy embedded
    """
    from thumbwheel.core import log
    from thumbwheel.loop.cycle import run_cycle
    from thumbwheel.loop.cycle_checks import plan_cycle

    with ctx.obj() as ws:
        config = ws.settings(CycleConfig, "loop", options)
        if dry_run:
            _show_plan(plan_cycle(ws, agent, config), as_json)
            return
        cycle = run_cycle(ws, agent, config, anew)
    if as_json:
        log.answer(cycle.to_json())
    else:
        show_cycle(cycle)
    if not cycle.approved:
        raise typer.Exit(NOT_APPROVED)


loop.command("run")(options_of(CycleConfig)(run))


def show_cycle(cycle: CycleReport) -> None:
    """The closing table of a turn."""
    from thumbwheel.core import log
    from thumbwheel.loop.formatting import percent, points

    rows: list[tuple[str, object]] = []
    rows += [
        (candidate.method, candidate.version or f"no candidate: {candidate.reason}")
        for candidate in cycle.candidates
    ]
    if cycle.evaluation is not None:
        primary = cycle.evaluation.primary
        values = f"{percent(primary.before)} -> {percent(primary.after)}"
        gain = f"{points(primary.gain)} points [{points(primary.low)}, {points(primary.high)}]"
        rows.append((f"{cycle.version} against {cycle.evaluation.against}", f"{values}, {gain}"))
    rows.append(("decision", cycle.verdict or "none: there is nothing to decide on"))
    rows += [("", reason) for reason in cycle.reasons]
    rows += [(f"exported as {export.format}", export.path) for export in cycle.exports]
    if cycle.deployment is not None:
        rows.append((f"answers on {cycle.deployment.target}", cycle.deployment.name))
    rows.append(("report", cycle.report))
    log.table(f"one turn for {cycle.agent}", ("", ""), [row for row in rows if row[1] is not None])


def _show_plan(plan: dict[str, Any], as_json: bool) -> None:
    from thumbwheel.core import log

    if as_json:
        log.answer(plan)
        return
    for line in plan["plan"]:
        log.show(line)
    rows = [
        (method, f"{estimate['minutes']:.1f} minutes", f"{estimate['rows']} rows")
        for method, estimate in plan["trainings"].items()
    ]
    log.table("dry run: nothing was trained", ("train", "time", "on"), rows)
    for line in plan["if approved"]:
        log.show(f"if the gate approves: {line}")


class ReleaseConfig(Config):
    """What is done with a candidate that was just trained."""

    export: bool = False
    """Afterwards: evaluate it, and write it as GGUF if the gate approves."""
    quant: str | None = None
    """Precision of that GGUF, as q4_k_m; unset, what this machine's memory holds."""
    register_ollama: bool = False
    """With --export: also deploy it in Ollama."""
    model_name: str | None = None
    """With --register-ollama: its name there; unset, the agent's and the version's."""

    @model_validator(mode="after")
    def _whole(self) -> ReleaseConfig:
        if not self.export and (self.quant or self.register_ollama):
            raise ValueError(
                "quant and register_ollama are about what is exported: give --export as well"
            )
        if self.model_name and not self.register_ollama:
            raise ValueError("model_name is a name in Ollama: give --register-ollama as well")
        return self


def _method_command(name: str, makes_versions: bool) -> Callable[..., Any]:
    """The command of one method. A method that makes versions also has the options of
    `ReleaseConfig`."""

    def run(
        ctx: typer.Context,
        agent: Agent,
        base: Annotated[
            str | None,
            typer.Option(
                help="Base model: a folder or a Hugging Face id. Not needed with --resume."
            ),
        ] = None,
        dataset: Annotated[
            str | None, typer.Option(help="Dataset id [default: built from the feedback in force].")
        ] = None,
        resume: Annotated[
            str | None, typer.Option(help="Go on with this run from its newest checkpoint.")
        ] = None,
        dry_run: DryRun = False,
        as_json: AsJson = False,
        options: dict[str, Any] | None = None,
    ) -> None:
        from dataclasses import asdict

        from thumbwheel.core import log
        from thumbwheel.loop.cycle_checks import check_ready
        from thumbwheel.training import train as verbs
        from thumbwheel.training.commands import show_dry_run, show_result
        from thumbwheel.training.types import RunState

        settings = options or {}
        release = _take_release_config(settings) if makes_versions else ReleaseConfig()
        cycle = None
        with ctx.obj() as ws:
            if dry_run:
                plan = verbs.dry_run(ws, agent, name, base, dataset=dataset, options=settings)
                show_dry_run(asdict(plan), as_json)
                return
            check_ready(ws, _cycle_config(release))
            result = verbs.train(
                ws, agent, name, base, dataset=dataset, options=settings, resume=resume
            )
            if not as_json:
                show_result(asdict(result), agent, name)
            if release.export and result.version:
                cycle = _release(ws, agent, result.version, release)
        if as_json:
            release_json = {"release": cycle.to_json()} if cycle else {}
            log.answer(asdict(result) | release_json)
        elif cycle:
            show_cycle(cycle)
        if result.state is RunState.STOPPED:
            raise typer.Exit(INTERRUPTED)
        if result.state is RunState.NOTHING_LEARNED or (cycle and not cycle.approved):
            raise typer.Exit(NOT_APPROVED)

    return run


def _take_release_config(options: dict[str, Any]) -> ReleaseConfig:
    """The release settings among the options of a method, which are removed from `options`."""
    settings = {}
    for field in ReleaseConfig.model_fields:
        if field in options:
            settings[field] = options.pop(field)
    return build(ReleaseConfig, settings, "options")


def _cycle_config(release: ReleaseConfig) -> CycleConfig:
    """The settings of the second half of a turn."""
    if not release.export:
        return CycleConfig()
    deploy = "ollama" if release.register_ollama else None
    return CycleConfig(export=("gguf",), quant=release.quant, deploy=deploy)


def _release(ws: Workspace, agent: str, version: str, config: ReleaseConfig) -> CycleReport:
    """The second half of a turn for a version that was just trained."""
    from thumbwheel.loop.cycle import release_candidate
    from thumbwheel.loop.cycle_types import CycleReport

    cycle = CycleReport(agent, version=version)
    target_settings = {"name": config.model_name} if config.model_name else None
    release_candidate(ws, cycle, _cycle_config(config), target_settings)
    return cycle


def auto(
    ctx: typer.Context,
    agent: Agent,
    base: Annotated[
        str | None,
        typer.Option(
            help="Base model [default: that of the live version, else of the newest one]."
        ),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(help="Methods to compare, each by its own option [default: all allowed]."),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Train by every method that the data plan allows, and name the candidate that is best on the
    dev rows.

    Example: thumbwheel train auto --agent support --base ./my-base
    """
    from dataclasses import asdict

    from thumbwheel.core import log
    from thumbwheel.loop.cycle import find_candidate
    from thumbwheel.loop.cycle_checks import plan_cycle

    with ctx.obj() as ws:
        options: dict[str, Any] = {}
        if base:
            options["base"] = base
        if methods:
            options["methods"] = methods
        config = ws.settings(CycleConfig, "loop", options)
        config = config.model_copy(update={"export": (), "quant": None, "deploy": None})
        if dry_run:
            _show_plan(plan_cycle(ws, agent, config), as_json)
            return
        cycle = find_candidate(ws, agent, config)
    if as_json:
        log.answer(
            {
                "version": cycle.version,
                "method": cycle.method,
                "candidates": [asdict(candidate) for candidate in cycle.candidates],
                "reasons": cycle.reasons,
            }
        )
    else:
        rows = [
            (candidate.method, candidate.version or "none", candidate.reason)
            for candidate in cycle.candidates
        ]
        log.table(f"candidates of {agent}", ("method", "version", ""), rows)
        for reason in cycle.reasons:
            log.say(reason)
        if cycle.version:
            log.say(
                f"best on the dev rows: {cycle.version}; next: thumbwheel evaluate "
                f"{cycle.version} --agent {agent}"
            )
    if cycle.version is None:
        raise typer.Exit(NOT_APPROVED)


for _name in ALGORITHMS.names():
    _algorithm = ALGORITHMS.get(_name)
    _configs = (
        [_algorithm.Config]
        if _algorithm.produces_reward_model
        else [_algorithm.Config, ReleaseConfig]
    )
    train.command(_name, help=method_help(_name))(
        options_of(*_configs)(_method_command(_name, not _algorithm.produces_reward_model))
    )
train.command("auto")(auto)
