"""Tiny models of several families with random non-zero adapters, and a byte-level BPE tokenizer."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def bpe():
    """A factory of fresh tokenizers over one small byte-level BPE: bpe(template, bos=..., eos=...,
    adds_bos=...)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = [
        "<pad>",
        "<s>",
        "</s>",
        "<|im_start|>",
        "<|im_end|>",
        "<|start|>",
        "<|end|>",
        "<|eot|>",
    ]
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    text = [
        "the quick brown fox answers the user and the assistant says yes or no " * 3,
        "### User:\nhello\n\n### Assistant:\n",
    ]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(text, trainer)
    saved = inner.to_str()

    def make(template=None, *, bos=None, eos="</s>", adds_bos=False):
        fresh = Tokenizer.from_str(saved)
        if adds_bos:
            fresh.post_processor = processors.TemplateProcessing(
                single=f"{bos} $A", special_tokens=[(bos, fresh.token_to_id(bos))]
            )
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=fresh,
            bos_token=bos,
            eos_token=eos,
            pad_token="<pad>",
            additional_special_tokens=[
                "<|im_start|>",
                "<|im_end|>",
                "<|start|>",
                "<|end|>",
                "<|eot|>",
            ],
        )
        tokenizer.chat_template = template
        return tokenizer

    return make
