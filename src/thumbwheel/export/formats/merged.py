"""The adapter merged into its base: one ordinary Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thumbwheel.export import hf_compat
from thumbwheel.export.format import Opened
from thumbwheel.export.loaded_export import Loaded
from thumbwheel.export.merge import merge
from thumbwheel.export.types import HF_MODEL, ExportSource
from thumbwheel.export.weights import stored_dtype


class MergedFormat:
    """Safetensors in the base's precision + tokenizer + generation settings, for transformers 4.x
    and 5.x alike."""

    kind = HF_MODEL
    library = "transformers"
    quants = ()

    def default(self) -> str | None:
        """Return None: the merged model keeps the base's precision."""
        return None

    def write(self, source: ExportSource, folder: Path) -> None:
        """Merge in float32 from the pristine base, cast once, save, and add the files that
        transformers 4.x needs."""
        merge(source, folder)
        hf_compat.write_tokenizer(source.base, folder, source.adapter, source.template)
        hf_compat.complete_config(folder)

    def open(self, folder: Path, dtype: Any) -> Opened:
        """Load the model as a user of transformers does."""
        from transformers import AutoModelForCausalLM

        stored = str(stored_dtype(str(folder))).removeprefix("torch.")
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, trust_remote_code=False)
        return Loaded(model, folder, stored)

    def usage(self, folder: str) -> str:
        """Return Python code that uses transformers."""
        return (
            "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            f"model = AutoModelForCausalLM.from_pretrained({folder!r})\n"
            f"tokenizer = AutoTokenizer.from_pretrained({folder!r})\n"
        )


MERGED = MergedFormat()
