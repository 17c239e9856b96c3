"""Bases and adapters: what is refused, with what advice, and when two bases count as the same."""

from __future__ import annotations

import json

import pytest
import torch

from tests.models.token_families import TREE, adapted
from thumbwheel.core.errors import ModelError
from thumbwheel.engine.load import (
    LoraSettings,
    adapter_base,
    attach_lora,
    base_fingerprint,
    load_adapter,
    load_base,
)


@pytest.fixture
def llama_folder(bpe, tmp_path):
    import transformers as tf

    torch.manual_seed(0)
    folder = tmp_path / "base"
    tf.AutoModelForCausalLM.from_config(TREE["qwen2"]()).save_pretrained(folder)
    bpe("{{ messages }}").save_pretrained(folder)
    return folder


def test_a_base_loads_frozen_in_the_wanted_dtype(llama_folder):
    for dtype, expected in (
        ("auto", torch.float32),
        ("bfloat16", torch.bfloat16),
        ("float64", torch.float64),
    ):
        model, tokenizer = load_base(str(llama_folder), dtype)
        assert {parameter.dtype for parameter in model.parameters()} == {expected} and len(
            tokenizer
        ) > 100
        assert (
            not any(parameter.requires_grad for parameter in model.parameters())
            and not model.training
        )


def test_refused_bases_say_what_to_do(llama_folder, tmp_path):
    with pytest.raises(ModelError, match="no such folder"):
        load_base(str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match="it is a file"):
        load_base(str(llama_folder / "config.json"))
    with pytest.raises(ModelError, match="nobody/no-such-model"):
        load_base("nobody/no-such-model", local_only=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_base(str(tmp_path / "empty"))
    weights = llama_folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(b"junk" * 100)
    with pytest.raises(ModelError):
        load_base(str(llama_folder))
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError):
        load_base(str(llama_folder))
    weights.unlink()
    torch.save({}, llama_folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="safetensors"):
        load_base(str(llama_folder))


def test_code_of_the_repository_is_never_run(llama_folder):
    config = json.loads((llama_folder / "config.json").read_text())
    marker = llama_folder / "ran"
    (llama_folder / "own.py").write_text(f"open({str(marker)!r}, 'w')\n")
    config |= {
        "model_type": "own",
        "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
    }
    (llama_folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError):
        load_base(str(llama_folder))
    assert not marker.exists()


def test_lora_masters_are_fp32_and_targets_have_to_exist(llama_folder):
    model, _ = load_base(str(llama_folder), "bfloat16")
    wrong = LoraSettings(targets=("q_porj",))
    with pytest.raises(ModelError, match=r"q_proj.*Did you mean 'q_proj'"):
        attach_lora(model, wrong)
    adapted_model, names = attach_lora(model, LoraSettings(rank=2), seed=3)
    assert len(names) == 14 and not any("lm_head" in name for name in names)
    trained = {
        name: parameter
        for name, parameter in adapted_model.named_parameters()
        if parameter.requires_grad
    }
    assert len(trained) == 28 and {parameter.dtype for parameter in trained.values()} == {
        torch.float32
    }
    again, _ = attach_lora(
        load_base(str(llama_folder), "bfloat16")[0], LoraSettings(rank=2), seed=3
    )
    other = dict(again.named_parameters())
    assert all(torch.equal(parameter, other[name]) for name, parameter in trained.items())


def test_an_adapter_comes_back_and_a_misfit_is_refused(llama_folder, tmp_path):
    model, _ = attach_lora(load_base(str(llama_folder))[0], LoraSettings(rank=2), seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    ids = torch.tensor([[3, 4, 5, 6]])
    expected = model(ids).logits
    model.save_pretrained(tmp_path / "adapter")
    assert adapter_base(tmp_path / "adapter") == str(llama_folder)
    loaded = load_adapter(load_base(str(llama_folder))[0], tmp_path / "adapter")
    torch.testing.assert_close(loaded(ids).logits, expected)
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    import transformers as tf

    config = tf.GPT2Config(
        n_embd=32, n_layer=1, n_head=4, vocab_size=61, bos_token_id=0, eos_token_id=1
    )
    other = tf.AutoModelForCausalLM.from_config(config)
    with pytest.raises(ModelError, match="base that it was trained on"):
        load_adapter(other, tmp_path / "adapter")
    with pytest.raises(ModelError, match=r"adapter_config\.json"):
        load_adapter(other, tmp_path)


def test_fingerprints_follow_the_weights_only(llama_folder):
    model, _ = load_base(str(llama_folder))
    plain = base_fingerprint(model)
    assert base_fingerprint(load_base(str(llama_folder))[0]) == plain
    wrapped, _ = attach_lora(model, LoraSettings(rank=2))
    assert base_fingerprint(wrapped) == plain
    wrapped.requires_grad_(False)  # a frozen adapter is no part of the base either
    assert base_fingerprint(wrapped) == plain
    narrow, _ = load_base(str(llama_folder), "bfloat16")
    assert base_fingerprint(narrow) != plain
    with torch.no_grad():
        wrapped.get_base_model().model.layers[1].mlp.up_proj.base_layer.weight[3, 5] += 1e-3
    assert base_fingerprint(wrapped) != plain
    before = base_fingerprint(llama_folder)
    assert base_fingerprint(str(llama_folder)) == before
    adapted(TREE["qwen2"], torch.float32).get_base_model().save_pretrained(llama_folder)
    assert base_fingerprint(llama_folder) != before
