"""The formats that ship; one file each."""

from __future__ import annotations

from thumbwheel.core.plugins import VariantTable
from thumbwheel.export.format import Format

FORMATS: VariantTable[Format] = VariantTable(
    "format",
    "thumbwheel.formats",
    {
        "adapter": "thumbwheel.export.formats.adapter:ADAPTER",
        "merged": "thumbwheel.export.formats.merged:MERGED",
        "gguf": "thumbwheel.export.formats.gguf:GGUF",
        "lora_gguf": "thumbwheel.export.formats.lora_gguf:LORA_GGUF",
        "onnx": "thumbwheel.export.formats.onnx:ONNX",
    },
)
