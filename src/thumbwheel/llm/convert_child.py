"""Runs llama.cpp's own converter with what it does not know: `python -m
thumbwheel.llm.convert_child SCRIPT SETTINGS ARGUMENTS...`.

Two things are given to it. The pre-tokenizer, where the tokenizer is none of those that it
recognizes by a hash: the tokenizer's own description decides, then the model's family. And the
tokens that end an answer, which it would read from files that may say otherwise.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

UNKNOWN = "no pre-tokenizer is known for this tokenizer"

BY_PATTERN = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| "
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": "qwen2",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| "
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": "llama-bpe",
}
"""How the tokenizer splits text -> what llama.cpp calls that."""
BY_FAMILY = {
    "qwen2": "qwen2",
    "qwen3": "qwen2",
    "qwen2_moe": "qwen2",
    "qwen3_moe": "qwen2",
    "llama": "llama-bpe",
    "mistral": "tekken",
    "gpt2": "gpt-2",
    "smollm3": "smollm",
    "phi": "phi-2",
    "olmo2": "olmo",
    "starcoder2": "starcoder",
    "falcon": "falcon",
}


def main(script: str, settings: str, *arguments: str) -> None:
    """Patch the converter and run it; it prints its own messages as usual."""
    options = json.loads(settings)
    folder = Path(script).parent
    # the published gguf has the same version number and is older
    sys.path[:0] = [str(folder), str(folder / "gguf-py")]
    import gguf
    from conversion import base

    base.TextModel.get_vocab_base_pre = _with_family(
        base.TextModel.get_vocab_base_pre, options["family"]
    )
    add_to_gguf = _with_ends(gguf.SpecialVocab.add_to_gguf, options["ends"])
    gguf.SpecialVocab.add_to_gguf = add_to_gguf  # type: ignore[method-assign]
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def _with_family(original: Callable[..., str], family: str) -> Callable[..., str]:
    def get_vocab_base_pre(self: Any, tokenizer: Any) -> str:
        try:
            return original(self, tokenizer)
        except NotImplementedError:
            description = json.loads(tokenizer.backend_tokenizer.to_str())
            name = by_pattern(description["pre_tokenizer"]) or BY_FAMILY.get(family)
            if name is None:
                raise NotImplementedError(UNKNOWN) from None
            return name

    return get_vocab_base_pre


def by_pattern(split: dict[str, Any] | None) -> str | None:
    """Return llama.cpp's name for the pre-tokenizer `split` of a tokenizer.json; None if no known
    name matches.

    >>> by_pattern({"type": "ByteLevel", "use_regex": True, "add_prefix_space": False})
    'gpt-2'
    """
    parts = split.get("pretokenizers", [split]) if split else []
    kinds = [part["type"] for part in parts]
    if kinds == ["ByteLevel"] and parts[0].get("use_regex", True):
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and parts[0].get("individual_digits"):
        return "smollm"
    patterns = [part["pattern"].get("Regex") for part in parts if part["type"] == "Split"]
    return BY_PATTERN.get(patterns[0]) if len(patterns) == 1 else None


def _with_ends(original: Callable[..., None], ends: list[int]) -> Callable[..., None]:
    def add_to_gguf(self: Any, *arguments: Any, **options: Any) -> None:
        self.special_token_ids.update(zip(("eos", "eot", "eom"), ends, strict=False))
        original(self, *arguments, **options)

    return add_to_gguf


if __name__ == "__main__":
    main(*sys.argv[1:])
