"""Every format for Python programs (GGUF and ONNX have tests of their own): the folder is the
trained model again, in every family."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.models.tiny_models import CHATML, tiny_adapter, tiny_base, tiny_tokenizer
from tests.third_party import names
from thumbwheel.export import parity
from thumbwheel.export.formats import FORMATS
from thumbwheel.export.types import ExportSource

FAMILIES = {
    "qwen2": {},
    "qwen2-tied": {"tie_word_embeddings": True},
    "llama": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "gpt2": {},
    "gemma2": {"query_pre_attn_scalar": 8, "sliding_window": 16},
    "gemma3_text": {"sliding_window": 16, "query_pre_attn_scalar": 8},
    "phi3": {"pad_token_id": 0},
}
OTHER_PROGRAMS = {"gguf", "lora_gguf", "onnx"}
SAFE = {".json", ".safetensors", ".jinja", ".txt", ".md"}


@pytest.fixture(scope="module", params=FAMILIES)
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ExportSource:
    folder = tmp_path_factory.mktemp(request.param)
    base = tiny_base(
        folder / "base", request.param.removesuffix("-tied"), **FAMILIES[request.param]
    )
    return ExportSource(str(base), tiny_adapter(base, folder / "adapter"), str(base))


@pytest.fixture(params=[name for name in names(FORMATS) if name not in OTHER_PROGRAMS])
def form_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.slow
def test_what_is_written_is_the_trained_model(
    form_name: str, trained: ExportSource, tmp_path: Path
) -> None:
    form = FORMATS.get(form_name)
    form.write(trained, tmp_path)
    result = parity.check(form, tmp_path, trained, parity.PROBES)
    assert result.failures == []
    assert result.max_abs_diff < 1e-3
    assert result.effect_kl is not None
    assert result.effect_kl > 0.01, "the adapter must matter, or the comparison proves nothing"


def test_only_safe_files_and_no_path_of_the_adapter(
    form_name: str, trained: ExportSource, tmp_path: Path
) -> None:
    FORMATS.get(form_name).write(trained, tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= SAFE
    assert any(path.suffix == ".safetensors" for path in files)
    text = "".join(
        path.read_text(encoding="utf-8") for path in files if path.suffix in (".json", ".md")
    )
    assert str(trained.adapter) not in text
    assert '"auto_map"' not in text


def test_the_usage_lines_run(form_name: str, trained: ExportSource, tmp_path: Path) -> None:
    form = FORMATS.get(form_name)
    form.write(trained, tmp_path)
    names: dict[str, object] = {}
    exec(form.usage(str(tmp_path)), names)
    assert names["tokenizer"].apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False
    )  # type: ignore[attr-defined]


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("template", [None, CHATML])
def test_the_template_and_the_end_of_an_answer_come_along(
    form_name: str, template: str | None, bos: bool, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    base = tiny_base(tmp_path / "base", "llama", tokenizer=tiny_tokenizer(template, bos))
    source = ExportSource(str(base), tiny_adapter(base, tmp_path / "adapter"), str(base))
    (out := tmp_path / "out").mkdir()
    form = FORMATS.get(form_name)
    form.write(source, out)
    assert parity.check(form, out, source, parity.PROBES).same_prompts
    tokenizer = AutoTokenizer.from_pretrained(out)
    config = json.loads((out / "tokenizer_config.json").read_text())
    assert (
        config["chat_template"]
        == tokenizer.chat_template
        == (out / "chat_template.jinja").read_text()
    )
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    generation = json.loads((out / "generation_config.json").read_text())
    assert (
        tokenizer.eos_token_id in [generation["eos_token_id"]]
        or tokenizer.eos_token_id in generation["eos_token_id"]
    )
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, return_dict=False
    )
    assert (rendered.count(tokenizer.bos_token_id) if bos else 0) == int(bos)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_base_in_half_precision_keeps_it(dtype: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    base = tiny_base(tmp_path / "base", dtype=dtype, initializer_range=0.1)
    source = ExportSource(str(base), tiny_adapter(base, tmp_path / "adapter"), str(base))
    (out := tmp_path / "out").mkdir()
    FORMATS.get("merged").write(source, out)
    assert {tensor.dtype for tensor in load_file(out / "model.safetensors").values()} == {
        getattr(torch, dtype)
    }
    result = parity.check(FORMATS.get("merged"), out, source, parity.PROBES)
    assert result.dtype == dtype
    assert result.mean_kl > 1e-9, "rounding must be visible"
    assert not result.failures
