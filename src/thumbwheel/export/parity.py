"""Is the exported folder the model that was trained? Logits on probe prompts, both computed in float32.

The trained model is base + adapter through our own loader; the exported one is what public libraries make of the folder.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core.errors import DataError, ModelError
from thumbwheel.engine.load import load_adapter, load_base, quiet
from thumbwheel.engine.prompt import PromptBuilder
from thumbwheel.export.format import Format
from thumbwheel.export.merge import stored_dtype
from thumbwheel.export.types import Limits, Messages, Parity, Source

if TYPE_CHECKING:
    import torch

    Logits = list[torch.Tensor]

LIMITS = {"float32": Limits(1e-5, 0.999), "float16": Limits(1e-3, 0.98), "bfloat16": Limits(1e-2, 0.95)}
"""By the precision of the exported weights; what rounding to it costs, with room."""

POSITIONS = 48
"""Most positions of a probe that are compared, counted from its end; bounds memory for large vocabularies."""

LONGEST = 1024
"""Tokens of a probe; longer ones are left out."""

PROBES: tuple[Messages, ...] = (
    [{"role": "user", "content": "Hello"}],
    [{"role": "user", "content": "What is 17 * 23? Show the steps."}],
    [{"role": "system", "content": "Answer in one line."}, {"role": "user", "content": "Größe, naïve, Ωmega, 東京, 🙂 -> ?"}],
    [{"role": "user", "content": "def add(a, b):\n    return a +"}],
    [
        {"role": "user", "content": "Name a colour."},
        {"role": "assistant", "content": "Blue."},
        {"role": "user", "content": "Another one, please:\t\n  1)"},
    ],
)
"""What every export is tried on besides the agent's own prompts."""


def check(form: Format, folder: Path, source: Source, probes: Sequence[Messages]) -> Parity:
    """Compare `folder` with the trained model on `probes`; says what was found, whether it is enough is `Parity.failures`."""
    import torch

    model, tokenizer = load_base(source.base, "float32")
    builder = PromptBuilder(tokenizer)
    rows = _prompts(builder, probes, getattr(model.config.get_text_config(), "max_position_embeddings", None) or LONGEST)
    ids = [row for _, row in rows]
    base = logits(model, ids) if source.adapter else None
    trained = logits(load_adapter(model, source.adapter), ids) if source.adapter else logits(model, ids)
    del model
    gc.collect()
    with quiet():
        exported, its_tokenizer = form.load(folder, torch.float32)
    found = logits(exported, ids)
    same = all(prompt_ids(its_tokenizer, messages) == row for messages, row in rows)
    dtype = str(stored_dtype(str(folder)) if (folder / "config.json").is_file() else torch.float32).removeprefix("torch.")
    gap, kl, top1 = compare(trained, found)
    effect = compare(trained, base)[1] if base else None
    tokens = sum(len(one) for one in trained)
    return Parity(len(rows), tokens, dtype, gap, kl, top1, effect, same, LIMITS.get(dtype, LIMITS["float32"]))


def _prompts(builder: PromptBuilder, probes: Sequence[Messages], context: int) -> list[tuple[Messages, list[int]]]:
    """The probes that fit and that the chat template accepts (some refuse a system message), with their token ids in training."""
    found = []
    for messages in probes:
        with suppress(DataError):
            found.append((messages, builder.prompt(messages)))
    kept = [one for one in found if len(one[1]) <= min(context, LONGEST)]
    if not kept:
        raise ModelError("the chat template", "it refuses every probe prompt", "Set a template that takes a plain user message")
    return kept


def prompt_ids(tokenizer: Any, messages: Messages) -> list[int]:
    """What a plain user of the exported tokenizer gets for `messages`; empty where it cannot render them."""
    from jinja2 import TemplateError

    try:
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False))
    except (TemplateError, ValueError):
        return []


def logits(model: Any, rows: Sequence[Sequence[int]]) -> Logits:
    """float32 logits [positions, vocabulary] at the last `POSITIONS` positions of each row, one row at a time."""
    import torch

    model.eval()
    with torch.no_grad():
        outputs = [model(input_ids=torch.tensor([list(row)]), use_cache=False).logits[0, -POSITIONS:] for row in rows]
    return [output.float().clone() for output in outputs]


def compare(trained: Logits, found: Logits) -> tuple[float, float, float]:
    """(largest difference of centred logits, mean KL(trained || found) in nats, top-1 agreement) over all positions.

    Vocabularies of different sizes agree nowhere.
    """
    import torch

    if any(one.shape != other.shape for one, other in zip(trained, found, strict=True)):
        return float("inf"), float("inf"), 0.0

    gaps, kls, agree = [], [], []
    for one, other in zip(trained, found, strict=True):
        gaps.append(float(((one - one.mean(-1, keepdim=True)) - (other - other.mean(-1, keepdim=True))).abs().max()))
        left, right = torch.log_softmax(one.double(), -1), torch.log_softmax(other.double(), -1)
        kls.append((left.exp() * (left - right)).sum(-1))
        agree.append((one.argmax(-1) == other.argmax(-1)).double())
    return max(gaps), float(torch.cat(kls).mean().clamp(min=0)), float(torch.cat(agree).mean())
