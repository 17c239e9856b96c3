"""The model change report: what was trained on what, what got better, what was decided, how to do
it again.

`collect` reads what the stages stored and gives one JSON value; `page` makes of that value one HTML
file that fetches nothing and runs nothing. Everything that a model or a person wrote is text in it,
never markup.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import thumbwheel
from thumbwheel.core.errors import StorageError
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
    Guard,
    Measure,
    weights_pay,
)
from thumbwheel.export.package import exports
from thumbwheel.loop import formatting
from thumbwheel.loop.lineage import lineage, tree
from thumbwheel.loop.purge import note_report
from thumbwheel.loop.types import Lineage, Record
from thumbwheel.training.algorithms import ALGORITHMS
from thumbwheel.training.rundir import RunDir

GUARDS = {
    EOS: ("answers that end by themselves", True),
    FORMAT: ("answers with the right format", True),
    LENGTH: ("tokens of an answer", False),
    NLL: ("nats a token of recorded good answers", False),
    ANCHOR_NLL: ("nats a token of general text", False),
    ANCHOR_TASKS: ("short general tasks solved", True),
}
"""Guard -> (what it is called, whether it is a share)."""


@dataclass(frozen=True)
class Report:
    """A written report; `value` is the same as JSON."""

    path: Path | None
    json_path: Path | None
    value: dict[str, Any]


def report(
    ws: Workspace, agent: str, version: str, to: Path | None = None, json_to: Path | None = None
) -> Report:
    """Write the report of `version` as HTML to `to` and as JSON to `json_to`, each where it is
    given; there whole or not at all."""
    value = collect(ws, agent, version)
    pages = [] if to is None else [(to, page(value))]
    pages += (
        []
        if json_to is None
        else [(json_to, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")]
    )
    for path, content in pages:
        note_report(ws, value["lineage"]["version"]["id"], path, content)
        _write(path, content)
    return Report(to, json_to, value)


def collect(ws: Workspace, agent: str, version: str) -> dict[str, Any]:
    """Everything that the report says, as a JSON value; parts that do not exist yet (no run, no
    evaluation) are None."""
    found = lineage(ws, agent, version)
    evaluation, decision = _judgement(found)
    return {
        "agent": agent,
        "version": found.version["name"],
        "state": found.version["state"],
        "tainted": found.version["tainted"],
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "thumbwheel": thumbwheel.__version__,
        "summary": _summary(evaluation, decision),
        "data": _data(found),
        "training": _training(ws, found),
        "evaluation": evaluation,
        "guards": _guards(ws, agent, evaluation, decision),
        "weights": _weights(found, evaluation),
        "opinions": tests_in_words(one["details"] for one in (evaluation or {}).get("suites", ())),
        "decision": decision,
        "served": _served(found),
        "exports": _exports(ws, found),
        "lineage": found.to_json(),
        "tree": [list(line) for line in tree(found)],
        "environment": dict(found.run["environment"]) if found.run else None,
        "reproduce": _reproduce(agent, found, decision),
    }


def _judgement(found: Lineage) -> tuple[Record | None, Record | None]:
    """The newest decision with the evaluation that it was made from; without a decision the newest
    evaluation."""
    decision = found.decisions[-1] if found.decisions else None
    by_id = {one["id"]: one for one in found.evaluations}
    row = (
        by_id.get(decision["evaluation_id"])
        if decision
        else found.evaluations[-1]
        if found.evaluations
        else None
    )
    power = (
        {"detectable": decision["inputs"].get("detectable")} if decision else {}
    )  # at the level that the gate asked for
    return (
        {**row["results"], "id": row["id"], "config": row["config"], **power} if row else None
    ), decision


def _summary(evaluation: Record | None, decision: Record | None) -> dict[str, Any] | None:
    if evaluation is None:
        return None
    named = {
        key: evaluation["primary"][key]
        for key in ("name", "before", "after", "gain", "low", "high", "level", "n", "clusters")
    }
    about = {key: evaluation[key] for key in ("against", "basis", "fresh", "reads", "detectable")}
    decided = (
        {"decision": decision["decision"], "reasons": list(decision["reasons"])}
        if decision
        else {"decision": None, "reasons": []}
    )
    return named | about | decided


def _data(found: Lineage) -> dict[str, Any] | None:
    if not (found.dataset and found.sources):
        return None
    manifest = found.dataset["manifest"]
    kept = {
        key: manifest.get(key)
        for key in (
            "origins",
            "drops",
            "notes",
            "warnings",
            "rule",
            "fitted",
            "watermark",
            "config",
        )
    }
    made = found.sources
    counted = {
        name: {split: len(ids) for split, ids in by.items()}
        for name, by in (("feedback", made.feedback), ("traces", made.traces))
    }
    subjects = len({one for ids in made.subjects.values() for one in ids})
    named = {
        "id": found.dataset["id"],
        "shape": found.dataset["shape"],
        "rows": made.rows,
        "subjects": subjects,
    }
    return kept | named | counted | {"origins": made.origins}


def _training(ws: Workspace, found: Lineage) -> dict[str, Any] | None:
    if found.run is None:
        return None
    run = {
        key: found.run[key]
        for key in (
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
    }
    lines = RunDir(ws.home.runs / found.run["id"]).read_metrics()
    train = [line for line in lines if "loss" in line]
    dev = [
        {name.removeprefix("eval_"): value for name, value in line.items()}
        for line in lines
        if "eval_loss" in line
    ]
    times = {"started": found.run["recorded_at"], "ended": found.run["ended_at"]}
    return (
        run
        | times
        | {
            "changed": changed(run["algorithm"], run["config"]),
            "train": train,
            "dev": dev,
            "best": _best(run, dev),
        }
    )


def changed(algorithm: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are not the defaults of today."""
    fields = (
        ALGORITHMS.get(algorithm).Config.model_fields if algorithm in ALGORITHMS.names() else {}
    )
    return {
        name: value
        for name, value in config.items()
        if name not in fields or value != fields[name].default
    }


