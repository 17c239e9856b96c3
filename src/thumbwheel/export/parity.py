"""Checks that an export is the model that was trained: tokens, ends of answers, and logits on probe
prompts.

The trained model is base + adapter in float32, loaded by our own loader; the exported one is loaded
from the folder by the public program that it is for.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core import log
from thumbwheel.core.errors import DataError, ModelError
from thumbwheel.engine.load import load_adapter, load_base, quiet_transformers
from thumbwheel.engine.prompt import PromptBuilder, trained_builder
from thumbwheel.evaluation.types import Answers, HeldOutCase
from thumbwheel.export import score
from thumbwheel.export.format import Format, Opened
from thumbwheel.export.gguf_file import OVER
from thumbwheel.export.loaded_export import greedy, logits
from thumbwheel.export.types import ExportSource, Messages, Parity, ParityLimits
from thumbwheel.rewards.checker import OwnerSettings

if TYPE_CHECKING:
    import torch

    Logits = list[torch.Tensor]

LIMITS = {
    "float32": ParityLimits(1e-5, 0.999),
    "float16": ParityLimits(1e-3, 0.98),
    "bfloat16": ParityLimits(1e-2, 0.95),
    "F32": ParityLimits(1e-4, 0.99),
    "F16": ParityLimits(1e-3, 0.99, logits=0.05),
    "BF16": ParityLimits(1e-2, 0.95),
    "Q8_0": ParityLimits(0.02, 0.90, None),
    "Q6_K": ParityLimits(0.05, 0.85, None),
    "Q5": ParityLimits(0.10, 0.80, None),
    "Q4": ParityLimits(0.20, 0.70, None),
    "Q3": ParityLimits(0.40, 0.60, None),
    "Q2": ParityLimits(0.80, 0.45, None),
}
"""By the precision of the exported weights, or the beginning of its name: what rounding to it
costs, with a margin."""
OVER_QUANTISED = ParityLimits(0.02, 0.85, None)
"""llama.cpp rounds what it multiplies with quantised weights to 8 bits: mean KL 0.003 to 0.006 nats
on SmolLM2-135M in Q4_1, without any adapter."""

LONGEST = 1024
"""Tokens of a probe; longer ones are left out."""

FAR = 1e9
"""A distance that is no finite number, which JSON cannot hold: vocabularies of other sizes, logits
that are not finite."""

ANSWER = 32
"""Tokens of the trained model's greedy answer that are appended to a probe: an export has to agree
where it answers."""

SPEED = 32
"""Tokens that are generated to measure speed."""

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
"""Prompts for every export, besides those of the agent."""

TEXTS = (
    "Hello, world! I'm sure we'll've it; DON'T.",
    "Größe, naïve, façade, Ωmega, élève, ẞtraße",
    "東京タワー 한국어 中文分词 русский עברית العربية ไทย",
    "17 * 23 = 391; 3.14159, 1,000,000 0042 12345678901",
    "  two spaces,\ttab,\n\n  newlines \r\n and trailing   ",
    "🙂🇩🇪👩\u200d👩\u200d👧 \u00a0\u2009\u200b end",
    "def f(x):\n    return {'a': [x**2, ...]}  # <b>&amp;</b> https://a.b/?c=d%20e",
)
"""Plain text on which tokenizers differ: composed accents, scripts, digits, spaces, code. Special
tokens are tried too."""


@dataclass(frozen=True)
class ParityReference:
    """The trained model on the probes, computed once for all exports of it."""

    builder: PromptBuilder
    rows: list[tuple[Messages, list[int]]]
    trained: Logits
    base: Logits | None
    """None for a plain base."""
    dialogues: list[list[int]]
    """Token ids of each probe with the trained model's greedy answer behind it; the logits are
    those of its last positions."""
    cases: Sequence[HeldOutCase] = ()
    """Held-out cases of the agent."""
    answers: Sequence[Answers] = ()
    """The trained model's, one a case."""
    context: int = LONGEST
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
        decode = self.builder.tokenizer.decode
        return tuple(decode([token]) for token in self.builder.stop_ids)


