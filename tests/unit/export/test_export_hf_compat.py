"""Config, tokenizer and generation settings in the spelling that transformers 4.x and 5.x both
read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.models.tiny_models import tiny_adapter, tiny_base, tiny_tokenizer, tuned_version
from thumbwheel.db.workspace import Workspace
from thumbwheel.export import hf_compat, parity
from thumbwheel.export.package import export
from thumbwheel.models.versions import version as named


def test_both_spellings_of_the_rope() -> None:
    plain = hf_compat.both_spellings(
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "dtype": "bfloat16"}
    )
    assert plain["rope_theta"] == 1e6
    assert "rope_scaling" not in plain
    assert plain["torch_dtype"] == plain["dtype"] == "bfloat16"
    scaled = hf_compat.both_spellings(
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e5}}
    )
    assert scaled["rope_theta"] == 5e5
    assert scaled["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0}
    partial = hf_compat.both_spellings(
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
            }
        }
    )
    assert partial["partial_rotary_factor"] == 0.5


def test_ropes_by_layer_type_and_nested_text_configs() -> None:
    local, whole = (
        {"rope_type": "default", "rope_theta": 1e4},
        {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    )
    config = hf_compat.both_spellings(
        {"text_config": {"rope_parameters": {"sliding_attention": local, "full_attention": whole}}}
    )["text_config"]
    assert (config["rope_theta"], config["rope_local_base_freq"]) == (1e6, 1e4)
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}


def test_a_config_without_rope_is_left_alone() -> None:
    assert hf_compat.both_spellings({"model_type": "gpt2", "n_embd": 32}) == {
        "model_type": "gpt2",
        "n_embd": 32,
    }


def test_tokenizer_settings() -> None:
    config = hf_compat.tokenizer_settings(
        {
            "tokenizer_class": "TokenizersBackend",
            "extra_special_tokens": ["<a>"],
            "is_local": True,
            "local_files_only": True,
        },
        "{{ x }}",
    )
    assert config == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "additional_special_tokens": ["<a>"],
        "chat_template": "{{ x }}",
    }
    assert (
        hf_compat.tokenizer_settings({"tokenizer_class": "Qwen2Tokenizer"}, "")["tokenizer_class"]
        == "Qwen2Tokenizer"
    )


def test_every_end_of_an_answer_is_kept(tiny_model: Path) -> None:
    assert hf_compat.generation_settings(
        {"eos_token_id": 7, "pad_token_id": 0}, str(tiny_model), None, (9, 7)
    )["eos_token_id"] == [7, 9]
    assert hf_compat.generation_settings({"eos_token_id": [7, 8]}, str(tiny_model), None, (8,)) == {
        "eos_token_id": [7, 8],
        "pad_token_id": 7,
    }
    assert hf_compat.generation_settings({"eos_token_id": 7}, str(tiny_model), 3, (7,)) == {
        "eos_token_id": 7,
        "pad_token_id": 3,
    }


def test_a_kl_that_is_none_is_a_failure() -> None:
    import torch

    numbers = torch.randn(3, 5)
    assert parity.compare([numbers], [numbers]) == (0.0, 0.0, 1.0)
    assert parity.compare([numbers], [torch.randn(3, 6)]) == (parity.FAR, parity.FAR, 0.0)
    assert (
        parity.compare([numbers], [numbers * float("nan")])
        == parity.compare([numbers], [numbers / 0])
        == (parity.FAR, parity.FAR, 0.0)
    )
    gap, kl, _ = parity.compare([numbers], [numbers + 3.0])
    assert gap < 1e-6, "a shift of all logits changes nothing"
    assert kl < 1e-9


@pytest.fixture(scope="session")
def old_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with transformers 4.57: `THUMBWHEEL_TEST_TRANSFORMERS4`, else a venv that
    borrows this one's torch."""
    if interpreter := os.environ.get("THUMBWHEEL_TEST_TRANSFORMERS4"):
        return Path(interpreter)
    folder = tmp_path_factory.mktemp("transformers4")
    try:
        venv.create(folder, with_pip=True)
        python = folder / "bin" / "python"
        wanted = [
            "transformers==4.57.6",
            "peft==0.17.1",
            "tokenizers==0.22.1",
            "huggingface-hub==0.36.0",
        ]
        wanted += [
            "requests",
            "urllib3",
            "idna",
            "certifi",
            "charset-normalizer",
        ]  # not in an environment of transformers 5
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "--no-deps", *wanted],
            check=True,
            capture_output=True,
            timeout=240,
        )
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"transformers 4.57 cannot be installed here: {error}")
    import torch

    shared = Path(torch.__file__).parents[1]
    (
        folder
        / "lib"
        / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        / "site-packages"
        / "borrowed.pth"
    ).write_text(str(shared))
    return python


LOAD = """
import json, sys
import torch, transformers
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, format = sys.argv[1:]
assert transformers.__version__.startswith("4."), transformers.__version__
tokenizer = AutoTokenizer.from_pretrained(folder)
if format == "merged":
    model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
else:
    from peft import PeftConfig, PeftModel
    name = PeftConfig.from_pretrained(folder).base_model_name_or_path
    base = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.float32)
    model = PeftModel.from_pretrained(base, folder)
question = [{"role": "user", "content": "Hello, 17 * 23?"}]
ids = tokenizer.apply_chat_template(question, add_generation_prompt=True)
with torch.no_grad():
    logits = model(torch.tensor([ids])).logits[0, -1]
ends = model.generation_config.eos_token_id
special = tokenizer.additional_special_tokens
print(json.dumps({"ids": ids, "logits": logits.tolist(), "ends": ends, "special": special}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("format", ["merged", pytest.param("adapter", marks=pytest.mark.repeat)])
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("qwen2", {}),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
        ("gemma3_text", {"sliding_window": 16}),
    ],
)
def test_transformers_4_computes_the_same(
    empty_ws: Workspace,
    old_python: Path,
    family: str,
    settings: dict[str, object],
    format: str,
    tmp_path: Path,
) -> None:
    import torch

    base = tiny_base(tmp_path / "base", family, tokenizer=tiny_tokenizer(), **settings)
    if format == "adapter":
        hf_compat.complete_config(
            base
        )  # the base itself is the user's; only what we write is ours to make readable
    tuned_version(empty_ws, base, tiny_adapter(base, tmp_path / "adapter"))
    done = export(empty_ws, named(empty_ws, "support", "v1"), format, tmp_path / "out")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {
        "OMP_NUM_THREADS": "1"
    }
    command = [old_python, "-c", LOAD, str(done.path), format]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert answer.returncode == 0, answer.stderr
    old = json.loads(answer.stdout.splitlines()[-1])
    from thumbwheel.export.formats import FORMATS

    opened = FORMATS.get(format).open(done.path, torch.float32)
    ids = opened.prompt_ids([{"role": "user", "content": "Hello, 17 * 23?"}])
    assert ids == old["ids"]
    assert torch.allclose(
        opened.logits([ids])[0][-1], torch.tensor(old["logits"]), atol=1e-4, rtol=1e-4
    )
    if format == "merged":
        assert opened.ends() == frozenset(
            old["ends"] if isinstance(old["ends"], list) else [old["ends"]]
        )
