"""Real but tiny models for tests: an own byte-level BPE, a random causal LM, a random non-zero
adapter, and a version made of them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.db.columns import Json
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import versions
from thumbwheel.models.types import ModelVersion

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] "
    "}}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_WITH_TOOLS = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}" + CHATML
)
TEXT = (
    "The quick brown fox jumps over the lazy dog. ",
    "Größe, naïve, 東京, 17 * 23 = 391\n",
    "def add(a, b):\n    return a + b\n",
)


def tiny_tokenizer(template: str | None = CHATML, bos: bool = False) -> Any:
    """About 400 tokens; with `bos`, one that puts <s> before every text, as Llama's does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = [
        "<|pad|>",
        "<|im_start|>",
        "<|im_end|>",
        "<s>",
        "<|endoftext|>",
    ]  # the last one transformers adds for Qwen2 by itself
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        TEXT * 3,
        trainers.BpeTrainer(
            vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    if bos:
        inner.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", inner.token_to_id("<s>"))]
        )
    named = {"bos_token": "<s>"} if bos else {}
    extra = ["<|im_start|>"]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        additional_special_tokens=extra,
        **named,
    )
    tokenizer.chat_template = template
    return tokenizer


def tiny_base(
    folder: Path,
    family: str = "qwen2",
    dtype: str = "float32",
    tokenizer: Any = None,
    seed: int = 0,
    **settings: Any,
) -> Path:
    """A random model of `family` in `folder`, two layers of 32; rope theta is not the default, so
    that losing it shows."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = tokenizer or tiny_tokenizer()
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "rope_theta": 1e6,
        "initializer_range": 0.3,
    }
    if family == "gpt2":
        shape = {
            key: shape[key]
            for key in (
                "vocab_size",
                "eos_token_id",
                "pad_token_id",
                "bos_token_id",
                "initializer_range",
            )
        }
        shape |= {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **shape | settings))
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_adapter(base: Path, folder: Path, seed: int = 1, **settings: Any) -> Path:
    """A random non-zero LoRA adapter for `base`, as a training run leaves it."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        config = {
            "r": 4,
            "lora_alpha": 8,
            "target_modules": "all-linear",
            "init_lora_weights": False,
            "task_type": "CAUSAL_LM",
        }
        get_peft_model(model, LoraConfig(**config | settings)).save_pretrained(folder)
    return folder


def record(ws: Workspace, table: sa.Table, agent: str, **values: Any) -> str:
    """Insert one row with whatever the schema demands besides `values`; returns its id."""
    key = values.setdefault("id", ids.new(table.name[:3]))
    fields = {
        name: value
        for name, value in ({"agent_id": ids.derived("agt", agent)} | values).items()
        if name in table.c
    }
    row = {column.name: _filled(column) for column in table.columns if not column.nullable} | fields
    ws.db.write(lambda connection: connection.execute(table.insert().values(row)))
    return str(key)


def _filled(column: sa.Column[Any]) -> Any:
    kind = column.type
    if isinstance(kind, Json):
        return {}
    if isinstance(kind, sa.Boolean | sa.Integer | sa.Float):
        return 0
    return (
        f"{column.name}-{ids.new('x')[-6:]}"[-16:]
        if isinstance(kind, sa.String)
        else datetime.now(UTC)
    )


def pair_files(blobs: Any, scratch: Path) -> dict[str, str]:
    """Six preference rows, frozen as the datasets stage freezes them: split -> sha256."""
    from thumbwheel.datasets.files import write_parquet
    from thumbwheel.datasets.types import PairRow

    files = {}
    for split, numbers in {"train": range(3), "dev": range(3, 5), "gate": range(5, 6)}.items():
        rows = [
            PairRow(
                row_id=f"row{n}",
                group=f"g{n}",
                split=split,
                prompt=[{"role": "user", "content": f"Question {n}?"}],
                tools=None,
                weight=1.0,
                origin="preference" if n % 2 else "correction",
                feedback_ids=[f"fbk_{n}"],
                trace_ids=[f"trc_{n}", f"trc_{n}b"],
                subject_ids=[f"sub_{n % 2}"],
                chosen="Yes.",
                rejected="No.",
            )
            for n in numbers
        ]
        path = scratch / f"{split}.parquet"
        write_parquet(path, PairRow, rows)
        files[split] = blobs.put(path)
    return files


def tuned_version(
    ws: Workspace, base: Path, adapter: Path, agent: str = "support", fingerprint: str | None = None
) -> ModelVersion:
    """The candidate that a run over `base` with result `adapter` would have left."""
    from thumbwheel.datasets.types import DatasetConfig
    from thumbwheel.db.schema import datasets, runs
    from thumbwheel.engine.load import base_fingerprint
    from thumbwheel.models.artifacts import Artifacts
    from thumbwheel.models.gguf.base import folder_of

    if fingerprint is None:
        fingerprint = base_fingerprint(folder_of(base) if base.suffix == ".gguf" else base)
    parent = versions.ensure_base(ws, agent, str(base), fingerprint)
    manifest = {
        "files": pair_files(Artifacts.of(ws), ws.home.path),
        "config": DatasetConfig().model_dump(mode="json"),
    }
    dataset = record(ws, datasets, agent, shape="pairs", manifest=manifest)
    run = record(
        ws, runs, agent, algorithm="dpo", dataset_id=dataset, base=str(base), state="finished"
    )
    return versions.add_candidate(ws, parent, run, adapter)
