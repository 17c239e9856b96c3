"""The models and the preference pairs that the training benchmark uses: made here, nothing is downloaded.

Random Qwen2 models of 26M and 135M parameters with vocabularies of usual size, a tokenizer trained on this Python's own library,
and pairs whose lengths follow those of real preference data (prompt about 200 tokens, completions about 70).
"""

from __future__ import annotations

import json
import random
import sysconfig
from pathlib import Path

SIZES = {
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
}
PAIRS_A_STEP = {"26m": 8, "135m": 4}


def make(folder: Path) -> None:
    """Write pairs.json and one folder a size below `folder`; what exists stays."""
    if (folder / "pairs.json").exists():
        return
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:120]
    tokenizer = _tokenizer([str(file) for file in files])
    torch.manual_seed(0)
    for size, shape in SIZES.items():
        config = Qwen2Config(
            **shape, max_position_embeddings=2048, tie_word_embeddings=True, pad_token_id=0, eos_token_id=1, bos_token_id=None
        )
        Qwen2ForCausalLM(config).save_pretrained(folder / size)
        tokenizer.save_pretrained(folder / size)
    (folder / "pairs.json").write_text(json.dumps(_pairs(files[3].read_text().split())))


def _tokenizer(files: list[str]) -> object:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train(
        files, trainers.BpeTrainer(vocab_size=8000, special_tokens=["<pad>", "<eos>"], initial_alphabet=alphabet, show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token="<pad>", eos_token="<eos>")


def _pairs(words: list[str]) -> list[dict[str, str]]:
    draw = random.Random(0)

    def length(mean: float, spread: float, least: int) -> int:
        return max(least, int(draw.lognormvariate(mean, spread)))

    def text(count: int) -> str:
        found: list[str] = []
        while len(found) < count:
            start = draw.randrange(len(words) - 50)
            found += words[start : start + 50]
        return " ".join(found[:count])

    return [
        {"prompt": text(length(4.3, 0.6, 8)), "chosen": " " + text(length(3.2, 0.7, 3)), "rejected": " " + text(length(3.2, 0.7, 3))}
        for _ in range(400)
    ]
