"""Curves over each other on pages whose policy forbids styles in their elements."""

from __future__ import annotations

from xml.etree import ElementTree

from thumbwheel.report.charts import (
    ALL_POINTS,
    Band,
    Change,
    ChartLine,
    Rung,
    bars,
    changes,
    curves,
    ladder,
    series,
    thinned,
)

CURVE = ChartLine("gain", [(step, step / 50) for step in range(50)])


def test_no_chart_has_a_style_attribute_or_element() -> None:
    band = Band([(step, value - 1, value + 1) for step, value in CURVE.points])
    charts = [
        series([CURVE], "Gain", band=band, level=0.0, x_label="exposures"),
        changes([Change("<b>", 10, 20, 5, 15, 100)], "Before & after"),
        curves({"Loss": [CURVE]}, 10, set(), "Curves"),
        bars({"a": 3, "b": 5}, "Counts"),
        ladder([Rung("q8", 0.01, "ok", True), Rung("q4", 0.1, "bad", False)], "Precisions"),
    ]
    for chart in charts:
        root = ElementTree.fromstring(chart)
        for element in root.iter():
            assert "style" not in element.attrib
            assert not element.tag.endswith("}style")
        colours = {element.get("stroke") for element in root.iter()}
        colours |= {element.get("fill") for element in root.iter()}
        assert colours & {"#2f7ed8", "currentColor", "#8a8f98"}, "what styles said is said still"


def test_a_spike_survives_thinning_and_a_crowd_stays_small() -> None:
    points = [(step, 0.0) for step in range(5000)]
    points[1234] = (1234, 99.0)
    points[4321] = (4321, -99.0)
    few = thinned(points, 100)
    assert len(few) <= 102
    assert {points[0], points[-1], points[1234], points[4321]} <= set(few)
    assert few == sorted(few)
    crowd = [ChartLine(f"run {number}", points) for number in range(100)]
    drawing = series(crowd, "Loss")
    assert len(drawing) < 40 * ALL_POINTS
    assert "run 99" in drawing and ">\u00a0run 98<" not in drawing
