"""What a GPU computes is what a processor computes, within its rounding: scores, gradients, fresh
answers, and whole short runs.

`make test-gpu` where CUDA or Metal is. THUMBWHEEL_TEST_DEVICE=cpu tries the tests themselves where
neither is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.tiny_models import tiny_base
from tests.reversal import reversal_rows, terse_base
from tests.training_rows import assembled, loop_of, plain_rows, shake
from thumbwheel.engine import block_attention
from thumbwheel.engine.decode import Cached
from thumbwheel.engine.fixed_decode import Fixed
from thumbwheel.engine.rollout import Sampling
from thumbwheel.engine.sampler import GroupSampler
from thumbwheel.engine.score import Role
from thumbwheel.engine.tree import plan
from thumbwheel.training.fit_memory import fit
from thumbwheel.training.online_step import OnlineRunner
from thumbwheel.training.optimizer import prepare

pytestmark = pytest.mark.gpu
SHAPES = {
    "sft": "chats",
    "dpo": "pairs",
    "kto": "labels",
    "reward": "pairs",
    "grpo_offline": "groups",
}
NEAR = {"float32": 1e-4, "bfloat16": 0.05}


@pytest.fixture(scope="module")
def device() -> str:
    name = os.environ.get("THUMBWHEEL_TEST_DEVICE") or next(
        (
            name
            for name, there in (
                ("cuda", torch.cuda.is_available()),
                ("mps", torch.backends.mps.is_available()),
            )
            if there
        ),
        None,
    )
    return name or pytest.skip("neither CUDA nor Metal")


@pytest.fixture(scope="module")
def four_layer_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wide = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "head_dim": 32,
        "num_hidden_layers": 3,
        "initializer_range": 0.1,
    }
    return tiny_base(tmp_path_factory.mktemp("base"), **wide)


def computed(
    base: Path, folder: Path, device: str, dtype: str
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """(log-probabilities of all completion tokens, gradients of their sum) by the policy of a
    shaken adapter."""
    assembly = assembled("dpo", base, folder, plain_rows("pairs", 12), device=device, dtype=dtype)
    shake(assembly.model)
    sums = []
    for batch in plan(assembly.train.items, 512, assembly.engine.layout):
        scored = assembly.engine.score(
            batch.to(assembly.engine.device), Role.POLICY, grad=True
        ).logp
        scored.sum().backward()
        sums.append(scored.detach().float().cpu())
    gradients = {
        name: parameter.grad.float().cpu()
        for name, parameter in assembly.model.named_parameters()
        if parameter.grad is not None
    }
    return torch.cat(sums), gradients


@pytest.mark.parametrize("dtype", NEAR)
def test_scores_and_gradients(
    four_layer_base: Path, tmp_path: Path, device: str, dtype: str
) -> None:
    wanted, slopes = computed(four_layer_base, tmp_path, "cpu", "float32")
    scored, gradients = computed(four_layer_base, tmp_path, device, dtype)
    assert float((scored - wanted).abs().mean()) < NEAR[dtype] * float(wanted.abs().mean())
    assert gradients.keys() == slopes.keys()
    whole = sum(float(slope.norm()) ** 2 for slope in slopes.values()) ** 0.5
    away = (
        sum(float((gradients[name] - slope).norm()) ** 2 for name, slope in slopes.items()) ** 0.5
    )
    assert away < 2 * NEAR[dtype] * whole


def test_answers_are_those_of_their_seed_with_the_log_probabilities_of_the_model(
    four_layer_base: Path, tmp_path: Path, device: str
) -> None:
    assembly = assembled(
        "sft", four_layer_base, tmp_path, plain_rows("chats", 4), device=device, dtype="float32"
    )
    shake(assembly.model)
    prompts = [list(item.prompt) for item in assembly.train.items[:3]]
    sampling = Sampling(max_new_tokens=24, stop_ids=tuple(assembly.builder.stop_ids), seed=7)
    sampler = GroupSampler(assembly.model, assembly.builder.tokenizer)
    groups = sampler.sample(prompts, 4, sampling)
    assert groups == sampler.sample(prompts, 4, sampling)
    decoding = Fixed if device == "cuda" else Cached
    assert type(sampler._begin([tuple(prompts[0])])) is decoding
    for prompt, group in zip(prompts, groups, strict=True):
        for rollout in group:
            ids = torch.tensor([[*prompt, *rollout.ids]], device=device)
            with torch.no_grad():
                rows = (
                    assembly.model(input_ids=ids)
                    .logits[0, len(prompt) - 1 : -1]
                    .float()
                    .log_softmax(-1)
                )
            expected = rows.gather(1, ids[0, len(prompt) :, None])[:, 0].tolist()
            assert rollout.logps == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("method", SHAPES)
def test_methods_learn_on_it(
    four_layer_base: Path, tmp_path: Path, device: str, method: str
) -> None:
    changes = {
        "device": device,
        "num_train_epochs": 4,
        "learning_rate": 5e-3,
        "eval_steps": 4,
        "early_stopping_patience": None,
    }
    assembly = assembled(
        method, four_layer_base, tmp_path, plain_rows(SHAPES[method], 12, 4), **changes
    )
    assert assembly.engine.device.type == device
    loop = loop_of(assembly, tmp_path)
    ending = loop.run()
    losses = [line["loss"] for line in loop.state.log_history if "loss" in line]
    assert ending.wrong is None and sum(losses[-3:]) < sum(losses[:3])


@pytest.mark.parametrize("method", ["grpo", "ppo"])
def test_methods_that_answer_learn_on_it(tmp_path: Path, device: str, method: str) -> None:
    rows = reversal_rows(32, 8, checker="regex", checker_config={"pattern": ".{4,}"})
    settings: dict[str, Any] = {
        "batch_size": 8,
        "max_completion_length": 12,
        "max_length": 40,
        "max_steps": 12,
        "eval_steps": 6,
        "learning_rate": 5e-3,
        "reward_workers": 1,
        "length_creep": None,
        "device": device,
    }
    assembly = assembled(method, terse_base(tmp_path / "terse"), tmp_path, rows, **settings)
    assert isinstance(assembly.runner, OnlineRunner) and assembly.engine.device.type == device
    loop = loop_of(assembly, tmp_path)
    try:
        ending = loop.run()
    finally:
        assembly.runner.close()
    rewards = [line["reward"] for line in loop.state.log_history if "reward" in line]
    assert ending.wrong is None and sum(rewards[-3:]) > sum(rewards[:3]) + 0.3


def test_a_run_on_cuda_computes_a_whole_step_at_once_by_few_kernels(
    tmp_path: Path, device: str
) -> None:
    """The budget rises to a step where it fits, one kernel updates the adapter, and one attends to
    a tree."""
    if device != "cuda":
        pytest.skip("other devices have none of the three")
    wide = tiny_base(tmp_path / "base", hidden_size=128, head_dim=64)
    rows = plain_rows("pairs", 24)
    options: dict[str, Any] = {"device": device, "token_budget": 64, "batch_size": 24}
    assembly = assembled("dpo", wide, tmp_path, rows, **options)
    fit(assembly)
    step = sum(item.rows("tree") for item in assembly.train.items)
    assert assembly.runner.budget.tokens >= step > 64
    assert prepare(assembly.model, assembly.config, 1).optimizer.defaults["fused"]
    assert block_attention.usable(torch.zeros(1, 2, step, 64, device=device))


def test_a_four_bit_base_on_cuda(four_layer_base: Path, tmp_path: Path, device: str) -> None:
    pytest.importorskip("bitsandbytes")
    if device == "mps":
        pytest.skip("bitsandbytes' 4 bits are CUDA's")
    assembly = assembled(
        "sft",
        four_layer_base,
        tmp_path,
        plain_rows("chats", 8),
        quantization="nf4",
        device=device,
        max_steps=6,
        learning_rate=3e-3,
    )
    loop = loop_of(assembly, tmp_path)
    assert loop.run().wrong is None
    losses = [line["loss"] for line in loop.state.log_history if "loss" in line]
    assert losses[-1] < losses[0]
