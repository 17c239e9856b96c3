"""Forms of training: from a version's adapter, rank-stabilised, over a quantised base."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.models.tiny_models import tiny_adapter, tiny_base, tuned_version
from tests.training_rows import QUICK, assembled, frozen, plain_rows
from thumbwheel.core.errors import ConfigError, Conflict, MissingExtra
from thumbwheel.db.schema import model_versions
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine import load
from thumbwheel.engine.base_check import find_base
from thumbwheel.engine.score import Role
from thumbwheel.engine.tree import plan
from thumbwheel.models.types import Agent, ModelVersion
from thumbwheel.models.versions import adapter_folder, versions
from thumbwheel.training.assemble import settings
from thumbwheel.training.train import dry_run, find_run, train


@pytest.fixture
def tuned(empty_ws: Workspace, tiny_model: Path, tmp_path: Path) -> ModelVersion:
    return tuned_version(
        empty_ws,
        tiny_model,
        tiny_adapter(tiny_model, tmp_path / "adapter", r=2, lora_alpha=6),
        agent="a",
    )


@pytest.mark.slow
def test_a_run_goes_on_from_a_version(
    empty_ws: Workspace, tiny_model: Path, tuned: ModelVersion
) -> None:
    from safetensors.torch import load_file

    dataset = frozen(empty_ws, "a", "pairs", 8, 2)
    options = {name: value for name, value in QUICK.items() if not name.startswith("lora")} | {
        "learning_rate": 1e-6,
        "max_steps": 1,
    }
    result = train(
        empty_ws,
        Agent.named("a"),
        "dpo",
        find_base(str(tiny_model), empty_ws.home.cache),
        dataset=dataset,
        options=options | {"continue_from": "latest"},
    )
    run = find_run(empty_ws, result.run_id)
    assert {name: run.config[name] for name in ("continue_from", "lora_r", "lora_alpha")} == {
        "continue_from": tuned.name,
        "lora_r": 2,
        "lora_alpha": 6,
    }
    continued = versions(empty_ws, Agent.named("a"))[-1]
    assert continued.parent_id == tuned.id and continued.base_fingerprint == tuned.base_fingerprint
    before, after = (
        load_file(adapter_folder(empty_ws, version) / "adapter_model.safetensors")
        for version in (tuned, continued)
    )  # type: ignore[operator]
    assert before.keys() == after.keys()
    assert (
        0 < max(float((after[name] - value).abs().max()) for name, value in before.items()) < 1e-4
    )
    assert result.metrics["dev_base"]["eval_rewards/margins"] != 0, (
        "the reference is the base, not the start"
    )


def test_the_first_step_starts_from_the_version_with_the_base_as_reference(
    tiny_model: Path, tmp_path: Path
) -> None:
    import torch

    start = tiny_adapter(tiny_model, tmp_path / "adapter")
    rows = plain_rows("pairs", 4)
    assembly = assembled("dpo", tiny_model, tmp_path, rows, start=start)
    fresh = assembled("dpo", tiny_model, tmp_path, rows)
    (batch,) = plan(assembly.train.items, 4096, assembly.engine.layout)
    reference, policy = (
        assembly.engine.score(batch, role).logp for role in (Role.REF, Role.POLICY)
    )
    assert torch.equal(reference, fresh.engine.score(batch, Role.REF).logp) and not torch.allclose(
        reference, policy
    )
    loaded = load.load_adapter(load.load_base(str(tiny_model))[0], start)
    assert torch.allclose(
        policy, type(assembly.engine)(loaded).score(batch, Role.POLICY).logp, atol=1e-6
    )


def test_versions_that_cannot_be_gone_on_from(
    empty_ws: Workspace, tiny_model: Path, tuned: ModelVersion, tmp_path: Path
) -> None:
    dataset = frozen(empty_ws, "a", "pairs", 8)
    with pytest.raises(Conflict, match="base without an adapter"):
        dry_run(
            empty_ws,
            Agent.named("a"),
            "dpo",
            find_base(str(tiny_model), empty_ws.home.cache),
            dataset=dataset,
            options=QUICK | {"continue_from": "v0"},
        )
    other = tiny_base(tmp_path / "other", seed=3)
    with pytest.raises(Conflict, match="over other weights"):
        dry_run(
            empty_ws,
            Agent.named("a"),
            "dpo",
            find_base(str(other), empty_ws.home.cache),
            dataset=dataset,
            options=QUICK | {"continue_from": tuned.name},
        )
    empty_ws.db.write(
        lambda c: c.execute(
            model_versions.update().where(model_versions.c.id == tuned.id).values(tainted=True)
        )
    )
    with pytest.raises(Conflict, match="tainted"):
        dry_run(
            empty_ws,
            Agent.named("a"),
            "dpo",
            find_base(str(tiny_model), empty_ws.home.cache),
            dataset=dataset,
            options=QUICK | {"continue_from": tuned.name},
        )


def test_rank_stabilised_scale(tiny_model: Path, tmp_path: Path) -> None:
    assembly = assembled(
        "sft",
        tiny_model,
        tmp_path,
        plain_rows("chats", 2),
        use_rslora=True,
        lora_r=16,
        lora_alpha=8,
    )
    assembly.model.save_pretrained(tmp_path / "saved")
    assert (
        json.loads((tmp_path / "saved" / "adapter_config.json").read_text())["use_rslora"] is True
    )
    assert (
        assembly.model.base_model.model.model.layers[0].mlp.up_proj.scaling["default"]
        == 8 / 16**0.5
    )


def test_a_quantised_base_names_its_extra(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"thumbwheel\[qlora\]"):
        assembled("sft", tiny_model, tmp_path, plain_rows("chats", 2), quantization="nf4")


@pytest.mark.parametrize("quantization", ["nf4", "int8"])
def test_training_over_a_quantised_base(quantization: str, tmp_path: Path) -> None:
    import torch

    pytest.importorskip("bitsandbytes")
    wide = tiny_base(
        tmp_path / "wide",
        hidden_size=128,
        intermediate_size=256,
        head_dim=32,
        initializer_range=0.1,
    )
    assembly = assembled("sft", wide, tmp_path, plain_rows("chats", 8), quantization=quantization)
    layer = assembly.model.base_model.model.model.layers[0].mlp.up_proj.base_layer
    assert layer.weight.element_size() == 1 and not layer.weight.requires_grad
    losses: list[float] = []
    optimizer = torch.optim.AdamW(
        [parameter for parameter in assembly.model.parameters() if parameter.requires_grad], lr=3e-3
    )

    def apply(loss: float) -> float:
        losses.append(loss)
        first = {
            name: parameter.grad
            for name, parameter in assembly.model.named_parameters()
            if "layers.0" in name and "lora_B" in name
        }
        assert first and all(
            grad is not None and grad.abs().max() > 0 for grad in first.values()
        ), "gradients reach the first layer"
        optimizer.step()
        optimizer.zero_grad()
        return 0.0

    for step in range(6):
        assembly.runner.train(assembly.train.items, step, apply)
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.slow
def test_full_fine_tuning_is_an_adapter_of_whole_layers(
    empty_ws: Workspace, tiny_model: Path, tmp_path: Path
) -> None:
    """Everything between embeddings and head trains, the base stays the reference, and what comes
    out merges and loads like any adapter."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from thumbwheel.export.package import export

    dataset = frozen(empty_ws, "a", "pairs", 12, 4)
    options = {name: value for name, value in QUICK.items() if not name.startswith("lora")} | {
        "max_steps": 2,
        "tuning": "full",
    }
    result = train(
        empty_ws,
        Agent.named("a"),
        "dpo",
        find_base(str(tiny_model), empty_ws.home.cache),
        dataset=dataset,
        options=options,
    )
    assert result.metrics["dev_base"]["eval_rewards/margins"] == 0, "it starts as the base"
    version = versions(empty_ws, Agent.named("a"))[-1]
    plain = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    before = {name: parameter.clone() for name, parameter in plain.named_parameters()}
    tuned = PeftModel.from_pretrained(plain, adapter_folder(empty_ws, version))
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        answer = tuned(ids).logits
        with tuned.disable_adapter():
            start = tuned(ids).logits
    merged = AutoModelForCausalLM.from_pretrained(
        export(empty_ws, version, "merged", tmp_path / "out").path, dtype=torch.float32
    )
    assert torch.allclose(merged(ids).logits, answer, atol=1e-5)
    assert not torch.allclose(start, answer, atol=1e-4)
    moved = {
        name
        for name, parameter in merged.named_parameters()
        if not torch.equal(parameter, before[name])
    }
    assert moved == {name for name in before if "embed" not in name and "lm_head" not in name}
    with pytest.raises(Conflict, match="fully fine-tuned"):
        train(
            empty_ws,
            Agent.named("a"),
            "dpo",
            find_base(str(tiny_model), empty_ws.home.cache),
            dataset=dataset,
            options=QUICK | {"continue_from": version.name},
        )


def test_full_fine_tuning_over_a_quantised_base_is_refused() -> None:
    with pytest.raises(ConfigError, match="float32"):
        settings("sft", {"tuning": "full", "quantization": "nf4"})
