"""The data plan: what the feedback of an agent, or of one file, could teach, before anything is
trained.

It counts the rows that every shape would get, and judges by the counts which methods are worth
training. The methods say how much they need (`learner.Learner`). The words are in
`dataplan`.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa

from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home
from thumbwheel.datasets import store
from thumbwheel.datasets.dataplan import DataPlan, MethodPlan, Power, ShapePlan
from thumbwheel.datasets.evidence import merge_prompts, read_evidence
from thumbwheel.datasets.learner import Learner
from thumbwheel.datasets.ledger_rewards import TraceReward, ledger_values, ledger_warnings
from thumbwheel.datasets.row_stats import RowStats, columns_of
from thumbwheel.datasets.shape import Shape
from thumbwheel.datasets.shapes import SHAPES
from thumbwheel.datasets.shapes.labels import class_weights
from thumbwheel.datasets.split_assignment import SplitAssignment, assign_splits
from thumbwheel.datasets.store import GOLD
from thumbwheel.datasets.types import (
    MACHINES,
    DatasetConfig,
    Drop,
    Evidence,
    PlanConfig,
    Row,
    Tally,
)
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers.detect import Options, detect
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import require_agent
from thumbwheel.rewards.checker import refusal
from thumbwheel.rewards.label import dominant_rater, signals, target_counts

COUNTED = 1000
"""Rows of a shape that are counted at once."""


def data_plan(
    ws: Workspace,
    agent: str,
    learners: Mapping[str, Learner],
    config: DatasetConfig | None = None,
) -> DataPlan:
    """Plan how `learners`, methods by name, can learn from the feedback of `agent` in force now.
    Raises NotFound for an unknown agent."""
    from thumbwheel.stats.power import expected_detectable

    learner = require_agent(ws, agent)
    config = (config or DatasetConfig()).resolved(datetime.now(UTC))
    tally, stats = Tally(), {name: RowStats() for name in SHAPES.names()}

    # Count the rows of every shape, and what else the agent has.
    values = ledger_values(ws, learner) if config.reward == "ledger" else None
    with ws.db.read() as connection:
        scope = config.scope()
        assignment = assign_splits(connection, learner.id, config, scope, unjudged=True)
        _count(connection, learner, assignment, tally, stats, values)
        loudest = dominant_rater(connection, learner, scope=scope)
        marks = store.marked(connection, learner.id)
        cases = store.case_inputs(connection, learner.id)
        traces = store.trace_count(connection, learner.id)
        feedback_signals = signals(connection, learner, config=config.label)
        targets = target_counts(connection, learner)

    # Judge the methods by the counts.
    labels = {
        "desirable": stats["labels"].of_label(True),
        "undesirable": stats["labels"].of_label(False),
    }
    methods = _methods(learners, stats, labels, config.plan)
    recommended, why = _recommend(methods, stats)

    # What an evaluation could detect, on each kind of held-out item that there may be. Rows of the
    # shape that it would read: pairs for a method that compares, else labels if there are both.
    gold = [case.group for case in cases if case.basis == GOLD]
    held_out = [
        case.group
        for case in cases
        if case.basis != GOLD and assignment.split_of(case.prompt_id) == "gate"
    ]
    evaluated = "chats"
    if recommended is not None and methods[recommended].shape == "pairs":
        evaluated = "pairs"
    elif all(labels.values()):
        evaluated = "labels"
    gate_rows = len(stats[evaluated].gate_groups)
    groups = {
        "gold": len(set(gold)),
        "feedback cases in gate": len(set(held_out)),
        "rows in gate": gate_rows,
    }
    discordance = config.plan.discordance
    power = {name: Power(n, expected_detectable(n, discordance)) for name, n in groups.items()}
    if evaluated == "labels":  # the evaluation then ranks good answers above bad ones
        good = labels["desirable"] / max(1, stats["labels"].rows)
        detectable = expected_detectable(gate_rows, discordance, good)
        power["rows in gate"] = Power(gate_rows, detectable, area=True)

    return DataPlan(
        agent=agent,
        traces=traces,
        signals=feedback_signals,
        reach=targets,
        shapes={name: _shape_plan(of_shape) for name, of_shape in stats.items()},
        labels=labels,
        class_weights=_weights(stats["labels"], config),
        methods=methods,
        drops=dict((tally.drops + _withheld(stats)).most_common()),
        notes=dict(+tally.notes),
        gold=len(gold),
        held_cases=len(held_out),
        power=power,
        recommended=recommended,
        why=why,
        loudest=loudest,
        marks=marks,
        warnings=ledger_warnings(ws, learner) if config.reward == "ledger" else [],
    )


def _shape_plan(stats: RowStats) -> ShapePlan:
    origins, drops = dict(stats.origins.most_common()), dict(stats.drops.most_common())
    return ShapePlan(stats.counts, origins, drops, stats.warnings(), stats.scores())


def plan_file(
    path: Path,
    learners: Mapping[str, Learner],
    source: str | None = None,
    agent: str = "file",
    config: DatasetConfig | None = None,
    options: Options | None = None,
) -> DataPlan:
    """Return the plan of one file, read by `source` or by the one that recognises it, in a
    temporary home.

    `options` name its columns. No other home is opened. Raises InputError for a file that no source
    can read, or that several can.
    """
    chosen = detect(path, options, source)
    with (
        tempfile.TemporaryDirectory(prefix="thumbwheel-plan-") as folder,
        Workspace.open(Home.at(folder), None, refusal) as ws,
    ):
        report = ingest(ws, agent, chosen.source, path, options=options)
        plan = data_plan(ws, agent, learners, config)
    plan = replace(plan, read_as=[chosen.words(), *chosen.mapping], read_notes=report.words())
    if not report.refused:
        return plan
    first = report.refusals[0]
    reason = f"line that cannot be taken (the first is line {first['number']}: {first['reason']})"
    return replace(plan, drops={reason: report.refused} | plan.drops)


def _count(
    connection: sa.Connection,
    agent: Agent,
    assignment: SplitAssignment,
    tally: Tally,
    stats: Mapping[str, RowStats],
    values: Mapping[str, TraceReward] | None,
) -> None:
    """Add the rows of every shape to its `stats`, and everything that gave no evidence to
    `tally`."""
    config = assignment.config
    shapes: dict[str, Shape] = {name: SHAPES.get(name)() for name in stats}
    rows: dict[str, list[Row]] = {name: [] for name in stats}
    evidence_stream = read_evidence(
        connection,
        agent,
        config,
        tally,
        unjudged=True,
        assignment=assignment,
        scope=config.scope(),
        values=values,
    )
    for evidence, names in _with_shapes(evidence_stream, shapes):
        for name in names:
            for row in shapes[name].rows(evidence, config):
                if isinstance(row, Drop):
                    stats[name].drops[row.reason] += row.rows
                else:
                    rows[name].append(row)
            if len(rows[name]) >= COUNTED:
                stats[name].take(columns_of(rows[name]))
                rows[name].clear()
    for name, rest in rows.items():
        stats[name].take(columns_of(rest))


def _with_shapes(
    evidence_stream: Iterable[Evidence], shapes: Mapping[str, Shape]
) -> Iterator[tuple[Evidence, Iterable[str]]]:
    """Yield each piece of evidence with the names of the shapes that read it. Shapes that merge
    read the runs of one task together, so these come last."""
    merging = [name for name in shapes if shapes[name].merges]
    not_merging = [name for name in shapes if not shapes[name].merges]
    runs: list[Evidence] = []
    for evidence in evidence_stream:
        if evidence.task:
            runs.append(evidence)
            yield evidence, not_merging
        else:
            yield evidence, shapes
    for evidence in merge_prompts(runs, Tally()):
        yield evidence, merging


def _withheld(stats: Mapping[str, RowStats]) -> Counter[str]:
    """Count the rows withheld from the gate, by the shape that loses most rows."""
    return Counter({MACHINES: max(of_shape.drops[MACHINES] for of_shape in stats.values())})


def _weights(labels: RowStats, config: DatasetConfig) -> dict[str, float]:
    desirable, undesirable = class_weights(
        labels.labels["train", True], labels.labels["train", False]
    )
    return {
        "desirable": config.desirable_weight or desirable,
        "undesirable": config.undesirable_weight or undesirable,
    }


def _methods(
    learners: Mapping[str, Learner],
    stats: Mapping[str, RowStats],
    labels: Mapping[str, int],
    config: PlanConfig,
) -> dict[str, MethodPlan]:
    plans = {}
    for name, learner in learners.items():
        if learner.enough is None:
            continue
        enough, shape = learner.enough.by_settings(name, config), learner.shapes[0]
        rows = stats[shape].rows
        missing = {}
        if rows < enough.minimum:
            missing[enough.rows] = enough.minimum - rows
        for label, count in labels.items():
            if count < enough.each_label:
                missing[f"{label} labels"] = enough.each_label - count
        readiness = "usable"
        if missing:
            readiness = "too few"
        elif rows >= enough.ready:
            readiness = "ready"
        plans[name] = MethodPlan(learner.title, shape, rows, readiness, missing)
    return plans


def _recommend(
    methods: Mapping[str, MethodPlan], stats: Mapping[str, RowStats]
) -> tuple[str | None, str]:
    """Return the method to train, and why: one that compares if most answers were compared;
    otherwise imitation, which gained most from the same feedback in `benchmarks/quality.py`. The
    method is None if none has enough rows.

    Only people's own judgements count: siblings and halves of edits are derived.
    """
    compared = stats["pairs"].origins["correction"] + stats["pairs"].origins["preference"]
    single = stats["labels"].rows - stats["labels"].origins["correction"]
    # The first eligible method of each shape.
    by_shape: dict[str, str] = {}
    for name, method in methods.items():
        if method.eligible:
            by_shape.setdefault(method.shape, name)
    if not by_shape:
        return None, "no method has enough rows"
    if "pairs" in by_shape and 2 * compared >= single:
        name = by_shape["pairs"]
        return name, (
            f"{compared:,} answers were compared or edited, and {methods[name].title} learns from "
            "both sides of each"
        )
    if "chats" in by_shape:
        return by_shape["chats"], (
            f"{stats['chats'].rows:,} good answers are known, and imitating them gained most from "
            "the same feedback where it was measured"
        )
    if "labels" in by_shape:
        name = by_shape["labels"]
        return name, (
            f"{single:,} answers were judged one by one, good and bad, and {methods[name].title} "
            "learns from both without needing pairs"
        )
    name = next(iter(by_shape.values()))
    rows, shape = methods[name].rows, methods[name].shape
    return name, (f"the {rows:,} {shape} say more than the labels, which are too few of one kind")
