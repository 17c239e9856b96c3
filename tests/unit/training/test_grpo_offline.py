"""The group loss over recorded answers: by hand, with captured log-probs and without, and each text
by its own worth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_losses import gradient

from tests.training_rows import assembled, plain_rows, shake


def rows(count: int = 4) -> list[dict[str, Any]]:
    return plain_rows("groups", count)


def by_hand(assembly: Any, old_of: Any) -> float:
    """The mean over all tokens of -min(r A, clip(r) A), answer by answer, by the plain model."""
    import torch

    config, total, count = assembly.config, 0.0, 0
    for example in assembly.train.items:
        values = [branch.advantage for branch in example.branches]
        assert sum(values) == pytest.approx(0, abs=1e-9)
        for branch in example.branches:
            ids = torch.tensor([[*example.prompt, *branch.ids]])
            with torch.no_grad():
                logp = (
                    assembly.model(ids)
                    .logits.log_softmax(-1)[0, len(example.prompt) - 1 : -1]
                    .gather(1, ids[0, len(example.prompt) :, None])
                )
                with assembly.model.disable_adapter():
                    base = (
                        assembly.model(ids)
                        .logits.log_softmax(-1)[0, len(example.prompt) - 1 : -1]
                        .gather(1, ids[0, len(example.prompt) :, None])
                    )
            for now, before in zip(
                logp[:, 0].tolist(), old_of(branch, base[:, 0].tolist()), strict=True
            ):
                ratio = torch.tensor(now - before).exp().item()
                bound = min(max(ratio, 1 - config.epsilon), 1 + config.epsilon)
                total -= min(ratio * branch.advantage, bound * branch.advantage)
                count += 1
    return total / count


def test_the_ratio_is_to_the_base_where_nothing_was_captured(
    tiny_model: Path, tmp_path: Path
) -> None:
    assembly = assembled("grpo_offline", tiny_model, tmp_path, rows())
    shake(assembly.model)
    loss, _, metrics = gradient(assembly, assembly.train.items, 200)
    assert loss == pytest.approx(
        by_hand(assembly, lambda branch, reference: reference), rel=1e-4, abs=1e-6
    )
    assert 0.2 < metrics["clip_ratio/region_mean"] < 1


def test_the_ratio_is_to_the_model_that_answered_where_its_log_probs_are_known(
    tiny_model: Path, tmp_path: Path
) -> None:
    group_rows = rows()
    plain = assembled("grpo_offline", tiny_model, tmp_path / "plain", group_rows)
    for row, example in zip(group_rows, plain.train.items, strict=True):
        row["token_ids"] = [list(branch.ids) for branch in example.branches]
        row["logps"] = [
            [-5.9 - position / 50 for position in range(len(branch.ids))]
            for branch in example.branches
        ]
    group_rows[0]["logps"][1] = group_rows[0]["logps"][1][:-1]
    assembly = assembled("grpo_offline", tiny_model, tmp_path, group_rows)
    shake(assembly.model)
    assert assembly.train.notes["answers whose captured log-probs fit other tokens"] == 1
    loss, _, _ = gradient(assembly, assembly.train.items, 200)
    assert loss == pytest.approx(
        by_hand(assembly, lambda branch, reference: branch.logps or reference), rel=1e-4, abs=1e-6
    )


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo"])
def test_the_token_budget_changes_nothing(tiny_model: Path, tmp_path: Path, loss_type: str) -> None:
    assembly = assembled(
        "grpo_offline",
        tiny_model,
        tmp_path,
        rows(8),
        loss_type=loss_type,
        beta=0.1,
        importance_sampling_level="sequence",
    )
    shake(assembly.model)
    whole, parts = (
        gradient(assembly, assembly.train.items, 100_000),
        gradient(assembly, assembly.train.items, 64),
    )
    assert parts[0] == pytest.approx(whole[0], rel=1e-5)
    assert float((parts[1] - whole[1]).norm() / whole[1].norm()) < 1e-5
    assert parts[2] == pytest.approx(whole[2], rel=1e-4, abs=1e-5)


def test_a_group_of_equal_worth_is_dropped_and_counted(tiny_model: Path, tmp_path: Path) -> None:
    group_rows = rows()
    group_rows[2]["values"] = [0.5, 0.5, 0.5]
    assembly = assembled("grpo_offline", tiny_model, tmp_path, group_rows)
    assert dict(assembly.train.dropped) == {"all answers to the prompt are worth the same": 1}


def test_a_text_is_credited_with_its_own_worth_only(tiny_model: Path, tmp_path: Path) -> None:
    """Raising the worth of one answer makes its own tokens likelier, whatever place it has among
    the others."""
    import torch

    group_rows = rows(1)
    turned = [
        group_rows[0]
        | {
            "completions": group_rows[0]["completions"][::-1],
            "values": group_rows[0]["values"][::-1],
        }
    ]
    results = []
    for number, train_rows in enumerate((group_rows, turned)):
        assembly = assembled("grpo_offline", tiny_model, tmp_path / str(number), train_rows)
        shake(assembly.model)
        results.append(gradient(assembly, assembly.train.items, 4096)[1])
        best = max(assembly.train.items[0].branches, key=lambda branch: branch.advantage)
        assert (
            best.ids
            == assembly.builder.row(
                train_rows[0]["prompt"], group_rows[0]["completions"][0]
            ).completion_ids
        )
    assert torch.allclose(results[0], results[1], rtol=1e-4, atol=1e-7)


def test_imitation_by_reward_weighs_every_text_by_its_own_number(
    tiny_model: Path, tmp_path: Path
) -> None:
    import math

    scored = plain_rows("scored", 4)
    for row, value in zip(scored, (1.0, 2.0, 3.0, 10.0), strict=True):
        row["value"] = value
    from thumbwheel.core.errors import DataError
    from thumbwheel.training.algorithms.sft import Sft, SftConfig

    fitted = Sft.resolve_config(SftConfig(weighting="reward", weight_limit=2), scored)
    assert (fitted.weight_centre, fitted.weight_temperature) == (4.0, pytest.approx(4.0824829))
    assert Sft.shape(fitted) == "scored" and Sft.shape(SftConfig()) == "chats"
    assembly = assembled(
        "sft",
        tiny_model,
        tmp_path,
        scored,
        weighting="reward",
        weight_limit=2,
        weight_centre=4.0,
        weight_temperature=fitted.weight_temperature,
    )
    weights = [example.weight for example in assembly.train.items]
    assert weights == pytest.approx(
        [*(math.exp((value - 4) / 4.0824829) for value in (1, 2, 3)), 2.0]
    )
    assert [example.branches[0].role for example in assembly.train.items] == [
        "rest",
        "rest",
        "rest",
        "sample",
    ]
    heavy = gradient(assembly, assembly.train.items, 4096)
    plain = assembled(
        "sft",
        tiny_model,
        tmp_path / "plain",
        [row | {"weight": weight} for row, weight in zip(scored, weights, strict=True)],
    )
    same = gradient(plain, plain.train.items, 4096)
    assert (
        heavy[0] == pytest.approx(same[0], rel=1e-6) and float((heavy[1] - same[1]).norm()) < 1e-6
    )
    with pytest.raises(DataError, match="none weighs more"):
        Sft.resolve_config(SftConfig(weighting="reward"), [row | {"value": 3.0} for row in scored])


def test_runs_of_one_task_share_their_beginning_and_train_their_answers_alone(
    tiny_model: Path, tmp_path: Path
) -> None:
    group_rows = rows()
    plain = assembled("grpo_offline", tiny_model, tmp_path / "plain", group_rows)
    for row in group_rows:
        histories = [
            [*row["prompt"], {"role": "assistant", "content": f"which {turn}"}]
            for turn in range(len(row["completions"]))
        ]
        row["prompts"] = [[*history, {"role": "user", "content": "that"}] for history in histories]
    assembly = assembled("grpo_offline", tiny_model, tmp_path, group_rows)
    assert len(assembly.train.items) == len(plain.train.items) > 0
    for alone, example in zip(plain.train.items, assembly.train.items, strict=True):
        for history, branch in zip(alone.branches, example.branches, strict=True):
            assert [branch.ids[target] for target in branch.targets] == list(history.ids)
            assert 0 < len(branch.targets) < len(branch.ids)
            assert branch.advantage == history.advantage
    shake(assembly.model)
    whole, parts = (
        gradient(assembly, assembly.train.items, 100_000),
        gradient(assembly, assembly.train.items, 64),
    )
    assert parts[0] == pytest.approx(whole[0], rel=1e-5)
