"""The model change report: what was trained on what, what got better, what was decided, and how to
repeat it.

`collect` reads what the stages stored into one JSON value. `page` renders that value as one HTML
file that fetches nothing and runs nothing. Whatever a model or a person wrote is text in it, never
markup.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from thumbwheel.core import figures
from thumbwheel.core.files import replace, unwritable
from thumbwheel.core.present import json_text
from thumbwheel.db.stored_rows import Record
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.declaration import policy_of
from thumbwheel.evaluation.gate import guard_at_level
from thumbwheel.evaluation.guards import guard_state
from thumbwheel.evaluation.policy import GatePolicy
from thumbwheel.evaluation.secondary_tests import tests_in_words
from thumbwheel.evaluation.types import (
    ANCHOR_NLL,
    ANCHOR_TASKS,
    EOS,
    FORMAT,
    LENGTH,
    NLL,
    NLL_LIKED,
    Guard,
    Measure,
    weights_pay,
)
from thumbwheel.export.package import exports
from thumbwheel.export.types import Export
from thumbwheel.models.types import Agent, ModelVersion
from thumbwheel.report import formatting
from thumbwheel.report.lineage import lineage, tree
from thumbwheel.report.types import (
    Lineage,
    ReportData,
    ReportExport,
    ReportSummary,
    ReportTraining,
    VersionReport,
)
from thumbwheel.report.written_reports import note_report
from thumbwheel.sdk.version import __version__
from thumbwheel.training.algorithms import ALGORITHMS
from thumbwheel.training.rundir import RunDir

GUARDS = {
    EOS: ("answers that end by themselves", True),
    FORMAT: ("answers with the right format", True),
    LENGTH: ("tokens of an answer", False),
    NLL: ("nats a token of recorded good answers", False),
    NLL_LIKED: ("nats a token of answers that people liked", False),
    ANCHOR_NLL: ("nats a token of general text", False),
    ANCHOR_TASKS: ("short general tasks solved", True),
}
"""Guard -> (label, whether it is a share)."""


@dataclass(frozen=True)
class Report:
    """A written report; `value` is its content as JSON."""

    path: Path | None
    json_path: Path | None
    value: VersionReport


def report(
    ws: Workspace, version: ModelVersion, to: Path | None = None, json_to: Path | None = None
) -> Report:
    """Write the report of `version` as HTML to `to` and as JSON to `json_to`, if given. Each file
    is written whole or not at all."""
    value = collect(ws, version)
    files = {}
    if to is not None:
        files[to] = page(value)
    if json_to is not None:
        files[json_to] = json_text(value) + "\n"
    for path, content in files.items():
        note_report(ws, version.id, path, content)
        _write(path, content)
    return Report(to, json_to, value)


def collect(ws: Workspace, version: ModelVersion) -> VersionReport:
    """Return the content of the report as a JSON value. Parts that do not exist yet (no run, no
    evaluation) are None."""
    version_lineage = lineage(ws, version)
    record, run = version_lineage.version, version_lineage.run
    decision = version_lineage.decisions[-1] if version_lineage.decisions else None
    evaluation = _evaluation(version_lineage, decision)
    suites = evaluation.get("suites", ()) if evaluation else ()
    return {
        "agent": version.agent,
        "version": record["name"],
        "state": record["state"],
        "basis": version.basis,
        "tainted": record["tainted"],
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "thumbwheel": __version__,
        "summary": _summary(evaluation, decision),
        "data": _data(version_lineage),
        "training": _training(ws, run) if run else None,
        "evaluation": evaluation,
        "guards": _guards(ws, Agent.named(version.agent), evaluation, decision),
        "weights": _weights(record["name"], evaluation),
        "opinions": tests_in_words(suite["details"] for suite in suites),
        "decision": decision,
        "served": _served(version_lineage),
        "exports": _exports(ws, version),
        "lineage": version_lineage.to_json(),
        "tree": [list(line) for line in tree(version_lineage)],
        "environment": dict(run["environment"]) if run else None,
        "reproduce": _reproduce(version.agent, version_lineage, decision),
    }


def _evaluation(version_lineage: Lineage, decision: Record | None) -> Record | None:
    """Return the evaluation on which the gate decided; without a decision, the newest one; None if
    there is none."""
    if decision is None:
        if not version_lineage.evaluations:
            return None
        newest = version_lineage.evaluations[-1]
        return {**newest["results"], "id": newest["id"], "config": newest["config"]}
    for row in version_lineage.evaluations:
        if row["id"] == decision["evaluation_id"]:
            evaluation = {**row["results"], "id": row["id"], "config": row["config"]}
            # At the level that the gate asked for.
            evaluation["detectable"] = decision["inputs"].get("detectable")
            return evaluation
    return None


def _summary(evaluation: Record | None, decision: Record | None) -> ReportSummary | None:
    if evaluation is None:
        return None
    names = ("name", "before", "after", "gain", "low", "high", "level", "n", "clusters")
    summary = {name: evaluation["primary"][name] for name in names}
    for name in ("against", "basis", "fresh", "reads", "detectable"):
        summary[name] = evaluation[name]
    summary["decision"] = decision["decision"] if decision else None
    summary["reasons"] = list(decision["reasons"]) if decision else []
    return cast(ReportSummary, summary)


MANIFEST_KEYS = ("drops", "notes", "warnings", "rule", "fitted", "watermark", "config")


def _data(version_lineage: Lineage) -> ReportData | None:
    dataset, sources = version_lineage.dataset, version_lineage.sources
    if not (dataset and sources):
        return None
    data = {key: dataset["manifest"].get(key) for key in MANIFEST_KEYS}
    subjects = set().union(*sources.subjects.values())
    data |= {
        "id": dataset["id"],
        "shape": dataset["shape"],
        "rows": sources.rows,
        "subjects": len(subjects),
        "feedback": {split: len(ids) for split, ids in sources.feedback.items()},
        "traces": {split: len(ids) for split, ids in sources.traces.items()},
        "origins": sources.origins,
    }
    return cast(ReportData, data)


RUN_KEYS = (
    "id",
    "algorithm",
    "base",
    "base_fingerprint",
    "config",
    "seed",
    "state",
    "reason",
    "metrics",
)


def _training(ws: Workspace, run: Record) -> ReportTraining:
    train, dev = [], []
    for line in RunDir(ws.home.runs / run["id"]).read_metrics():
        if "loss" in line:
            train.append(line)
        if "eval_loss" in line:
            dev.append({name.removeprefix("eval_"): value for name, value in line.items()})
    training = {key: run[key] for key in RUN_KEYS} | {
        "started": run["recorded_at"],
        "ended": run["ended_at"],
        "changed": changed(run["algorithm"], run["config"]),
        "train": train,
        "dev": dev,
        "best": _best_step(run, dev),
    }
    return cast(ReportTraining, training)


def changed(algorithm: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from today's defaults. Those that follow from the base are
    among them."""
    defaults: dict[str, Any] = {}
    if algorithm in ALGORITHMS.names():
        defaults = ALGORITHMS.get(algorithm).Config().model_dump(mode="json")
    return {
        name: value
        for name, value in config.items()
        if name not in defaults or value != defaults[name]
    }


