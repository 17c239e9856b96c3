"""Which charts the report has, and what of the stored values goes into each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from thumbwheel.loop.charts import Change, Line, Rung, bars, changes, curves, ladder

PANELS = {
    "loss": "Loss",
    "rewards/margins": "Margin, good over bad",
    "rewards/accuracies": "Good above bad",
    "nll/good": "Nats a token of good answers",
    "format_rate": "Answers with the right format",
    "eos_rate": "Answers that end by themselves",
}
"""Metric of a run -> the title of its panel, in this order."""
SHARES = {"rewards/accuracies", "format_rate", "eos_rate"}
"""Metrics that are shares; their panels run from 0 to 1."""
SMOOTH = 24
"""Training points beyond which the line is a running mean; single batches are noise."""


def draw(value: Mapping[str, Any]) -> dict[str, str]:
    """Name -> SVG for every chart that `value` has data for."""
    evaluation, data, training = value["evaluation"], value["data"], value["training"]
    found = {}
    if evaluation:
        shown = [
            evaluation["primary"],
            *([evaluation["prompting"]] if evaluation.get("prompting") else []),
            *evaluation["preferences"],
        ]
        measures = {one["name"]: one for one in shown}
        found["measures"] = changes(
            [change(one) for one in measures.values()],
            "Before and after, with the interval of the gain",
        )
        if evaluation["slices"]:
            found["slices"] = changes(
                [change(one) for one in evaluation["slices"]], "Before and after by slice"
            )
    if data and data["rows"]:
        found["splits"] = bars(
            {f"{split} rows": count for split, count in data["rows"].items()},
            "Rows of the dataset by split",
        )
        found["origins"] = bars(data["origins"], "Rows of the dataset by what made them")
    for format in dict.fromkeys(one["format"] for one in value["exports"]):
        rungs = [rung(one) for one in value["exports"] if one["format"] == format]
        if len(rungs) > 1:
            found[f"ladder {format}"] = ladder(rungs, f"What a smaller precision costs as {format}")
    panels = lines(training["train"], training["dev"]) if training else {}
    if panels:
        found["curves"] = curves(
            panels,
            training["best"],
            {PANELS[name] for name in SHARES},
            "Training curves by optimiser step",
        )
    return found


def change(measure: Mapping[str, Any]) -> Change:
    """A measure in percent."""
    scaled = {key: 100 * measure[key] for key in ("before", "after", "low", "high")}
    return Change(measure["name"], **scaled, n=measure["n"])


def rung(one: Mapping[str, Any]) -> Rung:
    """An export in one precision."""
    speed = f" · {one['tokens_per_second']:.0f} tokens/s" if one["tokens_per_second"] else ""
    text = f"{one['megabytes']:,.1f} MB{speed} · same top token {100 * one['top1']:.1f} %"
    return Rung(one["name"], one["mean_kl"], text, one["verdict"] == "ok")


def lines(
    train: Sequence[Mapping[str, Any]], dev: Sequence[Mapping[str, Any]]
) -> dict[str, list[Line]]:
    """Panel -> its curves, for the metrics that the run recorded."""
    found = {}
    for name, title in PANELS.items():
        both = [Line("train", smooth(_points(train, name))), Line("dev", _points(dev, name))]
        if kept := [line for line in both if line.points]:
            found[title] = kept
    return found


def _points(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(row["step"], row[name]) for row in rows if row.get(name) is not None]


def smooth(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """A running mean over an eighth of the points before each, where there are many."""
    if len(points) <= SMOOTH:
        return list(points)
    window = len(points) // 8
    return [
        (points[at][0], _mean(points[max(0, at - window + 1) : at + 1]))
        for at in range(len(points))
    ]


def _mean(points: Sequence[tuple[float, float]]) -> float:
    return sum(value for _, value in points) / len(points)