def reference(
    source: ExportSource, probes: Sequence[Messages], cases: Sequence[HeldOutCase] = ()
) -> ParityReference:
    """Compute the trained model's logits on `probes` and its own answers to them, the base's logits
    there if there is an adapter, and the trained model's answers to `cases`."""
    from thumbwheel.engine.lora import adapter_layers, switched

    model, tokenizer = load_base(source.base, "float32")
    builder = trained_builder(tokenizer, source.adapter, source.template)
    for note in builder.notes:
        log.say(f"note: {note}")
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    context = min(positions or LONGEST, LONGEST)
    rows = _prompts(builder, probes, context)
    cases = [case for case in cases if len(builder.prompt(case.prompt)) < context]
    if source.adapter:
        model = load_adapter(model, source.adapter)
    prompts = [prompt for _, prompt in rows]
    dialogues = _answered(model, builder, prompts, context)
    trained = logits(model, dialogues)
    base = None
    if source.adapter:
        with switched(model, adapter_layers(model), None):
            base = logits(model, dialogues)
    answers = score.trained_answers(model, builder, cases)
    del model
    gc.collect()
    return ParityReference(builder, rows, trained, base, dialogues, cases, answers, context)


def _answered(
    model: Any, builder: PromptBuilder, prompts: Sequence[Sequence[int]], context: int
) -> list[list[int]]:
    """Return each prompt followed by the model's greedy answer, in `context` tokens together. The
    token that ends an answer is left out."""
    ends = frozenset(builder.stop_ids)
    dialogues = []
    for prompt in prompts:
        longest = min(ANSWER, context - len(prompt))
        answer = greedy(model, prompt, longest, ends) if longest > 0 else []
        dialogues.append([*prompt, *(token for token in answer if token not in ends)])
    return dialogues


DECOMPOSED = "e\u0301le\u0300ve, u\u0308ber"
"""Accents as separate characters; some tokenizers compose them first, and llama.cpp never does."""


def check(form: Format, folder: Path, source: ExportSource, probes: Sequence[Messages]) -> Parity:
    """Compare `folder` with the trained model on `probes`; `Parity.failures` is empty if the result
    is good enough."""
    return compare_folder(reference(source, probes), form, folder)


def compare_folder(trained: ParityReference, form: Format, folder: Path) -> Parity:
    """Compare `folder` with the trained model."""
    import torch

    with quiet_transformers(), closing(form.open(folder, torch.float32)) as exported:
        exported_logits = exported.logits(trained.dialogues)
        max_abs_diff, mean_kl, top1 = compare(trained.trained, exported_logits)
        effect_kl = base_kl = None
        if trained.base:
            _, effect_kl, _ = compare(trained.trained, trained.base)
            _, base_kl, _ = compare(trained.base, exported_logits)

        # Ends of answers in training at which the export does not stop.
        exported_ends = exported.ends()
        missing_ends = []
        for text, token in zip(trained.stops, trained.builder.stop_ids, strict=True):
            if token not in exported_ends:
                missing_ends.append(text)
        same_prompts = all(
            exported.prompt_ids(messages) == prompt for messages, prompt in trained.rows
        )
        is_same_text = same_text(trained.builder, exported)
        tokens_per_second = speed(exported, trained.prompts)
        task = None
        if trained.cases:
            task = score.task(
                exported,
                trained.builder,
                trained.cases,
                trained.answers,
                trained.context,
                trained.checkers,
            )
        return Parity(
            prompts=len(trained.rows),
            tokens=sum(len(logits) for logits in trained.trained),
            dtype=exported.dtype,
            max_abs_diff=max_abs_diff,
            mean_kl=mean_kl,
            top1=top1,
            effect_kl=effect_kl,
            same_prompts=same_prompts,
            limits=limits(exported.dtype),
            base_kl=base_kl,
            same_text=is_same_text,
            ends=tuple(missing_ends),
            size=_size(folder),
            tokens_per_second=tokens_per_second,
            task=task,
            notes=(*exported.notes, *_notes(trained.builder, exported)),
        )


