"""The charts of the report, and which stored values each of them shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from thumbwheel.report.charts import Change, ChartLine, Rung, bars, changes, curves, ladder

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
    """Return name -> SVG for every chart that `value` has data for."""
    evaluation, data, training = value["evaluation"], value["data"], value["training"]
    charts = {}
    if evaluation:
        shown = [evaluation["primary"]]
        if evaluation.get("prompting"):
            shown.append(evaluation["prompting"])
        shown += evaluation["preferences"]
        by_name = {measure["name"]: measure for measure in shown}
        measures = [change(measure) for measure in by_name.values()]
        charts["measures"] = changes(measures, "Before and after, with the interval of the gain")
        if evaluation["slices"]:
            slices = [change(measure) for measure in evaluation["slices"]]
            charts["slices"] = changes(slices, "Before and after by slice")
    if data and data["rows"]:
        splits = {f"{split} rows": count for split, count in data["rows"].items()}
        charts["splits"] = bars(splits, "Rows of the dataset by split")
        charts["origins"] = bars(data["origins"], "Rows of the dataset by what made them")
    by_format: dict[str, list[Rung]] = {}
    for export in value["exports"]:
        by_format.setdefault(export["format"], []).append(rung(export))
    for format, rungs in by_format.items():
        if len(rungs) > 1:
            title = f"What a smaller precision costs as {format}"
            charts[f"ladder {format}"] = ladder(rungs, title)
    panels = lines(training["train"], training["dev"]) if training else {}
    if panels:
        shares = {PANELS[name] for name in SHARES}
        title = "Training curves by optimiser step"
        charts["curves"] = curves(panels, training["best"], shares, title)
    return charts


def change(measure: Mapping[str, Any]) -> Change:
    """Return a measure as a change in percent."""
    scaled = {key: 100 * measure[key] for key in ("before", "after", "low", "high")}
    return Change(measure["name"], **scaled, n=measure["n"])


def rung(export: Mapping[str, Any]) -> Rung:
    """Return an export in one precision as a row of the ladder."""
    speed = ""
    if export["tokens_per_second"]:
        speed = f" · {export['tokens_per_second']:.0f} tokens/s"
    text = f"{export['megabytes']:,.1f} MB{speed} · same top token {100 * export['top1']:.1f} %"
    return Rung(export["name"], export["mean_kl"], text, export["verdict"] == "ok")


def lines(
    train: Sequence[Mapping[str, Any]], dev: Sequence[Mapping[str, Any]]
) -> dict[str, list[ChartLine]]:
    """Return panel -> its curves, for the metrics that the run recorded."""
    panels = {}
    for name, title in PANELS.items():
        both = [
            ChartLine("train", smooth(_points(train, name))),
            ChartLine("dev", _points(dev, name)),
        ]
        recorded = [line for line in both if line.points]
        if recorded:
            panels[title] = recorded
    return panels


def _points(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(row["step"], row[name]) for row in rows if row.get(name) is not None]


def smooth(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return a running mean over the preceding eighth of the points; few points are returned
    unchanged."""
    if len(points) <= SMOOTH:
        return list(points)
    window = len(points) // 8
    smoothed = []
    for index, (step, _) in enumerate(points):
        values = [value for _, value in points[max(0, index - window + 1) : index + 1]]
        smoothed.append((step, sum(values) / len(values)))
    return smoothed
