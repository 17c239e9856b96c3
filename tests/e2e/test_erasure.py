"""The whole turn with a real, tiny model, then a subject is taken out: nothing of theirs is in any
byte of the home."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.tiny_models import tiny_base
from tests.worlds.erasure_world import AGENT, find, lines_of, name, word, write
from tests.worlds.taught_world import QUICK
from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import Conflict
from thumbwheel.datasets.build import build
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.erasure.erase import erase
from thumbwheel.evaluation.evaluate import evaluate
from thumbwheel.evaluation.gate import gate
from thumbwheel.export.package import export
from thumbwheel.models import versions
from thumbwheel.models.types import Agent
from thumbwheel.report.report import report
from thumbwheel.training.train import train

GONE = 1


@pytest.mark.slow
def test_after_a_real_turn_nothing_of_the_subject_is_left(tmp_path: Path) -> None:
    base = str(tiny_base(tmp_path / "base"))
    file = write(
        tmp_path / "feedback.jsonl",
        [line for number in range(10) for line in lines_of(number, common=False)],
    )
    with Workspace.open(Home(tmp_path / "home"), Sources({}, "", {})) as ws:
        ingest(ws, AGENT, "jsonl", file)
        dataset = build(ws, AGENT, "pairs", DatasetConfig(dev=0.2, gate=0.3))
        result = train(
            ws,
            Agent.named(AGENT),
            "dpo",
            find_base(base, ws.home.cache),
            dataset=dataset,
            options={"max_steps": 2, "batch_size": 4, "save_steps": 1, "eval_steps": 1},
        )
        decided = gate(ws, evaluate(ws, versions.version(ws, AGENT, "v1"), QUICK))
        exported = export(ws, versions.version(ws, AGENT, "v1"), "adapter", tmp_path / "exported")
        report(
            ws,
            versions.version(ws, AGENT, "v1"),
            tmp_path / "report.html",
            ws.home.path / "report.json",
        )
        assert any(
            name.startswith("thumbwheel.db") for name in find(ws.home.path, word(GONE))
        )  # in the file or still in its log
        done = erase(ws, Agent.named(AGENT), name(GONE))
        assert find(ws.home.path, word(GONE)) == []
        assert find(tmp_path / "exported", word(GONE)) == []
        assert not (tmp_path / "report.html").exists()
        assert (done.tainted["versions"], done.tainted["runs"], done.tainted["evaluations"]) == (
            ["v1"],
            [result.run_id],
            [decided.evaluation_id],
        )
        assert done.tainted["exports"] == [str(exported.path)]
        assert not (ws.home.runs / result.run_id / "checkpoints").exists()
        with pytest.raises(Conflict, match="tainted"):
            export(ws, versions.version(ws, AGENT, "v1"), "adapter", tmp_path / "again")
        tainted = gate(ws, evaluate(ws, versions.version(ws, AGENT, "v1"), QUICK))
        assert "tainted" in tainted.decision.reasons[0]
        assert ingest(ws, AGENT, "jsonl", file).stored == 0
        assert (
            train(
                ws,
                Agent.named(AGENT),
                "dpo",
                find_base(base, ws.home.cache),
                options={"max_steps": 2, "batch_size": 4},
            ).version
            == "v2"
        )
        assert find(ws.home.path, word(GONE)) == []
