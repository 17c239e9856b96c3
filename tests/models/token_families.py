"""Small random configurations, the plain padded computation that everything is compared with, and
random trees."""

from __future__ import annotations

import math

import torch
import transformers as tf
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model

from thumbwheel.engine.tree import Branch, Example

VOCAB = 61
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
GROUPED = {"num_key_value_heads": 2}
SMALL = {"bos_token_id": 0, "eos_token_id": 1}

TREE = {
    "qwen2": lambda: tf.Qwen2Config(**SHAPE, **GROUPED),
    "qwen2-sliding": lambda: tf.Qwen2Config(
        **SHAPE, **GROUPED, use_sliding_window=True, sliding_window=4, max_window_layers=1
    ),
    "llama": lambda: tf.LlamaConfig(**SHAPE, **GROUPED),
    "mistral-sliding": lambda: tf.MistralConfig(**SHAPE, **GROUPED, sliding_window=5),
    "gpt2": lambda: tf.GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128, **SMALL
    ),
    "phi-head-bias": lambda: tf.PhiConfig(**SHAPE),
    "gemma2-softcaps": lambda: tf.Gemma2Config(
        **SHAPE,
        **GROUPED,
        head_dim=8,
        sliding_window=4,
        query_pre_attn_scalar=8,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
    ),
    "cohere-logit-scale": lambda: tf.CohereConfig(**SHAPE, **GROUPED, logit_scale=0.3),
    "granite-logit-scale": lambda: tf.GraniteConfig(
        **SHAPE, **GROUPED, logits_scaling=4.0, embedding_multiplier=2.0, residual_multiplier=0.5
    ),
}
PADDED = {
    "bloom": (
        lambda: tf.BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4, **SMALL),
        "ALiBi",
    ),
    "mamba": (
        lambda: tf.MambaConfig(
            vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, state_size=4, **SMALL
        ),
        "state",
    ),
    "gpt-oss": (
        lambda: tf.GptOssConfig(
            **SHAPE, **GROUPED, head_dim=8, num_local_experts=4, num_experts_per_tok=2
        ),
        "sinks",
    ),
    "gpt-neo": (
        lambda: tf.GPTNeoConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            max_position_embeddings=128,
            window_size=5,
            **SMALL,
        ),
        "cannot be replaced",
    ),
}


def eager_exact(module, query, key, value, attention_mask, scaling=None, softcap=None, **_):
    """Plain attention in the full precision of its inputs: transformers' own eager one rounds the
    softmax to fp32."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if attention_mask is None:
        hidden = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    else:
        scores = scores + attention_mask
    return (scores.softmax(-1) @ value).transpose(1, 2).contiguous(), None


def _register_exact():
    from transformers.masking_utils import eager_mask

    tf.AttentionInterface.register("exact_test", eager_exact)
    tf.AttentionMaskInterface.register("exact_test", eager_mask)


_register_exact()


def adapted(config, dtype=torch.float64, seed=0, targets="all-linear"):
    """A random model whose LoRA adapter is random and not zero, so that policy and reference
    differ."""
    torch.manual_seed(seed)
    model = tf.AutoModelForCausalLM.from_config(config()).to(dtype)
    with torch.no_grad():
        for parameter in (
            model.parameters()
        ):  # wider than the usual start, so that attention and head are far from uniform
            parameter.add_(torch.randn_like(parameter) * 0.1)
    lora = LoraConfig(
        r=3, lora_alpha=6, target_modules=targets, init_lora_weights=False, task_type="CAUSAL_LM"
    )
    return get_peft_model(model, lora).to(dtype).eval()


def plain(model, examples, dtype, *, exact=True, temperature=1.0):
    """Targets' log-probabilities, in order, by the model's own forward on right-padded rows."""
    rows = [
        (example.prompt + branch.ids, len(example.prompt), branch)
        for example in examples
        for branch in example.branches
    ]
    longest = max(len(ids) for ids, _, _ in rows)
    ids = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids, _, _ in rows])
    mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _, _ in rows])
    inner = model.get_base_model()
    before = inner.config._attn_implementation
    if exact:
        inner.set_attn_implementation("exact_test")
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    inner.set_attn_implementation(before)
    logs = (logits.to(dtype) / temperature).log_softmax(-1)
    logps = [
        logs[row, start + offset - 1, branch.ids[offset]]
        for row, (_, start, branch) in enumerate(rows)
        for offset in branch.targets
    ]
    return torch.stack(logps)


tokens = st.integers(2, VOCAB - 1)


@st.composite
def trees(draw, most=4):
    """Examples whose prompts and branches often share openings, are one another's prefixes, or are
    the same."""
    stem = draw(st.lists(tokens, min_size=1, max_size=22))
    examples = []
    for number in range(draw(st.integers(1, most))):
        prompt = stem[: draw(st.integers(0, len(stem)))] + draw(
            st.lists(tokens, min_size=0, max_size=6)
        ) or [5]
        opening = draw(st.lists(tokens, max_size=3))
        branches = []
        for _ in range(draw(st.integers(1, 3))):
            ids = opening[: draw(st.integers(0, len(opening)))] + draw(
                st.lists(tokens, min_size=1, max_size=6)
            )
            mask = draw(
                st.none() | st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)).map(tuple)
            )
            branches.append(Branch(tuple(ids), mask))
        examples.append(Example(tuple(prompt), tuple(branches), f"g{number}"))
    return examples


PAIRS = [
    Example(tuple(range(2, 22)), (Branch((30, 31, 32, 33, 34, 35)), Branch((30, 31, 40, 41))), "a"),
    Example(
        (*range(2, 20), 50, 51),
        (Branch((7, 8, 9)), Branch((9, 8, 7, 6, 5), (True, False, True, True, True))),
        "b",
    ),
    Example((44, 45), (Branch((46,)), Branch((46, 47, 48))), "c"),
]
