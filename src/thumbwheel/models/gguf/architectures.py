"""What a GGUF file says about its model, in the words of transformers: the configuration, and the
names and the form of the weights.

Every setting of the architecture and every tensor in the file has to be understood. A file with one
that is not is refused: without it the model would compute something else than llama.cpp does. To
add an architecture, add it to ARCHITECTURES; the round trip through llama.cpp's converter proves
it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from thumbwheel.core.errors import ModelError
from thumbwheel.models.gguf.header import GgufHeader, damaged
from thumbwheel.models.gguf.tensors import read_tensor

TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
FOUR_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
"""Parts of the name of a tensor in the file -> those of the model's."""
ROPE_FACTORS = "rope_freqs.weight"
"""Tensor of the factors by which Llama 3 slows its rotations."""
BLOCK = re.compile(r"blk\.(\d+)\.([a-z_]+)\.(weight|bias)")
LARGEST_SIZE = 1 << 31
"""Of a setting that counts something; contexts have some millions."""
WITHOUT_EFFECT = frozenset(
    {
        "vocab_size",  # the embedding has it
        "attention.causal",
        "attention.sliding_window_pattern",
        "pooling_type",
    }
)
"""Settings that follow from others, or that every model here has."""
LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_CONTEXT = 1.0, 4.0, 8192
"""Settings of the rotations of all Llama 3.1, 3.2 and 3.3 models; the factor alone differs."""


class _Settings:
    """The settings of a file's architecture. Those that were read are noted."""

    def __init__(self, header: GgufHeader) -> None:
        self.header = header
        self.used: set[str] = set(WITHOUT_EFFECT)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting, which is a number or a text. Raises ModelError if it differs between
        layers."""
        self.used.add(name)
        value = self.header.setting(name, default)
        if isinstance(value, list):
            # some files say it for every layer
            if not value or any(item != value[0] for item in value):
                raise refusal(self.header, f"its {name} is not the same for all layers")
            value = value[0]
        return value

    def size(self, name: str, default: int | None = None) -> int:
        """Return a setting that is a whole number above 0. Raises ModelError for any other
        value."""
        value = self.get(name, default)
        if type(value) is not int or not 1 <= value <= LARGEST_SIZE:
            raise damaged(self.header.path, f"its {name} is {value!r:.60}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a setting that is a finite number above 0. Raises ModelError for any other
        value."""
        value = self.get(name, default)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise damaged(self.header.path, f"its {name} is {value!r:.60}")
        return float(value)

    def check_all_used(self) -> None:
        """Raise ModelError for a setting that nothing here understands."""
        prefix = f"{self.header.architecture}."
        for key in self.header.metadata:
            if key.startswith(prefix) and key.removeprefix(prefix) not in self.used:
                raise refusal(self.header, f"its setting {key!r:.80} is unknown here")


def refusal(header: GgufHeader, why: str) -> ModelError:
    """Return the error for a model that cannot be rebuilt."""
    return ModelError(
        f"GGUF file {str(header.path)!r}",
        why,
        "Give the model's own folder, with config.json and safetensors, instead of the GGUF file",
    )


