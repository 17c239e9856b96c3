"""The commands `thumbwheel loop run`, `thumbwheel train METHOD` and `thumbwheel train auto`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from thumbwheel.core import present
from thumbwheel.core.config import options as options_of
from thumbwheel.core.figures import about, size
from thumbwheel.core.options import Here
from thumbwheel.evaluation.policy import GateVerdict
from thumbwheel.jobs.request import JobRequest
from thumbwheel.loop.cycle_types import (
    BestCandidate,
    CycleConfig,
    CyclePlan,
    ReleaseConfig,
    TrainResult,
    TurnResult,
)
from thumbwheel.models.types import CANARY, LIVE
from thumbwheel.training.algorithms import ALGORITHMS
from thumbwheel.training.commands import NOT_APPROVED, method_help
from thumbwheel.training.types import DryRun, RunState

AgentName = Annotated[str, typer.Option(help="Whose model learns.")]
DryRunFlag = Annotated[
    bool,
    typer.Option("--dry-run", help="Say what would be done and how long it takes; train nothing."),
]

INTERRUPTED = 130
ANSWER_SHOWN = 120
"""Characters of a question or an answer in the table of those that changed."""

loop = typer.Typer(
    help="Turn the wheel: plan, train, compare, evaluate, gate, export, deploy, report."
)
train = typer.Typer(help="Train a LoRA adapter over a base model, in a process of its own.")


@loop.callback()
def _group() -> None:
    """Make `run` a subcommand."""


def run(
    ctx: typer.Context,
    agent: AgentName,
    anew: Annotated[
        bool, typer.Option("--anew", help="Forget a turn that was not finished.")
    ] = False,
    dry_run: DryRunFlag = False,
    here: Here = False,
    options: dict[str, Any] | None = None,
) -> JobRequest[TurnResult, TurnResult] | present.Answer[CyclePlan]:
    """Turn the wheel once: from the feedback that is there to a version that answers.

    Trains by every method that the data plan allows (or by --methods), compares the candidates,
    evaluates the best one and asks the gate. What the gate approves is exported and deployed as far
    as --export and --deploy say. A turn that was stopped or killed goes on where it was: give the
    same command again.

    Exit code 0 only if the gate approved. Example: thumbwheel loop run --agent support --base
    ./my-base --deploy embedded
    """
    from thumbwheel.loop.jobs import LoopRunSpec

    if dry_run:
        from thumbwheel.loop.cycle_checks import plan_cycle
        from thumbwheel.models.versions import require_agent

        with ctx.obj() as ws:
            learner = require_agent(ws, agent)
            plan = plan_cycle(ws, learner, ws.settings(CycleConfig, "loop", options))
        return present.page(plan, _plan_page(plan))
    settings = dict(options or {})
    for name in ("export_to", "report_to"):
        if name in settings:
            settings[name] = Path(settings[name]).expanduser().absolute()
    if "base" in settings:
        settings["base"] = local_path(settings["base"])
    spec = LoopRunSpec(agent=agent, anew=anew, parent=Path.cwd(), options=settings)

    def show(turn: TurnResult) -> present.Answer[TurnResult]:
        answer = present.page(turn, cycle_page(turn))
        return answer if turn.approved else answer.ending(NOT_APPROVED)

    return JobRequest("loop run", spec, show, here=here)


loop.command("run")(options_of(CycleConfig)(run))


def cycle_page(turn: TurnResult) -> Iterator[present.Part]:
    """Yield what a turn ends with: its table, answers that changed, and the next step."""
    yield _cycle_table(turn)
    if turn.evaluation is not None and turn.evaluation.examples:
        changed = [
            tuple(_line(text) for text in (example.prompt, example.before, example.after))
            for example in turn.evaluation.examples
        ]
        columns = ("question", str(turn.evaluation.against), str(turn.version))
        yield present.Table("answers that changed", columns, changed)
    if step := _next_step(turn):
        yield present.Note(step)


def _line(text: str) -> str:
    return present.shortened(" ".join(text.split()), ANSWER_SHOWN)


def _next_step(turn: TurnResult) -> str | None:
    """Return what a person may do now; None where nothing was approved."""
    if turn.waiting:
        return f"It waits for you: thumbwheel loop decisions --agent {turn.agent}"
    if turn.alias is not None:
        name = turn.agent if turn.alias == LIVE else f"{turn.agent}:{turn.alias}"
        return f"Ask it, from any client of OpenAI, as the model {name}: thumbwheel serve"
    if turn.approved:
        alias = "" if turn.verdict is GateVerdict.APPROVED else f" --alias {CANARY}"
        deploy = f"thumbwheel deploy {turn.version} --agent {turn.agent}{alias}"
        return f"Let it answer: {deploy}"
    return None


def _cycle_table(turn: TurnResult) -> present.Table:
    """Return the closing table of a turn."""
    from thumbwheel.core.figures import percent, points

    rows: list[tuple[str, object]] = []
    for candidate in turn.candidates:
        outcome = candidate.version or f"no candidate: {candidate.reason}"
        rows.append((candidate.method, outcome))
    evaluation = turn.evaluation
    if evaluation is not None:
        primary = evaluation.primary
        values = f"{percent(primary.before)} -> {percent(primary.after)}"
        interval = f"[{points(primary.low)}, {points(primary.high)}]"
        gain = f"{points(primary.gain)} points {interval}"
        rows.append((f"{turn.version} against {evaluation.against}", f"{values}, {gain}"))
    rows.append(("decision", turn.verdict or "none: there is nothing to decide on"))
    rows += [("", reason) for reason in turn.reasons]
    rows += [(f"exported as {export.format}", export.path) for export in turn.exports]
    deployment = turn.deployment
    if deployment is not None:
        rows.append((f"answers on {deployment.target}", deployment.name))
    if turn.experiment:
        rows.append(("traffic decides in", turn.experiment))
    rows += [("waits for a person", question) for question in turn.waiting]
    rows.append(("report", turn.report))
    shown = [row for row in rows if row[1] is not None]
    return present.Table(f"one turn for {turn.agent}", ("", ""), shown)


def _plan_page(plan: CyclePlan) -> Iterator[present.Part]:
    yield from plan.plan
    rows = []
    for method, estimate in plan.trainings.items():
        memory = estimate.memory_gb.get("peak")
        shown_memory = size(1e9 * memory) if memory else "unknown"
        row = (method, about(60 * estimate.minutes), shown_memory, f"{estimate.rows} rows")
        rows.append(row)
    yield present.Table("dry run: nothing was trained", ("train", "time", "memory", "on"), rows)
    for line in plan.if_approved:
        yield f"if the gate approves: {line}"


def _method_command(name: str) -> Callable[..., Any]:
    """Return the command of one method."""

    def run(
        ctx: typer.Context,
        agent: AgentName,
        base: Annotated[
            str | None,
            typer.Option(
                help="Base model: a folder, a GGUF file, ollama:NAME, or a Hugging Face id. Not "
                "needed with --resume."
            ),
        ] = None,
        dataset: Annotated[
            str | None, typer.Option(help="Dataset id [default: built from the feedback in force].")
        ] = None,
        resume: Annotated[
            str | None, typer.Option(help="Go on with this run from its newest checkpoint.")
        ] = None,
        dry_run: DryRunFlag = False,
        here: Here = False,
        options: dict[str, Any] | None = None,
    ) -> JobRequest[TrainResult, TrainResult] | present.Answer[DryRun]:
        from thumbwheel.loop.jobs import TrainSpec
        from thumbwheel.training.commands import result_page

        settings = options or {}
        if dry_run:
            return _dry_run_answer(ctx, name, agent, base, dataset, settings)
        spec = TrainSpec(
            method=name,
            agent=agent,
            base=local_path(base),
            dataset=dataset,
            resume=resume,
            options=settings,
        )

        def show(result: TrainResult) -> present.Answer[TrainResult]:
            parts = list(result_page(result, agent, name))
            turn = result.release
            if turn is not None:
                parts += cycle_page(turn)
            answer = present.page(result, parts)
            if result.state == RunState.STOPPED:
                return answer.ending(INTERRUPTED)
            is_rejected = turn is not None and not turn.approved
            if result.state == RunState.NOTHING_LEARNED or is_rejected:
                return answer.ending(NOT_APPROVED)
            return answer

        return JobRequest("train", spec, show, here=here)

    return run


def local_path(base: str | None) -> str | None:
    """Return a base in a form that a process in another folder understands."""
    from thumbwheel.models.base import name_of

    return name_of(base) if base else base


def _dry_run_answer(
    ctx: typer.Context,
    method: str,
    agent: str,
    base: str | None,
    dataset: str | None,
    options: dict[str, Any],
) -> present.Answer[DryRun]:
    from thumbwheel.datasets.build import find
    from thumbwheel.engine.base_check import find_base
    from thumbwheel.models.versions import require_agent
    from thumbwheel.training.commands import dry_run_page
    from thumbwheel.training.train import dry_run

    settings = {
        name: value for name, value in options.items() if name not in ReleaseConfig.model_fields
    }
    with ctx.obj() as ws:
        learner = require_agent(ws, agent)
        frozen = find(ws, agent, dataset) if dataset else None
        base_model = find_base(base, ws.home.cache)
        plan = dry_run(ws, learner, method, base_model, dataset=frozen, options=settings)
    return present.page(plan, dry_run_page(plan))


def auto(
    ctx: typer.Context,
    agent: AgentName,
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
    dry_run: DryRunFlag = False,
    here: Here = False,
) -> JobRequest[BestCandidate, BestCandidate] | present.Answer[CyclePlan]:
    """Train by every method that the data plan allows, and name the candidate that is best on the
    dev rows.

    Example: thumbwheel train auto --agent support --base ./my-base
    """
    from thumbwheel.loop.jobs import TrainAutoSpec, auto_config

    spec = TrainAutoSpec(agent=agent, base=local_path(base), methods=tuple(methods or ()))
    if dry_run:
        from thumbwheel.loop.cycle_checks import plan_cycle
        from thumbwheel.models.versions import require_agent

        with ctx.obj() as ws:
            learner = require_agent(ws, agent)
            plan = plan_cycle(ws, learner, auto_config(ws, spec))
        return present.page(plan, _plan_page(plan))

    def show(best: BestCandidate) -> present.Answer[BestCandidate]:
        answer = present.page(best, _candidates_page(best))
        return answer if best.version is not None else answer.ending(NOT_APPROVED)

    return JobRequest("train auto", spec, show, here=here)


def _candidates_page(best: BestCandidate) -> Iterator[present.Part]:
    rows = [
        (candidate.method, candidate.version or "none", candidate.reason)
        for candidate in best.candidates
    ]
    yield present.Table(f"candidates of {best.agent}", ("method", "version", ""), rows)
    for reason in best.reasons:
        yield present.Note(reason)
    if best.version:
        yield present.Note(
            f"best on the dev rows: {best.version}; next: thumbwheel evaluate "
            f"{best.version} --agent {best.agent}"
        )


for _name in ALGORITHMS.names():
    _algorithm = ALGORITHMS.get(_name)
    _configs = (
        [_algorithm.Config]
        if _algorithm.produces_reward_model
        else [_algorithm.Config, ReleaseConfig]
    )
    train.command(_name, help=method_help(_name))(options_of(*_configs)(_method_command(_name)))
train.command("auto")(auto)
