"""One turn of the wheel, in order. Read this first.

    plan       what the feedback permits
    train      one candidate by every method that the plan allows and the settings name
    choose     compare the candidates on the dev rows
    evaluate   compare the best one with what answers today, on rows that nobody trained on
    gate       approve it, approve it for a canary, or reject it
    export     write the files of an approved version
    deploy     let it answer, after a check that it is the approved model
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
from thumbwheel.deploy import switch
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.deploy.types import Deployment
from thumbwheel.evaluation.dev import compare_on_dev
from thumbwheel.evaluation.evaluate import evaluate, evaluations
from thumbwheel.evaluation.gate import gate
from thumbwheel.evaluation.policy import Verdict
from thumbwheel.evaluation.rows import NoDevRows
from thumbwheel.evaluation.types import Evaluation
from thumbwheel.export.package import export, exports, manifest_of
from thumbwheel.export.types import GGUF_MODEL, Export
from thumbwheel.loop.cycle_checks import (
    GGUF,
    check_ready,
    check_unchanged,
    default_base,
    fingerprint_of,
)
from thumbwheel.loop.cycle_state import CycleState
from thumbwheel.loop.cycle_types import Candidate, CycleConfig, CycleReport
from thumbwheel.loop.interrupts import recorded_interrupts
from thumbwheel.loop.report import report
from thumbwheel.models import versions
from thumbwheel.models.types import LIVE, ModelVersion
from thumbwheel.training.data_plan import data_plan
from thumbwheel.training.train import runs, train
from thumbwheel.training.types import RunState

CANARY = "canary"
"""The alias of a version that was approved on feedback alone."""


def run_cycle(ws: Workspace, agent: str, config: CycleConfig, anew: bool = False) -> CycleReport:
    """Turn the wheel once for `agent`, as far as its feedback carries. `anew` forgets an unfinished
    cycle.

    A method whose training fails is passed over, with its reason. Raises Conflict while another
    cycle of the agent runs or where something was changed since it was stopped, KeyboardInterrupt
    after a Ctrl-C, and the error of any other step.
    """
    check_ready(ws, config)
    with CycleState.open(ws.home.cycles / agent, config.training_settings, anew) as state:
        cycle = _find_candidate(ws, agent, config, state)
        if cycle.version is not None:
            release_candidate(ws, cycle, config, state=state)
        state.finish()
    return cycle


def find_candidate(ws: Workspace, agent: str, config: CycleConfig) -> CycleReport:
    """The first half of a cycle: plan, train, choose. Raises as `run_cycle` does."""
    check_ready(ws, config)
    with CycleState.open(ws.home.cycles / agent, config.training_settings) as state:
        cycle = _find_candidate(ws, agent, config, state)
        state.finish()
    return cycle


def _find_candidate(
    ws: Workspace, agent: str, config: CycleConfig, state: CycleState
) -> CycleReport:
    cycle = CycleReport(agent)
    with log.step("data plan"):
        plan = data_plan(ws, agent, ws.settings(DatasetConfig, "dataset"))
        cycle.plan = plan.to_words()
        for line in cycle.plan:
            log.say(f"  {line}")
    methods = state.methods or list(config.methods) or plan.eligible
    if not methods:
        cycle.reasons = [line for line in cycle.plan if line.startswith("Do not train yet")]
        return cycle
    cycle.base = state.base or config.base or default_base(ws, agent)
    fingerprint = fingerprint_of(ws, cycle.base)
    state.check_base(cycle.base, fingerprint)
    state.note(methods=methods, base=cycle.base, base_fingerprint=fingerprint)
    cycle.candidates = train_candidates(ws, agent, cycle.base, methods, state)
    cycle.version = choose(ws, agent, cycle, state)
    return cycle


def train_candidates(
    ws: Workspace, agent: str, base: str, methods: Sequence[str], state: CycleState
) -> list[Candidate]:
    """Train by each method, unless this cycle did so before."""
    for method in methods:
        if method not in state.candidates:
            with log.step(f"train {method}"), recorded_interrupts() as interrupts:
                candidate = train_candidate(ws, agent, base, method, state)
                log.say(f"  {candidate.version or candidate.reason}")
            state.note(candidates=state.candidates | {method: candidate})
            if interrupts.received:  # after the last step of the training, which then ends as usual
                raise KeyboardInterrupt
    return [state.candidates[method] for method in methods]


def train_candidate(
    ws: Workspace, agent: str, base: str, method: str, state: CycleState
) -> Candidate:
    """The candidate by `method`: from the run that this cycle began, else from a new run."""
    begun = None
    for run in runs(ws, agent):
        if run.id == state.runs.get(method):
            begun = run

    # The cycle was killed after the run ended and before it could note the candidate.
    if begun is not None:
        for version in versions.versions(ws, agent):
            if version.run_id == begun.id:
                return Candidate(method, version.name, begun.id, begun.reason)
        if begun.state is RunState.NOTHING_LEARNED:
            return Candidate(method, None, begun.id, begun.reason)

    try:
        if begun is not None and begun.state in (RunState.STOPPED, RunState.RUNNING):
            result = train(ws, agent, method, resume=begun.id)
        else:
            run_id = ids.new("run")
            state.note(runs=state.runs | {method: run_id})
            result = train(ws, agent, method, base, run_id=run_id)
    except (TrainingError, DataError) as error:
        return Candidate(method, None, None, str(error))
    if result.state is RunState.STOPPED:  # the training took the Ctrl-C for itself
        raise KeyboardInterrupt
    return Candidate(method, result.version, result.run_id, result.reason)


def choose(ws: Workspace, agent: str, cycle: CycleReport, state: CycleState) -> str | None:
    """The best candidate by the dev rows; None, with reasons, where none is better than the base.

    A single candidate goes to the gate where there are no dev rows to compare it on. Several raise
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
        trained = [versions.version(ws, agent, name) for name in names]
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
    """The second half of a cycle: evaluate the chosen version, let the gate decide, export and
    deploy what it approves, and write the report.

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
        for name in config.export:
            with log.step(f"export {name}, checked against the trained model"):
                cycle.exports.append(export_once(ws, version, name, config))
        if config.deploy:
            alias = LIVE if cycle.verdict is Verdict.APPROVED else CANARY
            with log.step(f"deploy {version.name} on {config.deploy} as {alias}"):
                cycle.deployment = deploy_once(ws, cycle, config, alias, target_settings)

    with log.step("report"):
        path = config.report_to or ws.home.reports / f"{version.agent}-{version.name}.html"
        cycle.report = path.expanduser().resolve()
        cycle.report.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        report(ws, version, cycle.report, cycle.report.with_suffix(".json"))


def evaluate_once(ws: Workspace, version: ModelVersion, state: CycleState | None) -> Evaluation:
    """The evaluation of `version`; the one that this cycle made before its deployment, if any."""
    if state:
        for evaluation in evaluations(ws, version):
            if evaluation.id == state.evaluation:
                return evaluation
    evaluation = evaluate(ws, version)
    if state:
        state.note(evaluation=evaluation.id)
    return evaluation


def export_once(ws: Workspace, version: ModelVersion, format: str, config: CycleConfig) -> Export:
    """The export of `version` as `format`; the one that this cycle wrote before it was killed, if
    any. Raises Conflict where its files were changed since."""
    folder = (config.export_to or Path()) / f"{version.agent}-{version.name}-{format}"
    folder = folder.expanduser().resolve()
    for earlier in exports(ws, version.id):
        if (earlier.format, earlier.path) == (format, folder) and folder.is_dir():
            check_unchanged(folder, earlier.files)
            return earlier
    manifest = manifest_of(folder)
    if manifest.get("version_id") == version.id:
        # The cycle was killed between the files and their record.
        check_unchanged(folder, manifest["files"])
        shutil.rmtree(folder)
    quant = config.quant if format == GGUF else None
    return export(ws, version.agent, version.name, format, folder, quant)


def deploy_once(
    ws: Workspace,
    cycle: CycleReport,
    config: CycleConfig,
    alias: str,
    target_settings: Mapping[str, Any] | None,
) -> Deployment:
    """The deployment behind `alias`; the one that this cycle made before it was killed, if any."""
    version, target = str(cycle.version), str(config.deploy)
    current = switch.route(ws, cycle.agent, alias).deployment
    if current is not None and (current.version, current.target) == (version, target):
        return switch.ensure_running(ws, current)
    quant = None
    if GGUF_MODEL in TARGETS.get(target).kinds:
        # The file that was just exported is deployed, not a second one.
        exported_quants = {export.format: export.quant for export in cycle.exports}
        quant = exported_quants.get(GGUF, config.quant)
    result = switch.deploy(
        ws, cycle.agent, version, target, alias, quant=quant, settings=target_settings
    )
    return result.deployment
