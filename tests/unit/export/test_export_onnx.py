"""ONNX: onnxruntime's greedy tokens are transformers', through prefill and cache, with window
attention and experts too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.models.tiny_models import tiny_adapter, tiny_base
from thumbwheel.core.errors import MissingExtra, ModelError
from thumbwheel.export import parity
from thumbwheel.export.formats import FORMATS, onnx
from thumbwheel.export.loaded_export import greedy, logits
from thumbwheel.export.merge import merge
from thumbwheel.export.types import ExportSource

FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {"tie_word_embeddings": True},
    "gemma2": {"query_pre_attn_scalar": 8, "sliding_window": 16},
    "gemma3_text": {"sliding_window": 16, "query_pre_attn_scalar": 8},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt2": {},
}
IN_CI = ("qwen2", "gemma3_text")


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=[] if family in IN_CI else pytest.mark.repeat)
        for family in FAMILIES
    ],
)
def test_greedy_tokens_are_those_of_transformers(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tiny_base(tmp_path / "base", family, **FAMILIES[family])
    source = ExportSource(str(base), tiny_adapter(base, tmp_path / "adapter"), str(base))
    (out := tmp_path / "out").mkdir()
    (plain := tmp_path / "plain").mkdir()
    FORMATS.get("onnx").write(source, out)
    assert capsys.readouterr().out == ""
    assert {path.name for path in out.iterdir()} >= {
        "decode.onnx",
        "decode.onnx.data",
        "tokenizer.json",
        "generation_config.json",
    }
    merge(source, plain)
    model = AutoModelForCausalLM.from_pretrained(plain)
    opened = FORMATS.get("onnx").open(out, torch.float32)
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(5, 300, (size,), generator=generator).tolist() for size in (1, 2, 7, 43)]
    for row, reference, ours in zip(rows, logits(model, rows), opened.logits(rows), strict=True):
        assert ours.shape == reference.shape
        assert (ours - reference).abs().max() < 1e-4
        assert opened.greedy(row, 40) == greedy(model, row, 40, opened.ends())
    names: dict[str, Any] = {}
    exec(FORMATS.get("onnx").usage(str(out)), names)
    question = [{"role": "user", "content": "Größe?"}]
    row = opened.prompt_ids(question)
    tokens = [
        token for token in greedy(model, row, 12, opened.ends()) if token not in opened.ends()
    ]
    assert names["answer"](question, most=12) == opened.tokenizer.decode(tokens)
    assert parity.check(FORMATS.get("onnx"), out, source, parity.PROBES).failures == []


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx, "NEEDED", ("onnx", "no_such_package"))
    with pytest.raises(MissingExtra, match=r"thumbwheel\[onnx\]"):
        FORMATS.get("onnx").write(ExportSource("base", None, "base"), tmp_path)


def test_a_model_that_cannot_be_traced_is_an_error(tmp_path: Path) -> None:
    base = tiny_base(tmp_path / "base", "mamba", state_size=4, time_step_rank=4)
    with pytest.raises(ModelError, match="as ONNX: it cannot be traced"):
        FORMATS.get("onnx").write(ExportSource(str(base), None, str(base)), tmp_path)
