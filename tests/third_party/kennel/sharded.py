"""`sharded`: the merged model with its weights in files of 64 KiB, or of one larger tensor, for a
store that takes no large files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from thumbwheel.export import hf_compat
from thumbwheel.export.format import Opened
from thumbwheel.export.loaded_export import Loaded
from thumbwheel.export.merge import merge
from thumbwheel.export.types import HF_MODEL, ExportSource
from thumbwheel.export.weights import stored_dtype

MAX_BYTES = 64 << 10
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


class ShardedFormat:
    """One ordinary Hugging Face folder, whose weights are in many files."""

    kind = HF_MODEL
    library = "transformers"
    quants = ()

    def default(self) -> str | None:
        """None: that of the base."""
        return None

    def write(self, source: ExportSource, folder: Path) -> None:
        """Merge, split the weights, and add the tokenizer."""
        merge(source, folder)
        if (folder / WEIGHTS).is_file():
            split(folder)
        hf_compat.write_tokenizer(source.base, folder)
        hf_compat.complete_config(folder)

    def open(self, folder: Path, dtype: Any) -> Opened:
        """The model as a user of transformers loads it."""
        from transformers import AutoModelForCausalLM

        stored = str(stored_dtype(str(folder))).removeprefix("torch.")
        return Loaded(AutoModelForCausalLM.from_pretrained(folder, dtype=dtype), folder, stored)

    def usage(self, folder: str) -> str:
        """Python with transformers."""
        return (
            "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            f"model = AutoModelForCausalLM.from_pretrained({folder!r})\n"
            f"tokenizer = AutoTokenizer.from_pretrained({folder!r})\n"
        )


def split(folder: Path) -> None:
    """Replace the one file of weights by several and their index."""
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / WEIGHTS)
    shards = split_torch_state_dict_into_shards(tensors, max_shard_size=MAX_BYTES)
    if not shards.is_sharded:
        return
    for file, names in shards.filename_to_tensors.items():
        save_file({name: tensors[name] for name in names}, folder / file, {"format": "pt"})
    (folder / WEIGHTS).unlink()
    index = {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


SHARDED = ShardedFormat()
