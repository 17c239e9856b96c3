"""The report shows what each exported precision costs, and which were not kept."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

from thumbwheel.core import ids
from thumbwheel.db.schema import exports
from thumbwheel.db.workspace import Workspace
from thumbwheel.export import store
from thumbwheel.export.types import Export, Limits, Parity, Task
from thumbwheel.loop import figures
from thumbwheel.loop.report import collect, page
from thumbwheel.models.types import ModelVersion

FINE = Parity(
    5, 200, "Q8_0", 0.1, 1.2e-3, 0.97, 0.5, True, Limits(0.02, 0.9, None), 0.5, size=1_500_000, tokens_per_second=312.0,
    task=Task(24, 0.75, 0.80, -0.2, 0.1), notes=("send text in Unicode form NFC",),
)  # fmt: skip
COARSE = replace(FINE, dtype="Q2_K", mean_kl=0.9, top1=0.2, size=600_000, task=None, notes=())


def test_precisions_are_a_table_and_a_chart(ws: Workspace, turn: ModelVersion) -> None:
    def add(parity: Parity, accepted: str | None = None) -> None:
        done = Export(ids.new("exp"), "support", "v1", "gguf", Path("/models/x"), {}, parity, parity.dtype, accepted, ("<|im_end|>",))
        ws.db.write(lambda connection: store.add(connection, turn_agent, turn.id, done))

    turn_agent = ids.derived("agt", "support")
    ws.db.write(lambda connection: connection.execute(exports.delete()))
    add(FINE)
    value = collect(ws, "support", "v1")
    assert "ladder" not in figures.draw(value), "one precision is no ladder"
    add(COARSE)
    value = collect(ws, "support", "v1")
    assert [one["verdict"] for one in value["precisions"]] == ["ok", "not kept"]
    drawn = figures.draw(value)["ladder"]
    assert ET.fromstring(drawn).attrib["role"] == "img"
    assert "gguf Q8_0: KL 0.0012, 1.5 MB" in drawn
    html = page(value)
    assert "Precisions" in html
    assert "mean KL 0.9 is above 0.02" in html
    assert "75.0" in html
    assert "send text in Unicode form NFC" in html
    add(COARSE, "Ada: to see")
    assert collect(ws, "support", "v1")["precisions"][1]["verdict"] == "taken by Ada: to see"


def test_an_export_is_read_as_it_was_written(ws: Workspace, turn: ModelVersion) -> None:
    ws.db.write(lambda connection: connection.execute(exports.delete()))
    done = Export(
        ids.new("exp"), "support", "v1", "gguf", Path("/models/x"), {"a": {"size": 1}}, FINE, "Q8_0", None, ("<|im_end|>", "</s>")
    )
    ws.db.write(lambda connection: store.add(connection, ids.derived("agt", "support"), turn.id, done))
    with ws.db.read() as connection:
        assert store.of_version(connection, turn.id) == [done]
