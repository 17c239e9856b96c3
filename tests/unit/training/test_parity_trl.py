"""Losses, gradients and trajectories equal TRL 1.16's over 20 steps on the same text in the same
order, policy and reference apart."""

from __future__ import annotations

import os

os.environ |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1", "CI": "1"}

from pathlib import Path
from typing import Any

import pytest

from tests import training_rows
from tests.models.tiny_models import tiny_base
from tests.training_rows import assembled, loop_of, plain_rows, shake

STEPS, BATCH = 20, 4
REWARD = {"learning_rate": 1e-3}
"""At a higher one Adam makes steps out of rounding where the scores of a pair cancel out."""
SHARED = {
    "learning_rate": 5e-3,
    "warmup_ratio": 0.0,
    "lr_scheduler_type": "cosine",
    "weight_decay": 0.01,
    "max_grad_norm": 1.0,
}


def recorder() -> Any:
    """A transformers callback that keeps losses, clipped gradients and the adapter; the same class
    listens to both trainers."""
    from transformers import TrainerCallback

    class Recorder(TrainerCallback):
        def __init__(self) -> None:
            self.losses: list[float] = []
            self.logs: list[dict[str, float]] = []
            self.gradients: list[dict[str, Any]] = []
            self.final: dict[str, Any] = {}

        def on_pre_optimizer_step(
            self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
        ) -> None:
            self.gradients.append(
                {name: parameter.grad.clone() for name, parameter in adapter(model)}
            )

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "loss" in logs:
                self.losses.append(logs["loss"])
                self.logs.append(dict(logs))

        def on_train_end(
            self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
        ) -> None:
            self.final = {name: parameter.detach().clone() for name, parameter in adapter(model)}

    return Recorder()


