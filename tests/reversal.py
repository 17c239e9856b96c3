"""A pinned task for methods that learn from fresh answers: write a string of letters backwards. Its
base was taught it half-way, here."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

LETTERS, LENGTH = "abcdefgh", 4
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}{{ message['content'] "
    "}}<eos>"
    "{% else %}{{ message['content'] }}={% endif %}{% endfor %}"
)


def strings(seed: int, different: bool = True) -> Iterator[str]:
    """Strings without end, or all that there are, each once."""
    chance, seen = random.Random(seed), set()
    while len(seen) < len(LETTERS) ** LENGTH:
        text = "".join(chance.choice(LETTERS) for _ in range(LENGTH))
        if text not in seen:
            yield text
        if different:
            seen.add(text)


def reversal_rows(train: int, dev: int, seed: int = 1, **changes: Any) -> list[dict[str, Any]]:
    """Rows of shape `prompts`; no prompt twice."""
    texts = strings(seed)
    return [
        {
            "row_id": f"row_{number:05d}",
            "group": f"g{number}",
            "split": "train" if number < train else "dev",
            "tools": None,
            "prompt": [{"role": "user", "content": text}],
            "weight": 1.0,
            "origin": "case",
            "feedback_ids": [],
            "trace_ids": [],
            "subject_ids": [],
            "reference": text[::-1],
            "checker": "exact_answer",
            "checker_config": {},
            "case_id": None,
        }
        | changes
        for number, text in zip(range(train + dev), texts, strict=False)
    ]


def reversal_tokenizer() -> Any:
    """A letter a token."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(
        models.WordLevel(
            {token: token_id for token_id, token in enumerate(["<pad>", "<eos>", "=", *LETTERS])},
            unk_token="<pad>",
        )
    )
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    inner.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>"
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def untaught(tokenizer: Any, width: int, layers: int) -> Any:
    """A random model."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=64,
            eos_token_id=1,
            pad_token_id=0,
            bos_token_id=None,
            tie_word_embeddings=True,
        )
    )


def lessons(
    model: Any, tokenizer: Any, pairs: Iterator[tuple[str, str]], rate: float
) -> Iterator[int]:
    """Teach 64 (prompt, answer) at a time, for as long as the number of steps is asked for."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for step in count(1):
        texts = [(f"{prompt}=", f"{answer}<eos>") for prompt, answer in islice(pairs, 64)]
        batch = tokenizer(
            [prompt + answer for prompt, answer in texts],
            padding=True,
            padding_side="right",
            return_tensors="pt",
        )
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        labels[:, : len(texts[0][0])] = -100  # prompts are of one length, a letter a token
        model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels
        ).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield step


def saved(model: Any, tokenizer: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def reversal_base(folder: Path, low: float = 0.2, high: float = 0.3) -> Path:
    """A model of a million parameters whose greedy answers to `low` to `high` of all strings are
    right, taught from nothing."""
    tokenizer = reversal_tokenizer()
    model = untaught(tokenizer, width=128, layers=4)
    texts = strings(0, different=False)
    for step in lessons(model, tokenizer, ((text, text[::-1]) for text in texts), 5e-4):
        if step % 5 == 0 and low <= (rate := success(model, tokenizer, list(islice(texts, 256)))):
            assert rate <= high, f"the base learned too fast: {rate:.0%} after {step} steps"
            return saved(model, tokenizer, folder)
        assert step < 3000, "the base learned nothing"
    raise AssertionError


def terse_base(folder: Path) -> Path:
    """A tiny model that mostly answers `ab`, whatever it is asked, and now and then something else,
    longer or shorter."""
    tokenizer = reversal_tokenizer()
    model = untaught(tokenizer, width=32, layers=2)
    chance = random.Random(0)
    other = lambda: "".join(chance.choice(LETTERS) for _ in range(chance.randint(1, 8)))  # noqa: E731
    pairs = (
        (text, "ab" if chance.random() < 0.7 else other()) for text in strings(0, different=False)
    )
    for step in lessons(model, tokenizer, pairs, 3e-3):
        if step == 80:
            break
    return saved(model, tokenizer, folder)


def success(model: Any, tokenizer: Any, texts: list[str], sample: bool = False) -> float:
    """Share of the strings that one answer each, greedy or drawn at temperature 1, writes
    backwards."""
    import torch

    ids = torch.tensor([tokenizer(f"{text}=")["input_ids"] for text in texts])
    how = (
        {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
        if sample
        else {"do_sample": False}
    )
    with torch.no_grad():
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=LENGTH + 2,
            pad_token_id=0,
            **how,
        )
    answers = [tokenizer.decode(row, skip_special_tokens=True) for row in out[:, ids.shape[1] :]]
    return sum(answer == text[::-1] for answer, text in zip(answers, texts, strict=True)) / len(
        texts
    )