def _best_step(run: Record, dev: list[dict[str, Any]]) -> int | None:
    """Return the step whose adapter is the candidate: as the run recorded it, else the best on the
    dev rows by the run's metric, else None."""
    recorded = (run["metrics"] or {}).get("best_step")
    if recorded is not None:
        return int(recorded)
    name = run["config"].get("metric_for_best_model", "loss")
    judged = [line for line in dev if line["step"] > 0 and line.get(name) is not None]
    if not judged:
        return None
    choose = max if name.startswith("rewards/") else min
    return int(choose(judged, key=lambda line: line[name])["step"])


def _weights(name: str, evaluation: Record | None) -> str | None:
    """Return a sentence on whether the weights beat the same feedback as a prompt; None if that was
    not compared."""
    prompting = (evaluation or {}).get("prompting")
    return weights_pay(name, Measure(**prompting)) if prompting else None


def _guards(
    ws: Workspace, agent: Agent, evaluation: Record | None, decision: Record | None
) -> list[dict[str, Any]]:
    """Return the guards as the gate saw them, or would see them, with its verdict on each: ok, the
    problem in words, or not measured."""
    if decision:
        policy = GatePolicy(**decision["policy"])
        guards = [Guard(**values) for values in decision["inputs"].get("guards", ())]
    else:
        policy = policy_of(ws, agent)
        measured = [Guard(**values) for values in (evaluation or {}).get("guards", ())]
        guards = [guard_at_level(guard, 1 - policy.alpha) for guard in measured]
    rows = []
    for guard in guards:
        label, is_share = GUARDS.get(guard.name, (guard.name, False))
        state, words = guard_state(guard, policy)
        row = guard.model_dump(mode="json")
        row |= {"label": label, "share": is_share, "verdict": words or str(state)}
        rows.append(row)
    return rows


