"""The contract of an export format. To add one: a file in formats/ and a line in its table; the
contract tests then run over it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from thumbwheel.export.types import ExportSource, Messages, ModelKind

if TYPE_CHECKING:
    import torch

POSITIONS = 48
"""At most so many positions of a row are compared, counted from its end; this bounds memory for
large vocabularies."""


class Opened(Protocol):
    """An exported folder, opened by the public program that it is for, with none of our code in
    between."""

    dtype: str
    """Precision of the weights that are really in the files: float32, bfloat16, Q4_K_M."""
    notes: tuple[str, ...]
    """Remarks about the files, such as tensors that could not take the precision."""

    def logits(self, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Return float32 logits [positions, vocabulary] at the last `POSITIONS` positions of each
        row."""

    def greedy(self, row: Sequence[int], most: int) -> list[int]:
        """Return the most likely continuation of `row`: at most `most` tokens, up to and including
        one that ends an answer."""

    def prompt_ids(self, messages: Messages) -> list[int]:
        """Return the tokens that a plain user gets for `messages`, up to where the model answers;
        empty if the template refuses them."""

    def text_ids(self, text: str) -> list[int]:
        """Return the tokens of plain text. Special tokens in it are parsed, and none is added."""

    def ends(self) -> frozenset[int]:
        """Return the tokens at which generation stops by itself."""

    def close(self) -> None:
        """Free the model."""


class Format(Protocol):
    """Writes a trained model as files for other programs, and opens them with these programs."""

    kind: ModelKind
    """The kind of its files, and so which targets can serve it."""
    library: str
    """The library that loads it, as model hubs call it."""
    quants: tuple[str, ...]
    """The precisions that it offers, finest first; empty where it keeps that of the base."""

    def default(self) -> str | None:
        """Return the precision if none is requested; None if the format keeps the base's or has
        only one."""

    def write(self, source: ExportSource, folder: Path) -> None:
        """Write all files below `folder`, which exists and is empty. Raises ModelError if the model
        cannot be written in this format."""

    def open(self, folder: Path, dtype: Any) -> Opened:
        """Load the model in `folder`, computed in `dtype` if the format leaves a choice."""

    def usage(self, folder: str) -> str:
        """Return a few lines of Python (or shell, if they begin with "$ ") that use `folder`, for
        its README."""
