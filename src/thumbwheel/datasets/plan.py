"""The data plan: what the feedback of an agent, or of one file, could teach, before anything is
trained.

Lives here: counting what every shape would get, and judging from the counts which methods are worth
training. Does not live here: how it is put into words (`dataplan`), building (`build`). The
thresholds are settings (`types.PlanConfig`) with their reasons.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import sqlalchemy as sa

from thumbwheel.capture.detect import Options, detect
from thumbwheel.capture.ingest import ingest
from thumbwheel.core import ids
from thumbwheel.core.config import Home
from thumbwheel.datasets import store
from thumbwheel.datasets.dataplan import DataPlan, MethodPlan, Power, ShapePlan
from thumbwheel.datasets.evidence import merge_prompts, read_evidence
from thumbwheel.datasets.ledger_rewards import Reward, ledger_values, ledger_warnings
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
from thumbwheel.models.versions import require_agent
from thumbwheel.rewards.checker import refusal
from thumbwheel.rewards.label import dominant_rater, signals, target_counts

METHODS = {"sft": "chats", "kto": "labels", "dpo": "pairs"}
"""Method -> the shape that it needs, in the order in which they are recommended where nothing else
decides."""
COUNTED = 1000
"""Rows of a shape that are counted at once."""


def data_plan(ws: Workspace, agent: str, config: DatasetConfig | None = None) -> DataPlan:
    """What the feedback of `agent` in force now permits; raises NotFound for an unknown agent."""
    from thumbwheel.stats.power import expected_detectable

    require_agent(ws, agent)
    config = config or DatasetConfig()
    tally, facts = Tally(), {name: RowStats() for name in SHAPES.names()}
    values = ledger_values(ws, agent) if config.reward == "ledger" else None
    with ws.db.read() as connection:
        assignment = assign_splits(
            connection, ids.derived("agt", agent), config, config.scope(), unjudged=True
        )
        _count(connection, agent, assignment, tally, facts, values)
        one_voice = dominant_rater(connection, agent, scope=config.scope())
        marks = store.marked(connection, ids.derived("agt", agent))
        cases = store.case_inputs(connection, ids.derived("agt", agent))
        traces = store.trace_count(connection, ids.derived("agt", agent))
        given, about = (
            signals(connection, agent, config=config.label),
            target_counts(connection, agent),
        )
    labels = {
        name: facts["labels"].of_label(label)
        for name, label in (("desirable", True), ("undesirable", False))
    }
    methods = _methods(facts, labels, config.plan)
    recommended, why = _recommend(methods, facts)
    gold = [case.group for case in cases if case.basis == GOLD]
    held = [
        case.group
        for case in cases
        if case.basis != GOLD and assignment.split_of(case.prompt_id) == "gate"
    ]
    ranked = METHODS["dpo" if recommended == "dpo" else "kto" if all(labels.values()) else "sft"]
    groups = {
        "gold": len(set(gold)),
        "feedback cases in gate": len(set(held)),
        "rows in gate": len(facts[ranked].held),
    }
    power = {
        name: Power(n, expected_detectable(n, config.plan.discordance))
        for name, n in groups.items()
    }
    if ranked == "labels":  # good answers are told from bad ones then
        good = labels["desirable"] / max(1, facts["labels"].rows)
        power["rows in gate"] = Power(
            n := groups["rows in gate"],
            expected_detectable(n, config.plan.discordance, good),
            area=True,
        )
    return DataPlan(
        agent=agent,
        traces=traces,
        signals=given,
        reach=about,
        shapes={
            name: ShapePlan(
                one.counts,
                dict(one.origins.most_common()),
                dict(one.drops.most_common()),
                one.warnings(),
                one.scores(),
            )
            for name, one in facts.items()
        },
        labels=labels,
        class_weights=_weights(facts["labels"], config),
        methods=methods,
        drops=dict((tally.drops + _withheld(facts)).most_common()),
        notes=dict(+tally.notes),
        gold=len(gold),
        held_cases=len(held),
        power=power,
        recommended=recommended,
        why=why,
        loudest=one_voice,
        marks=marks,
        warnings=ledger_warnings(ws, agent) if config.reward == "ledger" else [],
    )


def plan_file(
    path: Path,
    source: str | None = None,
    agent: str = "file",
    config: DatasetConfig | None = None,
    options: Options | None = None,
) -> DataPlan:
    """The plan of one file, read by `source` or by the one that recognises it; kept in a temporary
    home that is deleted again.

    `options` say what its columns are. No other home is opened. Raises InputError for a file that
    no source can read, or several can.
    """
    chosen = detect(path, options, source)
    with (
        tempfile.TemporaryDirectory(prefix="thumbwheel-plan-") as folder,
        Workspace.open(Home.at(folder), None, refusal) as ws,
    ):
        report = ingest(ws, agent, chosen.source, path, options=options)
        found = replace(
            data_plan(ws, agent, config), read_as=[chosen.words(), *chosen.mapping, *report.words()]
        )
    if not report.refused:
        return found
    first = report.refusals[0]
    refused = {
        f"line that cannot be taken (the first is line {first['number']}: "
        f"{first['reason']})": report.refused
    }
    return replace(found, drops=refused | found.drops)


def _count(
    connection: sa.Connection,
    agent: str,
    assignment: SplitAssignment,
    tally: Tally,
    facts: Mapping[str, RowStats],
    values: Mapping[str, Reward] | None,
) -> None:
    config = assignment.config
    shapes: dict[str, Shape] = {name: SHAPES.get(name)() for name in facts}
    rows: dict[str, list[Row]] = {name: [] for name in facts}
    runs: list[Evidence] = []

    def every() -> Iterator[tuple[Evidence, Iterable[str]]]:
        apart = [name for name in shapes if not shapes[name].merges]
        scope = config.scope()
        for evidence in read_evidence(
            connection,
            agent,
            config,
            tally,
            unjudged=True,
            assignment=assignment,
            scope=scope,
            values=values,
        ):
            runs.extend([evidence] if evidence.task else [])
            yield evidence, apart if evidence.task else shapes
        yield from (
            (evidence, set(shapes).difference(apart)) for evidence in merge_prompts(runs, Tally())
        )

    for evidence, names in every():
        for name in names:
            for found in shapes[name].rows(evidence, config):
                if isinstance(found, Drop):
                    facts[name].drops[found.reason] += 1
                else:
                    rows[name].append(found)
            if len(rows[name]) >= COUNTED:
                facts[name].take(columns_of(rows[name]))
                rows[name].clear()
    for name, rest in rows.items():
        facts[name].take(columns_of(rest))


def _withheld(facts: Mapping[str, RowStats]) -> Counter[str]:
    """What the gate may not hold, of the shape that loses most by it."""
    return Counter({MACHINES: max(shape.drops[MACHINES] for shape in facts.values())})


def _weights(labels: RowStats, config: DatasetConfig) -> dict[str, float]:
    desirable, undesirable = class_weights(
        labels.labels["train", True], labels.labels["train", False]
    )
    return {
        "desirable": config.desirable_weight or desirable,
        "undesirable": config.undesirable_weight or undesirable,
    }


def _methods(
    facts: Mapping[str, RowStats], labels: Mapping[str, int], config: PlanConfig
) -> dict[str, MethodPlan]:
    needs = {
        "kto": {"labels": config.kto_min} | {f"{name} labels": config.kto_class for name in labels},
        "dpo": {"pairs": config.dpo_min},
        "sft": {"good answers": config.sft_min},
    }
    fine = {"kto": config.kto_fine, "dpo": config.dpo_fine, "sft": config.sft_fine}
    found = {}
    for name, shape in METHODS.items():
        have = {f"{label} labels": count for label, count in labels.items()}
        missing = {
            what: count - have.get(what, facts[shape].rows) for what, count in needs[name].items()
        }
        missing = {what: count for what, count in missing.items() if count > 0}
        readiness = (
            "too few" if missing else "ready" if facts[shape].rows >= fine[name] else "usable"
        )
        found[name] = MethodPlan(shape, facts[shape].rows, readiness, missing)
    return found


def _recommend(
    methods: Mapping[str, MethodPlan], facts: Mapping[str, RowStats]
) -> tuple[str | None, str]:
    """DPO where most was compared; otherwise imitation, which gained most from the same feedback in
    `benchmarks/quality.py`.

    What people said themselves counts: siblings and halves of edits are derived.
    """
    compared = facts["pairs"].origins["correction"] + facts["pairs"].origins["preference"]
    single = facts["labels"].rows - facts["labels"].origins["correction"]
    eligible = [name for name in METHODS if methods[name].eligible]
    if not eligible:
        return None, "no method has enough rows"
    if "dpo" in eligible and 2 * compared >= single:
        return (
            "dpo",
            f"{compared:,} answers were compared or edited, and DPO learns from both sides of each",
        )
    if "sft" in eligible:
        return (
            "sft",
            f"{facts['chats'].rows:,} good answers are known, and imitating them gained most from "
            "the same feedback where it was measured",
        )
    if "kto" in eligible:
        return (
            "kto",
            f"{single:,} answers were judged one by one, good and bad, and KTO learns from both "
            "without needing pairs",
        )
    return (
        "dpo",
        f"the {facts['pairs'].rows:,} pairs say more than the labels, which are too few of one "
        "kind",
    )
