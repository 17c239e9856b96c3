"""The jobs `train`, `train auto`, `loop run`, `loop check` and `loop approve`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from thumbwheel.core import ids, log
from thumbwheel.core.config import Config, build
from thumbwheel.datasets.build import find
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.jobs import current
from thumbwheel.jobs.queue import enqueue
from thumbwheel.loop.approval import approve
from thumbwheel.loop.canary_experiment import ask_about_winners
from thumbwheel.loop.cycle import find_candidate, release_candidate
from thumbwheel.loop.cycle_checks import check_ready, default_base
from thumbwheel.loop.cycle_state import is_unfinished
from thumbwheel.loop.cycle_types import (
    BestCandidate,
    CheckResult,
    CycleConfig,
    CycleReport,
    ReleaseConfig,
    TrainResult,
    TurnResult,
)
from thumbwheel.loop.loops import cycle_config
from thumbwheel.loop.trigger_types import DecisionOutcome, Rule
from thumbwheel.loop.triggers import check
from thumbwheel.loop.turn import run_turn
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import require_agent
from thumbwheel.training import train as training
from thumbwheel.training.types import Run, RunResult, RunState

RUN = "run"
"""The note which run a job began."""


class TrainSpec(Config):
    """What to train."""

    method: str
    """sft, dpo, kto, reward, grpo, ppo, ..."""
    agent: str
    """Whose model learns."""
    base: str | None = None
    """Base model: a folder, a GGUF file, ollama:NAME, or a Hugging Face id; not needed with
    `resume`."""
    dataset: str | None = None
    """Dataset id; unset, built from the feedback in force."""
    resume: str | None = None
    """Go on with this run from its newest checkpoint."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Settings of the method, and what is done with the candidate, by their names."""


def run_train(ws: Workspace, spec: TrainSpec) -> TrainResult:
    """Train, and release the candidate as far as the options say. A later attempt resumes its
    run."""
    learner = require_agent(ws, spec.agent)
    settings = dict(spec.options)
    release = _take_release_config(settings)
    check_ready(ws, _cycle_config(release))
    result = trained(ws, learner, spec, settings)
    if result.state is RunState.STOPPED and current.is_job():
        raise KeyboardInterrupt  # the training took the interrupt for itself
    if not (release.export and result.version):
        return TrainResult(**vars(result))
    cycle = CycleReport(spec.agent, version=result.version)
    target_settings = {"name": release.model_name} if release.model_name else None
    release_candidate(ws, cycle, _cycle_config(release), target_settings)
    return TrainResult(**vars(result), release=cycle.result())


def trained(
    ws: Workspace, learner: Agent, spec: TrainSpec, settings: dict[str, Any], note: str = RUN
) -> RunResult:
    """Train, and return the result. A later attempt resumes its run, whose id the job stores in the
    note of this name."""
    begun = _begun_before(ws, learner, note)
    if begun is not None:
        if begun.state in (RunState.FINISHED, RunState.NOTHING_LEARNED):
            return training.result_of(ws, begun)
        return training.resume(ws, begun, settings)
    dataset = find(ws, spec.agent, spec.dataset) if spec.dataset else None
    if spec.resume:
        begun = training.run_of(ws, learner, spec.resume)
        training.require_same(begun, spec.method, spec.base, dataset, settings)
        current.note(ws, **{note: begun.id})
        return training.resume(ws, begun, settings)
    base = find_base(spec.base, ws.home.cache)
    run_id = ids.new("run")
    current.note(ws, **{note: run_id})
    return training.train(
        ws, learner, spec.method, base, dataset=dataset, options=settings, run_id=run_id
    )


def _begun_before(ws: Workspace, learner: Agent, note: str) -> Run | None:
    """Return the run that an earlier attempt at this job began; None if there is none."""
    run_id = current.notes().get(note)
    for run in training.runs(ws, learner):
        if run.id == run_id:
            return run
    return None


def _take_release_config(options: dict[str, Any]) -> ReleaseConfig:
    """Remove the release settings from the `options` of a method, and return them."""
    settings = {}
    for field in ReleaseConfig.model_fields:
        if field in options:
            settings[field] = options.pop(field)
    return build(ReleaseConfig, settings, "options")


def _cycle_config(release: ReleaseConfig) -> CycleConfig:
    """Return the settings of the second half of a turn."""
    if not release.export:
        return CycleConfig()
    deploy = "ollama" if release.register_ollama else None
    return CycleConfig(export=("gguf",), quant=release.quant, deploy=deploy)


