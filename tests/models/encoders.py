"""Tiny encoders with a WordPiece tokenizer that encodes pairs: BERT (MiniLM's form), DeBERTa-v2
(v3's form), RoBERTa."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TEXT = (
    "the quick brown fox jumps over lazy dog größe naïve return def add be brief . user system "
    "assistant : # question yes no"
)


def pair_tokenizer(family: str) -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    vocab = {
        word: number
        for number, word in enumerate(
            [*names.values(), *TEXT.split(), *(f"##{c}" for c in "abc"), *"0123456789"]
        )
    }
    inner = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    second = "[SEP]:0 $B:0 [SEP]:0" if family == "roberta" else "$B:1 [SEP]:1"
    special = [("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])]
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=f"[CLS] $A [SEP] {second}", special_tokens=special
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        model_max_length=128,
        **{f"{name}_token": text for name, text in names.items()},
    )


def tiny_encoder(folder: Path, family: str = "bert", seed: int = 0) -> Path:
    """A random masked language model of `family` in `folder`, two layers of 32."""
    import torch
    import transformers as tf

    tokenizer = pair_tokenizer(family)
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 130,
        "pad_token_id": 0,
        "initializer_range": 0.2,
    }
    if family == "deberta-v2":
        shape |= {
            "relative_attention": True,
            "position_buckets": 8,
            "pos_att_type": ["p2c", "c2p"],
            "type_vocab_size": 0,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "position_biased_input": False,
        }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = tf.AutoModelForMaskedLM.from_config(tf.AutoConfig.for_model(family, **shape))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
