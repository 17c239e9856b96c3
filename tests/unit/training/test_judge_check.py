"""A reward model is held against the base that it is to teach: on judged answers, before the first
step, and a run by a worse one ends there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.reversal import reversal_rows, strings, terse_base
from tests.training_rows import assembled, judge_of
from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home, Sources
from thumbwheel.datasets.build import find
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.engine.reward_model import CARD
from thumbwheel.models.types import Agent
from thumbwheel.training.judge_check import FEWEST, JudgeCheck, check_judge
from thumbwheel.training.train import find_run, run_dir, train
from thumbwheel.training.types import RunState

BASES_ANSWER, OTHER = "ab", "a"
"""The first is what the base gives to every prompt; the reward model here prefers the second."""


@pytest.fixture(scope="module")
def terse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return terse_base(tmp_path_factory.mktemp("terse"))


@pytest.fixture(scope="module")
def judge(terse: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model of absolute scores that is sure that the base's answer is the worse one."""
    sides = {"chosen": OTHER, "rejected": BASES_ANSWER}
    finishes = {"chosen_finish": "stop", "rejected_finish": "stop"}
    pairs = [row | sides | finishes for row in reversal_rows(32, 8)]
    folder = judge_of(terse, tmp_path_factory.mktemp("judge"), pairs, 20)
    card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    (folder / CARD).write_text(json.dumps(card | {"loss_type": "classification"}), encoding="utf-8")
    return folder


def judgements(good: str, bad: str, count: int = FEWEST) -> list[dict[str, Any]]:
    """Half of them good."""
    rows = reversal_rows(count, 0, seed=3, finish_reason="stop")
    return [
        row | {"completion": good if is_good else bad, "label": is_good}
        for number, row in enumerate(rows)
        for is_good in [number % 2 == 0]
    ]


def checked(
    terse: Path, folder: Path, judge: Path | None, judged: list[dict[str, Any]]
) -> JudgeCheck | None:
    named = {"reward_model": "rm1"} if judge else {}
    lengths = {"max_completion_length": 8, "max_length": 40, "reward_workers": 1}
    assembly = assembled("grpo", terse, folder, reversal_rows(8, 4), judge=judge, **lengths | named)
    try:
        return check_judge(assembly, judged)
    finally:
        assembly.runner.close()


def test_a_reward_model_that_ranks_worse_than_the_base_is_refused_with_both_figures(
    terse: Path, judge: Path, tmp_path: Path
) -> None:
    check = checked(terse, tmp_path, judge, judgements(BASES_ANSWER, OTHER))
    assert check == JudgeCheck(FEWEST, reward_model=0.0, base=1.0)
    assert f"of {FEWEST} judged dev answers" in str(check.refusal)
    assert "0% of the time, the base's own probability 100%" in str(check.refusal)


def test_a_reward_model_that_knows_what_the_base_does_not_may_teach(
    terse: Path, judge: Path, tmp_path: Path
) -> None:
    check = checked(terse, tmp_path, judge, judgements(OTHER, BASES_ANSWER))
    assert check == JudgeCheck(FEWEST, reward_model=1.0, base=0.0)
    assert check.refusal is None
    assert JudgeCheck(FEWEST, 0.8, 0.8).refusal  # as good is not better


def test_few_judgements_pairs_and_checkers_are_no_ground_to_refuse(
    terse: Path, judge: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = judgements(BASES_ANSWER, OTHER, FEWEST - 1)
    few += [row | {"origin": "correction"} for row in judgements(BASES_ANSWER, OTHER)]
    assert checked(terse, tmp_path / "few", judge, few) is None
    assert f"{FEWEST - 1} dev answers have a judgement: too few" in capsys.readouterr().err
    enough = judgements(BASES_ANSWER, OTHER)
    assert checked(terse, tmp_path / "unjudged", None, enough) is None

    card = json.loads((judge / CARD).read_text(encoding="utf-8"))
    pairwise = json.dumps(card | {"loss_type": "bradley_terry"})
    (judge / CARD).write_text(pairwise, encoding="utf-8")
    try:
        assert checked(terse, tmp_path / "pairs", judge, enough) is None
    finally:
        (judge / CARD).write_text(json.dumps(card), encoding="utf-8")


@pytest.mark.slow
def test_a_run_by_a_worse_judge_ends_as_nothing_learned_before_its_first_step(
    terse: Path, tmp_path: Path
) -> None:
    """People like what the base is surest of, so that no reward model can rank better."""
    lines: list[dict[str, Any]] = []
    for number, text in zip(range(200), strings(4), strict=False):
        liked = number % 2 == 0
        trace = {"type": "trace", "id": f"t{number}", "finish_reason": "stop"}
        trace |= {"session": f"s{number}", "occurred_at": "2026-03-02T08:00:00Z"}
        trace |= {"input": [{"role": "user", "content": text}]}
        trace |= {"output": BASES_ANSWER if liked else OTHER}
        thumb = {"type": "feedback", "id": f"f{number}", "kind": "thumb", "value": liked}
        thumb |= {"target": {"trace": f"t{number}"}, "rater": {"id": "ana", "kind": "person"}}
        lines += [trace, thumb | {"occurred_at": "2026-03-02T08:01:00Z"}]
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    settings = {"dataset": {"dev": 0.5, "gate": 0.1}}
    with Workspace.open(Home(tmp_path / "home"), Sources(settings, "", {})) as ws:
        ingest(ws, "a", "jsonl", path)
        agent, base = Agent.named("a"), find_base(str(terse), ws.home.cache)
        options: dict[str, Any] = {"max_steps": 1, "require_gain": False, "min_rows": 1}
        options |= {"loss_type": "classification", "max_length": 40}
        reward_model = train(ws, agent, "reward", base, options=options).reward_model
        options = {"reward_model": reward_model, "max_completion_length": 8, "max_length": 40}
        options |= {"max_steps": 1, "min_rows": 1}
        result = train(ws, agent, "grpo", base, options=options)
        assert (result.state, result.version) == (RunState.NOTHING_LEARNED, None)
        assert result.metrics["steps"] == 0 and result.metrics["judge_check"]["base"] == 1.0
        assert "the reward model judges no better than the base" in str(result.reason)

        # The run descends from these answers, so the erasure of one finds it.
        spec = run_dir(ws, find_run(ws, result.run_id)).spec()
        assert find(ws, "a", str(spec.judged_dataset)).shape == "labels"

        options |= {"require_gain": False}
        result = train(ws, agent, "grpo", base, options=options)
        assert (result.state, result.metrics["steps"]) == (RunState.FINISHED, 1)
        assert result.metrics["judge_check"]["base"] == 1.0
