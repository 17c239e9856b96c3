"""The method reward: its arithmetic against straight-line formulas, its result as a standard
folder, both kinds of bases."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.models.encoders import tiny_encoder
from tests.training_rows import assembled, loop_of, plain_rows, shake
from thumbwheel.core.errors import DataError, ModelError
from thumbwheel.engine.forward import language_model
from thumbwheel.engine.reward_model import RewardScale
from thumbwheel.engine.score import LAST, Role
from thumbwheel.engine.tree import build
from thumbwheel.training.algorithms.reward import (
    BINS,
    RewardMethod,
    RewardMethodConfig,
    calibration,
    spread,
)
from thumbwheel.training.step import means

KINDS = {"bradley_terry": "pairs", "regression": "scored", "classification": "labels"}


def made_for(
    loss_type: str, base: Path, folder: Path, count: int = 10, dev: int = 0, **changes: Any
) -> Any:
    more = {"scale": (2.0, 5.0)} if loss_type == "regression" else {}
    rows = plain_rows(KINDS[loss_type], count, dev)
    for number, row in enumerate(rows):
        row["weight"] = 0.5 + number % 3
    return assembled("reward", base, folder, rows, loss_type=loss_type, **more | changes), rows


def plain_scores(assembly: Any) -> torch.Tensor:
    """[branches] by transformers' own classification forward, each sequence alone."""
    scores = []
    for example in assembly.train.items:
        for branch in example.branches:
            ids = torch.tensor([example.prompt + branch.ids])
            more = {}
            if getattr(language_model(assembly.model).config, "type_vocab_size", 0) > 1:
                more["token_type_ids"] = torch.tensor(
                    [[0] * len(example.prompt) + [1] * len(branch.ids)]
                )
            scores.append(assembly.model(input_ids=ids, **more).logits[0, 0])
    return torch.stack(scores)


@pytest.mark.parametrize("loss_type", KINDS)
@pytest.mark.parametrize("form", ["decoder", "bert", "deberta-v2", "roberta"])
def test_losses_and_gradients_are_the_straight_line_formula(
    loss_type: str, form: str, tiny_model: Path, tmp_path: Path
) -> None:
    where = tiny_model if form == "decoder" else tiny_encoder(tmp_path / "encoder", form)
    changes = (
        {"margin": 0.2, "center_rewards_coefficient": 0.05} if loss_type == "bradley_terry" else {}
    )
    assembly, rows = made_for(
        loss_type, where, tmp_path, token_budget=100, max_length=120, **changes
    )
    exact = (
        torch.float64 if form == "decoder" else torch.float32
    )  # transformers' encoders round their own masks to fp32
    assembly.model.to(exact)
    if form == "decoder":
        language_model(assembly.model).config.pad_token_id = -1  # no token of ours is padding
    shake(assembly.model)
    assembly.model.to(exact)
    assert len(assembly.train.items) == len(rows)
    outcome = assembly.runner.run(assembly.train.items, grad=True)
    gradients = {
        name: parameter.grad.clone()
        for name, parameter in assembly.model.named_parameters()
        if parameter.grad is not None
    }
    assembly.model.zero_grad()

    scores, weights = (
        plain_scores(assembly),
        torch.tensor([row["weight"] for row in rows], dtype=exact),
    )
    if loss_type == "bradley_terry":
        chosen, rejected = scores.view(-1, 2).T
        losses = (
            -torch.nn.functional.logsigmoid(chosen - rejected - 0.2)
            + 0.05 * (chosen + rejected) ** 2
        )
        expected_metrics = {
            "accuracy": (chosen > rejected).double().mean(),
            "margin": (chosen - rejected).mean(),
            "mean_reward": scores.mean(),
        }
    elif loss_type == "regression":
        values = torch.tensor([row["value"] for row in rows], dtype=exact)
        losses = (scores - (2 * (values - 2) / 3 - 1)) ** 2
        gaps = 2 + (scores + 1) / 2 * 3 - values
        expected_metrics = {"mse": (gaps**2).mean(), "mae": gaps.abs().mean()}
    else:
        labels = torch.tensor([float(row["label"]) for row in rows], dtype=exact)
        losses = -(
            labels * torch.nn.functional.logsigmoid(scores)
            + (1 - labels) * torch.nn.functional.logsigmoid(-scores)
        )
        expected_metrics = {"accuracy": ((scores > 0) == (labels > 0.5)).double().mean()}
    loss = (weights * losses).sum() / weights.sum()
    loss.backward()
    tight = {"abs": 1e-9, "rel": 1e-9} if form == "decoder" else {"abs": 2e-5, "rel": 2e-5}
    assert outcome.loss == pytest.approx(loss.item(), **tight)
    for name, value in expected_metrics.items():
        assert outcome.metrics[name] == pytest.approx(value.item(), **tight)
    expected = {
        name: parameter.grad
        for name, parameter in assembly.model.named_parameters()
        if parameter.grad is not None
    }
    assert gradients.keys() == expected.keys() and any(
        "score" in name or "classifier" in name for name in gradients
    )
    for name, gradient in gradients.items():
        gap = (gradient - expected[name]).norm() / expected[name].norm().clamp_min(1e-3)
        assert gap < (1e-6 if form == "decoder" else 1e-4), name


