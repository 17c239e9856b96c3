"""The report shows every export with its parity, what each precision costs and which were not kept;
and the version as it was served."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.db.schema import evaluations, exports
from thumbwheel.db.workspace import Workspace
from thumbwheel.export import store
from thumbwheel.export.types import Export, Parity, ParityLimits, TaskScore
from thumbwheel.models import versions
from thumbwheel.models.types import ModelVersion
from thumbwheel.report import report_charts
from thumbwheel.report.report import collect, page

FINE = Parity(
    5,
    200,
    "Q8_0",
    0.1,
    1.2e-3,
    0.97,
    0.5,
    True,
    ParityLimits(0.02, 0.9, None),
    0.5,
    size=1_500_000,
    tokens_per_second=312.0,
    task=TaskScore(24, 0.75, 0.80, -0.2, 0.1),
    notes=("send text in Unicode form NFC",),
)
COARSE = replace(FINE, dtype="Q2_K", mean_kl=0.9, top1=0.2, size=600_000, task=None, notes=())


@pytest.mark.slow
def test_exports_are_a_table_and_precisions_of_one_format_a_chart(
    empty_ws: Workspace, turn: ModelVersion
) -> None:
    def add(parity: Parity, accepted: str | None = None, format: str = "gguf") -> None:
        quant = parity.dtype if format == "gguf" else None
        done = Export(
            ids.new("exp"),
            "support",
            "v1",
            format,
            Path("/models/x"),
            {},
            parity,
            quant,
            accepted,
            ("<|im_end|>",),
        )
        empty_ws.db.write(lambda connection: store.add(connection, empty_ws.home, turn, done))

    add(FINE)
    add(
        replace(FINE, dtype="BF16", size=90_000, tokens_per_second=None, task=None),
        format="adapter",
    )
    value = collect(empty_ws, versions.version(empty_ws, "support", "v1"))
    assert [export["name"] for export in value["exports"]] == ["merged", "gguf Q8_0", "adapter"]
    assert not [name for name in report_charts.draw(value) if "ladder" in name], (
        "one precision is no ladder"
    )
    shown = page(value)
    assert (
        '<td>merged</td><td class="n">4.0</td><td class="n">–</td><td class="n">1e-09</td><td '
        'class="n">100.0 %</td>' in shown
    )
    assert "<td>adapter</td>" in shown and "<svg" not in shown.split("<h2>Exports</h2>")[1]
    add(COARSE)
    value = collect(empty_ws, versions.version(empty_ws, "support", "v1"))
    assert [export["verdict"] for export in value["exports"]] == ["ok", "ok", "not kept", "ok"]
    drawn = report_charts.draw(value)["ladder gguf"]
    assert ET.fromstring(drawn).attrib["role"] == "img"
    assert "gguf Q8_0: KL 0.0012, 1.5 MB" in drawn
    assert "merged" not in drawn
    html = page(value)
    assert drawn in html
    assert "mean KL 0.9 is above 0.02" in html
    assert "75.0" in html
    assert "send text in Unicode form NFC" in html
    add(COARSE, "Ada: to see")
    assert (
        collect(empty_ws, versions.version(empty_ws, "support", "v1"))["exports"][2]["verdict"]
        == "taken by Ada: to see"
    )


@pytest.mark.slow
def test_a_version_as_served_is_a_table_beside_the_decision(
    empty_ws: Workspace, turn: ModelVersion
) -> None:
    with empty_ws.db.read() as connection:
        decided = dict(connection.execute(sa.select(evaluations)).mappings().one())

    def add(form: str | None, after: float, error: float | None = 0.02) -> None:
        spread = {"centre": 0.0, "error": error, "degrees": 9.0, "limit": 1.0}
        primary = decided["results"]["primary"] | {
            "after": after,
            "gain": after - 0.612,
            "spread": spread,
        }
        results = decided["results"] | {"form": form, "primary": primary}
        row = decided | {"id": ids.new("evl"), "results": results, "recorded_at": datetime.now(UTC)}
        empty_ws.db.write(lambda connection: connection.execute(evaluations.insert().values(row)))

    assert collect(empty_ws, versions.version(empty_ws, "support", "v1"))[
        "served"
    ] == [] and "As served" not in page(
        collect(empty_ws, versions.version(empty_ws, "support", "v1"))
    )
    add("gguf:model<b>.gguf", 0.5)
    add("gguf:model<b>.gguf", 0.75)
    add("http://127.0.0.1:8000/v1#v1", 0.7, None)
    add(None, 0.9)
    value = collect(empty_ws, versions.version(empty_ws, "support", "v1"))
    assert value["evaluation"]["id"] == "evl_1"
    assert [(served_row["form"], served_row["after"]) for served_row in value["served"]] == [
        ("gguf:model<b>.gguf", 0.75),
        ("http://127.0.0.1:8000/v1#v1", 0.7),
    ]
    shown = re.sub("<[^>]+>", " ", page(value).split("<h2>As served</h2>")[1].split("</table>")[0])
    assert (
        "gguf:model&lt;b&gt;.gguf success v0 0.612 0.750 +0.138 +0.148 to +0.230 620"
        in " ".join(shown.split())
    )
    assert "http://127.0.0.1:8000/v1#v1 success v0 0.612 0.700 +0.088 not known 620" in " ".join(
        shown.split()
    )


def test_an_export_is_read_as_it_was_written(empty_ws: Workspace, turn: ModelVersion) -> None:
    empty_ws.db.write(lambda connection: connection.execute(exports.delete()))
    done = Export(
        ids.new("exp"),
        "support",
        "v1",
        "gguf",
        Path("/models/x"),
        {"a": {"size": 1}},
        FINE,
        "Q8_0",
        None,
        ("<|im_end|>", "</s>"),
    )
    empty_ws.db.write(lambda connection: store.add(connection, empty_ws.home, turn, done))
    with empty_ws.db.read() as connection:
        assert store.of_version(connection, empty_ws.home, turn.id) == [done]
