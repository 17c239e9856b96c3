"""How many dev rows a run is evaluated on, and how often: counted in tokens, never in seconds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny_models import tiny_base
from tests.training_rows import assembled, frozen, loop_of, plain_rows
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.models.types import Agent
from thumbwheel.training.algorithm import Prepared
from thumbwheel.training.assemble import UNREAD_DEV_ROWS, measured
from thumbwheel.training.dev_budget import (
    FEWEST_EVALUATIONS,
    FEWEST_ROWS,
    TRAINING_COST,
    DevChoice,
    DevRow,
    choose,
)
from thumbwheel.training.live import evaluation_plan
from thumbwheel.training.order import Order
from thumbwheel.training.process import made_to_fit
from thumbwheel.training.rundir import open_rows
from thumbwheel.training.train import find_run, run_dir, train
from thumbwheel.training.types import RewardDrivenConfig, Run, TrainConfig

TOKENS = 50


def dev_rows(count: int) -> list[DevRow]:
    return [DevRow(f"{number}:g{number}", TOKENS) for number in range(count)]


def choice_of(train: int, dev: int, config: TrainConfig | None = None) -> DevChoice:
    config = config or TrainConfig()
    order = Order.of(train, config)
    return choose(config, order, train * TOKENS, dev_rows(dev), dev)


def test_a_usual_split_is_evaluated_ten_times_on_all_rows() -> None:
    plan = choice_of(800, 100).plan
    assert (plan.dev_rows, plan.of, plan.eval_steps, plan.evaluations) == (100, 100, 20, 11)
    assert plan.share == round(11 * 100 / (11 * 100 + TRAINING_COST * 4 * 800), 4) == 0.1028
    assert plan.in_words() == (
        "dev rows: all 100, to be evaluated 11 times, about 10 % of the run (eval_budget 15 %)"
    )


def test_over_the_budget_there_are_fewer_evaluations_before_there_are_fewer_rows() -> None:
    plan = choice_of(800, 200).plan
    assert plan.dev_rows == 200
    assert FEWEST_EVALUATIONS < plan.evaluations - 1 < 10
    assert plan.share <= 0.15
    one_more = plan.evaluations + 1
    assert one_more * 200 / (one_more * 200 + TRAINING_COST * 4 * 800) > 0.15


def test_then_there_are_fewer_rows() -> None:
    plan = choice_of(800, 2000).plan
    assert plan.evaluations == 1 + FEWEST_EVALUATIONS
    assert FEWEST_ROWS < plan.dev_rows < 2000
    assert plan.share <= 0.15
    more = plan.evaluations * (plan.dev_rows + 1)
    assert more / (more + TRAINING_COST * 4 * 800) > 0.15


def test_fewer_rows_than_tell_a_gain_are_never_read_and_the_plan_says_so() -> None:
    plan = choice_of(60, 2000).plan
    assert (plan.dev_rows, plan.evaluations) == (FEWEST_ROWS, 1 + FEWEST_EVALUATIONS)
    assert plan.share > 0.15
    assert "fewer would not tell whether anything was learned" in plan.in_words()
    assert choice_of(60, 20).plan.dev_rows == 20


def test_a_run_that_may_stop_early_is_evaluated_more_often_than_its_patience() -> None:
    patient = RewardDrivenConfig(early_stopping_patience=6)
    assert choice_of(800, 2000, patient).plan.evaluations == 1 + 7


def test_steps_between_evaluations_that_were_set_are_kept() -> None:
    plan = choice_of(800, 2000, TrainConfig(eval_steps=5)).plan
    assert (plan.eval_steps, plan.evaluations) == (5, 41)
    assert plan.dev_rows == FEWEST_ROWS


def test_a_budget_of_one_evaluates_everything() -> None:
    plan = choice_of(60, 2000, TrainConfig(eval_budget=1)).plan
    assert (plan.dev_rows, plan.evaluations) == (2000, 1 + 16)


def test_no_dev_rows_no_evaluations() -> None:
    plan = choice_of(60, 0).plan
    assert (plan.dev_rows, plan.evaluations, plan.share) == (0, 0, 0.0)
    assert plan.in_words() == "dev rows: none, so nothing is evaluated"


def test_the_choice_is_by_hash_and_a_smaller_one_is_part_of_a_larger_one() -> None:
    few, many = choice_of(800, 2000).chosen, choice_of(1600, 2000).chosen
    assert set(few) < set(many)
    assert list(many) == sorted(many)
    assert choice_of(800, 2000).chosen == few
    assert max(few) > 1000, "not the first rows only"


def test_longer_dev_rows_cost_more() -> None:
    config = TrainConfig()
    order = Order.of(800, config)
    rows = [DevRow(row.key, 4 * TOKENS) for row in dev_rows(2000)]
    longer = choose(config, order, 800 * TOKENS, rows, 2000)
    assert 4 * longer.plan.dev_rows <= choice_of(800, 2000).plan.dev_rows + 3


def test_methods_that_answer_read_no_more_prompts_than_their_setting() -> None:
    config = TrainConfig()
    order = Order.of(8000, config)
    assert choose(config, order, 8000 * TOKENS, dev_rows(900), 256).plan.dev_rows == 256


def test_rows_that_are_not_read_are_counted() -> None:
    choice = choice_of(800, 2000)
    dev = Prepared(items=list(range(2000)), rows=list(range(2000)), notes=Counter({"a note": 1}))
    read = measured(dev, choice)
    assert read.items == read.rows == list(choice.chosen)
    assert read.notes == {"a note": 1, UNREAD_DEV_ROWS: 2000 - len(choice.chosen)}


def test_a_stored_choice_comes_back_as_it_was() -> None:
    choice = choice_of(800, 2000)
    assert DevChoice.from_json(json.loads(json.dumps(choice.to_json()))) == choice


@pytest.mark.parametrize("method", ["sft", "grpo"])
def test_a_run_evaluates_as_often_and_as_much_as_its_plan_says(
    method: str, tiny_model: Path, tmp_path: Path
) -> None:
    shape = {"sft": "chats", "grpo": "prompts"}[method]
    online = {}
    if method == "grpo":
        online = {"max_completion_length": 8, "num_generations": 2, "reward_workers": 1}
    assembly = assembled(
        method, tiny_model, tmp_path, plain_rows(shape, 40, 80), max_steps=10, **online
    )
    plan = assembly.dev_choice.plan
    assert plan.dev_rows == len(assembly.dev.items) < plan.of == 80
    loop = loop_of(assembly, tmp_path)
    asked = []
    evaluate = assembly.runner.evaluate

    def counted(items):
        asked.append(len(items))
        return evaluate(items)

    assembly.runner.evaluate = counted
    loop.run()
    assert asked == [plan.dev_rows] * plan.evaluations


OPTIONS: dict[str, Any] = {
    "batch_size": 8,
    "max_steps": 10,
    "learning_rate": 1e-3,
    "lora_r": 4,
    "max_length": 128,
    "probe_prompts": 0,
    "require_gain": False,
    "replay_weight": 0.0,
}


@pytest.fixture(scope="module")
def trained_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Workspace, list[Run]]]:
    """A home in which one process, and then two ranks, trained on the same dataset."""
    folder = tmp_path_factory.mktemp("budget")
    base = find_base(str(tiny_base(folder / "base", initializer_range=0.1)), folder / "cache")
    with Workspace.open(Home(folder / "home").prepare(), Sources({}, "", {})) as ws:
        dataset = frozen(ws, "a", "chats", 40, 80)
        results = []
        for ranks in (1, 2):
            options = OPTIONS | {"ranks": ranks}
            agent = Agent.named("a")
            results.append(train(ws, agent, "sft", base, dataset=dataset, options=options))
        yield ws, [find_run(ws, result.run_id) for result in results]


@pytest.mark.slow
def test_all_ranks_read_the_same_rows_and_the_run_says_which_part(
    trained_runs: tuple[Workspace, list[Run]],
) -> None:
    ws, (alone, shared) = trained_runs
    plan = evaluation_plan(ws, alone)
    assert plan == evaluation_plan(ws, shared)
    assert plan is not None and plan.dev_rows < plan.of == 80
    lines = []
    for run in (alone, shared):
        evaluations = [line for line in run_dir(ws, run).read_metrics() if "eval_loss" in line]
        lines.append([line["eval_loss"] for line in evaluations])
        assert plan.in_words() in run_dir(ws, run).log.read_text()
    assert len(lines[0]) == plan.evaluations
    assert lines[0] == pytest.approx(lines[1], rel=1e-4)


@pytest.mark.slow
def test_a_resumed_run_keeps_its_choice(trained_runs: tuple[Workspace, list[Run]]) -> None:
    ws, (run, _) = trained_runs
    folder = run_dir(ws, run)
    stored = folder.fitted()
    other = stored | {"dev_choice": stored["dev_choice"] | {"chosen": list(range(FEWEST_ROWS))}}
    folder.write_fitted(other)
    assembly = made_to_fit(folder, folder.spec(), open_rows(folder.spec()))
    assembly.runner.close()
    assert list(assembly.dev_choice.chosen) == assembly.dev.rows == list(range(FEWEST_ROWS))
    assert folder.fitted() == other
