"""The models and the rows that the training benchmarks use: made here, nothing is downloaded.

Random Qwen2 models of 26M, 135M and 494M parameters with vocabularies of usual size, a tokenizer
trained on this Python's own library, and pairs whose lengths follow those of real preference data
(prompt about 200 tokens, completions about 70). Real pairs of hh-rlhf beside them where
../shared/data has them. The tokenizer's chat template adds nothing to a prompt and the end token to
an answer, so that peers that are given plain strings see the same tokens. No pair is longer than
1,024 tokens: nobody truncates.
"""

from __future__ import annotations

import json
import os
import random
import sysconfig
from pathlib import Path
from typing import Any

SIZES: dict[str, dict[str, Any]] = {
    "1m": {
        "vocab_size": 8000,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 128,
    },
    "26m": {
        "vocab_size": 32000,
        "hidden_size": 384,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "intermediate_size": 1024,
    },
    "135m": {
        "vocab_size": 49152,
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
    },
    "494m": {
        "vocab_size": 151936,
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
    },
}
"""The smallest is there to try the benchmark out, its figures mean nothing; the largest is for
GPUs."""
LONGEST = 1024
TEMPLATE = (
    "{% for message in messages %}{{ message.content }}{% if message.role == 'assistant' %}{{ "
    "eos_token }}{% endif %}{% endfor %}"
)
SHARED = Path(
    os.environ.get("THUMBWHEEL_TEST_DATA") or Path(__file__).parents[2] / "shared" / "data"
)
HH = SHARED / "preferences" / "hh-rlhf-harmless-base-test.jsonl"
TURN = "\n\nAssistant:"


def make(folder: Path, *sizes: str) -> None:
    """Write pairs.json and a folder for each of `sizes` below `folder`; what exists stays."""
    missing = [size for size in sizes if not (folder / size).exists()]
    if not missing and (folder / "pairs.json").exists():
        return
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:120]
    tokenizer = _tokenizer([str(file) for file in files])
    for size in missing:
        torch.manual_seed(0)
        config = Qwen2Config(
            **SIZES[size],
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
        )
        Qwen2ForCausalLM(config).save_pretrained(folder / size)
        tokenizer.save_pretrained(folder / size)
    pairs = {"pairs": _pairs(files[3].read_text().split())} | (
        {"hh": _hh()} if HH.is_file() else {}
    )
    for name, rows in pairs.items():
        (folder / f"{name}.json").write_text(
            json.dumps([pair for pair in rows if _length(tokenizer, pair) < LONGEST])
        )


def rows(pairs: list[dict[str, str]], method: str) -> list[dict[str, Any]]:
    """The rows of a method: kto takes one answer of every pair (no two rows share a prompt),
    kto-siblings takes both."""
    if method == "kto":
        sides = ("chosen", "rejected")
        return [
            {
                "prompt": pair["prompt"],
                "completion": pair[sides[position % 2]],
                "label": sides[position % 2] == "chosen",
            }
            for position, pair in enumerate(pairs)
        ]
    if method == "kto-siblings":
        return [
            {"prompt": pair["prompt"], "completion": pair[side], "label": side == "chosen"}
            for pair in pairs
            for side in ("chosen", "rejected")
        ]
    if method == "sft":
        return [{"prompt": pair["prompt"], "completion": pair["chosen"]} for pair in pairs]
    return list(pairs)


def _length(tokenizer: Any, pair: dict[str, str]) -> int:
    answers = (pair["chosen"], pair["rejected"])
    return max(len(tokenizer(pair["prompt"] + answer)["input_ids"]) for answer in answers) + 1


def _hh() -> list[dict[str, str]]:
    """Dialogues cut before the last answer, where both have the same ones before."""
    pairs = []
    for line in HH.read_text().splitlines():
        pair = json.loads(line)
        prompt = pair["chosen"][: pair["chosen"].rindex(TURN) + len(TURN)]
        chosen, rejected = (
            pair["chosen"][len(prompt) :].rstrip(),
            pair["rejected"][len(prompt) :].rstrip(),
        )
        if pair["rejected"].startswith(prompt) and chosen and rejected and chosen != rejected:
            pairs.append({"prompt": prompt, "chosen": chosen, "rejected": rejected})
    return pairs


def _tokenizer(files: list[str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train(
        files,
        trainers.BpeTrainer(
            vocab_size=8000,
            special_tokens=["<pad>", "<eos>"],
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _pairs(words: list[str]) -> list[dict[str, str]]:
    draw = random.Random(0)

    def length(mean: float, spread: float, least: int) -> int:
        return max(least, int(draw.lognormvariate(mean, spread)))

    def text(count: int) -> str:
        chosen: list[str] = []
        while len(chosen) < count:
            start = draw.randrange(len(words) - 50)
            chosen += words[start : start + 50]
        return " ".join(chosen[:count])

    return [
        {
            "prompt": text(length(4.3, 0.6, 8)),
            "chosen": " " + text(length(3.2, 0.7, 3)),
            "rejected": " " + text(length(3.2, 0.7, 3)),
        }
        for _ in range(400)
    ]
