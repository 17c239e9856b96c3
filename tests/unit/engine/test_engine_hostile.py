"""Model folders of strangers: whatever their files say, the answer is a model or a ModelError, soon
and in little memory."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.token_families import TREE
from thumbwheel.core.errors import ModelError
from thumbwheel.engine.load import load_base, load_config, load_scorer, load_tokenizer
from thumbwheel.engine.prompt import PromptBuilder

STRANGE: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    10**9,
    10**30,
    "x",
    "",
    [],
    [[]],
    {},
    {"a": {"b": [1]}},
    [-1],
    float("inf"),
]


@pytest.fixture
def folder_to_spoil(bpe: Any, tmp_path: Path) -> Path:
    import transformers as tf

    torch.manual_seed(0)
    folder = tmp_path / "base"
    tf.AutoModelForCausalLM.from_config(TREE["qwen2"]()).save_pretrained(folder)
    bpe("{{ messages }}").save_pretrained(folder)
    return folder


def load(folder: Path) -> None:
    """All that is done with a folder, or the ModelError."""
    for action in (load_base, load_scorer, load_config, load_tokenizer):
        try:
            result = action(str(folder))
        except ModelError as error:
            assert str(folder) in str(error) or "chat template" in str(error)
            continue
        if action is load_tokenizer:
            try:
                PromptBuilder(result).prompt([{"role": "user", "content": "Hi"}])
            except ModelError:
                continue


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


KEYS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
    "auto_map",
    "max_position_embeddings",
    "model_type",
    "architectures",
    "torch_dtype",
    "layer_types",
    "rope_parameters",
    "hidden_act",
    "eos_token_id",
    "quantization_config",
)
TOKENIZER_KEYS = (
    "chat_template",
    "bos_token",
    "eos_token",
    "pad_token",
    "tokenizer_class",
    "model_max_length",
    "added_tokens_decoder",
    "extra_special_tokens",
)
FILES = (
    "config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "generation_config.json",
    "special_tokens_map.json",
)


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_strange_values_in_the_config(key: str, folder_to_spoil: Path) -> None:
    path = folder_to_spoil / "config.json"
    config = json.loads(path.read_text())
    load(folder_to_spoil)  # as it is: what is loaded once is in memory
    before = peak()
    for value in STRANGE:
        path.write_text(json.dumps(config | {key: value}))
        load(folder_to_spoil)
    path.write_text(json.dumps({name: value for name, value in config.items() if name != key}))
    load(folder_to_spoil)
    assert peak() - before < 400


def test_sizes_that_the_files_do_not_hold_are_not_built(folder_to_spoil: Path) -> None:
    path = folder_to_spoil / "config.json"
    config = json.loads(path.read_text())
    changes = (
        {"num_hidden_layers": 900, "intermediate_size": 100_000},
        {"vocab_size": 9_000_000},
        {"hidden_size": 9_000_000, "head_dim": 1_000_000},
    )
    for change in changes:
        path.write_text(json.dumps(config | change))
        for action in (load_base, load_scorer):
            with pytest.raises(ModelError, match=r"parameters or more, and its files hold \d"):
                action(str(folder_to_spoil))


@pytest.mark.parametrize(
    "content",
    ["", "null", "[]", "[" * 100_000, "{", '{"model_type": 5}', "{}", "\x00", '"' + "x" * 100],
)
@pytest.mark.parametrize("name", FILES)
def test_files_that_are_none(name: str, content: str, folder_to_spoil: Path) -> None:
    (folder_to_spoil / name).write_text(content)
    load(folder_to_spoil)


@pytest.mark.parametrize("key", TOKENIZER_KEYS)
def test_strange_values_of_the_tokenizer(key: str, folder_to_spoil: Path) -> None:
    path = folder_to_spoil / "tokenizer_config.json"
    config = json.loads(path.read_text())
    for template in folder_to_spoil.glob("*.jinja"):
        template.unlink()
    for value in STRANGE:
        path.write_text(json.dumps(config | {key: value}))
        load(folder_to_spoil)


def test_a_tokenizer_whose_template_is_no_text_is_said_so(folder_to_spoil: Path) -> None:
    for template in folder_to_spoil.glob("*.jinja"):
        template.unlink()
    path = folder_to_spoil / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": 5}))
    with pytest.raises(ModelError, match="chat_template"):
        load_base(str(folder_to_spoil))
