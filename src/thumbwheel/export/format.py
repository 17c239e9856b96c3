"""The contract of an export format. To add one: a file in formats/ and a line in its table; the contract tests then run over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from thumbwheel.export.types import Source


class Format(Protocol):
    """Writes a trained model as files that others read, and reads them back the way those others do."""

    def write(self, source: Source, folder: Path) -> None:
        """Write every file below `folder`, which exists and is empty; raises ModelError where the model cannot take this form."""

    def load(self, folder: Path, dtype: Any) -> tuple[Any, Any]:
        """The model and tokenizer in `folder`, computed in `dtype`, loaded with public libraries and none of our code."""

    def usage(self, folder: str) -> str:
        """The few lines of Python that load `folder`; they go into its README and are executed by the contract tests."""
