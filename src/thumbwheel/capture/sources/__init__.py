"""The sources that `import` and `plan` know. To add one: a file here and its line in SOURCES."""

from __future__ import annotations

from thumbwheel.capture.source import Source
from thumbwheel.core.plugins import Table

SOURCES: Table[Source] = Table(
    "source",
    "thumbwheel.sources",
    {
        "jsonl": "thumbwheel.capture.sources.jsonl:SOURCE",
        "preference": "thumbwheel.capture.sources.preference:SOURCE",
        "graded": "thumbwheel.capture.sources.graded:SOURCE",
    },
)
