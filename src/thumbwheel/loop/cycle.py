"""One turn of the wheel, in order. Read this first.

    plan       what the feedback permits
    train      one candidate by every method that the plan allows and the settings name
    choose     compare the candidates on the dev rows
    evaluate   compare the best one with what answers today, on rows that nobody trained on
    gate       approve it, approve it for a canary, or reject it
    export     write the files of an approved version
    deploy     let it answer, after a check that it is the approved model
    experiment let live traffic decide between a canary and what is live
    report     write one HTML file that says all of this

Every step is the public verb of its stage. When a cycle was stopped or killed and is started again,
it goes on where it was: training goes on from its newest checkpoint, and finished steps are not
repeated (`cycle_state.py`).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from thumbwheel.core import ids, log
from thumbwheel.core.errors import DataError, TrainingError
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.deploy import deploy
from thumbwheel.deploy.routing import route
from thumbwheel.deploy.running import ensure_running
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.deploy.types import Deployment
from thumbwheel.engine.base_check import find_base
from thumbwheel.evaluation.answer_changes import answer_changes
from thumbwheel.evaluation.dev import compare_on_dev
from thumbwheel.evaluation.evaluate import evaluate, evaluations
from thumbwheel.evaluation.gate import gate
from thumbwheel.evaluation.policy import GateVerdict
from thumbwheel.evaluation.rows import NoDevRows
from thumbwheel.evaluation.types import Evaluation
from thumbwheel.export.formats import FORMATS
from thumbwheel.export.package import export, exports, manifest_of
from thumbwheel.export.types import GGUF_MODEL, Export
from thumbwheel.loop.canary_experiment import begin_experiment
from thumbwheel.loop.cycle_checks import (
    GGUF,
    check_ready,
    check_unchanged,
    default_base,
    plan_in_words,
)
from thumbwheel.loop.cycle_state import CycleState
from thumbwheel.loop.cycle_types import Candidate, CycleConfig, CycleReport
from thumbwheel.loop.inbox import ask
from thumbwheel.loop.interrupts import recorded_interrupts
from thumbwheel.loop.traffic_watch import TrafficWatch, train_beside_traffic
from thumbwheel.loop.trigger_types import Wish
from thumbwheel.models import versions
from thumbwheel.models.base import Base
from thumbwheel.models.types import CANARY, LIVE, Agent, ModelVersion
from thumbwheel.report.report import report
from thumbwheel.training.data_plan import data_plan
from thumbwheel.training.killed_runs import is_elsewhere
from thumbwheel.training.train import result_of, resume, runs, train
from thumbwheel.training.types import RunState

SHOWN = 80
"""Characters of an answer in a line."""


def run_cycle(ws: Workspace, agent: Agent, config: CycleConfig, anew: bool = False) -> CycleReport:
    """Run one cycle for `agent`, as far as its feedback allows. `anew` discards an unfinished
    cycle.

    A method whose training fails is skipped, with its reason. Raises Conflict while another cycle
    of the agent runs or if something was changed since it was stopped, KeyboardInterrupt after a
    Ctrl-C, and the error of any other step.
    """
    check_ready(ws, config)
    with CycleState.open(ws.home.cycles / agent.slug, config.training_settings, anew) as state:
        cycle = _find_candidate(ws, agent, config, state)
        if cycle.version is not None:
            release_candidate(ws, cycle, config, state=state)
        state.finish()
    return cycle


def find_candidate(ws: Workspace, agent: Agent, config: CycleConfig) -> CycleReport:
    """Run the first half of a cycle: plan, train, choose. Raises as `run_cycle` does."""
    check_ready(ws, config)
    with CycleState.open(ws.home.cycles / agent.slug, config.training_settings) as state:
        cycle = _find_candidate(ws, agent, config, state)
        state.finish()
    return cycle


def _find_candidate(
    ws: Workspace, agent: Agent, config: CycleConfig, state: CycleState
) -> CycleReport:
    cycle = CycleReport(agent.slug)
    with log.step("data plan"):
        rules = ws.settings(DatasetConfig, "dataset")
        plan = data_plan(ws, agent.slug, rules)
        cycle.plan = plan_in_words(ws, agent, plan, rules)
        for line in cycle.plan:
            log.say(f"  {line}")
    methods = state.methods or list(config.methods) or plan.eligible
    if not methods:
        cycle.reasons = [line for line in cycle.plan if line.startswith("Do not train yet")]
        return cycle
    base = find_base(state.base or config.base or default_base(ws, agent), ws.home.cache)
    state.check_base(base)
    state.note(methods=methods, base=base.name, base_fingerprint=base.fingerprint)
    cycle.base = base.name
    watch = TrafficWatch(ws) if config.yield_to_traffic else None
    cycle.candidates = train_candidates(ws, agent, base, methods, state, watch)
    cycle.version = choose(ws, agent, cycle, state)
    return cycle


def train_candidates(
    ws: Workspace,
    agent: Agent,
    base: Base,
    methods: Sequence[str],
    state: CycleState,
    watch: TrafficWatch | None = None,
) -> list[Candidate]:
    """Train by each method that this cycle has not finished yet; return one candidate per method.
    With `watch`, training pauses while people are served."""
    for method in methods:
        if method not in state.candidates:
            with log.step(f"train {method}"), recorded_interrupts() as interrupts:
                candidate = train_candidate(ws, agent, base, method, state, watch)
                log.say(f"  {candidate.version or candidate.reason}")
            state.note(candidates=state.candidates | {method: candidate})
            if interrupts.received:  # after the last step of the training, which then ends as usual
                raise KeyboardInterrupt
    return [state.candidates[method] for method in methods]


def train_candidate(
    ws: Workspace,
    agent: Agent,
    base: Base,
    method: str,
    state: CycleState,
    watch: TrafficWatch | None = None,
) -> Candidate:
    """Return the candidate of `method`, from the run that this cycle began, else from a new run. If
    the training fails, the candidate has no version but a reason."""
    begun = None
    for run in runs(ws, agent):
        if run.id == state.runs.get(method):
            begun = run

    try:
        if begun is not None and begun.state in (RunState.FINISHED, RunState.NOTHING_LEARNED):
            # The cycle was killed after the run ended and before it could note the candidate.
            result = result_of(ws, begun)
        elif (
            begun is not None
            and begun.state in (RunState.STOPPED, RunState.RUNNING)
            and not is_elsewhere(ws, begun)
        ):
            stopped = begun
            result = train_beside_traffic(ws, lambda: resume(ws, stopped), watch)
        else:
            run_id = ids.new("run")
            state.note(runs=state.runs | {method: run_id})
            result = train_beside_traffic(
                ws, lambda: train(ws, agent, method, base, run_id=run_id), watch
            )
    except (TrainingError, DataError) as error:
        return Candidate(method, None, None, str(error))
    if result.state is RunState.STOPPED:  # the training took the Ctrl-C for itself
        raise KeyboardInterrupt
    return Candidate(method, result.version, result.run_id, result.reason)


def choose(ws: Workspace, agent: Agent, cycle: CycleReport, state: CycleState) -> str | None:
    """Return the name of the best candidate by the dev rows; None if none is better than the base,
    with the reasons added to the cycle.

    A single candidate goes to the gate if there are no dev rows to compare it on. Several raise
    NoDevRows.
    """
    names = [candidate.version for candidate in cycle.candidates if candidate.version]
    if not names:
        for candidate in cycle.candidates:
            cycle.reasons.append(f"{candidate.method} gave no candidate: {candidate.reason}")
        return None
    if state.chosen in names:
        return state.chosen
    with log.step("compare the candidates on the dev rows"):
        trained = [versions.version(ws, agent.slug, name) for name in names]
        try:
            comparison = compare_on_dev(ws, trained)
        except NoDevRows as error:
            if len(names) > 1:
                raise
            log.say(f"  {error.why}; the gate alone decides on {names[0]}")
            state.note(chosen=names[0])
            return names[0]
        for line in comparison.reasons:
            log.say(f"  {line}")
    if comparison.best is None:
        cycle.reasons += comparison.reasons
    state.note(chosen=comparison.best)
    return comparison.best


def release_candidate(
    ws: Workspace,
    cycle: CycleReport,
    config: CycleConfig,
    target_settings: Mapping[str, Any] | None = None,
    state: CycleState | None = None,
) -> None:
    """Run the second half of a cycle: evaluate the chosen version, let the gate decide, export and
    deploy if it approves, and write the report.

    A version that was approved on feedback alone is deployed as `canary`, never as `live`.
    """
    version = versions.version(ws, cycle.agent, str(cycle.version))
    with log.step(f"evaluate {version.name} on rows that nobody trained on"):
        cycle.evaluation = evaluate_once(ws, version, state)
        decision = gate(ws, cycle.evaluation).decision
        log.say(f"  {decision.verdict}: {decision.reasons[0]}")
    cycle.verdict = decision.verdict
    cycle.reasons += decision.reasons

    if cycle.approved:
        if config.deploy and config.canary_prompts and config.auto_deploy != "off":
            with log.step("answers to the canary prompts"):
                cycle.changed_answers = changed_answers(ws, version, config)
            if cycle.changed_answers:
                config = config.model_copy(update={"auto_deploy": "ask"})
        if config.export and is_allowed(ws, version, cycle, config, Wish.EXPORT):
            for name in config.export:
                with log.step(f"export {name}, checked against the trained model"):
                    cycle.exports.append(export_once(ws, version, name, config))
        if config.deploy and is_allowed(ws, version, cycle, config, Wish.DEPLOY):
            alias = CANARY
            # with an experiment, the traffic decides: no version goes live before it
            for_all = cycle.verdict is GateVerdict.APPROVED and not config.experiment
            if for_all and is_allowed(ws, version, cycle, config, Wish.PROMOTE):
                alias = LIVE
            with log.step(f"deploy {version.name} on {config.deploy} as {alias}"):
                deployment = deploy_once(
                    ws, version, config, alias, target_settings, quant_of(cycle, config)
                )
                cycle.deployment, cycle.alias = deployment, alias
            if alias == CANARY and config.experiment:
                with log.step(f"experiment: {version.name} against what is live"):
                    experiment = begin_experiment(ws, version, config, cycle)
                    cycle.experiment = experiment.id if experiment else None

    with log.step("report"):
        path = config.report_to or ws.home.reports / f"{version.agent}-{version.name}.html"
        cycle.report = path.expanduser().resolve()
        cycle.report.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        report(ws, version, cycle.report, cycle.report.with_suffix(".json"))


def changed_answers(ws: Workspace, version: ModelVersion, config: CycleConfig) -> list[str]:
    """Return a line for each canary prompt whose answer differs too much from the live
    version's."""
    lines = []
    for answer in answer_changes(ws, version, config.canary_prompts):
        if answer.change > config.canary_change:
            before, after = answer.before[:SHOWN], answer.after[:SHOWN]
            lines.append(f"{answer.prompt!r}: {after!r} instead of {before!r}")
            log.say(f"  {lines[-1]}")
    return lines


