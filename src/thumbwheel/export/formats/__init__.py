"""The formats that ship; one file each."""

from __future__ import annotations

from thumbwheel.core.plugins import Table
from thumbwheel.export.format import Format

FORMATS: Table[Format] = Table(
    "format",
    "thumbwheel.formats",
    {
        "adapter": "thumbwheel.export.formats.adapter:ADAPTER",
        "merged": "thumbwheel.export.formats.merged:MERGED",
    },
)
