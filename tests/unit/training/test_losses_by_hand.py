"""SFT, DPO and KTO in double precision against their formulas written out row by row over the plain
model: losses and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny_models import tiny_base
from tests.training_rows import assembled, logps, plain_rows, shake
from thumbwheel.engine.tree import Branch, Example
from thumbwheel.training.algorithms.dpo import Dpo, DpoConfig
from thumbwheel.training.algorithms.kto import GOOD, Kto, KtoConfig


def ratio(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> Any:
    """Sum of log-probabilities above the base's."""
    import torch

    with torch.no_grad(), model.disable_adapter():
        base = logps(model, prompt, answer).sum()
    return logps(model, prompt, answer).sum() - base


def sft(model: Any, rows: Sequence[Any], config: Any) -> Any:
    import torch

    each = [logps(model, row.prompt, row.branches[0].ids) for row in rows]
    weights = torch.cat(
        [torch.full_like(values, row.weight) for row, values in zip(rows, each, strict=True)]
    )
    return -(torch.cat(each) * weights).sum() / weights.sum()


def dpo(model: Any, rows: Sequence[Any], config: Any) -> Any:
    import torch.nn.functional as F

    total = 0.0
    for row in rows:
        chosen, rejected = (ratio(model, row.prompt, branch.ids) for branch in row.branches)
        total = total - row.weight * F.logsigmoid(config.beta * (chosen - rejected))
    return total / sum(row.weight for row in rows)


def kto(model: Any, rows: Sequence[Any], config: Any) -> Any:
    import torch

    answers = [row.branches[0] for row in rows]
    with torch.no_grad():
        apart = [
            ratio(model, row.prompt, answers[number - 1].ids) for number, row in enumerate(rows)
        ]
        baseline = torch.stack(apart).mean().clamp(min=0)
    assert float(baseline) > 0.05
    total = 0.0
    for row, answer in zip(rows, answers, strict=True):
        good = answer.role == GOOD
        above = (ratio(model, row.prompt, answer.ids) - baseline) * (1 if good else -1)
        factor = row.weight * (config.desirable_weight if good else config.undesirable_weight)
        total = total + factor * (1 - torch.sigmoid(config.beta * above))
    return total / sum(row.weight for row in rows)


@pytest.mark.parametrize(
    ("method", "shape", "changes"),
    [
        (sft, "chats", {}),
        (dpo, "pairs", {"nll_weight": 0.0, "beta": 0.3}),
        (kto, "labels", {"nll_weight": 0.0, "beta": 0.3, "undesirable_weight": 1.5}),
    ],
    ids=["sft", "dpo", "kto"],
)
def test_policy_and_base_apart(
    tmp_path: Path, method: Callable[..., Any], shape: str, changes: dict[str, Any]
) -> None:
    """GPT-2, because the norms of Qwen and Llama always compute in single precision."""
    import torch

    rows = [row | {"weight": 0.5 + number % 3} for number, row in enumerate(plain_rows(shape, 8))]
    base = tiny_base(tmp_path / "base", "gpt2")
    assembly = assembled(method.__name__, base, tmp_path, rows, token_budget=100, **changes)
    shake(assembly.model.double())
    trained = [parameter for parameter in assembly.model.parameters() if parameter.requires_grad]
    engine_loss = assembly.runner.run(assembly.train.items, grad=True).loss
    gradient = torch.cat([parameter.grad.flatten() for parameter in trained])
    assembly.model.zero_grad()
    expected = method(assembly.model, assembly.train.items, assembly.config)
    torch.autograd.backward(expected)
    by_hand = torch.cat([parameter.grad.flatten() for parameter in trained])
    assert gradient.dtype == torch.float64
    assert engine_loss == pytest.approx(float(expected.detach()), rel=1e-9)
    assert float((gradient - by_hand).norm() / by_hand.norm()) < 1e-9


def test_the_ratio_of_good_answers_compares_whole_answers_with_the_base_and_is_clipped(
    tmp_path: Path,
) -> None:
    assembly = assembled(
        "sft",
        tiny_base(tmp_path / "base", "gpt2"),
        tmp_path,
        plain_rows("chats", 8),
        token_budget=100,
    )
    untrained = assembly.runner.evaluate(assembly.train.items)
    assert untrained.rows["ratio/good"] == [1.0] * 8
    shake(assembly.model.double())
    evaluation = assembly.runner.run(assembly.train.items, grad=False)
    ratios = []
    for example in assembly.train.items:
        policy = logps(assembly.model, example.prompt, example.branches[0].ids).sum()
        with assembly.model.disable_adapter():
            base = logps(assembly.model, example.prompt, example.branches[0].ids).sum()
        ratios.append(min(10.0, float((policy - base).exp())))
    assert len(set(ratios)) > 4
    assert evaluation.rows["ratio/good"] == pytest.approx(
        ratios, rel=1e-4
    )  # the references were stored in single precision
    assert evaluation.metrics["ratio/good"] == pytest.approx(sum(ratios) / 8, rel=1e-4)


def test_dpo_on_log_ratios_a_token_by_hand() -> None:
    """Whole answers are 4 and 1 nats above the base, a token 0.5 and 0.25."""
    import torch

    whole, per_token = torch.tensor([[4.0, 1.0]]), torch.tensor([[0.5, 0.25]])
    for kind, difference in (("sigmoid", 3.0), ("sigmoid_norm", 0.25)):
        loss = Dpo(DpoConfig(loss_type=kind, beta=0.4))._pair_loss(whole, per_token)
        assert loss.tolist() == pytest.approx([math.log1p(math.exp(-0.4 * difference))]), kind
    ipo = Dpo(DpoConfig(loss_type="ipo", beta=0.4))._pair_loss(whole, per_token)
    assert ipo.tolist() == pytest.approx([(0.25 - 1.25) ** 2])


def test_the_baseline_of_kto_is_never_below_zero() -> None:
    """Mismatched answers that are less likely than under the base say that the KL is 0."""
    import torch

    method = Kto(KtoConfig())
    block = [Example([1], (Branch([number], role=GOOD),), "g") for number in (2, 3, 4)]

    def score_with(policy: Sequence[float]) -> Any:
        def score(mismatched: Sequence[Example]) -> tuple[Any, Any]:
            assert [row.branches[0].ids for row in mismatched] == [[4], [2], [3]]
            return torch.tensor(policy), torch.tensor([-1.0, -2.0, -3.0])

        return score

    assert float(method.baseline(block, score_with([-2.0, -4.0, -3.0]))) == 0.0
    assert float(method.baseline(block, score_with([-1.0, -1.0, -1.0]))) == pytest.approx(1.0)