def evaluate_once(ws: Workspace, version: ModelVersion, state: CycleState | None) -> Evaluation:
    """Return the evaluation of `version`: the one that this cycle already made, else a new one."""
    if state:
        for evaluation in evaluations(ws, version):
            if evaluation.id == state.evaluation:
                return evaluation
    evaluation = evaluate(ws, version)
    if state:
        state.note(evaluation=evaluation.id)
    return evaluation


def export_once(ws: Workspace, version: ModelVersion, format: str, config: CycleConfig) -> Export:
    """Return the export of `version` as `format`: the one that this cycle wrote before it was
    killed, else a new one. Raises Conflict if its files were changed since."""
    folder = (config.export_to or Path()) / f"{version.agent}-{version.name}-{format}"
    folder = folder.expanduser().resolve()
    for earlier in exports(ws, version):
        is_same = (earlier.format, earlier.path, earlier.host) == (format, folder, None)
        if is_same and folder.is_dir():
            check_unchanged(folder, earlier.files)
            return earlier
    manifest = manifest_of(folder)
    if manifest.get("version_id") == version.id:
        # The cycle was killed between the files and their record.
        check_unchanged(folder, manifest["files"])
        shutil.rmtree(folder)
    quant = config.quant if format == GGUF else None
    return export(ws, version, format, folder, quant)


