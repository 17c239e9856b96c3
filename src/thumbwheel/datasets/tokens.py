"""Counts the tokens of a text with a tokenizer file. Training has its own prompt builder, which
also counts the chat template."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from thumbwheel.core.errors import MissingExtra, ModelError


def counter(folder: Path) -> Callable[[str], int]:
    """Return a function that counts tokens by `folder`/tokenizer.json.

    Raises ModelError if the file cannot be read, MissingExtra without `tokenizers`.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtra.of("counting tokens", "tokenizers", "train") from None
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # noqa: BLE001 - the library raises plain Exception
        raise ModelError(
            f"tokenizer {str(folder)!r}",
            str(error),
            "Name the folder of a base that has a tokenizer.json",
        ) from None
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
