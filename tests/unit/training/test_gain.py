"""A run that gained nothing over the base ends as "nothing learned": the rule over rows of figures,
and whole runs of several methods."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.opened_home import invoked
from tests.training_rows import QUICK, assembled, loop_of, plain_rows, row, stored
from thumbwheel.core import ids, present
from thumbwheel.core.errors import Conflict
from thumbwheel.datasets.types import Dataset
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.models import reward_models
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import ensure_agent, versions
from thumbwheel.training.algorithms import ALGORITHMS
from thumbwheel.training.assemble import settings
from thumbwheel.training.commands import result_page
from thumbwheel.training.gain import Gain, gain_of
from thumbwheel.training.train import resume, runs, train
from thumbwheel.training.types import RunResult, RunState


def judged(
    metric: str, base: list[float], best: list[float], groups: list[str] | None = None, **more: Any
) -> Gain:
    values_by_name = {metric: base} | {name: values[0] for name, values in more.items()}
    new = {metric: best} | {name: values[1] for name, values in more.items()}
    gain = gain_of(
        metric,
        metric != "loss",
        values_by_name,
        new,
        groups or [str(number) for number in range(len(base))],
    )
    assert gain is not None
    return gain


def test_a_reward_model_that_judges_worse_than_it_began() -> None:
    """Dev accuracy 0.214 where the base had 0.786, of 14 answers."""
    gain = judged("accuracy", [1.0] * 11 + [0.0] * 3, [0.0] * 11 + [1.0] * 3)
    assert (round(gain.base, 3), round(gain.best, 3), gain.groups) == (0.786, 0.214, 14)
    assert (
        gain.nothing
        and "nothing learned" in gain.nothing
        and "0.214, 0.786 under the base" in gain.nothing
    )


def test_a_margin_below_that_of_the_base() -> None:
    """-0.012 on 24 pairs: no single evaluation was better than doing nothing."""
    chance = random.Random(3)
    noise = [chance.gauss(0, 0.1) for _ in range(24)]
    margins = [value - sum(noise) / 24 - 0.012 for value in noise]
    gain = judged("rewards/margins", [0.0] * 24, margins)
    assert gain.best == pytest.approx(-0.012) and gain.high > 0
    assert gain.nothing and "the result is no better than the base" in gain.nothing


def test_few_rows_decide_nothing_against_a_run_unless_it_is_plainly_worse() -> None:
    slight = judged("rewards/margins", [0.0] * 7, [0.3, -0.1, -0.2, 0.1, -0.2, 0.1, -0.1])
    assert slight.nothing is None and slight.unsure and "too few dev rows" in slight.unsure
    assert judged("rewards/margins", [0.0] * 10, [-0.1 * number for number in range(1, 11)]).nothing
    assert judged("rewards/margins", [0.0] * 7, [-0.1] * 7).nothing is None
    assert (
        judged("reward", [0.5] * 12, [0.5] * 12).nothing is None
    )  # the same greedy answers to a few prompts
    same = judged(
        "rewards/margins",
        [0.0] * 24,
        [-0.1, -0.2, 0.1] * 8,
        ["one conversation"] * 12 + ["another"] * 12,
    )
    assert (same.groups, same.nothing) == (2, None)


def test_a_gain_is_no_matter_for_words_and_one_within_noise_is_said() -> None:
    clear = judged(
        "loss",
        [2.0 + number / 10 for number in range(24)],
        [1.5 + number / 10 for number in range(24)],
    )
    assert (clear.nothing, clear.unsure) == (None, None) and clear.low > 0
    chance = random.Random(1)
    faint = [chance.gauss(0, 1) for _ in range(30)]
    faint = [value - sum(faint) / 30 + 0.05 for value in faint]
    gain = judged("rewards/margins", [0.0] * 30, faint)
    assert gain.nothing is None and gain.unsure and "within noise" in gain.unsure


def test_where_the_share_stays_the_dev_loss_speaks() -> None:
    right = [1.0, 0.0] * 15
    loss = ([0.7] * 30, [0.5] * 30)
    assert judged("accuracy", right, right, loss=loss).nothing is None
    assert judged("accuracy", right, right, loss=(loss[1], loss[0])).nothing
    assert judged("accuracy", right, [0.0] * 30, loss=loss).nothing  # plainly worse is worse


def test_equal_rewards_are_chance_and_not_wrong() -> None:
    """Strictly counted, as the metric is, any order at all would be a gain over the base."""
    margins = [-0.2] * 8 + [0.1] * 16 + [-0.1] * 12
    strict = [float(margin > 0) for margin in margins]
    gain = judged(
        "rewards/accuracies", [0.0] * 36, strict, **{"rewards/margins": ([0.0] * 36, margins)}
    )
    assert gain.base == 0.5 and gain.best == pytest.approx(16 / 36) and gain.nothing


def test_rows_without_a_value_are_left_out() -> None:
    assert (
        gain_of("reward", True, {"reward": [None, 1.0]}, {"reward": [0.5, None]}, ["a", "b"])
        is None
    )
    gain = gain_of(
        "reward",
        True,
        {"reward": [None, 1.0, float("nan")]},
        {"reward": [0.5, 2.0, 1.0]},
        ["a", "b", "c"],
    )
    assert gain is not None and (gain.base, gain.best, gain.groups) == (1.0, 2.0, 1)


@pytest.mark.parametrize(("rows", "most"), [(6, 0.0), (12, 0.003), (20, 0.02), (60, 0.001)])
def test_how_often_noise_hides_a_real_gain(rows: int, most: float) -> None:
    """Margins of a policy that truly ranks 70 % of pairs right, at a single evaluation; a run has
    ten of them and keeps the best."""
    chance = random.Random(rows)
    refused = 0
    for _ in range(2000):
        margins = [chance.gauss(0.524, 1) for _ in range(rows)]
        refused += judged("rewards/margins", [0.0] * rows, margins).nothing is not None
    assert refused / 2000 <= most


@pytest.mark.slow
def test_values_by_row_have_the_metrics_as_their_means(tiny_model: Path, tmp_path: Path) -> None:
    """Whatever the micro-batches: the comparison rests on the same figures as the choice of the
    checkpoint."""
    shapes = {
        "sft": "chats",
        "dpo": "pairs",
        "kto": "labels",
        "grpo_offline": "groups",
        "reward": "pairs",
    }
    for method, shape in shapes.items():
        (folder := tmp_path / method).mkdir()
        rows = [
            item | {"weight": 1.0 + number % 3}
            for number, item in enumerate(plain_rows(shape, 8, 30))
        ]
        assembly = assembled(method, tiny_model, folder, rows, learning_rate=1e-2)
        loop = loop_of(assembly, folder)
        loop.run()
        whole, parts = assembly.runner.evaluate(assembly.dev.items), assembly.runner
        parts.budget.tokens = 64
        for outcome in (whole, parts.evaluate(assembly.dev.items)):
            values_by_name = {"loss": outcome.loss} | outcome.metrics
            assert {
                "loss",
                type(assembly.config).model_fields["metric_for_best_model"].default,
            } <= outcome.rows.keys()
            for name, values in outcome.rows.items():
                assert len(values) == 30 and sum(values) / 30 == pytest.approx(
                    values_by_name[name], abs=1e-5
                ), (method, name)
                assert values == pytest.approx(whole.rows[name], abs=1e-4), (method, name)
        assembly.runner.close()


def turned(shape: str) -> list[Any]:
    """24 rows in train, and in dev the same prompts and answers with the opposite verdict."""
    train_rows = [row(shape, number) for number in range(24)]
    dev_rows = []
    for train_row in train_rows:
        if shape == "pairs":
            opposite = replace(train_row, chosen=train_row.rejected, rejected=train_row.chosen)
        elif shape == "groups":
            opposite = replace(train_row, values=train_row.values[::-1])
        else:
            opposite = replace(train_row, label=not train_row.label)
        dev_rows.append(
            replace(
                opposite,
                row_id=f"dev_{train_row.row_id}",
                split="dev",
                group=f"dev {train_row.group}",
            )
        )
    return [*train_rows, *dev_rows]


def dataset(ws: Workspace, shape: str) -> Dataset:
    ensure_agent(ws, "a")
    manifest = {"counts": {"train": 24, "dev": 24, "gate": 0}}
    frozen = Dataset(
        ids.derived("dst", "a", shape),
        "a",
        shape,
        ids.fingerprint(shape),
        manifest,
        datetime.now(UTC),
    )
    return stored(ws, frozen, turned(shape))


WRONG_WAY = {
    "num_train_epochs": 6,
    "learning_rate": 2e-3,
    "lr_scheduler_type": "constant",
    "early_stopping_patience": 2,
}


@pytest.mark.parametrize(
    ("method", "shape", "more"),
    [
        ("dpo", "pairs", {"nll_weight": 0.0}),
        ("kto", "labels", {"nll_weight": 0.0}),
        ("grpo_offline", "groups", {}),
        ("reward", "pairs", {}),
        ("reward", "labels", {"loss_type": "classification"}),
    ],
)
def test_a_run_that_goes_the_wrong_way(
    tiny_model: Path, tmp_path: Path, method: str, shape: str, more: dict[str, Any]
) -> None:
    assembly = assembled(
        method, tiny_model, tmp_path, list(map(asdict, turned(shape))), **WRONG_WAY | more
    )
    ending = loop_of(assembly, tmp_path).run()
    assembly.runner.close()
    assert ending.gain is not None and ending.gain.groups == 24
    assert ending.gain.nothing and "the result is no better than the base" in ending.gain.nothing


UNMOVED = {"learning_rate": 1e-30, "max_steps": 2, "early_stopping_patience": None}
ANSWERING = {"num_generations": 2, "max_completion_length": 8, "token_budget": 4096}


@pytest.mark.parametrize(
    ("method", "shape", "more"),
    [
        ("sft", "chats", {}),
        ("sft", "scored", {"weighting": "reward"}),
        ("reward", "scored", {"loss_type": "regression"}),
        ("grpo", "prompts", ANSWERING),
        ("ppo", "prompts", ANSWERING | {"critic_warmup_steps": 0}),
    ],
)
def test_a_run_that_moved_nothing(
    tiny_model: Path, tmp_path: Path, method: str, shape: str, more: dict[str, Any]
) -> None:
    rows = plain_rows(shape, 8, 20)
    method_class = ALGORITHMS.get(method)
    config = method_class.resolve_config(settings(method, QUICK | UNMOVED | more), rows)
    assembly = assembled(
        method, tiny_model, tmp_path, rows, **config.model_dump(exclude_unset=True)
    )
    ending = loop_of(assembly, tmp_path).run()
    assembly.runner.close()
    assert ending.gain is not None and ending.gain.groups == 20
    assert ending.gain.nothing and ending.gain.base == pytest.approx(ending.gain.best)


def test_without_dev_rows_it_says_so_and_goes_on(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assembly = assembled("dpo", tiny_model, tmp_path, plain_rows("pairs", 8))
    ending = loop_of(assembly, tmp_path).run()
    assert (ending.best, ending.gain) == (2, None)
    output = " ".join(capsys.readouterr().err.split())
    assert (
        "there are no dev rows" in output and "nothing tells whether it gained anything" in output
    )


@pytest.mark.slow
def test_the_command_makes_nothing_and_ends_with_1(
    empty_ws: Workspace, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:

    from thumbwheel.loop.cycle_commands import train as command

    options = QUICK | WRONG_WAY | {"loss_type": "bradley_terry"}
    arguments = [
        part
        for name, value in options.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    asked = [
        "reward",
        "--agent",
        "a",
        "--base",
        str(tiny_model),
        "--dataset",
        dataset(empty_ws, "pairs").id,
        *arguments,
        "--json",
    ]
    outcome = invoked(empty_ws, command, *asked)
    result = json.loads(outcome.stdout)
    assert outcome.exit_code == 1
    assert (result["state"], result["version"], result["reward_model"]) == (
        "nothing_learned",
        None,
        None,
    )
    assert result["metrics"]["gain"]["best"] < result["metrics"]["gain"]["base"]
    assert reward_models.reward_models(empty_ws, "a") == versions(empty_ws, Agent.named("a")) == []
    (record,) = runs(empty_ws, Agent.named("a"))
    assert (record.state, record.reason) == (RunState.NOTHING_LEARNED, result["reason"])
    with pytest.raises(Conflict, match="it is finished"):
        resume(empty_ws, record)
    page = result_page(TypeAdapter(RunResult).validate_python(result), "a", "reward")
    present.show(page)
    output = " ".join(capsys.readouterr().err.split())
    assert "nothing learned: the result is no better than the base" in output
    assert "thumbwheel dataset health pairs --agent a" in output and "--no-require-gain" in output


@pytest.mark.slow
def test_it_is_kept_where_that_is_wanted(empty_ws: Workspace, tiny_model: Path) -> None:
    options = QUICK | WRONG_WAY | {"nll_weight": 0.0, "require_gain": False}
    kept_run = train(
        empty_ws,
        Agent.named("a"),
        "dpo",
        find_base(str(tiny_model), empty_ws.home.cache),
        dataset=dataset(empty_ws, "pairs"),
        options=options,
    )
    assert (kept_run.state, kept_run.version) == (
        RunState.FINISHED,
        "v1",
    ) and "nothing learned" in str(kept_run.reason)