def deploy_once(
    ws: Workspace,
    version: ModelVersion,
    config: CycleConfig,
    alias: str,
    target_settings: Mapping[str, Any] | None = None,
    quant: str | None = None,
) -> Deployment:
    """Return the deployment of `version` behind `alias`: the one that this cycle made before it was
    killed, else a new one. `quant` is the precision of a GGUF file. Raises Conflict if a newer
    version went live meanwhile."""
    target = str(config.deploy)
    current = route(ws, Agent.named(version.agent), alias).deployment
    if current is not None and (current.version_id, current.target) == (version.id, target):
        return ensure_running(ws, current)
    result = deploy(
        ws, version, target, alias, quant=quant, settings=target_settings, over_newer=False
    )
    return result.deployment


def quant_of(cycle: CycleReport, config: CycleConfig) -> str | None:
    """Return the precision of the GGUF file to deploy: the one just exported, so that no second
    file is written, else the configured one. None if the target takes no GGUF file."""
    if GGUF_MODEL not in TARGETS.get(str(config.deploy)).kinds:
        return None
    for finished in cycle.exports:
        if FORMATS.get(finished.format).kind == GGUF_MODEL:
            return finished.quant
    return config.quant


def is_allowed(
    ws: Workspace, version: ModelVersion, cycle: CycleReport, config: CycleConfig, wish: Wish
) -> bool:
    """Return whether the turn may take this step by itself. If the setting is `ask`, put the
    question to a person, once per version, and return False."""
    consent = {
        Wish.EXPORT: config.auto_export,
        Wish.DEPLOY: config.auto_deploy,
        Wish.PROMOTE: config.promotes_on_gold,
    }[wish]
    if consent == "ask":
        question = ask(ws, version, wish, config, cycle)
        log.say(f"  waits for a person: {question}")
        cycle.waiting.append(question)
    return consent == "on"
