"""A pinned task for methods that learn from fresh answers: write a string of letters backwards. Its base was taught it half-way, here."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

LETTERS, LENGTH = "abcdefgh", 4
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}{{ message['content'] }}<eos>"
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


def reversal_rows(train: int, dev: int, seed: int = 1) -> list[dict[str, Any]]:
    """Rows of shape `prompts`; no prompt twice."""
    texts = strings(seed)
    return [
        {
            "row_id": f"row_{number:05d}", "group": f"g{number}", "split": "train" if number < train else "dev", "tools": None,
            "prompt": [{"role": "user", "content": text}], "weight": 1.0, "origin": "case", "feedback_ids": [], "trace_ids": [],
            "subject_ids": [], "reference": text[::-1], "checker": "exact_answer", "checker_config": {},
        }
        for number, text in zip(range(train + dev), texts, strict=False)
    ]  # fmt: skip


def reversal_tokenizer() -> Any:
    """A letter a token."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({token: at for at, token in enumerate(["<pad>", "<eos>", "=", *LETTERS])}, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    inner.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def reversal_base(folder: Path, low: float = 0.2, high: float = 0.3, width: int = 128) -> Path:
    """A model of about a million parameters that writes `low` to `high` of all strings backwards, taught from nothing."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = reversal_tokenizer()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=4 * width, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, eos_token_id=1, pad_token_id=0, bos_token_id=None, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    texts = strings(0, different=False)
    for step in range(3000):
        batch = torch.tensor([tokenizer(f"{text}={text[::-1]}<eos>")["input_ids"] for text in islice(texts, 64)])
        labels = batch.clone()
        labels[:, : LENGTH + 1] = -100
        loss = model(input_ids=batch, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 4 and low <= (rate := success(model, tokenizer, list(islice(texts, 256)), sample=False)):
            assert rate <= high, f"the base learned too fast: {rate:.0%} after {step + 1} steps"
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            return folder
    raise AssertionError("the base learned nothing")


def success(model: Any, tokenizer: Any, texts: list[str], sample: bool = True) -> float:
    """Share of the strings that one answer each, drawn at temperature 1 or greedy, writes backwards."""
    import torch

    ids = torch.tensor([tokenizer(f"{text}=")["input_ids"] for text in texts])
    how = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0} if sample else {"do_sample": False}
    with torch.no_grad():
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=LENGTH + 2, pad_token_id=0, **how)
    answers = [tokenizer.decode(row, skip_special_tokens=True) for row in out[:, ids.shape[1] :]]
    return sum(answer == text[::-1] for answer, text in zip(answers, texts, strict=True)) / len(texts)
