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


def gradient(assembly: Any, examples: Any, budget: int) -> tuple[float, Any, dict[str, float]]:
    import torch

    assembly.model.zero_grad()
    assembly.runner.budget.tokens = budget
    outcome = assembly.runner.run(examples, grad=True)
    return (
        outcome.loss,
        torch.cat(
            [
                parameter.grad.flatten()
                for parameter in assembly.model.parameters()
                if parameter.requires_grad
            ]
        ),
        outcome.metrics,
    )


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [("sft", {}), ("dpo", {"nll_weight": 0.5}), ("kto", {"nll_weight": 0.5, "beta": 0.3})],
)
def test_the_token_budget_changes_nothing(
    tiny_model: Path, tmp_path: Path, algorithm: str, changes: dict[str, Any]
) -> None:
    rows = plain_rows(SHAPES[algorithm], 12)
    for number, row in enumerate(rows):
        row["weight"] = 0.5 + number % 3
    assembly = assembled(algorithm, tiny_model, tmp_path, rows, **changes)
    shake(assembly.model)
    whole = gradient(assembly, assembly.train.items, 100_000)
    parts = gradient(assembly, assembly.train.items, 64)
    assert len(plan(assembly.train.items, 64, assembly.engine.layout)) > 5
    assert parts[0] == pytest.approx(whole[0], rel=1e-5)
    assert float((parts[1] - whole[1]).norm() / whole[1].norm()) < 1e-5
    assert parts[2] == pytest.approx(whole[2], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("algorithm", SHAPES)
def test_a_weight_of_two_is_the_row_twice(tiny_model: Path, tmp_path: Path, algorithm: str) -> None:
    rows = plain_rows(SHAPES[algorithm], 3)
    heavy = [row | {"weight": 2.0 if number == 1 else 1.0} for number, row in enumerate(rows)]
    assembly = assembled(algorithm, tiny_model, tmp_path, [*heavy, *rows, rows[1]])
    shake(assembly.model)
    assembly.method.__dict__["baseline"] = lambda block, score: (
        None
    )  # whose neighbours differ between the two
    once, twice = (
        gradient(assembly, assembly.train.items[:3], 4096),
        gradient(assembly, assembly.train.items[3:], 4096),
    )
    assert once[0] == pytest.approx(twice[0], rel=1e-5)
    assert float((once[1] - twice[1]).norm() / twice[1].norm()) < 1e-5


def test_label_smoothing_is_the_conservative_dpo_loss(tiny_model: Path, tmp_path: Path) -> None:
    """Mitchell's cDPO: -(1 - e) log s(beta d) - e log s(-beta d)."""
    assembly = assembled(
        "dpo",
        tiny_model,
        tmp_path,
        plain_rows("pairs", 1),
        label_smoothing=0.2,
        beta=0.5,
        nll_weight=0,
    )
    shake(assembly.model)
    loss, _, metrics = gradient(assembly, assembly.train.items, 4096)
    margin = metrics["rewards/margins"]
    expected = 0.8 * math.log1p(math.exp(-margin)) + 0.2 * math.log1p(math.exp(margin))
    assert abs(margin) > 0.01
    assert loss == pytest.approx(expected, rel=1e-5)


def test_a_lone_row_has_no_baseline(tiny_model: Path, tmp_path: Path) -> None:
    assembly = assembled("kto", tiny_model, tmp_path, plain_rows("labels", 2))
    shake(assembly.model)
    assert gradient(assembly, assembly.train.items[:1], 4096)[2]["kl"] == 0.0


def test_kto_refuses_one_class() -> None:
    from thumbwheel.core.errors import DataError
    from thumbwheel.training.algorithms.kto import Kto, KtoConfig

    with pytest.raises(DataError, match="all of them are good"):
        Kto.resolve_config(KtoConfig(), [{"label": True}] * 3)


def test_drops_and_truncation_are_counted(tiny_model: Path, tmp_path: Path) -> None:
    rows = plain_rows("pairs", 6)
    rows[0]["rejected"] = rows[0]["chosen"]
    rows[1]["prompt"] = [{"role": "user", "content": "fox " * 100}]
    old = [{"role": "user", "content": "brown " * 30}, {"role": "assistant", "content": "dog"}]
    rows[2]["prompt"] = [*old, {"role": "user", "content": "and now?"}]
    assembly = assembled("dpo", tiny_model, tmp_path, rows, max_length=64)
    assert dict(assembly.train.dropped) == {
        "chosen equals rejected": 1,
        "longer than max_length 64 even without its older turns": 1,
    }
    assert assembly.train.notes["rows that lost older turns"] == 1
    assert len(assembly.train.items) == 4
    eos = assembly.builder.tokenizer.eos_token_id
    assert all(
        branch.ids[-1] == eos for example in assembly.train.items for branch in example.branches
    )


def test_gradient_checkpointing_changes_no_gradient(tiny_model: Path, tmp_path: Path) -> None:
    gradients = []
    for on in (False, True):
        assembly = assembled(
            "dpo", tiny_model, tmp_path, plain_rows("pairs", 4), gradient_checkpointing=on
        )
        shake(assembly.model)
        gradients.append(gradient(assembly, assembly.train.items, 4096)[1])
    assert float((gradients[1] - gradients[0]).norm() / gradients[0].norm()) < 1e-5
