"""The adapter merged into its base: one ordinary Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thumbwheel.export import merge, portable
from thumbwheel.export.types import Source


class MergedFormat:
    """Safetensors in the base's precision + tokenizer + generation settings, for transformers 4.x and 5.x alike."""

    def write(self, source: Source, folder: Path) -> None:
        """Merge in float32 from the pristine base, cast once, save, and write what transformers 4.x needs besides."""
        merge.merged(source).save_pretrained(folder)
        portable.write_tokenizer(source.base, folder)
        portable.complete_config(folder)

    def load(self, folder: Path, dtype: Any) -> tuple[Any, Any]:
        """As a user of transformers does."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval(), AutoTokenizer.from_pretrained(folder)

    def usage(self, folder: str) -> str:
        """By transformers."""
        return (
            "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            f"model = AutoModelForCausalLM.from_pretrained({folder!r})\n"
            f"tokenizer = AutoTokenizer.from_pretrained({folder!r})\n"
        )


MERGED = MergedFormat()
