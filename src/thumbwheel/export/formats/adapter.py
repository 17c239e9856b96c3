"""The adapter in PEFT's form, with the tokenizer and chat template that training used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from thumbwheel.core.errors import ModelError
from thumbwheel.export import hf_compat
from thumbwheel.export.format import Opened
from thumbwheel.export.loaded_export import Loaded
from thumbwheel.export.types import PEFT_ADAPTER, ExportSource

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


class AdapterFormat:
    """`adapter_config.json` + `adapter_model.safetensors` + tokenizer; the base is named, not
    copied."""

    kind = PEFT_ADAPTER
    library = "peft"
    quants = ()

    def default(self) -> str | None:
        """Return None: the adapter keeps the base's precision."""
        return None

    def write(self, source: ExportSource, folder: Path) -> None:
        """Copy the adapter, name its base so that others find it, add the tokenizer files."""
        if source.adapter is None:
            raise ModelError(
                "a plain base as adapter",
                "this version has no adapter",
                "Export it with --format merged",
            )
        config = json.loads((source.adapter / CONFIG).read_text(encoding="utf-8"))
        config["base_model_name_or_path"] = source.loadable
        (folder / CONFIG).write_text(
            json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8"
        )
        shutil.copyfile(source.adapter / WEIGHTS, folder / WEIGHTS)
        hf_compat.write_tokenizer(source.base, folder, source.adapter, source.template)

    def open(self, folder: Path, dtype: Any) -> Opened:
        """Load the base named in the config with the adapter over it, as a user of PEFT loads them.

        AutoPeftModel would resize the base's embedding to the tokenizer's length, which is wrong
        for some bases.
        """
        from peft import PeftConfig, PeftModel
        from transformers import AutoModelForCausalLM

        base = AutoModelForCausalLM.from_pretrained(
            PeftConfig.from_pretrained(str(folder)).base_model_name_or_path,
            dtype=dtype,
            trust_remote_code=False,
        )
        return Loaded(PeftModel.from_pretrained(base, folder), folder, "float32")

    def usage(self, folder: str) -> str:
        """Return Python code that uses PEFT."""
        return (
            "from peft import PeftConfig, PeftModel\n"
            "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            f"base = PeftConfig.from_pretrained({folder!r}).base_model_name_or_path\n"
            "model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), "
            f"{folder!r})\n"
            f"tokenizer = AutoTokenizer.from_pretrained({folder!r})\n"
        )


ADAPTER = AdapterFormat()