def limits(dtype: str) -> ParityLimits:
    """Return the limits of `dtype`, else of the longest name that it begins with; the strictest if
    it is unknown. Over a quantised file an adapter may differ by as much as llama.cpp's arithmetic
    on such weights does; no weight is rounded again."""
    if OVER in dtype and dtype.rpartition(OVER)[2].startswith("Q"):
        return OVER_QUANTISED
    dtype = dtype.partition(OVER)[0]
    names = [name for name in LIMITS if dtype == name]
    if dtype.startswith("Q"):
        names += [name for name in LIMITS if dtype.startswith(name)]
    return LIMITS[max(names, key=len, default="float32")]


def same_text(builder: PromptBuilder, opened: Opened) -> bool:
    """Return whether the export tokenises probe text, and text with every special token in it, as
    training's tokenizer does."""
    tokenizer = builder.tokenizer
    special = f"a{'b'.join(tokenizer.all_special_tokens)} c"
    return all(
        opened.text_ids(text) == list(tokenizer(text, add_special_tokens=False)["input_ids"])
        for text in (*TEXTS, special)
    )


def _notes(builder: PromptBuilder, opened: Opened) -> list[str]:
    trained_ids = builder.tokenizer(DECOMPOSED, add_special_tokens=False)["input_ids"]
    if opened.text_ids(DECOMPOSED) == list(trained_ids):
        return []
    return [
        "accents that are characters of their own (e + U+0301) are split otherwise than in "
        "training: send text in Unicode form NFC"
    ]


def speed(opened: Opened, rows: Sequence[Sequence[int]]) -> float | None:
    """Return the tokens per second over a few greedy answers; None if they have at most one
    token."""
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
    """Return (messages, token ids in training) of the probes that fit and that the chat template
    accepts (some refuse a system message). Raises ModelError if it accepts none."""
    rows = []
    for messages in probes:
        # other programs read the control tokens of a text as such
        if builder.control_tokens.occur_in(messages):
            continue
        with suppress(DataError):
            prompt = builder.prompt(messages)
            if len(prompt) <= context:
                rows.append((messages, prompt))
    if not rows:
        raise ModelError(
            "the chat template",
            "it refuses every probe prompt",
            "Set a template that accepts a plain user message",
        )
    return rows


def compare(trained: Logits, exported: Logits) -> tuple[float, float, float]:
    """Return (largest difference of centred logits, mean KL(trained || exported) in nats, top-1
    agreement) over all positions.

    Vocabularies of different sizes agree nowhere, nor do logits that are not finite: (FAR, FAR,
    0.0).
    """
    import torch

    for reference, other in zip(trained, exported, strict=True):
        if reference.shape != other.shape:
            return FAR, FAR, 0.0
        if not (reference.isfinite().all() and other.isfinite().all()):
            return FAR, FAR, 0.0

    gaps, kls, agreements = [], [], []
    for reference, other in zip(trained, exported, strict=True):
        centred_gap = (reference - reference.mean(-1, keepdim=True)) - (
            other - other.mean(-1, keepdim=True)
        )
        gaps.append(float(centred_gap.abs().max()))
        logp = torch.log_softmax(reference.double(), -1)
        exported_logp = torch.log_softmax(other.double(), -1)
        kls.append((logp.exp() * (logp - exported_logp)).sum(-1))
        agreements.append((reference.argmax(-1) == other.argmax(-1)).double())
    mean_kl = float(torch.cat(kls).mean().clamp(min=0))
    return max(gaps), mean_kl, float(torch.cat(agreements).mean())
