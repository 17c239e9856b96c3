"""The adapter alone as GGUF, for llama.cpp and Ollama, over a GGUF file of its base."""

from __future__ import annotations

import json
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thumbwheel.core.errors import ModelError
from thumbwheel.export import gguf_file, hf_compat
from thumbwheel.export.format import Opened
from thumbwheel.export.types import GGUF_ADAPTER, ExportSource
from thumbwheel.llm.convert import convert_adapter

CONFIG = "adapter_config.json"


def why_not(config: Mapping[str, Any]) -> str | None:
    """Return why llama.cpp cannot serve an adapter with this configuration; None if it can."""
    replaces_layers = config.get("modules_to_save") or config.get("use_dora")
    if replaces_layers or config.get("peft_type") != "LORA":
        return (
            "llama.cpp adds low-rank matrices only, and this adapter replaces or scales whole "
            "layers"
        )
    unsupported = ("use_rslora", "alpha_pattern", "lora_bias")
    if present := [key for key in unsupported if config.get(key)]:
        return (
            "llama.cpp scales every layer by lora_alpha / rank and adds no bias, and this adapter "
            f"has {', '.join(present)}"
        )
    return None


class LoraGgufFormat:
    """`adapter-F16.gguf`, PEFT's configuration of it, and the tokenizer; the base is named, not
    copied."""

    kind = GGUF_ADAPTER
    library = "gguf"
    quants = ("F32", "BF16", "F16")

    def default(self) -> str | None:
        """Return F32, because adapters are small."""
        return "F32"

    def write(self, source: ExportSource, folder: Path) -> None:
        """Convert the adapter over its base."""
        if source.adapter is None:
            raise ModelError(
                "a plain base as lora_gguf",
                "this version has no adapter",
                "Export it with --format gguf",
            )
        config = json.loads((source.adapter / CONFIG).read_text(encoding="utf-8"))
        if why := why_not(config):
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
        hf_compat.write_tokenizer(source.base, folder, source.adapter, source.template)

    def open(self, folder: Path, dtype: Any) -> Opened:
        """Load the adapter in llama.cpp over the base named in the config: the GGUF file that it is
        served with, else the base converted to F32, because over bfloat16 llama.cpp would round its
        results."""
        from thumbwheel.models.base import gguf_file as gguf_file_of
        from thumbwheel.models.base import locate

        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        adapter = next(folder.glob(f"*{gguf_file.SUFFIX}"))
        if (served := gguf_file_of(config["base_model_name_or_path"])) is not None:
            return gguf_file.LoadedGguf(folder, served.path, adapter, template_of_folder=True)
        _, base = locate(config["base_model_name_or_path"])
        with tempfile.TemporaryDirectory(prefix=".gguf-", dir=folder.parent) as temporary:
            source = Path(temporary) / "base"
            shutil.copytree(base, source)
            hf_compat.write_tokenizer(str(base), source, folder)
            file = Path(temporary) / f"base{gguf_file.SUFFIX}"
            gguf_file.write(source, str(base), "F32", file, Path(temporary))
            return gguf_file.LoadedGguf(folder, file, adapter)

    def usage(self, folder: str) -> str:
        """Return the command line of llama-server."""
        return f"$ llama-server -m base.gguf --lora {shlex.quote(folder)}/*.gguf --cache-ram 0\n"


LORA_GGUF = LoraGgufFormat()