@pytest.mark.parametrize("form", ["decoder", "bert", "deberta-v2", "roberta"])
def test_what_a_base_lacks_is_trained_and_kept(form: str, tiny_model: Path, tmp_path: Path) -> None:
    """Pooler and head are no part of a pretrained encoder: they have to be in the adapter, or the
    reward model is noise when loaded."""
    where = tiny_model if form == "decoder" else tiny_encoder(tmp_path / "encoder", form)
    assembly, _ = made_for("bradley_terry", where, tmp_path)
    assert assembly.engine.layout.kind == ("tree" if form == "decoder" else "padded")
    trained = {
        name
        for name, parameter in assembly.model.named_parameters()
        if parameter.requires_grad and "lora_" not in name
    }
    parts = {
        "decoder": ["score."],
        "bert": ["pooler.", "classifier."],
        "deberta-v2": ["pooler.", "classifier."],
        "roberta": ["classifier."],
    }
    assert all(any(part in name for name in trained) for part in parts[form]), trained
    scores = assembly.engine.score(
        build(assembly.train.items, [0], assembly.engine.layout), Role.REWARD, LAST
    ).last
    again, _ = made_for("bradley_terry", where, tmp_path)
    assert torch.equal(
        again.engine.score(
            build(assembly.train.items, [0], assembly.engine.layout), Role.REWARD, LAST
        ).last,
        scores,
    )


def test_the_head_begins_small_and_without_bias(tiny_model: Path, tmp_path: Path) -> None:
    from thumbwheel.engine.load import load_scorer

    weights = torch.cat(
        [load_scorer(str(tiny_model), seed=seed)[0].score.weight[0] for seed in range(40)]
    )
    assert weights.std().item() == pytest.approx(33**-0.5, rel=0.05)
    assert load_scorer(str(tiny_encoder(tmp_path / "e")))[0].classifier.bias.item() == 0


def test_an_encoder_cuts_old_turns_to_its_positions_and_never_the_answer(tmp_path: Path) -> None:
    from thumbwheel.engine.prompt import TargetText

    assembly, _ = made_for("bradley_terry", tiny_encoder(tmp_path / "e"), tmp_path, max_length=1024)
    turn = [
        {"role": "user", "content": "the quick brown fox " * 10},
        {"role": "assistant", "content": "yes"},
    ]
    fit = assembly.builder.fit(
        [*turn * 4, {"role": "user", "content": "question"}], [TargetText("no no no")], 1024
    )
    assert fit.dropped_turns > 0 and fit.rows[0].length <= 128
    tokens = assembly.builder.tokenizer.convert_ids_to_tokens(fit.rows[0].completion_ids)
    assert tokens == ["no", "no", "no", "[SEP]"]
    assert assembly.builder.fit(
        [{"role": "user", "content": "question"}], [TargetText("no " * 200)], 1024
    ).refused


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.floats(0.1, 3)), min_size=1, max_size=60),
    st.integers(1, 5),
)
def test_calibration_is_the_same_in_any_number_of_parts(
    rows: list[tuple[float, bool, float]], parts: int
) -> None:
    chances, outcomes, weights = (
        torch.tensor([float(row[bound]) for row in rows], dtype=torch.float64) for bound in range(3)
    )
    expected = 0.0
    for bin in range(BINS):
        inside = [
            (p, y, w)
            for p, y, w in zip(chances.tolist(), outcomes.tolist(), weights.tolist(), strict=True)
            if bin == min(int(p * BINS), BINS - 1)
        ]
        if inside:
            weight = sum(w for _, _, w in inside)
            expected += (
                abs(
                    sum(w * p for p, _, w in inside) / weight
                    - sum(w * y for _, y, w in inside) / weight
                )
                * weight
            )
    expected /= float(weights.sum())
    cut = [slice(bound, None, parts) for bound in range(parts)]
    in_parts = means(
        [
            calibration(chances[part], outcomes[part], weights[part])
            for part in cut
            if len(chances[part])
        ]
    )
    assert RewardMethod(RewardMethodConfig()).derived(dict(in_parts))["ece"] == pytest.approx(
        expected, abs=1e-9
    )


