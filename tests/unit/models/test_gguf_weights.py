"""A base from a GGUF file computes what llama.cpp computes from that file, and a file that would
not is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.gguf_vocabularies import piece_model
from tests.models.tiny_models import tiny_base, tiny_tokenizer
from tests.servers.llama_tools import needs
from thumbwheel.core.errors import ModelError
from thumbwheel.llm.convert import convert
from thumbwheel.llm.library import Model, quantize
from thumbwheel.models.gguf.architectures import config_of
from thumbwheel.models.gguf.header import GgufHeader, read_header
from thumbwheel.models.gguf.weights import bits_a_weight, stored_dtype, types, write_model

pytestmark = [pytest.mark.tools, pytest.mark.slow]

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
GEMMA = {"query_pre_attn_scalar": 8, "sliding_window": 16}
FAMILIES: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "llama": ("llama", False, {}),
    "llama, tied, rotations of 3.2": (
        "llama",
        False,
        {"tie_word_embeddings": True, "rope_parameters": LLAMA3, "head_dim": 32},
    ),
    "llama, with biases": ("llama", False, {"attention_bias": True}),
    "llama, linear rotations": (
        "llama",
        False,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "mistral": ("mistral", False, {"sliding_window": None}),
    "qwen2": ("qwen2", False, {}),
    "qwen3": ("qwen3", False, {"head_dim": 16}),
    # the converter does not write the base of their rotations
    "gemma": ("gemma", True, {"rope_theta": 1e4}),
    "gemma2": ("gemma2", True, GEMMA | {"rope_theta": 1e4}),
    "gemma3": ("gemma3_text", False, GEMMA | {"num_hidden_layers": 7}),
    "phi3": ("phi3", True, {"pad_token_id": 0, "sliding_window": None}),
}
"""What is tried -> (family, whether its tokenizer is one of SentencePiece, further settings)."""
ROW = [5, 9, 77, 120, 33, 250, 14, 201, 8, 42, 42, 17] * 8


@pytest.fixture(autouse=True)
def _tools() -> None:
    needs("converter", "library", "bindings")


def converted(folder: Path, what: str) -> tuple[Path, Path]:
    """A random model of a family, and its GGUF file in float32."""
    family, of_pieces, settings = FAMILIES[what]
    tokenizer = tiny_tokenizer()
    if of_pieces:
        settings = settings | {"vocab_size": 400}
    base = tiny_base(folder / "base", family, tokenizer=tokenizer, **settings)
    if of_pieces:
        shutil.copyfile(piece_model(folder / "pieces", 400), base / "tokenizer.model")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (base / name).unlink()
    file = folder / "model.gguf"
    convert(base, file, "F32", family, [2])
    return base, file


def rebuilt(file: Path, folder: Path) -> Any:
    """The model that is made of a file."""
    from transformers import AutoModelForCausalLM

    header = read_header(file)
    folder.mkdir()
    write_model(header, config_of(header), folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def logits(model: Any, row: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([row])).logits[0].float()


@pytest.mark.parametrize("what", FAMILIES)
def test_the_weights_and_the_logits_are_those_of_the_file(what: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    base, file = converted(tmp_path, what)
    model = rebuilt(file, tmp_path / "rebuilt")
    original = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    weights, expected = model.state_dict(), original.state_dict()
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        # a norm is stored as one more than itself
        torch.testing.assert_close(weights[name], tensor, rtol=0, atol=2e-7)
    torch.testing.assert_close(logits(model, ROW), logits(original, ROW), rtol=1e-4, atol=1e-4)
    with Model(file) as served:
        computed = torch.from_numpy(served.logits([ROW], len(ROW))[0].copy())
    ours = logits(model, ROW).log_softmax(-1)
    kl = (ours.exp() * (ours - computed.log_softmax(-1))).sum(-1)
    assert float(kl.mean()) < 1e-4, "of llama.cpp's half-precision attention"
    assert float((ours.argmax(-1) == computed.argmax(-1)).float().mean()) > 0.98


def test_a_quantised_file_says_what_was_lost(tmp_path: Path) -> None:
    base = tiny_base(
        tmp_path / "base", "llama", hidden_size=256, intermediate_size=512, head_dim=64
    )
    whole, small = tmp_path / "F16.gguf", tmp_path / "Q4_K_M.gguf"
    convert(base, whole, "F16", "llama", [2])
    quantize(whole, small, "Q4_K_M")
    header = read_header(small)
    assert bits_a_weight(read_header(whole)) == pytest.approx(16, abs=0.1)
    assert 4 < bits_a_weight(header) < 7
    assert set(types(header)) >= {"Q4_K", "Q6_K"}
    assert (stored_dtype(read_header(whole)), stored_dtype(header)) == ("float16", "bfloat16")
    model = rebuilt(small, tmp_path / "rebuilt")
    with Model(small) as served:
        computed = torch.from_numpy(served.logits([ROW], len(ROW))[0].copy()).log_softmax(-1)
    ours = logits(model, ROW).log_softmax(-1)
    kl = (ours.exp() * (ours - computed)).sum(-1)
    from transformers import AutoModelForCausalLM

    exact = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    lost = (ours.exp() * (ours - logits(exact, ROW).log_softmax(-1))).sum(-1)
    assert float(kl.mean()) < 0.2 * float(lost.mean()), "it is the file's model, not the original"


def with_setting(header: GgufHeader, **settings: Any) -> GgufHeader:
    renamed = {f"llama.{name.replace('__', '.')}": value for name, value in settings.items()}
    return GgufHeader(header.path, header.metadata | renamed, header.tensors)


def test_a_model_that_would_compute_something_else_is_refused(tmp_path: Path) -> None:
    _, file = converted(tmp_path, "llama")
    header = read_header(file)
    for settings, why in (
        ({"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}, "rotations by 'yarn'"),
        ({"rope__dimension_count": 4}, "rotates only a part"),
        ({"expert_count": 8}, "mixture of experts"),
        ({"logit_scale": 0.3}, "llama.logit_scale' is unknown"),
        ({"attention__head_count_kv": [2, 1]}, "not the same for all layers"),
        ({"attention__head_count": 0}, "is 0"),
    ):
        with pytest.raises(ModelError, match=why):
            config_of(with_setting(header, **settings))
    other = GgufHeader(file, header.metadata | {"general.architecture": "mamba"}, header.tensors)
    with pytest.raises(ModelError, match="architecture 'mamba' cannot be rebuilt"):
        config_of(other)


def test_a_tensor_too_many_or_too_few_is_refused(tmp_path: Path) -> None:
    _, file = converted(tmp_path, "llama")
    header = read_header(file)
    config = config_of(header)
    sinks = replace(header.tensors["output_norm.weight"], name="blk.0.attn_sinks.weight")
    added = header.tensors | {sinks.name: sinks}
    with pytest.raises(ModelError, match=r"attn_sinks.weight' is unknown"):
        write_model(GgufHeader(file, header.metadata, added), config, tmp_path)
    fewer = {name: tensor for name, tensor in header.tensors.items() if "ffn_up" not in name}
    with pytest.raises(ModelError, match="it has no tensor for"):
        write_model(GgufHeader(file, header.metadata, fewer), config, tmp_path)
    with pytest.raises(ModelError, match="has the shape"):
        write_model(header, config | {"intermediate_size": 128}, tmp_path)
