"""One turn of the wheel, in order. Read this first.

    plan       what the feedback permits
    train      a candidate by every method that the plan allows and the settings name
    choose     the candidates are compared on the dev rows
    evaluate   the best one against what answers today, on rows that nobody trained on
    gate       approved, approved for a canary, or rejected
    export     the files of what was approved
    deploy     it answers, after a check that it is the approved model
    report     one HTML file that says all of this

Every step is the public verb of its stage. A cycle that was stopped or killed goes on where it was
when it is started again: a training from its newest checkpoint, and finished steps are not repeated
(`cycle_state.py`).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from thumbwheel.core import ids, log
from thumbwheel.core.errors import DataError, TrainingError
from thumbwheel.datasets.plan import data_plan
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import switch
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.deploy.types import Deployment, Kind
from thumbwheel.evaluation.dev import compare_on_dev
from thumbwheel.evaluation.evaluate import evaluate, evaluations
from thumbwheel.evaluation.gate import gate
from thumbwheel.evaluation.policy import Verdict
from thumbwheel.export.package import export, exports, manifest_of
from thumbwheel.export.types import Export
from thumbwheel.loop.cycle_checks import GGUF, base_of, check_ready
from thumbwheel.loop.cycle_state import CycleState
from thumbwheel.loop.cycle_types import Candidate, CycleConfig, CycleReport
from thumbwheel.loop.report import report
from thumbwheel.models import versions
from thumbwheel.models.types import LIVE
from thumbwheel.training.train import runs, train
from thumbwheel.training.types import RunState

CANARY = "canary"
"""The alias of what was approved on feedback alone."""


def run_cycle(ws: Workspace, agent: str, config: CycleConfig, anew: bool = False) -> CycleReport:
    """Turn the wheel once for `agent`, as far as its feedback carries; `anew` forgets a turn that
    was not finished.

    Raises Conflict while another cycle of the agent runs, KeyboardInterrupt when a training was
    stopped by Ctrl-C, and whatever a verb raises that a person has to mend first. A method whose
    training fails is passed over, with its reason.
    """
    check_ready(ws, config)
    with CycleState.open(ws.home.cycles / agent, config.training_settings, anew) as state:
        cycle = _find_candidate(ws, agent, config, state)
        if cycle.version is not None:
            release(ws, cycle, config, state=state)
        state.finish()
    return cycle


def find_candidate(ws: Workspace, agent: str, config: CycleConfig) -> CycleReport:
    """The first half of a turn: plan, train, choose. Raises as `run_cycle` does."""
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
    cycle.base = state.base or config.base or base_of(ws, agent)
    state.note(methods=methods, base=cycle.base)
    cycle.candidates = train_candidates(ws, agent, cycle.base, methods, state)
    cycle.version = choose(ws, agent, cycle, state)
    return cycle


def train_candidates(
    ws: Workspace, agent: str, base: str, methods: Sequence[str], state: CycleState
) -> list[Candidate]:
    """Train by each method; one that was begun is gone on with, one that is finished is not
    repeated."""
    for method in methods:
        if method not in state.candidates:
            with log.step(f"train {method}"):
                candidate = train_candidate(ws, agent, base, method, state)
                log.say(f"  {candidate.version or candidate.reason}")
            state.note(candidates=state.candidates | {method: candidate})
    return [state.candidates[method] for method in methods]


def train_candidate(
    ws: Workspace, agent: str, base: str, method: str, state: CycleState
) -> Candidate:
    """What training by `method` gives: by a new run, or by the one that this cycle began."""
    begun = [run for run in runs(ws, agent) if run.id == state.runs.get(method)]
    ended = begun[0].state if begun else None
    trained = [
        version.name
        for version in versions.versions(ws, agent)
        if begun and version.run_id == begun[0].id
    ]
    if (
        trained or ended is RunState.NOTHING_LEARNED
    ):  # the cycle was killed before it could note that
        return Candidate(method, trained[0] if trained else None, begun[0].id, begun[0].reason)
    try:
        if ended in (RunState.STOPPED, RunState.RUNNING):
            result = train(ws, agent, method, resume=begun[0].id)
        else:
            state.note(runs=state.runs | {method: ids.new("run")})
            result = train(ws, agent, method, base, run_id=state.runs[method])
    except (TrainingError, DataError) as error:
        return Candidate(method, None, None, str(error))
    if result.state is RunState.STOPPED:  # the training took the Ctrl-C for itself
        raise KeyboardInterrupt
    return Candidate(method, result.version, result.run_id, result.reason)


def choose(ws: Workspace, agent: str, cycle: CycleReport, state: CycleState) -> str | None:
    """The best candidate by the dev rows; None, with reasons, where none is better than the base."""
    names = [candidate.version for candidate in cycle.candidates if candidate.version]
    if not names:
        cycle.reasons += [
            f"{candidate.method} gave no candidate: {candidate.reason}"
            for candidate in cycle.candidates
        ]
        return None
    if state.chosen in names:
        return state.chosen
    with log.step("compare the candidates on the dev rows"):
        comparison = compare_on_dev(ws, agent, names)
        for line in comparison.reasons:
            log.say(f"  {line}")
    if comparison.best is None:
        cycle.reasons += comparison.reasons
    state.note(chosen=comparison.best)
    return comparison.best


def release(
    ws: Workspace,
    cycle: CycleReport,
    config: CycleConfig,
    settings: Mapping[str, Any] | None = None,
    state: CycleState | None = None,
) -> None:
    """Evaluate the chosen version, let the gate decide, take out and deploy what it approves, and
    write the report.

    What is approved on feedback alone is deployed as `canary`, never as `live`. `settings` are
    those of the deployment target.
    """
    agent, version = cycle.agent, str(cycle.version)
    with log.step(f"evaluate {version} on rows that nobody trained on"):
        stored = [
            known
            for known in evaluations(ws, agent, version)
            if state and known.id == state.evaluation
        ]
        cycle.evaluation = stored[0] if stored else evaluate(ws, agent, version)
        if state:
            state.note(evaluation=cycle.evaluation.id)
        decision = gate(ws, cycle.evaluation).decision
        log.say(f"  {decision.verdict}: {decision.reasons[0]}")
    cycle.verdict = decision.verdict
    cycle.reasons += decision.reasons
    if cycle.verdict is not Verdict.REJECTED:
        for name in config.export:
            with log.step(f"export {name}, checked against the trained model"):
                cycle.exports.append(export_once(ws, agent, version, name, config))
        if config.deploy:
            alias = LIVE if cycle.verdict is Verdict.APPROVED else CANARY
            with log.step(f"deploy {version} on {config.deploy} as {alias}"):
                cycle.deployment = deploy_once(ws, cycle, config, alias, settings)
    with log.step("report"):
        cycle.report = (
            (config.report_to or ws.home.reports / f"{agent}-{version}.html").expanduser().resolve()
        )
        cycle.report.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        report(ws, agent, version, cycle.report, cycle.report.with_suffix(".json"))


def export_once(
    ws: Workspace, agent: str, version: str, format: str, config: CycleConfig
) -> Export:
    """The export of `version` as `format`; a cycle that was killed after it was written finds it
    there."""
    folder = ((config.export_to or Path()) / f"{agent}-{version}-{format}").expanduser().resolve()
    version_id = versions.version(ws, agent, version).id
    for earlier in exports(ws, version_id):
        if (earlier.format, earlier.path) == (format, folder) and folder.is_dir():
            return earlier
    if (
        manifest_of(folder).get("version_id") == version_id
    ):  # killed between the files and their record
        shutil.rmtree(folder)
    return export(ws, agent, version, format, folder, config.quant if format == GGUF else None)


def deploy_once(
    ws: Workspace,
    cycle: CycleReport,
    config: CycleConfig,
    alias: str,
    settings: Mapping[str, Any] | None,
) -> Deployment:
    """The deployment behind `alias`; a cycle that was killed after the switch finds it there."""
    version, target = str(cycle.version), str(config.deploy)
    _, standing = switch.behind(ws, cycle.agent, alias)
    if standing is not None and (standing.version, standing.target) == (version, target):
        return switch.revive(ws, standing)
    quant = None
    if Kind.GGUF in TARGETS.get(target).kinds:
        written = {export.format: export.quant for export in cycle.exports}
        quant = written.get(
            GGUF, config.quant
        )  # the file that was just written is deployed, not a second one
    return switch.deploy(
        ws, cycle.agent, version, target, alias, quant=quant, settings=settings
    ).deployment