@given(
    st.lists(st.floats(-100, 100), min_size=2, max_size=50).filter(
        lambda values: max(values) > min(values)
    ),
    st.floats(-1, 1),
)
def test_the_scale_goes_both_ways(values: list[float], score: float) -> None:
    scale = RewardScale(*spread(values))
    assert min(values) <= scale.low < scale.high <= max(values)
    assert scale.normal(scale.low) == pytest.approx(-1) and scale.normal(
        scale.high
    ) == pytest.approx(1)
    assert scale.normal(scale.raw(score)) == pytest.approx(score, abs=1e-6)


def test_an_outlier_does_not_squeeze_the_scale() -> None:
    values = [*np.linspace(1, 5, 500), 1e6]
    low, high = spread(values)
    assert 1 <= low < 1.1 and 4.9 < high < 5.1


def test_what_the_rows_cannot_support(tiny_model: Path) -> None:
    scored = [{"value": 3.0}, {"value": 3.0}]
    with pytest.raises(DataError, match="all between 3 and 3"):
        RewardMethod.resolve_config(RewardMethodConfig(loss_type="regression"), scored)
    with pytest.raises(DataError, match="same label"):
        RewardMethod.resolve_config(
            RewardMethodConfig(loss_type="classification"), [{"label": True}] * 3
        )
    rated = [{"value": 1.0}, {"value": 5.0}]
    fitted = RewardMethod.resolve_config(RewardMethodConfig(loss_type="regression"), rated)
    assert fitted.scale == pytest.approx((1.04, 4.96)) and fitted.metric_for_best_model == "loss"
    assert (
        RewardMethod.resolve_config(
            RewardMethodConfig(loss_type="regression", metric_for_best_model="mae"), rated
        ).metric_for_best_model
        == "mae"
    )


def test_it_may_begin_where_a_version_that_answers_ended(tiny_model: Path, tmp_path: Path) -> None:
    """The trunk is that version's, the head is drawn anew; the reference and all else do not matter
    to a judge."""
    answering = assembled("sft", tiny_model, tmp_path, plain_rows("chats", 8, 2))
    shake(answering.model)
    answering.model.save_pretrained(tmp_path / "v1")
    assembly, plain = (
        assembled("reward", tiny_model, tmp_path, plain_rows("pairs", 8, 2), start=start)
        for start in (tmp_path / "v1", None)
    )
    parameters, begun = (
        dict(assembly.model.named_parameters()),
        dict(answering.model.named_parameters()),
    )
    adapter_weights = [name for name in begun if "lora_" in name]
    assert adapter_weights and all(
        torch.equal(parameters[name], begun[name]) for name in adapter_weights
    )
    heads = [
        dict(variant.model.named_parameters())[
            "base_model.model.score.modules_to_save.default.weight"
        ]
        for variant in (assembly, plain)
    ]
    assert torch.equal(*heads) and all(parameters[name].requires_grad for name in adapter_weights)
    with pytest.raises(ModelError, match="are not the"):
        assembled(
            "reward",
            tiny_model,
            tmp_path,
            plain_rows("pairs", 8, 2),
            start=tmp_path / "v1",
            lora_r=2,
        )


def test_it_learns(tiny_model: Path, tmp_path: Path) -> None:
    """The better answer has the word "fox": a tiny base finds that out."""
    rows = plain_rows("pairs", 160, 40)
    for number, row in enumerate(rows):
        row["chosen"], row["rejected"] = f"quick fox {number % 7}", f"quick dog {number % 5}"
    assembly = assembled(
        "reward", tiny_model, tmp_path, rows, learning_rate=5e-3, num_train_epochs=1, eval_steps=10
    )
    loop_of(assembly, tmp_path).run()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if "eval_accuracy" in line][-1]
    assert (
        last["eval_accuracy"] > 0.95
        and last["eval_loss"] < 0.3
        and 0 <= last["eval_ece"] < 0.3
        and math.isfinite(last["eval_margin"])
    )
