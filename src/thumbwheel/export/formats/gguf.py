"""One GGUF file with tokenizer and chat template inside, for Ollama and everything else that is
made of llama.cpp."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Any

from thumbwheel.export import gguf_file, hf_compat
from thumbwheel.export.format import Opened
from thumbwheel.export.merge import merge
from thumbwheel.export.types import GGUF_MODEL, ExportSource
from thumbwheel.llm.convert import check_quantizer


class GgufFormat:
    """Merged first, converted in the precision of the base, then quantised; the tokenizer files lie
    beside the file."""

    kind = GGUF_MODEL
    library = "gguf"
    quants = gguf_file.QUANTS

    def default(self) -> str | None:
        """Return the precision that suits the memory of this machine."""
        from thumbwheel.core.hardware import memory_gb

        return gguf_file.recommend(memory_gb()[0])

    def write(self, source: ExportSource, folder: Path) -> None:
        """Write the model as a file such as `model-Q4_K_M.gguf`, and the tokenizer."""
        quant = source.quant or self.default() or ""
        check_quantizer(quant)
        file = folder / f"model-{quant}{gguf_file.SUFFIX}"
        with tempfile.TemporaryDirectory(prefix=".gguf-", dir=folder.parent) as own_scratch:
            scratch = source.scratch or Path(own_scratch)
            merged = scratch / "merged"
            if not (merged / "config.json").is_file():
                merged.mkdir(exist_ok=True)
                merge(source, merged)
                hf_compat.write_tokenizer(source.base, merged, source.adapter, source.template)
                hf_compat.complete_config(merged)
            gguf_file.write(merged, source.base, quant, file, scratch)
        hf_compat.write_tokenizer(source.base, folder, source.adapter, source.template)

    def open(self, folder: Path, dtype: Any) -> Opened:
        """Load the model in llama.cpp, on the CPU."""
        return gguf_file.LoadedGguf(folder, next(folder.glob(f"*{gguf_file.SUFFIX}")))

    def usage(self, folder: str) -> str:
        """Return the command line of llama-server."""
        return f"$ llama-server -m {shlex.quote(folder)}/*.gguf\n"


GGUF = GgufFormat()
