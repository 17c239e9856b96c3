"""Is the export the model that was trained? Tokens, ends of answers and logits on probe prompts,
the trained side in float32.

The trained model is base + adapter through our own loader; the exported one is what public programs
make of the folder.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core.errors import DataError, ModelError
from thumbwheel.engine.load import load_adapter, load_base, quiet_transformers
from thumbwheel.engine.prompt import PromptBuilder
from thumbwheel.evaluation.types import Answers, Case
from thumbwheel.export import score
from thumbwheel.export.format import Format, Opened
from thumbwheel.export.loaded_export import greedy, logits
from thumbwheel.export.types import Limits, Messages, Parity, Source
from thumbwheel.rewards.checker import OwnerSettings

if TYPE_CHECKING:
    import torch

    Logits = list[torch.Tensor]

LIMITS = {
    "float32": Limits(1e-5, 0.999),
    "float16": Limits(1e-3, 0.98),
    "bfloat16": Limits(1e-2, 0.95),
    "F32": Limits(1e-4, 0.99),
    "F16": Limits(1e-3, 0.99, logits=0.05),
    "BF16": Limits(1e-2, 0.95),
    "Q8_0": Limits(0.02, 0.90, None),
    "Q6_K": Limits(0.05, 0.85, None),
    "Q5": Limits(0.10, 0.80, None),
    "Q4": Limits(0.20, 0.70, None),
    "Q3": Limits(0.40, 0.60, None),
    "Q2": Limits(0.80, 0.45, None),
}
"""By the precision of the exported weights, or how its name begins; what rounding to it costs, with
room."""

LONGEST = 1024
"""Tokens of a probe; longer ones are left out."""

FAR = 1e9
"""Stands for a distance without a number, which neither JSON nor a report can hold: other
vocabularies, logits that are not finite."""

ANSWER = 32
"""Tokens of the trained model's own greedy answer that are put behind a probe: where an export
answers is where it has to agree."""

SPEED = 32
"""Tokens that are generated to say how fast it is."""

PROBES: tuple[Messages, ...] = (
    [{"role": "user", "content": "Hello"}],
    [{"role": "user", "content": "What is 17 * 23? Show the steps."}],
    [
        {"role": "system", "content": "Answer in one line."},
        {"role": "user", "content": "Größe, naïve, Ωmega, 東京, 🙂 -> ?"},
    ],
    [{"role": "user", "content": "def add(a, b):\n    return a +"}],
    [
        {"role": "user", "content": "Name a colour."},
        {"role": "assistant", "content": "Blue."},
        {"role": "user", "content": "Another one, please:\t\n  1)"},
    ],
)
"""What every export is tried on besides the agent's own prompts."""

TEXTS = (
    "Hello, world! I'm sure we'll've it; DON'T.",
    "Größe, naïve, façade, Ωmega, élève, ẞtraße",
    "東京タワー 한국어 中文分词 русский עברית العربية ไทย",
    "17 * 23 = 391; 3.14159, 1,000,000 0042 12345678901",
    "  two spaces,\ttab,\n\n  newlines \r\n and trailing   ",
    "🙂🇩🇪👩\u200d👩\u200d👧 \u00a0\u2009\u200b end",
    "def f(x):\n    return {'a': [x**2, ...]}  # <b>&amp;</b> https://a.b/?c=d%20e",
)
"""Plain text, composed, that splits tokenizers apart: accents, scripts, digits, spaces, code.
Special tokens are tried besides."""


