"""A real gbstats: its figures are those in our vectors, and its intervals of every snapshot of the
public experiments of ASOS equal ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.others.environments import peer_environment
from tests.others.peer_server import output_of
from tests.public_data import public_data
from thumbwheel.stats.sequential import Difference, Sample

pytestmark = [pytest.mark.peers, pytest.mark.slow]
PROGRAM = "statistics_vectors.py"
VECTORS = Path(__file__).parents[1] / "unit" / "stats" / "peer_vectors.json"


def test_the_stored_vectors_are_what_gbstats_says(tmp_path: Path) -> None:
    python = peer_environment("gbstats") / "python"
    vectors = json.loads(VECTORS.read_text())
    for name, rows in output_of(python, PROGRAM, "gbstats", folder=tmp_path).items():
        assert rows == vectors[name]


def test_every_snapshot_of_asos_has_gbstats_interval(tmp_path: Path) -> None:
    path = public_data("ab-tests/asos-digital-experiments.csv")
    python = peer_environment("gbstats") / "python"
    rows = output_of(python, PROGRAM, "gbstats", str(path), folder=tmp_path)
    assert len(rows) > 10_000
    for row in rows:
        difference = Difference.between(Sample(**row["control"]), Sample(**row["treatment"]))
        interval = difference.interval(row["alpha"], row["tuned_for"])
        assert [interval.low, interval.high] == pytest.approx([row["low"], row["high"]], abs=1e-9)
