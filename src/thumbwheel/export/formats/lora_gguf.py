"""The adapter alone as GGUF, for llama.cpp and Ollama, over a GGUF file of its base."""

from __future__ import annotations

import json
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Any

from thumbwheel.core.errors import ModelError
from thumbwheel.export import gguf_file, hf_compat
from thumbwheel.export.format import Opened
from thumbwheel.export.types import Source
from thumbwheel.llm.convert import convert_adapter

CONFIG = "adapter_config.json"


class LoraGgufFormat:
    """`adapter-F16.gguf`, what PEFT says about it, and the tokenizer; the base is named, not
    copied."""

    library, quants = "gguf", ("F32", "BF16", "F16")

    def default(self) -> str | None:
        """Adapters are small."""
        return "F32"

    def write(self, source: Source, folder: Path) -> None:
        """Convert the adapter over its base."""
        if source.adapter is None:
            raise ModelError(
                "a plain base as lora_gguf",
                "this version has no adapter",
                "Export it with --format gguf",
            )
        config = json.loads((source.adapter / CONFIG).read_text(encoding="utf-8"))
        if (
            config.get("modules_to_save")
            or config.get("use_dora")
            or config.get("peft_type") != "LORA"
        ):
            why = (
                "llama.cpp adds low-rank matrices only, and this adapter replaces or scales whole "
                "layers"
            )
            raise ModelError("the adapter as lora_gguf", why, "Export it with --format gguf")
        if other := [
            key for key in ("use_rslora", "alpha_pattern", "lora_bias") if config.get(key)
        ]:
            why = (
                "llama.cpp scales every layer by lora_alpha / rank and adds no bias, and this "
                f"adapter has {', '.join(other)}"
            )
            raise ModelError("the adapter as lora_gguf", why, "Export it with --format gguf")
        quant = source.quant or "F32"
        convert_adapter(
            source.adapter,
            Path(source.base),
            folder / f"adapter-{quant}{gguf_file.SUFFIX}",
            quant,
            gguf_file.family(source.base),
        )
        config["base_model_name_or_path"] = source.name
        (folder / CONFIG).write_text(
            json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8"
        )
        hf_compat.write_tokenizer(source.base, folder)

    def open(self, folder: Path, dtype: Any) -> Opened:
        """In llama.cpp, over the base that the config names, converted for it to F32: over bfloat16
        it would round what it computes."""
        from thumbwheel.models.base import locate

        base = locate(
            json.loads((folder / CONFIG).read_text(encoding="utf-8"))["base_model_name_or_path"]
        )[1]
        with tempfile.TemporaryDirectory(prefix=".gguf-", dir=folder.parent) as own:
            source = Path(own) / "base"
            shutil.copytree(base, source)
            hf_compat.write_tokenizer(str(base), source)
            file = Path(own) / f"base{gguf_file.SUFFIX}"
            gguf_file.write(source, str(base), "F32", file, Path(own))
            return gguf_file.GgufFile(folder, file, next(folder.glob(f"*{gguf_file.SUFFIX}")))

    def usage(self, folder: str) -> str:
        """By llama-server."""
        return f"$ llama-server -m base.gguf --lora {shlex.quote(folder)}/*.gguf --cache-ram 0\n"


LORA_GGUF = LoraGgufFormat()
