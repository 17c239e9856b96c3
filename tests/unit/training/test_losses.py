"""What parity with a peer cannot show: weights, label smoothing, lone rows, and that the token
budget changes no gradient."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.training_rows import assembled, plain_rows, shake
from thumbwheel.engine.tree import plan

SHAPES = {"sft": "chats", "dpo": "pairs", "kto": "labels"}


def gradient(made: Any, examples: Any, budget: int) -> tuple[float, Any, dict[str, float]]:
    import torch

    made.model.zero_grad()
    made.runner.budget.tokens = budget
    outcome = made.runner.run(examples, grad=True)
    return (
        outcome.loss,
        torch.cat([one.grad.flatten() for one in made.model.parameters() if one.requires_grad]),
        outcome.metrics,
    )


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [("sft", {}), ("dpo", {"nll_weight": 0.5}), ("kto", {"nll_weight": 0.5, "beta": 0.3})],
)
def test_the_token_budget_changes_nothing(
    base: Path, tmp_path: Path, algorithm: str, changes: dict[str, Any]
) -> None:
    rows = plain_rows(SHAPES[algorithm], 12)
    for number, row in enumerate(rows):
        row["weight"] = 0.5 + number % 3
    made = assembled(algorithm, base, tmp_path, rows, **changes)
    shake(made.model)
    whole = gradient(made, made.train.items, 100_000)
    parts = gradient(made, made.train.items, 64)
    assert len(plan(made.train.items, 64, made.engine.layout)) > 5
    assert parts[0] == pytest.approx(whole[0], rel=1e-5)
    assert float((parts[1] - whole[1]).norm() / whole[1].norm()) < 1e-5
    assert parts[2] == pytest.approx(whole[2], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("algorithm", SHAPES)
def test_a_weight_of_two_is_the_row_twice(base: Path, tmp_path: Path, algorithm: str) -> None:
    rows = plain_rows(SHAPES[algorithm], 3)
    heavy = [row | {"weight": 2.0 if number == 1 else 1.0} for number, row in enumerate(rows)]
    made = assembled(algorithm, base, tmp_path, [*heavy, *rows, rows[1]])
    shake(made.model)
    made.method.__dict__["baseline"] = lambda block, score: (
        None
    )  # whose neighbours differ between the two
    once, twice = (
        gradient(made, made.train.items[:3], 4096),
        gradient(made, made.train.items[3:], 4096),
    )
    assert once[0] == pytest.approx(twice[0], rel=1e-5)
    assert float((once[1] - twice[1]).norm() / twice[1].norm()) < 1e-5


def test_label_smoothing_is_the_conservative_dpo_loss(base: Path, tmp_path: Path) -> None:
    """Mitchell's cDPO: -(1 - e) log s(beta d) - e log s(-beta d)."""
    made = assembled(
        "dpo", base, tmp_path, plain_rows("pairs", 1), label_smoothing=0.2, beta=0.5, nll_weight=0
    )
    shake(made.model)
    loss, _, metrics = gradient(made, made.train.items, 4096)
    margin = metrics["rewards/margins"]
    expected = 0.8 * math.log1p(math.exp(-margin)) + 0.2 * math.log1p(math.exp(margin))
    assert abs(margin) > 0.01
    assert loss == pytest.approx(expected, rel=1e-5)


def test_a_lone_row_has_no_baseline(base: Path, tmp_path: Path) -> None:
    made = assembled("kto", base, tmp_path, plain_rows("labels", 2))
    shake(made.model)
    assert gradient(made, made.train.items[:1], 4096)[2]["kl"] == 0.0


def test_kto_refuses_one_class() -> None:
    from thumbwheel.core.errors import DataError
    from thumbwheel.training.algorithms.kto import Kto, KtoConfig

    with pytest.raises(DataError, match="all of them are good"):
        Kto.resolve_config(KtoConfig(), [{"label": True}] * 3)


def test_drops_and_truncation_are_counted(base: Path, tmp_path: Path) -> None:
    rows = plain_rows("pairs", 6)
    rows[0]["rejected"] = rows[0]["chosen"]
    rows[1]["prompt"] = [{"role": "user", "content": "fox " * 100}]
    old = [{"role": "user", "content": "brown " * 30}, {"role": "assistant", "content": "dog"}]
    rows[2]["prompt"] = [*old, {"role": "user", "content": "and now?"}]
    made = assembled("dpo", base, tmp_path, rows, max_length=64)
    assert dict(made.train.dropped) == {
        "chosen equals rejected": 1,
        "longer than max_length 64 even without its older turns": 1,
    }
    assert made.train.notes["rows that lost older turns"] == 1
    assert len(made.train.items) == 4
    eos = made.builder.tokenizer.eos_token_id
    assert all(branch.ids[-1] == eos for example in made.train.items for branch in example.branches)


def test_gradient_checkpointing_changes_no_gradient(base: Path, tmp_path: Path) -> None:
    found = []
    for on in (False, True):
        made = assembled("dpo", base, tmp_path, plain_rows("pairs", 4), gradient_checkpointing=on)
        shake(made.model)
        found.append(gradient(made, made.train.items, 4096)[1])
    assert float((found[1] - found[0]).norm() / found[0].norm()) < 1e-5