def adapter(model: Any) -> list[tuple[str, Any]]:
    return [
        (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
    ]


def ours(
    algorithm: str, base: Path, folder: Path, rows: list[dict[str, Any]], **changes: Any
) -> tuple[Any, list[dict[str, Any]]]:
    """(what happened, the rows in the order in which they were taken)."""
    plain = {"nll_weight": 0.0} if algorithm in ("dpo", "kto") else {}
    assembly = assembled(
        algorithm,
        base,
        folder,
        rows,
        **plain | SHARED | {"batch_size": BATCH, "max_length": 512, "token_budget": 300} | changes,
    )
    shake(assembly.model)
    heard = recorder()
    loop = loop_of(assembly, folder, callbacks=[heard])
    order = [rows[number] for batch in loop.order.batches() for number in batch]
    loop.run()
    rendered = [row | {"prompt": assembly.builder.render(row["prompt"])} for row in order]
    return heard, rendered


def trl_run(
    kind: str,
    base: Path,
    folder: Path,
    columns: dict[str, list[Any]],
    shaken: bool = True,
    **changes: Any,
) -> Any:
    import torch
    import trl
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    batches = {"per_device_train_batch_size": BATCH}
    arguments = getattr(trl, f"{kind}Config")(
        output_dir=str(folder / "trl"),
        max_length=512,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        train_sampling_strategy="sequential",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataset_num_proc=None,
        optim="adamw_torch",
        warmup_steps=0,
        logging_nan_inf_filter=False,
        **{key: value for key, value in SHARED.items() if key != "warmup_ratio"}
        | {"max_steps": STEPS}
        | batches
        | changes,
    )
    scorer = (
        {"num_labels": 1, "pad_token_id": AutoTokenizer.from_pretrained(base).pad_token_id}
        if kind == "Reward"
        else {}
    )
    form = AutoModelForSequenceClassification if scorer else AutoModelForCausalLM
    task = (
        {"task_type": "SEQ_CLS", "modules_to_save": ["score"]}
        if scorer
        else {"task_type": "CAUSAL_LM"}
    )
    model = form.from_pretrained(base, dtype=torch.float32, **scorer)
    trainer = getattr(trl, f"{kind}Trainer")(
        model,
        args=arguments,
        train_dataset=Dataset.from_dict(columns),
        processing_class=AutoTokenizer.from_pretrained(base),
        peft_config=LoraConfig(
            r=4, lora_alpha=8, target_modules="all-linear", lora_dropout=0.0, **task
        ),
    )
    if shaken:
        shake(trainer.model)
    heard = recorder()
    trainer.add_callback(heard)
    trainer.train()
    return heard


def agree(our_steps: Any, other: Any, metrics: tuple[str, ...] = ()) -> dict[str, float]:
    """Assert that both went the same way; returns the largest differences."""
    assert len(our_steps.losses) == len(other.losses) == STEPS
    worst = {"loss": 0.0, "gradient": 0.0, "parameter": 0.0}
    for left, right in zip(our_steps.losses, other.losses, strict=True):
        worst["loss"] = max(worst["loss"], abs(left - right) / max(1.0, abs(right)))
    for left, right in zip(our_steps.gradients, other.gradients, strict=True):
        assert left.keys() == right.keys()
        for name, gradient in left.items():
            worst["gradient"] = max(
                worst["gradient"],
                float((gradient - right[name]).norm() / (right[name].norm() + 1e-6)),
            )
    for name, value in our_steps.final.items():
        worst["parameter"] = max(
            worst["parameter"], float((value - other.final[name]).norm() / other.final[name].norm())
        )
    for left, right in zip(our_steps.logs, other.logs, strict=True):
        for name in metrics:
            assert left[name] == pytest.approx(float(right[name]), rel=1e-3, abs=2e-3), name
    print({name: f"{value:.1e}" for name, value in worst.items()})
    assert worst["loss"] < 5e-6
    assert worst["gradient"] < 1e-4
    assert worst["parameter"] < 1e-5
    return worst


DPO_METRICS = (
    "rewards/chosen",
    "rewards/rejected",
    "rewards/margins",
    "rewards/accuracies",
    "logps/chosen",
    "logps/rejected",
    "grad_norm",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "trl_changes"),
    [
        ({}, {}),
        ({"loss_type": "ipo", "beta": 0.3}, {"loss_type": ["ipo"], "beta": 0.3}),
        ({"loss_type": "sigmoid_norm", "beta": 0.5}, {"loss_type": ["sigmoid_norm"], "beta": 0.5}),
        ({"nll_weight": 0.4}, {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.4]}),
    ],
    ids=["sigmoid", "ipo", "length-normalised", "anchored"],
)
def test_dpo(
    tiny_model: Path, tmp_path: Path, changes: dict[str, Any], trl_changes: dict[str, Any]
) -> None:
    our_steps, rows = ours(
        "dpo", tiny_model, tmp_path, plain_rows("pairs", STEPS * BATCH), **changes
    )
    columns = {name: [row[name] for row in rows] for name in ("prompt", "chosen", "rejected")}
    agree(
        our_steps,
        trl_run("DPO", tiny_model, tmp_path, columns, **{"beta": 0.1} | trl_changes),
        DPO_METRICS,
    )


def test_equal_rewards_count_as_trl_counts_them(tiny_model: Path, tmp_path: Path) -> None:
    """Under the base all rewards are 0: no answer is strictly better, whatever else the reference
    cache was filled by."""
    rows = plain_rows("pairs", BATCH)
    assembly = assembled(
        "dpo", tiny_model, tmp_path, rows, nll_weight=0.0, batch_size=BATCH, token_budget=300
    )
    assembly.runner.evaluate(
        assembly.train.items[:1]
    )  # references of a pass with other rows beside them
    heard = recorder()
    loop = loop_of(assembly, tmp_path, callbacks=[heard])
    order = [rows[number] for batch in loop.order.batches() for number in batch]
    evaluated = assembly.runner.evaluate(assembly.train.items)
    loop.run()
    rendered = [row | {"prompt": assembly.builder.render(row["prompt"])} for row in order]
    columns = {name: [row[name] for row in rendered] for name in ("prompt", "chosen", "rejected")}
    other = trl_run("DPO", tiny_model, tmp_path, columns, shaken=False, max_steps=1, beta=0.1)
    for name in ("rewards/accuracies", "rewards/margins", "rewards/chosen"):
        assert (
            heard.logs[0][name] == evaluated.metrics[name] == float(other.logs[0][name]) == 0.0
        ), name


