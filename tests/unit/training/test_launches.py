"""A step of ours launches no more on a GPU than a padded step over the same rows.

Counted on a processor, as operations that compute: on a GPU each is a kernel, and small models wait
for launches. One product of torch stands for the kernel that attends to a tree, with a dense mask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from transformers import AutoModelForCausalLM

from tests.models.tiny_models import tiny_base
from tests.training_rows import assembled, plain_rows, shake
from thumbwheel.engine import block_attention, score
from thumbwheel.engine.tree import Branch, Example
from thumbwheel.training.assemble import Assembly

ROWS = 8
SHAPES = {"dpo": "pairs", "kto": "labels", "sft": "chats", "grpo": "prompts"}
WITHOUT_KERNEL = ("empty", "new_empty", "_unsafe_view", "_local_scalar_dense", "lift_fresh")
"""Beginnings of names of operations that only make a tensor, or read one."""
PASSES_WITHOUT_GRADIENT = {"dpo": 1, "kto": 3, "sft": 0, "grpo": 0}
"""The reference's, and of kto the policy's and the reference's over mismatched answers."""


class Launches(TorchDispatchMode):
    """Counts the operations inside that compute something."""

    def __init__(self) -> None:
        super().__init__()
        self.by_name: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        if not function.is_view and not name.startswith(WITHOUT_KERNEL):
            self.by_name[name] += 1
        return function(*args, **(kwargs or {}))


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    dense: dict[int, tuple[Any, torch.Tensor]] = {}
    """`id()` of a mask of blocks -> the mask, which thus keeps its id, and its dense form."""

    def kernel(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        score_mod: Any,
        block_mask: Any,
        scale: float | None,
        enable_gqa: bool,
    ) -> torch.Tensor:
        assert score_mod is None
        if id(block_mask) not in dense:
            rows = torch.arange(query.shape[2])
            mask_mod = uncounted(block_mask.mask_mod)
            dense[id(block_mask)] = block_mask, mask_mod(0, 0, rows[:, None], rows[None])
        _, mask = dense[id(block_mask)]
        return scaled_dot_product_attention(
            query, key, value, mask, scale=scale, enable_gqa=enable_gqa
        )

    monkeypatch.setattr(block_attention, "DEVICES", ("cpu",))
    monkeypatch.setattr(block_attention, "kernel", lambda device_type: kernel)
    # batches and masks are made of tensors of the processor, wherever the model is
    monkeypatch.setattr(block_attention, "block_mask", uncounted(block_attention.block_mask))
    monkeypatch.setattr(score, "plan", uncounted(score.plan))


def uncounted(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose operations are not counted."""

    def call(*arguments: Any) -> Any:
        with _disable_current_modes():
            return function(*arguments)

    return call


@pytest.fixture(scope="module")
def four_layer_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden_size": 64, "head_dim": 16, "num_hidden_layers": 4}
    return tiny_base(tmp_path_factory.mktemp("base"), **sizes)


def examples_of(assembly: Assembly, method: str) -> list[Example]:
    if method != "grpo":
        return list(assembly.train.items[:ROWS])
    answers = tuple(Branch(tuple(range(20 + number, 36 + number))) for number in range(8))
    return [Example(item.prompt, answers, item.group) for item in assembly.train.items[:2]]


def our_step(assembly: Assembly, method: str, examples: Sequence[Example]) -> Callable[[], object]:
    """Loss and gradients of one optimiser step; grpo's without the sampling."""
    if method == "grpo":
        return lambda: assembly.runner.rehearse(examples)
    return lambda: assembly.runner.run(examples, grad=True)


def padded_step(base: Path, method: str, examples: Sequence[Example]) -> Callable[[], object]:
    """What trainers do: all rows padded to the longest, by transformers and PEFT."""
    model = AutoModelForCausalLM.from_pretrained(base)
    model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))
    sequences: list[torch.Tensor] = []
    answers: list[torch.Tensor] = []
    for example in examples:
        for branch in example.branches:
            ids = torch.tensor([*example.prompt, *branch.ids])
            sequences.append(ids)
            answers.append(torch.arange(len(ids)) >= len(example.prompt))
    longest = max(map(len, sequences))
    ids = torch.stack([pad(row, (0, longest - len(row))) for row in sequences])
    mask = torch.stack([pad(torch.ones_like(row), (0, longest - len(row))) for row in sequences])
    scored = torch.stack([pad(row, (0, longest - len(row))) for row in answers])[:, 1:]

    def logps() -> torch.Tensor:
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
        by_token = logits.float().log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
        return (by_token * scored).sum(1)

    def step() -> None:
        reference = torch.zeros(len(ids))
        for _ in range(PASSES_WITHOUT_GRADIENT[method]):
            with torch.no_grad(), model.disable_adapter():
                reference = logps()
        (logps() - reference).sigmoid().sum().backward()

    return step


def launched(step: Callable[[], object]) -> Counter[str]:
    with Launches() as launches:
        step()
    return launches.by_name


@pytest.mark.parametrize("method", SHAPES)
@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_step_launches_no_more_than_a_padded_one(
    four_layer_base: Path, tmp_path: Path, method: str
) -> None:
    options: dict[str, Any] = {"batch_size": ROWS, "token_budget": 1 << 16, "dtype": "float32"}
    if method == "grpo":
        options |= {"num_generations": 8, "max_completion_length": 16, "reward_workers": 1}
    rows = plain_rows(SHAPES[method], 2 * ROWS)
    assembly = assembled(method, four_layer_base, tmp_path, rows, **options)
    shake(assembly.model)
    assert assembly.engine.layout.kind == "tree"
    examples = examples_of(assembly, method)
    ours = launched(our_step(assembly, method, examples))
    padded = launched(padded_step(four_layer_base, method, examples))
    assembly.runner.close()
    more = (ours - padded).most_common(12)
    assert ours.total() <= padded.total(), f"{more} more of ours"
