"""One file and one line: a variant of each kind, from a package that is only installed, does its
part in one turn of the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.models.tiny_models import tiny_base
from tests.third_party import install
from thumbwheel.core.config import Home, Sources
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace

ROOT = Path(__file__).parents[2]
ANSWERS = {"fox": '{"at":"den"}', "dog": '{"at":"yard"}'}
SETTINGS = """
rewards: {components: {known_place: {weight: 1.0, settings: {places: [den, yard]}}}}
evaluation: {few_shot: 0, max_new_tokens: 16}
train: {orpo: {learning_rate: 1e-2, max_steps: 40, probe_prompts: 0}}
"""


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., str]:
    """`thumbwheel` as a user runs it where the package is installed; gives its standard output."""
    site = tmp_path / "site"
    site.mkdir()
    install(site)
    (tmp_path / "thumbwheel.yaml").write_text(SETTINGS)
    environment = os.environ | {
        "THUMBWHEEL_HOME": str(tmp_path / "home"),
        "PYTHONPATH": os.pathsep.join([str(site), str(ROOT / "src")]),
    }

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "thumbwheel", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    return run


def write_notes(folder: Path) -> None:
    """Questions with wrong answers and what should have been said; gold cases beside them."""
    for kind in ("notes", "gold"):
        (folder / kind).mkdir(parents=True)
    for number in range(40):
        for animal, right in ANSWERS.items():
            note = "\n---\n".join([f"{animal} {number}", '{"at":"roof"}', right])
            (folder / "notes" / f"{animal}{number}.note").write_text(note)
        animal = ("fox", "dog")[number % 2]
        gold = f"{animal} {100 + number}\n---\n{ANSWERS[animal]}"
        (folder / "gold" / f"case{number}.gold").write_text(gold)


def suite_results(home: Path) -> dict[str, dict[str, Any]]:
    """The results of the one evaluation, by suite."""
    with Workspace.open(Home.at(home), Sources({}, "", {})) as ws, ws.db.read() as connection:
        (results,) = connection.scalars(sa.select(schema.evaluations.c.results))
    return {suite["name"]: suite for suite in results["suites"]}


@pytest.mark.slow
def test_a_turn_with_a_variant_of_each_kind(command: Callable[..., str], tmp_path: Path) -> None:
    write_notes(tmp_path / "kennel")
    shape = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 128}
    tiny_base(tmp_path / "base", **shape, initializer_range=0.1)
    agent = ("--agent", "animals")

    # the source reads the folder, the reward function scores the answers
    assert "kennel" in command("import", "--detect", "kennel/notes")
    command("import", "kennel", "kennel/notes", *agent)
    command("import", "kennel", "kennel/gold", *agent, "--gold")
    command("reward", "run", *agent, "--component", "known_place")
    explained = command("reward", "explain", "fox1", *agent)
    assert "known_place (weight 1): 0.0000" in explained

    # one turn: trained by the method, measured by the suite, exported in the format, deployed
    command("gate", "declare", *agent, "--margin-anchors", "9", "--max-growth", "99")
    turn = ("--base", "base", "--methods", "orpo", "--export", "sharded", "--deploy", "kennel")
    cycle = json.loads(command("loop", "run", *agent, *turn, "--json"))
    try:
        assert cycle["verdict"] == "approved"
        (export,) = cycle["exports"]
        assert export["format"] == "sharded"
        assert len(list(Path(export["path"]).glob("model-*.safetensors"))) > 1

        measure = suite_results(tmp_path / "home")["known_place"]["measures"][0]
        assert measure["before"] < 0.5 < measure["after"]

        (deployment,) = json.loads(command("deployments", *agent, "--json"))
        assert (deployment["target"], deployment["state"]) == ("kennel", "warm")
    finally:
        command("deployments", *agent, "--stop")
