"""Adapters as other tools write them: what they compute there they compute here, and what would be
lost is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.command_line import Run
from tests.models.tiny_models import tiny_adapter, tiny_base, tiny_tokenizer
from thumbwheel.core.errors import ModelError
from thumbwheel.engine.adapter_import import import_adapter
from thumbwheel.engine.load import load_adapter, load_base
from thumbwheel.models.base import Base

ROW = [5, 9, 77, 120, 33, 250, 14, 201]
UNSLOTH = (
    r"(?:.*?(?:language|text).*?(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense).*?"
    r"(?:q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}"
    r"\.(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense)\.(?:(?:q_proj|k_proj|v_proj)))"
)
"""Of the form in which Unsloth says which modules it adapted."""


def adapter_of(tmp_path: Path, tied: bool = False, **settings: Any) -> tuple[Base, Path]:
    """A base, and an adapter that PEFT wrote for it."""
    folder = tiny_base(tmp_path / "base", "llama", tie_word_embeddings=tied)
    adapter = tiny_adapter(folder, tmp_path / "theirs", **settings)
    return Base(str(folder), folder, "0"), adapter


def imported(source: Path, base: Base, tmp_path: Path) -> Path:
    target = tmp_path / "imported"
    target.mkdir()
    import_adapter(source, base, target)
    return target


def logits(base: Base, adapter: Path) -> torch.Tensor:
    model, _ = load_base(str(base.folder), "float32")
    with torch.no_grad():
        return load_adapter(model, adapter)(torch.tensor([ROW])).logits[0]


def by_peft(base: Base, adapter: Path) -> torch.Tensor:
    """As the tool that wrote it would load it."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base.folder, dtype=torch.float32)
    with torch.no_grad():
        return PeftModel.from_pretrained(model, adapter)(torch.tensor([ROW])).logits[0]


def change(adapter: Path, **settings: Any) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def rename(adapter: Path, new_name: Callable[[str], str]) -> None:
    path = adapter / "adapter_model.safetensors"
    save_file({new_name(name): tensor for name, tensor in load_file(path).items()}, path)


KINDS: dict[str, dict[str, Any]] = {
    "lora": {"target_modules": ["q_proj", "v_proj"]},
    "rslora": {"use_rslora": True},
    "dora": {"use_dora": True},
    "patterns": {
        "rank_pattern": {"layers.0.self_attn.q_proj": 2, r".*\.down_proj": 3},
        "alpha_pattern": {"up_proj": 16, r"layers\.1\..*k_proj": 1},
    },
    "head": {"modules_to_save": ["lm_head"]},
    "embedding and head": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "some layers": {"target_modules": ["q_proj"], "layers_to_transform": [1]},
}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_computes_what_it_did_elsewhere(kind: str, tied: bool, tmp_path: Path) -> None:
    base, source = adapter_of(tmp_path, tied, **KINDS[kind])
    expected = by_peft(base, source)
    target = imported(source, base, tmp_path)
    torch.testing.assert_close(logits(base, target), expected, rtol=1e-5, atol=1e-5)
    plain, _ = load_base(str(base.folder), "float32")
    with torch.no_grad():
        assert float((plain(torch.tensor([ROW])).logits[0] - expected).abs().max()) > 0.05
    config = json.loads((target / "adapter_config.json").read_text())
    assert isinstance(config["target_modules"], list)
    assert config["base_model_name_or_path"] == base.name


NAMES: dict[str, Callable[[str], str]] = {
    "names of adapters inside": lambda name: name.replace(".weight", ".default.weight"),
    "wrapped by FSDP": lambda name: name.replace("layers.", "layers._fsdp_wrapped_module."),
    "compiled": lambda name: name.replace("base_model.model.", "base_model.model._orig_mod."),
    "without PEFT's prefix": lambda name: name.removeprefix("base_model.model."),
    "of a model with pictures": lambda name: name.replace(
        "model.layers", "model.language_model.layers"
    ),
}


@pytest.mark.parametrize("what", NAMES)
def test_names_of_other_tools_are_read(what: str, tmp_path: Path) -> None:
    base, source = adapter_of(tmp_path)
    expected = by_peft(base, source)
    rename(source, NAMES[what])
    target = imported(source, base, tmp_path)
    torch.testing.assert_close(logits(base, target), expected, rtol=1e-5, atol=1e-5)


def test_remarks_of_other_tools_do_no_harm(tmp_path: Path) -> None:
    base, source = adapter_of(tmp_path)
    expected = by_peft(base, source)
    change(
        source,
        target_modules=UNSLOTH,
        unsloth_fixed=True,
        base_model_name_or_path="unsloth/some-model-bnb-4bit",
        peft_version="9.9.9",
        lora_dropout=0.1,
        loftq_config={},
    )
    (source / "trainer_state.json").write_text("{}")
    target = imported(source, base, tmp_path)
    torch.testing.assert_close(logits(base, target), expected, rtol=1e-5, atol=1e-5)