@dataclass(frozen=True)
class Reference:
    """The trained model on the probes, computed once for all exports of it."""

    builder: PromptBuilder
    rows: list[tuple[Messages, list[int]]]
    trained: Logits
    base: Logits | None
    """None for a plain base."""
    dialogues: list[list[int]]
    """Token ids of each probe with the trained model's greedy answer behind it; the logits are
    those of its last positions."""
    cases: Sequence[Case] = ()
    """Held-out cases of the agent."""
    answers: Sequence[Answers] = ()
    """The trained model's, one a case."""
    room: int = LONGEST
    """Tokens of prompt and answer together."""
    checkers: OwnerSettings = field(default_factory=dict)
    """What the owner gives the functions that cases name as their checkers."""

    @property
    def prompts(self) -> list[list[int]]:
        """Token ids of the probes."""
        return [prompt for _, prompt in self.rows]

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts of the tokens that end an answer."""
        return tuple(self.builder.tokenizer.decode([one]) for one in self.builder.stop_ids)


def reference(source: Source, probes: Sequence[Messages], cases: Sequence[Case] = ()) -> Reference:
    """The trained model's logits on `probes` and on its own answers to them, those of its base
    there, and its answers to `cases`."""
    from thumbwheel.engine.lora import adapter_layers, switched

    model, tokenizer = load_base(source.base, "float32")
    builder = PromptBuilder(tokenizer)
    room = min(
        getattr(model.config.get_text_config(), "max_position_embeddings", None) or LONGEST, LONGEST
    )
    rows = _prompts(builder, probes, room)
    cases = [case for case in cases if len(builder.prompt(case.prompt)) < room]
    if source.adapter:
        model = load_adapter(model, source.adapter)
    prompts = [prompt for _, prompt in rows]
    dialogues = _answered(model, builder, prompts, room)
    trained = logits(model, dialogues)
    base = None
    if source.adapter:
        with switched(model, adapter_layers(model), None):
            base = logits(model, dialogues)
    answers = score.trained_answers(model, builder, cases)
    del model
    gc.collect()
    return Reference(builder, rows, trained, base, dialogues, cases, answers, room)


def _answered(
    model: Any, builder: PromptBuilder, prompts: Sequence[Sequence[int]], room: int
) -> list[list[int]]:
    """Each prompt with the model's greedy answer behind it, in `room` tokens together. The token
    that ends an answer is left out."""
    ends = frozenset(builder.stop_ids)
    dialogues = []
    for prompt in prompts:
        longest = min(ANSWER, room - len(prompt))
        answer = greedy(model, prompt, longest, ends) if longest > 0 else []
        dialogues.append([*prompt, *(token for token in answer if token not in ends)])
    return dialogues


DECOMPOSED = "e\u0301le\u0300ve, u\u0308ber"
"""Accents as characters of their own; some tokenizers compose them first, and llama.cpp never does."""


def check(form: Format, folder: Path, source: Source, probes: Sequence[Messages]) -> Parity:
    """Compare `folder` with the trained model on `probes`; says what was found, whether it is
    enough is `Parity.failures`."""
    return against(reference(source, probes), form, folder)


def against(known: Reference, form: Format, folder: Path) -> Parity:
    """Compare `folder` with what is known of the trained model."""
    import torch

    with quiet_transformers(), closing(form.open(folder, torch.float32)) as opened:
        found = opened.logits(known.dialogues)
        gap, kl, top1 = compare(known.trained, found)
        ends = zip(known.stops, known.builder.stop_ids, strict=True)
        return Parity(
            prompts=len(known.rows),
            tokens=sum(len(one) for one in known.trained),
            dtype=opened.dtype,
            max_abs_diff=gap,
            mean_kl=kl,
            top1=top1,
            effect_kl=compare(known.trained, known.base)[1] if known.base else None,
            same_prompts=all(opened.prompt_ids(messages) == row for messages, row in known.rows),
            limits=limits(opened.dtype),
            base_kl=compare(known.base, found)[1] if known.base else None,
            same_text=same_text(known.builder, opened),
            ends=tuple(text for text, one in ends if one not in opened.ends()),
            size=_size(folder),
            tokens_per_second=speed(opened, known.prompts),
            task=score.task(
                opened, known.builder, known.cases, known.answers, known.room, known.checkers
            )
            if known.cases
            else None,
            notes=(*opened.notes, *_differences(known.builder, opened)),
        )


def limits(dtype: str) -> Limits:
    """Those of `dtype`, else of the longest name that it begins with; the strictest where none is
    known."""
    known = [
        name for name in LIMITS if dtype == name or (dtype[:1] == "Q" and dtype.startswith(name))
    ]
    return LIMITS[max(known, key=len, default="float32")]


def same_text(builder: PromptBuilder, opened: Opened) -> bool:
    """Whether probe text, and text with every special token in it, gives the tokens that training's
    tokenizer gives."""
    tokenizer = builder.tokenizer
    special = f"a{'b'.join(tokenizer.all_special_tokens)} c"
    return all(
        opened.text_ids(text) == list(tokenizer(text, add_special_tokens=False)["input_ids"])
        for text in (*TEXTS, special)
    )


def _differences(builder: PromptBuilder, opened: Opened) -> list[str]:
    if opened.text_ids(DECOMPOSED) == list(
        builder.tokenizer(DECOMPOSED, add_special_tokens=False)["input_ids"]
    ):
        return []
    return [
        "accents that are characters of their own (e + U+0301) are split otherwise than in "
        "training: send text in Unicode form NFC"
    ]


def speed(opened: Opened, rows: Sequence[Sequence[int]]) -> float | None:
    """Tokens a second over a few greedy answers; None where all of them end at once."""
    tokens, began = 0, time.perf_counter()
    for row in rows:
        tokens += len(opened.greedy(row, SPEED - tokens))
        if tokens >= SPEED:
            break
    return tokens / (time.perf_counter() - began) if tokens > 1 else None


def _size(folder: Path) -> int:
    return sum(
        path.stat().st_size
        for path in folder.rglob("*")
        if path.suffix in (".safetensors", ".gguf", ".onnx", ".data")
    )


def _prompts(
    builder: PromptBuilder, probes: Sequence[Messages], context: int
) -> list[tuple[Messages, list[int]]]:
    """The probes that fit and that the chat template accepts (some refuse a system message), with
    their token ids in training."""
    found = []
    for messages in probes:
        with suppress(DataError):
            found.append((messages, builder.prompt(messages)))
    kept = [one for one in found if len(one[1]) <= context]
    if not kept:
        raise ModelError(
            "the chat template",
            "it refuses every probe prompt",
            "Set a template that takes a plain user message",
        )
    return kept


def compare(trained: Logits, found: Logits) -> tuple[float, float, float]:
    """(largest difference of centred logits, mean KL(trained || found) in nats, top-1 agreement)
    over all positions.

    Vocabularies of different sizes agree nowhere, and logits that are not finite with none: (FAR,
    FAR, 0.0).
    """
    import torch

    pairs = list(zip(trained, found, strict=True))
    if any(
        one.shape != other.shape or not (one.isfinite().all() and other.isfinite().all())
        for one, other in pairs
    ):
        return FAR, FAR, 0.0

    gaps, kls, agree = [], [], []
    for one, other in pairs:
        gaps.append(
            float(
                ((one - one.mean(-1, keepdim=True)) - (other - other.mean(-1, keepdim=True)))
                .abs()
                .max()
            )
        )
        left, right = torch.log_softmax(one.double(), -1), torch.log_softmax(other.double(), -1)
        kls.append((left.exp() * (left - right)).sum(-1))
        agree.append((one.argmax(-1) == other.argmax(-1)).double())
    return max(gaps), float(torch.cat(kls).mean().clamp(min=0)), float(torch.cat(agree).mean())