def _best(run: Mapping[str, Any], dev: list[dict[str, Any]]) -> int | None:
    """The step whose adapter was kept: as the run recorded it, else the dev rows' best by the run's
    own metric."""
    stated = (run["metrics"] or {}).get("best_step")
    if stated is not None:
        return int(stated)
    name = run["config"].get("metric_for_best_model", "loss")
    judged = [line for line in dev if line["step"] > 0 and line.get(name) is not None]
    if not judged:
        return None
    choose = max if name.startswith("rewards/") else min
    return int(choose(judged, key=lambda line: line[name])["step"])


def _weights(found: Lineage, evaluation: Record | None) -> str | None:
    """Whether the weights beat the same feedback as a prompt; None where that was not compared."""
    prompting = (evaluation or {}).get("prompting")
    return weights_pay(found.version["name"], Measure(**prompting)) if prompting else None


def _guards(
    ws: Workspace, agent: str, evaluation: Record | None, decision: Record | None
) -> list[dict[str, Any]]:
    """The guards as the gate saw them, or would see them, with what its policy says about each: ok,
    worse (with the words), or not measured."""
    policy = GatePolicy(**decision["policy"]) if decision else policy_of(ws, agent)
    known = [
        Guard(**one)
        for one in (decision["inputs"] if decision else evaluation or {}).get("guards", ())
    ]
    found = []
    for one in known if decision else [guard_at_level(one, 1 - policy.alpha) for one in known]:
        label, share = GUARDS.get(one.name, (one.name, False))
        stands, words = guard_state(one, policy)
        found.append(
            {
                **one.model_dump(mode="json"),
                "label": label,
                "share": share,
                "verdict": words or str(stands),
            }
        )
    return found


def _exports(ws: Workspace, found: Lineage) -> list[dict[str, Any]]:
    """The newest export in each format and precision, largest first, with how near it is to the
    trained model and what it costs."""
    newest = {(one.format, one.quant): one for one in exports(ws, found.version["id"])}
    return [
        {
            "name": f"{one.format} {one.quant}" if one.quant else one.format,
            "format": one.format,
            "quant": one.quant,
            "megabytes": one.parity.size / 1e6,
            **{
                name: getattr(one.parity, name)
                for name in ("mean_kl", "top1", "tokens_per_second", "notes")
            },
            "task": asdict(one.parity.task) if one.parity.task else None,
            "verdict": "ok"
            if not one.parity.failures
            else f"taken by {one.accepted}"
            if one.accepted
            else "not kept",
            "failures": one.parity.failures,
        }
        for one in sorted(newest.values(), key=lambda one: -one.parity.size)
    ]


def _served(found: Lineage) -> list[dict[str, Any]]:
    """The newest evaluation of each form that the version was served in; the gate does not decide
    on these."""
    newest = {
        form: row["results"] for row in found.evaluations if (form := row["results"].get("form"))
    }
    return [
        {"form": form, "against": one["against"], **one["primary"]} for form, one in newest.items()
    ]


def _reproduce(agent: str, found: Lineage, decision: Record | None) -> list[str]:
    """Commands that do the same again on the same home."""
    name, run = found.version["name"], found.run
    commands = []
    if run:
        options = [
            part
            for key, value in changed(run["algorithm"], run["config"]).items()
            for part in option(key, value)
        ]
        train = [
            "thumbwheel",
            "train",
            run["algorithm"],
            "--agent",
            agent,
            "--base",
            run["base"],
            "--dataset",
            run["dataset_id"],
            *options,
        ]
        commands += [["thumbwheel", "dataset", "show", run["dataset_id"], "--agent", agent], train]
    commands.append(["thumbwheel", "evaluate", name, "--agent", agent])
    if decision:
        commands.append(["thumbwheel", "evaluate", "--replay", decision["id"]])
    commands.append(["thumbwheel", "export", name, "--agent", agent, "--format", "merged"])
    return [shlex.join(command) for command in commands]


def option(key: str, value: Any) -> list[str]:
    """A setting as options of the command line; what cannot be one is left out."""
    if value is None or isinstance(value, (list, dict)):
        return []
    flag = "--" + key.replace("_", "-")
    return (
        ["--no-" + flag[2:]] if value is False else [flag] if value is True else [flag, str(value)]
    )


def page(value: Mapping[str, Any]) -> str:
    """The report as HTML. Raises MissingExtra without matplotlib."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    from thumbwheel.loop import report_charts

    loader = PackageLoader("thumbwheel.loop", "templates")
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        name: getattr(formatting, name)
        for name in ("visible", "percent", "points", "number", "compact")
    }
    drawn = {name: Markup(svg) for name, svg in report_charts.draw(value).items()}
    return environment.get_template("report.html.j2").render(value, charts=drawn)


def _write(path: Path, content: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(content, encoding="utf-8", errors="backslashreplace")
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise StorageError(
            f"report {str(path)!r}", error.strerror or str(error), "Name a file that can be written"
        ) from error
