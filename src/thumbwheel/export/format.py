"""The contract of an export format. To add one: a file in formats/ and a line in its table; the
contract tests then run over it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from thumbwheel.export.types import Messages, Source

if TYPE_CHECKING:
    import torch

POSITIONS = 48
"""Most positions of a row that are compared, counted from its end; bounds memory for large
vocabularies."""


class Opened(Protocol):
    """An exported folder, opened the way that those it is for open it, with none of our code in
    between."""

    dtype: str
    """Precision of the weights that are really in the files: float32, bfloat16, Q4_K_M."""
    notes: tuple[str, ...]
    """What a person should know about the files, such as tensors that could not take the precision."""

    def logits(self, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """float32 logits [positions, vocabulary] at the last `POSITIONS` positions of each row."""

    def greedy(self, row: Sequence[int], most: int) -> list[int]:
        """The most likely continuation of `row`: at most `most` tokens, up to and with one that
        ends an answer."""

    def prompt_ids(self, messages: Messages) -> list[int]:
        """What a plain user gets for `messages` up to where the model answers; empty where the
        template refuses them."""

    def text_ids(self, text: str) -> list[int]:
        """The tokens of plain text; special tokens in it are read as such, and none is added."""

    def ends(self) -> frozenset[int]:
        """Tokens at which generation stops by itself."""

    def close(self) -> None:
        """Free the model."""


class Format(Protocol):
    """Writes a trained model as files that others read, and reads them back the way those others
    do."""

    library: str
    """What loads it, as model hubs call it."""
    quants: tuple[str, ...]
    """Precisions that one may ask for, finest first; empty where the base's own is kept."""

    def default(self) -> str | None:
        """The precision where none is asked for; None where the base's own is kept."""

    def write(self, source: Source, folder: Path) -> None:
        """Write every file below `folder`, which exists and is empty; raises ModelError where the
        model cannot take this form."""

    def open(self, folder: Path, dtype: Any) -> Opened:
        """The model in `folder`, computed in `dtype` where its format leaves a choice."""

    def usage(self, folder: str) -> str:
        """The few lines of Python (of a shell, where they begin with "$ ") that use `folder`; they
        go into its README."""