def _exports(ws: Workspace, version: ModelVersion) -> list[ReportExport]:
    """Return the newest export in each format and precision, largest first, with its distance from
    the trained model and its cost."""
    newest = {(export.format, export.quant): export for export in exports(ws, version)}
    largest_first = sorted(newest.values(), key=lambda export: -export.parity.size)
    return [_export_row(export) for export in largest_first]


def _export_row(export: Export) -> ReportExport:
    parity = export.parity
    if not parity.failures:
        verdict = "ok"
    elif export.accepted:
        verdict = f"taken by {export.accepted}"
    else:
        verdict = "not kept"
    return {
        "name": f"{export.format} {export.quant}" if export.quant else export.format,
        "format": export.format,
        "quant": export.quant,
        "megabytes": parity.size / 1e6,
        "mean_kl": parity.mean_kl,
        "top1": parity.top1,
        "tokens_per_second": parity.tokens_per_second,
        "notes": parity.notes,
        "task": asdict(parity.task) if parity.task else None,
        "verdict": verdict,
        "failures": parity.failures,
    }


def _served(version_lineage: Lineage) -> list[dict[str, Any]]:
    """Return the newest evaluation of each form in which the version was served; the gate does not
    decide on these."""
    newest = {}
    for evaluation in version_lineage.evaluations:
        results = evaluation["results"]
        form = results.get("form")
        if form:
            newest[form] = {"form": form, "against": results["against"], **results["primary"]}
    return list(newest.values())


def _reproduce(agent: str, version_lineage: Lineage, decision: Record | None) -> list[str]:
    """Return the commands that repeat this on the same home."""
    name, run = version_lineage.version["name"], version_lineage.run
    commands = []
    if run:
        dataset_id = run["dataset_id"]
        commands.append(["thumbwheel", "dataset", "show", dataset_id, "--agent", agent])
        train = ["thumbwheel", "train", run["algorithm"], "--agent", agent, "--base", run["base"]]
        train += ["--dataset", dataset_id]
        for key, value in changed(run["algorithm"], run["config"]).items():
            train += option(key, value)
        commands.append(train)
    commands.append(["thumbwheel", "evaluate", name, "--agent", agent])
    if decision:
        commands.append(["thumbwheel", "evaluate", "--replay", decision["id"]])
    commands.append(["thumbwheel", "export", name, "--agent", agent, "--format", "merged"])
    return [shlex.join(command) for command in commands]


def option(key: str, value: Any) -> list[str]:
    """Return a setting as command-line words; an empty list for a value that no option can have."""
    if value is None or isinstance(value, (list, dict)):
        return []
    name = key.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", str(value)]


def page(value: Mapping[str, Any]) -> str:
    """Return the report as HTML. Raises MissingExtra without matplotlib."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    from thumbwheel.report import report_charts

    loader = PackageLoader("thumbwheel.report", "templates")
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "visible": formatting.visible,
        "percent": figures.percent,
        "points": figures.points,
        "number": formatting.number,
        "compact": formatting.compact,
    }
    charts = {name: Markup(svg) for name, svg in report_charts.draw(value).items()}
    return environment.get_template("report.html.j2").render(value, charts=charts)


def _write(path: Path, content: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, content, errors="backslashreplace")
    except OSError as error:
        fix = "Name a file that can be written"
        raise unwritable(f"report {str(path)!r}", error, fix) from error