def test_an_embedding_that_was_saved_by_the_way_is_the_base_s(tmp_path: Path) -> None:
    base, source = adapter_of(tmp_path)
    path = source / "adapter_model.safetensors"
    tensors = load_file(path)
    weights = load_file(base.folder / "model.safetensors")
    name = "base_model.model.model.embed_tokens.weight"
    tensors[name] = weights["model.embed_tokens.weight"].clone()
    save_file(tensors, path)
    target = imported(source, base, tmp_path)
    assert name not in load_file(target / "adapter_model.safetensors")
    tensors[name] += 1
    save_file(tensors, path)
    (tmp_path / "again").mkdir()
    with pytest.raises(ModelError, match="does not name it in modules_to_save"):
        import_adapter(source, base, tmp_path / "again")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another kind": ({"peft_type": "IA3"}, "of the kind 'IA3', not LoRA"),
    "PiSSA": ({"init_lora_weights": "pissa_niter_16"}, "takes a part out of the base"),
    "OLoRA": ({"init_lora_weights": "olora"}, "takes a part out of the base"),
    "biases": ({"bias": "lora_only"}, "trained biases"),
    "aLoRA": ({"alora_invocation_tokens": [1, 2]}, "certain tokens only"),
    "single tokens": ({"trainable_token_indices": [1, 2]}, "single tokens"),
    "repeated layers": ({"layer_replication": [[0, 1]]}, "layer"),
    "experts": ({"target_parameters": ["mlp.experts"]}, "are no layers"),
    "an unknown setting": ({"new_way_config": {"a": 1}}, "'new_way_config' is unknown"),
    "a module without a copy": ({"modules_to_save": ["lm_head"]}, "no copy of 'lm_head'"),
    "DoRA without magnitudes": ({"use_dora": True}, "magnitude_vector too few"),
    "no factor": ({"lora_alpha": "x"}, "lora_alpha is 'x'"),
    "a slow expression": ({"alpha_pattern": {"(a|a)*b": 8}}, "may take for ever"),
    "a large rank": ({"r": 10**6}, "no size of its weights"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_honoured_is_refused(what: str, tmp_path: Path) -> None:
    base, source = adapter_of(tmp_path)
    settings, why = REFUSED[what]
    change(source, **settings)
    with pytest.raises(ModelError, match=why):
        imported(source, base, tmp_path)


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    base, source = adapter_of(tmp_path)
    other = tiny_base(tmp_path / "other", "llama", hidden_size=64)
    with pytest.raises(ModelError, match=r"has \d+ outputs and \d+ inputs"):
        import_adapter(source, Base(str(other), other, "0"), tmp_path)
    rename(source, lambda name: name.replace("layers.1.", "layers.7."))
    with pytest.raises(ModelError, match="belongs to no layer of this base"):
        import_adapter(source, base, tmp_path)


def test_numbers_that_are_none_are_refused(tmp_path: Path) -> None:
    base, source = adapter_of(tmp_path)
    path = source / "adapter_model.safetensors"
    tensors = load_file(path)
    next(iter(tensors.values()))[0, 0] = torch.inf
    save_file(tensors, path)
    with pytest.raises(ModelError, match="no finite numbers"):
        imported(source, base, tmp_path)


def test_a_tokenizer_with_more_tokens_is_refused(tmp_path: Path) -> None:
    base, source = adapter_of(tmp_path)
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(source)
    imported(source, base, tmp_path)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|tool|>"]})
    tokenizer.save_pretrained(source)
    config = json.loads((source / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {"400": {"content": "<|tool|>", "special": True}}
    (source / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "again").mkdir()
    with pytest.raises(ModelError, match=r"the token '<\|tool\|>' as number 400"):
        import_adapter(source, base, tmp_path / "again")


def test_pickles_and_other_folders_are_refused(tmp_path: Path) -> None:
    base, source = adapter_of(tmp_path)
    (source / "adapter_model.safetensors").rename(source / "adapter_model.bin")
    with pytest.raises(ModelError, match="can run code"):
        imported(source, base, tmp_path)
    with pytest.raises(ModelError, match=r"it has no adapter_config\.json"):
        import_adapter(base.folder, base, tmp_path)
    with pytest.raises(ModelError, match="no such folder"):
        import_adapter(tmp_path / "none", base, tmp_path)


def test_the_command_makes_a_candidate_once(command_line: Run, tmp_path: Path) -> None:
    base, source = adapter_of(tmp_path, use_rslora=True)
    (source / "chat_template.jinja").write_text("{{ messages[0]['content'] }}>")
    arguments = ("models", "add", "--adapter", str(source), "--base", str(base.folder))
    arguments += ("--agent", "support", "--json")
    code, out, err = command_line(*arguments)
    assert code == 0, err
    added = json.loads(out)
    assert (added["name"], added["state"], added["run_id"]) == ("v1", "candidate", None)
    assert added["imported"] == {
        "modules": 14,
        "ranks": [4],
        "kind": "rsLoRA",
        "saved": [],
        "has_template": True,
    }
    assert "chat_template.jinja" in added["adapter"]
    code, out, _ = command_line(*arguments)
    assert json.loads(out)["id"] == added["id"]
    code, out, _ = command_line("models", "lineage", "v1", "--agent", "support")
    assert code == 0
    assert str(base.folder) in out
    to = tmp_path / "merged"
    code, _, err = command_line(
        "export", "v1", "--agent", "support", "--format", "merged", "--to", str(to)
    )
    assert code == 0, err
