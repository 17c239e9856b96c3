"""Some of thirty raters lie, through a whole training on a small model: what is learned, and what
the gate says. Gold cases are the owner's, so nobody who rates can move what the gate measures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny_models import record, tiny_base
from tests.worlds.feedback_world import AGENT, FeedbackWorld
from tests.worlds.taught_world import PLACES, QUICK, SPLIT, add_case, ask
from thumbwheel.datasets.build import build, load_rows
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.evaluation.evaluate import evaluate
from thumbwheel.evaluation.gate import gate
from thumbwheel.evaluation.policy import GateVerdict
from thumbwheel.evaluation.types import Evaluation
from thumbwheel.models import versions
from thumbwheel.models.types import LIVE, Agent, ModelVersion
from thumbwheel.training.train import train

pytestmark = pytest.mark.repeat

N_RATERS = 30
N_PROMPTS = 60
N_CASES = 40
OPTIONS = {"max_steps": 100, "learning_rate": 1e-2, "lora_r": 16, "batch_size": 16}


@dataclass
class Trained:
    """A candidate that learned from thirty raters, in an open home."""

    ws: Workspace
    right_rows: int
    rows: int
    version: ModelVersion
    adapter: Path
    dataset_id: str

    def judged(self) -> tuple[Evaluation, GateVerdict]:
        """Evaluate it on gold against what is live, else the base; what the gate says."""
        return judged(self.ws, self.version)


def judged(ws: Workspace, version: ModelVersion) -> tuple[Evaluation, GateVerdict]:
    """Evaluate a version on gold; returns what the gate says, too."""
    evaluation = evaluate(ws, version, QUICK)
    return evaluation, gate(ws, evaluation).decision.verdict


@pytest.fixture(scope="module")
def ignorant_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random base that knows nothing."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("base")
    shape = {"hidden_size": 48, "head_dim": 12, "intermediate_size": 96}
    return tiny_base(folder / "base", initializer_range=0.1, **shape)


def world_with(liars: int, everybody: bool) -> FeedbackWorld:
    """A right and a wrong answer to each prompt, with a thumb of one rater, or of everybody; the
    first raters say the opposite of the truth."""
    world = FeedbackWorld()
    for number in range(N_PROMPTS):
        word, right = list(PLACES.items())[number % 2]
        for text in PLACES.values():
            name = f"{word}{number}-{text}"
            trace = world.trace(name, world.prompt(ask(word, 7 * (number // 2) + 3)), text)
            for rater in range(N_RATERS) if everybody else [number % N_RATERS]:
                thumb = (text == right) != (rater < liars)
                world.say("thumb", thumb, trace, rater=f"rater-{rater}")
    for number in range(N_CASES):
        add_case(world, ("fox", "dog")[number % 2], 7 * (number // 2) + 5, "gold")
    return world


def is_right(row: Any) -> bool:
    """Whether a row teaches the truth."""
    word = str(row.prompt[-1]["content"]).split()[0]
    answer = row.completion
    text = answer if isinstance(answer, str) else answer[-1]["content"]
    return bool(PLACES[word] == text)


@contextmanager
def trained(folder: Path, base: Path, liars: int, everybody: bool = False) -> Iterator[Trained]:
    """Feedback of thirty raters, a dataset of it, and a training on that."""
    ws = world_with(liars, everybody).into(folder)
    try:
        dataset = build(ws, AGENT, "chats", SPLIT)
        rows = list(load_rows(ws, dataset.id, "train"))
        found_base = find_base(str(base), ws.home.cache)
        result = train(ws, Agent.named(AGENT), "sft", found_base, dataset=dataset, options=OPTIONS)
        assert result.version is not None
        version = versions.version(ws, AGENT, result.version)
        adapter = ws.home.runs / result.run_id / "adapter"
        right_rows = sum(map(is_right, rows))
        yield Trained(ws, right_rows, len(rows), version, adapter, dataset.id)
    finally:
        ws.db.close()


@pytest.fixture(scope="module")
def honest(ignorant_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The adapter that honest raters taught."""
    with trained(tmp_path_factory.mktemp("honest") / "home", ignorant_base, liars=0) as result:
        evaluation, verdict = result.judged()
        assert (result.right_rows, verdict) == (result.rows, GateVerdict.APPROVED)
        assert evaluation.primary.after >= 0.9
        yield result.adapter


def put_live(poisoned: Trained, honest: Path) -> None:
    """Approve what honest raters taught in the poisoned home, and make it what runs there."""
    (parent,) = [
        version
        for version in versions.versions(poisoned.ws, Agent.named(AGENT))
        if version.adapter is None
    ]
    fields = {"algorithm": "sft", "base": parent.base, "state": "finished"}
    fields["dataset_id"] = poisoned.dataset_id
    run_id = record(poisoned.ws, schema.runs, AGENT, **fields)
    version = versions.add_candidate(poisoned.ws, parent, run_id, honest)
    _, verdict = judged(poisoned.ws, version)
    assert verdict is GateVerdict.APPROVED
    versions.point(poisoned.ws, versions.by_id(poisoned.ws, version.id), LIVE)


@pytest.mark.parametrize("liars", [1, 3, 10, 20])
def test_liars_replace_nothing_that_is_better(
    liars: int, ignorant_base: Path, honest: Path, tmp_path: Path
) -> None:
    with trained(tmp_path / "home", ignorant_base, liars) as poisoned:
        assert poisoned.rows - poisoned.right_rows >= liars // 3, "the lies are in the rows"
        put_live(poisoned, honest)
        evaluation, verdict = poisoned.judged()
        assert evaluation.primary.before >= 0.9 and verdict is GateVerdict.REJECTED
        if liars <= 3:
            assert evaluation.primary.after >= 0.7, "a few lies ruin no training"


def test_raters_who_see_the_same_answers_outvote_ten_liars(
    ignorant_base: Path, tmp_path: Path
) -> None:
    with trained(tmp_path / "home", ignorant_base, liars=10, everybody=True) as poisoned:
        assert poisoned.right_rows == poisoned.rows > 0
        evaluation, verdict = poisoned.judged()
        assert evaluation.primary.after >= 0.7 and verdict is GateVerdict.APPROVED