@pytest.mark.slow
def test_kto(tiny_model: Path, tmp_path: Path) -> None:
    """The KL baseline over the optimiser batch, which TRL calls its micro-batch here; class weights
    apart from 1."""
    weights = {"desirable_weight": 1.0, "undesirable_weight": 1.5, "beta": 0.2}
    our_steps, rows = ours(
        "kto", tiny_model, tmp_path, plain_rows("labels", STEPS * BATCH), **weights
    )
    columns = {name: [row[name] for row in rows] for name in ("prompt", "completion", "label")}
    other = trl_run("KTO", tiny_model, tmp_path, columns, **weights)
    agree(our_steps, other, ("kl", "grad_norm"))
    assert max(line["kl"] for line in our_steps.logs) > 0.05  # the baseline is really in play


@pytest.mark.slow
def test_kto_in_micro_batches(tiny_model: Path, tmp_path: Path) -> None:
    """`kl_scope: micro` is TRL with gradient accumulation: one baseline for every block of rows."""
    our_steps, rows = ours(
        "kto",
        tiny_model,
        tmp_path,
        plain_rows("labels", STEPS * BATCH),
        kl_scope="micro",
        kl_rows=2,
    )
    columns = {name: [row[name] for row in rows] for name in ("prompt", "completion", "label")}
    agree(
        our_steps,
        trl_run(
            "KTO",
            tiny_model,
            tmp_path,
            columns,
            beta=0.1,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
        ),
    )


@pytest.mark.slow
def test_sft(tiny_model: Path, tmp_path: Path) -> None:
    our_steps, rows = ours("sft", tiny_model, tmp_path, plain_rows("chats", STEPS * BATCH))
    columns = {name: [row[name] for row in rows] for name in ("prompt", "completion")}
    agree(
        our_steps,
        trl_run("SFT", tiny_model, tmp_path, columns, completion_only_loss=True, packing=False),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("margin", "centre"), [(0.0, None), (0.3, 0.01)], ids=["plain", "margin-and-centring"]
)
def test_reward(tiny_model: Path, tmp_path: Path, margin: float, centre: float | None) -> None:
    changes = {"margin": margin, "center_rewards_coefficient": centre or 0.0}
    our_steps, rows = ours(
        "reward", tiny_model, tmp_path, plain_rows("pairs", STEPS * BATCH), **REWARD | changes
    )
    columns = {name: [row[name] for row in rows] for name in ("prompt", "chosen", "rejected")}
    columns |= {"margin": [margin] * len(rows)} if margin else {}
    other = trl_run(
        "Reward", tiny_model, tmp_path, columns, center_rewards_coefficient=centre, **REWARD
    )
    agree(our_steps, other, ("accuracy", "margin", "mean_reward", "grad_norm"))
    assert (
        max(line["margin"] for line in our_steps.logs)
        - min(line["margin"] for line in our_steps.logs)
        > 0.1
    )


@pytest.mark.slow
def test_reward_in_double_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody rounds to fp32 on the way, as TRL's heads over the vocabulary do and
    transformers' RMS norms."""
    monkeypatch.setattr(f"{__name__}.shake", lambda model: training_rows.shake(model.double()))
    base = tiny_base(tmp_path / "base", "gpt2", initializer_range=0.1)
    our_steps, rows = ours("reward", base, tmp_path, plain_rows("pairs", STEPS * BATCH), **REWARD)
    columns = {name: [row[name] for row in rows] for name in ("prompt", "chosen", "rejected")}
    worst = agree(
        our_steps,
        trl_run("Reward", base, tmp_path, columns, center_rewards_coefficient=None, **REWARD),
    )
    assert worst["gradient"] < 1e-12 and worst["parameter"] < 1e-12
