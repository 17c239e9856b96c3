"""Merging layer by layer into copies of the base's files: bit for bit what PEFT makes of the whole
model, in memory for one layer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.models.tiny_models import tiny_adapter, tiny_base
from thumbwheel.core.errors import ModelError
from thumbwheel.engine.load import attach_full, load_adapter, load_base
from thumbwheel.export.merge import merge, whole
from thumbwheel.export.types import ExportSource
from thumbwheel.export.weights import layout, stored_dtype

EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
BY_LAYER: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sharded": ("qwen2", {}, {}),
    "tied": ("qwen2", {"tie_word_embeddings": True}, {}),
    "fused-qkv": ("phi3", {"pad_token_id": 0}, {}),
    "conv1d": ("gpt2", {}, {}),
    "two-ropes": ("gemma3_text", {"sliding_window": 16, "query_pre_attn_scalar": 8}, {}),
    "rslora": ("qwen2", {}, {"use_rslora": True, "rank_pattern": {"q_proj": 2}}),
    "dora": ("qwen2", {}, {"use_dora": True}),
    "embeddings": ("qwen2", {}, {"target_modules": ["embed_tokens", "q_proj"]}),
    "whole-modules": (
        "qwen2",
        {},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "norm"]},
    ),
    "some-tokens": ("qwen2", {}, {"target_modules": ["q_proj"], "trainable_token_indices": [3, 7]}),
    "experts": ("mixtral", EXPERTS, {}),
}
IN_MEMORY: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "biases": ("qwen2", {}, {"bias": "all"}),
    "a head that shares the embedding": (
        "qwen2",
        {"tie_word_embeddings": True},
        {"target_modules": ["lm_head"]},
    ),
}


def test_a_shard_lies_beside_its_index(tmp_path: Path) -> None:
    for name in ("../other.safetensors", "..", "/etc/passwd", "model.bin"):
        (tmp_path / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"a": name}})
        )
        with pytest.raises(ModelError, match="not a safetensors file in the same folder"):
            layout(tmp_path)


def in_shards(base: Path, size: str = "40KB") -> Path:
    model = AutoModelForCausalLM.from_pretrained(base)
    (base / "model.safetensors").unlink()
    model.save_pretrained(base, max_shard_size=size)
    assert len(list(base.glob("*.safetensors"))) > 1
    return base


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {
        name: tensor
        for file in folder.glob("*.safetensors")
        for name, tensor in load_file(file).items()
    }


def same_as_peft(source: ExportSource, folder: Path) -> None:
    (out := folder / "out").mkdir()
    merge(source, out)
    whole(source).to(stored_dtype(source.base)).save_pretrained(folder / "peft")
    merged, wanted, base = tensors(out), tensors(folder / "peft"), tensors(Path(source.base))
    assert merged.keys() == wanted.keys()
    assert all(
        merged[name].dtype == tensor.dtype and torch.equal(merged[name], tensor)
        for name, tensor in wanted.items()
    )
    assert any(not torch.equal(merged[name], tensor) for name, tensor in base.items()), (
        "the adapter must matter"
    )
    peft_config, our_config = (
        json.loads((tensor / "config.json").read_text()) for tensor in (folder / "peft", out)
    )
    assert our_config == peft_config


@pytest.mark.parametrize("what", BY_LAYER)
def test_every_layer_is_what_peft_makes_of_it(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family, settings, adapter = BY_LAYER[what]
    base = in_shards(tiny_base(tmp_path / "base", family, dtype="bfloat16", **settings))
    same_as_peft(
        ExportSource(str(base), tiny_adapter(base, tmp_path / "adapter", **adapter), str(base)),
        tmp_path,
    )
    assert "in memory" not in capsys.readouterr().err


@pytest.mark.parametrize("what", IN_MEMORY)
def test_what_has_no_place_in_the_files_is_merged_in_memory_and_said(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family, settings, adapter = IN_MEMORY[what]
    base = tiny_base(tmp_path / "base", family, **settings)
    same_as_peft(
        ExportSource(str(base), tiny_adapter(base, tmp_path / "adapter", **adapter), str(base)),
        tmp_path,
    )
    assert "merging in memory" in capsys.readouterr().err


def all_trained(base: Path, folder: Path) -> ExportSource:
    model, _ = attach_full(load_base(str(base), "float32")[0])
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return ExportSource(str(base), folder, str(base))


def test_layers_that_were_trained_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = all_trained(
        in_shards(tiny_base(tmp_path / "base", dtype="bfloat16")), tmp_path / "adapter"
    )
    same_as_peft(source, tmp_path)
    assert "in memory" not in capsys.readouterr().err


def test_experts_that_were_trained_whole(tmp_path: Path) -> None:
    """PEFT itself has no merge for them."""
    source = all_trained(tiny_base(tmp_path / "base", "mixtral", **EXPERTS), tmp_path / "adapter")
    (out := tmp_path / "out").mkdir()
    merge(source, out)
    with torch.no_grad():
        rows = torch.arange(24)[None]
        trained = load_adapter(load_base(source.base, "float32")[0], tmp_path / "adapter")(
            rows
        ).logits
        merged_logits = AutoModelForCausalLM.from_pretrained(out)(rows).logits
    assert torch.equal(merged_logits, trained)


def test_a_base_alone_is_copied(tmp_path: Path) -> None:
    base = in_shards(tiny_base(tmp_path / "base"))
    (out := tmp_path / "out").mkdir()
    merge(ExportSource(str(base), None, str(base)), out)
    assert all(
        (out / file.name).read_bytes() == file.read_bytes() for file in base.glob("*.safetensors*")
    )


def test_a_broken_adapter_is_an_error(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    base = tiny_base(tmp_path / "base")
    adapter = tiny_adapter(base, tmp_path / "adapter")
    weights = load_file(adapter / "adapter_model.safetensors")
    next(iter(weights.values())).fill_(float("nan"))
    save_file(weights, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
    (out := tmp_path / "out").mkdir()
    with pytest.raises(ModelError, match="NaNs detected"):
        merge(ExportSource(str(base), adapter, str(base)), out)


CHILD = """
import sys
from pathlib import Path
from thumbwheel.export.merge import merge
from thumbwheel.export.types import ExportSource
def merged(base, adapter, out):
    Path(out).mkdir()
    merge(ExportSource(base, Path(adapter), base), Path(out))
def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))
small, large = sys.argv[1:4], sys.argv[4:]
merged(*small)  # the libraries, on first use
Path("/proc/self/clear_refs").write_text("5")  # forget the peak
before = memory("VmRSS")
merged(*large)
print(memory("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_memory_holds_the_adapter_and_less_than_a_shard(tmp_path: Path) -> None:
    small = tiny_base(tmp_path / "small")
    shape = {
        "vocab_size": 20_000,
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 8,
        "head_dim": 192,
    }
    large = in_shards(tiny_base(tmp_path / "large", dtype="bfloat16", **shape), "40MB")
    arguments = []
    for base in (small, large):
        arguments += [
            str(base),
            str(tiny_adapter(base, tmp_path / f"{base.name}-adapter")),
            str(tmp_path / f"{base.name}-out"),
        ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    peak = int(done.stdout.split()[-1]) * 1024
    shards = [file.stat().st_size for file in large.glob("*.safetensors")]
    adapter = (tmp_path / "large-adapter" / "adapter_model.safetensors").stat().st_size
    assert len(shards) > 3
    assert peak < 1.3 * max(shards) + adapter, (peak, max(shards), adapter)
    assert peak < sum(shards) / 2
