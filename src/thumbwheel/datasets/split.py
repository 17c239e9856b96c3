"""The split in train, dev and gate: by group, stable, salted; adding data never moves a group that was there before.

A group is a session; where there is none, the prompt of the case that was run, else the prompt. `split_of(prompt id)` is also the split
of a case, so that an evaluation can use the cases whose prompt is in `gate`. Nothing here reads data.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from thumbwheel.datasets.types import DatasetConfig, Message

INSTRUCTIONS = {"system", "developer"}
_SORTED = json.JSONEncoder(sort_keys=True)


def split_of(group: str, config: DatasetConfig) -> str:
    """`train`, `dev` or `gate`, by sha256(salt:group) alone.

    >>> split_of("msg_1", DatasetConfig()) == split_of("msg_1", DatasetConfig())
    True
    """
    place = share_of(config.salt, group)
    if place < config.gate:
        return "gate"
    return "dev" if place < config.gate + config.dev else "train"


@lru_cache(maxsize=4096)
def share_of(salt: str, group: str) -> float:
    """Where `group` lies from 0 to 1, by sha256(salt:group) alone."""
    return int.from_bytes(hashlib.sha256(f"{salt}:{group}".encode()).digest()[:8], "big") / 2**64


def group_of(prompt_id: str, kept_with: str | None = None) -> str:
    """What is kept together: the session, else the prompt of the case, else the prompt. The group of a case is its prompt."""
    return kept_with or prompt_id


def prompt_key(prompt: Sequence[Message]) -> bytes:
    """What makes two prompts the same question: everything but system messages, white space, case and the ways to write a character.

    A system prompt with a date or a new version in it must not let a held-out question back into training.
    """
    return _digest([message for message in prompt if message["role"] not in INSTRUCTIONS] or prompt)


def group_key(prompt: Sequence[Message], tools: object = None) -> bytes:
    """What makes answers comparable: the same question under the same instructions and with the same tools."""
    return _digest([*prompt, {"tools": tools}])


def plain(text: str) -> str:
    """Text without differences that do not matter.

    >>> plain("What  IS\\nit?") == plain("what is it?")
    True
    """
    return " ".join((text if text.isascii() else unicodedata.normalize("NFKC", text)).casefold().split())


def _digest(messages: Sequence[Message]) -> bytes:
    said = [{key: plain(value) if isinstance(value, str) else value for key, value in message.items()} for message in messages]
    return hashlib.sha256(_SORTED.encode(said).encode()).digest()[:16]