def _common(settings: _Settings) -> dict[str, Any]:
    """Return the settings that all architectures here have."""
    header = settings.header
    hidden, heads = settings.size("embedding_length"), settings.size("attention.head_count")
    head = settings.size("attention.key_length", hidden // heads)
    if settings.get("attention.value_length", head) != head:
        raise refusal(header, "its keys and values are of different sizes")
    if settings.get("rope.dimension_count", head) != head:
        raise refusal(header, "it rotates only a part of each head")
    if settings.get("expert_count"):
        raise refusal(header, "it is a mixture of experts")
    layers = settings.size("block_count")
    if layers > len(header.tensors):
        raise damaged(header.path, f"it announces {layers:,} layers, and has fewer tensors")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise damaged(header.path, "it has no embedding of its tokens")
    return {
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": settings.size("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": settings.size("attention.head_count_kv", heads),
        "head_dim": head,
        "max_position_embeddings": settings.size("context_length"),
        "rms_norm_eps": settings.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in header.tensors,
    }


def _ropes(settings: _Settings, head: int) -> dict[str, Any]:
    """Return the settings by which positions are rotated."""
    header = settings.header
    theta = settings.number("rope.freq_base", 10000.0)
    kind = settings.get("rope.scaling.type", "none")
    factor = settings.number("rope.scaling.factor", settings.number("rope.scale_linear", 1.0))
    if kind == "linear" and factor != 1.0:
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    if kind not in ("none", "linear"):
        raise refusal(header, f"it scales its rotations by {kind!r:.40}")
    if ROPE_FACTORS in header.tensors:
        return _llama3_ropes(header, theta, head)
    return {"rope_type": "default", "rope_theta": theta}


def _llama3_ropes(header: GgufHeader, theta: float, head: int) -> dict[str, Any]:
    """Return the settings whose factors the file holds. Raises ModelError if no known model has
    these factors."""
    unknown = refusal(header, "it scales its rotations by factors of no known form")
    stored_factors = header.tensors[ROPE_FACTORS]
    if stored_factors.shape != (head // 2,):
        raise unknown
    factors = read_tensor(header, stored_factors).tolist()
    factor = max(factors, default=0.0)
    if not 0 < factor < math.inf:
        raise unknown
    expected = []
    for index in range(head // 2):
        wavelength = 2 * math.pi * theta ** (2 * index / head)
        share = (LLAMA3_CONTEXT / wavelength - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW)
        smooth = min(max(share, 0.0), 1.0)
        expected.append(1 / ((1 - smooth) / factor + smooth))
    for stored, computed in zip(factors, expected, strict=True):
        if not math.isclose(stored, computed, rel_tol=1e-4):
            raise unknown
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": LLAMA3_LOW,
        "high_freq_factor": LLAMA3_HIGH,
        "original_max_position_embeddings": LLAMA3_CONTEXT,
    }


def _plain(settings: _Settings) -> dict[str, Any]:
    config = _common(settings)
    return config | {"rope_parameters": _ropes(settings, config["head_dim"])}


def _llama(settings: _Settings) -> dict[str, Any]:
    has_bias = "blk.0.attn_q.bias" in settings.header.tensors
    return _plain(settings) | {"attention_bias": has_bias}


def _gemma(settings: _Settings) -> dict[str, Any]:
    return _plain(settings) | {"tie_word_embeddings": True}


def _scale_of_queries(config: Mapping[str, Any], layers_of_27b: int) -> int:
    """Return the number by whose root queries are divided: as in llama.cpp, it is known by the
    model's size."""
    if config["num_hidden_layers"] == layers_of_27b:
        return int(config["hidden_size"] // config["num_attention_heads"])
    return int(config["head_dim"])


def _gemma2(settings: _Settings) -> dict[str, Any]:
    config = _gemma(settings)
    return config | {
        "query_pre_attn_scalar": _scale_of_queries(config, 46),
        "sliding_window": settings.size("attention.sliding_window", 4096),
        "attn_logit_softcapping": settings.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": settings.number("final_logit_softcapping", 30.0),
    }


def _gemma3(settings: _Settings) -> dict[str, Any]:
    config = _common(settings)
    settings.used.add("rope.freq_base")
    if settings.header.setting("rope.freq_base") is None:
        raise damaged(settings.header.path, "its header has no rope.freq_base")
    local = settings.number("rope.freq_base_swa", 10000.0)
    return config | {
        "rope_parameters": {
            "full_attention": _ropes(settings, config["head_dim"]),
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": _scale_of_queries(config, 62),
        "sliding_window": settings.size("attention.sliding_window"),
        "final_logit_softcapping": settings.get("final_logit_softcapping"),
    }


def _phi3(settings: _Settings) -> dict[str, Any]:
    # llama.cpp does not apply the window of this architecture
    settings.used.add("attention.sliding_window")
    context = settings.get("rope.scaling.original_context_length", settings.size("context_length"))
    return _plain(settings) | {
        "sliding_window": None,
        "original_max_position_embeddings": context,
    }


@dataclass(frozen=True)
class Architecture:
    """How to rebuild the models of an architecture."""

    model_type: str
    """What transformers calls it."""
    config: Callable[[_Settings], dict[str, Any]]
    layer: Mapping[str, str] = field(default_factory=dict)
    """Names of a layer's tensors that differ from LAYER."""
    rotates_pairs: bool = False
    """Whether the rows of queries and keys are stored so that neighbours are rotated together;
    transformers rotates the halves of a head."""
    norms_add_one: bool = False
    """Whether the file holds the weights of norms plus one."""


ARCHITECTURES = {
    "llama": Architecture("llama", _llama, rotates_pairs=True),
    "qwen2": Architecture("qwen2", _plain),
    "qwen3": Architecture("qwen3", _plain, HEAD_NORMS),
    "gemma": Architecture("gemma", _gemma, norms_add_one=True),
    "gemma2": Architecture("gemma2", _gemma2, FOUR_NORMS, norms_add_one=True),
    "gemma3": Architecture("gemma3_text", _gemma3, FOUR_NORMS | HEAD_NORMS, norms_add_one=True),
    "phi3": Architecture("phi3", _phi3, FUSED),
}
"""What llama.cpp calls an architecture -> how its models are rebuilt."""


def architecture_of(header: GgufHeader) -> Architecture:
    """Return how to rebuild the model of a file. Raises ModelError for one that is unknown here."""
    name = header.architecture
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    names = ", ".join(ARCHITECTURES)
    raise refusal(
        header,
        f"its architecture {name!r:.60} cannot be rebuilt from such a file here (known: {names})",
    )


def config_of(header: GgufHeader) -> dict[str, Any]:
    """Return the settings of the model's configuration. Raises ModelError for a model that cannot
    be rebuilt."""
    settings = _Settings(header)
    config = architecture_of(header).config(settings)
    settings.check_all_used()
    for role in ("bos", "eos"):
        config[f"{role}_token_id"] = header.metadata.get(f"tokenizer.ggml.{role}_token_id")
    config["pad_token_id"] = header.metadata.get("tokenizer.ggml.padding_token_id")
    return config


def model_name(header: GgufHeader, stored: str) -> str | None:
    """Return the name in the model of the tensor that the file calls `stored`; None for one that
    the configuration already has. Raises ModelError for an unknown tensor."""
    if stored == ROPE_FACTORS:
        return None
    layer = dict(LAYER) | dict(architecture_of(header).layer)
    if match := BLOCK.fullmatch(stored):
        number, part, leaf = match.groups()
        if part in layer:
            return f"model.layers.{int(number)}.{layer[part]}.{leaf}"
    part, _, leaf = stored.rpartition(".")
    if part in TOP and leaf == "weight":
        return f"{TOP[part]}.weight"
    raise refusal(header, f"its tensor {stored!r:.80} is unknown here")
