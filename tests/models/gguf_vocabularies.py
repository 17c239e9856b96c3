"""GGUF files with a vocabulary and nothing else: byte-level ones by the name of their
pre-tokenizer, and those of SentencePiece. llama.cpp loads them to give tokens."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.models.tiny_models import TEXT
from thumbwheel.models.gguf.header import GgufHeader

LINES = (
    *TEXT,
    "Whoever counts the steps to the harbour has to begin before the tide turns.",
    "She wrote: 'nineteen boats, 4 of them blue' - and then nothing for weeks.",
    "for name in sorted(names): print(name, len(name), sep=': ')",
)
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SHAPE = {
    "block_count": 1,
    "context_length": 4096,
    "embedding_length": 8,
    "feed_forward_length": 16,
    "attention.head_count": 1,
}


def _writer(path: Path, model: str) -> Any:
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "llama")
    for name, value in SHAPE.items():
        writer.add_uint32(f"llama.{name}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model(model)
    return writer


def _write(writer: Any, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def with_pre_tokenizer(path: Path, source: GgufHeader, name: str) -> Path:
    """Write the byte-level vocabulary of `source` with `name` as its pre-tokenizer, and with
    control tokens and one that a user added, with a space in it."""
    metadata = source.metadata
    tokens = [*metadata["tokenizer.ggml.tokens"], "<|im_start|>", "<|im_end|>", "<my tag>"]
    kinds = [*metadata["tokenizer.ggml.token_type"], CONTROL, CONTROL, USER_DEFINED]
    writer = _writer(path, "gpt2")
    writer.add_tokenizer_pre(name)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(metadata["tokenizer.ggml.merges"])
    writer.add_bos_token_id(len(tokens) - 3)
    writer.add_eos_token_id(len(tokens) - 2)
    return _write(writer, path)


def piece_model(path: Path, size: int, lines: Iterable[str] = LINES) -> Path:
    """Train SentencePiece's BPE on `lines`; returns the file of its model."""
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(path),
        vocab_size=size,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        character_coverage=0.9995,
        minloglevel=2,
    )
    return path.with_suffix(".model")


def sentence_pieces(
    path: Path, lines: Iterable[str], size: int = 2000, *, space_prefix: bool = True
) -> Path:
    """Train SentencePiece's BPE on `lines` and write it, with control tokens and, as Gemma has
    them, tokens of several spaces."""
    import sentencepiece

    model = piece_model(path.with_suffix(""), size, lines)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    tokens, kinds, scores = [], [], []
    for number in range(pieces.get_piece_size()):
        tokens.append(pieces.id_to_piece(number))
        scores.append(pieces.get_score(number))
        if pieces.is_unknown(number):
            kinds.append(UNKNOWN)
        elif pieces.is_control(number):
            kinds.append(CONTROL)
        else:
            kinds.append(BYTE if pieces.is_byte(number) else NORMAL)
    for text, kind in (
        ("<start_of_turn>", CONTROL),
        ("<end_of_turn>", CONTROL),
        ("  ", USER_DEFINED),
        ("   ", USER_DEFINED),
        ("\n\n", USER_DEFINED),
    ):
        tokens.append(text)
        kinds.append(kind)
        scores.append(0.0)
    writer = _writer(path, "llama")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_scores(scores)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(space_prefix)
    return _write(writer, path)