class TrainAutoSpec(Config):
    """What to train by every method that the data plan allows."""

    agent: str
    """Whose model learns."""
    base: str | None = None
    """Base model; unset, that of the live version, else of the newest one."""
    methods: tuple[str, ...] = ()
    """Methods to compare; none named: all that are allowed."""


def run_train_auto(ws: Workspace, spec: TrainAutoSpec) -> BestCandidate:
    """Train by every method and return the best candidate. A later attempt continues where it
    stopped."""
    learner = require_agent(ws, spec.agent)
    cycle = find_candidate(ws, learner, auto_config(ws, spec))
    return BestCandidate(cycle.agent, cycle.version, cycle.method, cycle.candidates, cycle.reasons)


def auto_config(ws: Workspace, spec: TrainAutoSpec) -> CycleConfig:
    """Return the settings of a turn that ends with the candidate."""
    options: dict[str, Any] = {}
    if spec.base:
        options["base"] = spec.base
    if spec.methods:
        options["methods"] = spec.methods
    config = ws.settings(CycleConfig, "loop", options)
    return config.model_copy(update={"export": (), "quant": None, "deploy": None})


class LoopRunSpec(Config):
    """One turn of the wheel."""

    agent: str
    """Whose model learns."""
    anew: bool = False
    """Forget a turn that was not finished."""
    parent: Path | None = None
    """Where exports go that no setting names a folder for."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Settings of the turn, by their names."""
    trigger: Rule = Rule.HAND
    """What asks for the turn; one that begins by itself has the settings of the enabled loop."""
    informative: int | None = None
    """New informative events, where they were counted."""

    @model_validator(mode="after")
    def _settings_are_known(self) -> LoopRunSpec:
        unknown = self.options.keys() - CycleConfig.model_fields.keys()
        if unknown:
            raise ValueError(f"there is no setting {min(unknown)!r} of a turn")
        return self


ANEW = "anew"
"""The note that the unfinished turn was forgotten already."""


def run_loop(ws: Workspace, spec: LoopRunSpec) -> TurnResult:
    """Run one turn. A turn that was stopped continues where it was."""
    learner = require_agent(ws, spec.agent)
    config = ws.settings(CycleConfig, "loop", spec.options)
    if spec.trigger is not Rule.HAND:
        config = cycle_config(ws, learner)
    elif config.base is None and not is_unfinished(ws.home.cycles / learner.slug):
        default_base(ws, learner)  # whoever waits for the turn hears of a missing base at once
    if config.export_to is None:
        config = config.model_copy(update={"export_to": spec.parent})
    anew = spec.anew and not current.notes().get(ANEW)
    current.note(ws, **{ANEW: True})
    cycle = run_turn(ws, learner, config, spec.trigger, anew=anew, informative=spec.informative)
    return cycle.result()


class LoopCheckSpec(Config):
    """One look at whether a turn is due."""

    agent: str
    """Whose loop is meant."""


def run_check(ws: Workspace, spec: LoopCheckSpec) -> CheckResult:
    """Check whether a turn is due. If it is, a worker enqueues the turn as its own job; a command
    runs it."""
    learner = require_agent(ws, spec.agent)
    for question in ask_about_winners(ws, learner):
        log.say(f"waits for a person: {question}")
    line = check(ws, learner)
    log.say(f"{line.rule}: {line.reason}")
    if not line.fired:
        return CheckResult(line)
    turn = LoopRunSpec(
        agent=spec.agent,
        trigger=line.rule,
        informative=line.value["informative"],
        parent=ws.home.path / "exports",
    )
    if current.is_job():
        content = turn.model_dump(mode="json", exclude_unset=True)
        job = enqueue(ws, "loop run", content, agent=spec.agent, key=f"turn of {line.id}")
        return CheckResult(line, job=job.id)
    return CheckResult(line, turn=run_loop(ws, turn))


class LoopApproveSpec(Config):
    """Yes to a step that waits for a person."""

    agent: str
    """Whose loop is meant."""
    decision: str
    """The decision."""
    by: str = "owner"
    """Who answers."""
    reason: str | None = None
    """Why."""
    alias: str | None = None
    """Where it shall answer, live or canary; unset, as the settings of the turn say."""


def run_approve(ws: Workspace, spec: LoopApproveSpec) -> DecisionOutcome:
    """Approve a decision and take its step; see `approve`."""
    agent = require_agent(ws, spec.agent)
    return approve(ws, agent, spec.decision, spec.by, spec.reason, spec.alias)
