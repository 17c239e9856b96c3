"""What the split in train, dev and gate is made of: a salted hash, and what makes two prompts, or
two turns of a dialogue, the same.

Nothing here reads data. Which prompts are split together is `split_assignment`'s.
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


def split_of(group: str, config: DatasetConfig, *, held_out: bool = False) -> str | None:
    """`train`, `dev` or `gate`, by sha256(salt:group) alone; `held_out` takes dev or gate, and None
    where both are empty.

    >>> split_of("g1", DatasetConfig()) == split_of("g1", DatasetConfig())
    True
    """
    share = share_of(config.salt, group)
    if held_out:
        share *= config.gate + config.dev
    if share < config.gate:
        return "gate"
    if share < config.gate + config.dev:
        return "dev"
    return None if held_out else "train"


@lru_cache(maxsize=4096)
def share_of(salt: str, group: str) -> float:
    """Where `group` lies from 0 to 1, by sha256(salt:group) alone."""
    return int.from_bytes(hashlib.sha256(f"{salt}:{group}".encode()).digest()[:8], "big") / 2**64


def group_of(prompt_id: str, kept_with: str | None = None) -> str:
    """What an interval counts as one: the session, else the prompt of the case, else the prompt.
    The group of a case is its prompt."""
    return kept_with or prompt_id


def prompt_key(prompt: Sequence[Message]) -> bytes:
    """What makes two prompts the same question: everything but system messages, white space, case
    and the ways to write a character.

    A system prompt with a date or a new version in it must not let a held-out question back into
    training.
    """
    return _digest([message for message in prompt if message["role"] not in INSTRUCTIONS] or prompt)


def group_key(prompt: Sequence[Message], tools: object = None) -> bytes:
    """What makes answers comparable: the same question under the same instructions and with the
    same tools."""
    return _digest([*prompt, {"tools": tools}])


def dialogue_keys(prompt: Sequence[Message]) -> tuple[int, list[int]]:
    """The key of a prompt, 64 bits that are equal where `prompt_key` is, and the turns that its
    history holds (`turn_key`)."""
    key = 0
    turns: list[int] = []
    for message in [message for message in prompt if message["role"] not in INSTRUCTIONS] or prompt:
        content = message.get("content")
        if message["role"] == "assistant" and key and isinstance(content, str):
            turns.append(turn_key(key, content))
        key = _hash64(
            key.to_bytes(8, "big")
            + _SORTED.encode(_normal(message)).encode("utf-8", "surrogatepass")
        )
    return key, turns


def turn_key(key: int, answer: str) -> int:
    """A prompt (by its key) and an answer to it."""
    return _hash64(key.to_bytes(8, "big") + plain(answer).encode("utf-8", "surrogatepass"))


def asked_text(prompt: Sequence[Message]) -> str:
    """What was asked and answered before, as text: every message but instructions."""
    return "\n".join(
        str(message.get("content") or "")
        for message in prompt
        if message.get("role") not in INSTRUCTIONS
    )


def plain(text: str) -> str:
    """Text without differences that do not matter.

    >>> plain("What  IS\\nit?") == plain("what is it?")
    True
    """
    return " ".join(
        (text if text.isascii() else unicodedata.normalize("NFKC", text)).casefold().split()
    )


def _normal(message: Message) -> Message:
    return {
        key: plain(value) if isinstance(value, str) else value for key, value in message.items()
    }


def _hash64(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def _digest(messages: Sequence[Message]) -> bytes:
    normal = [_normal(message) for message in messages]
    return hashlib.sha256(_SORTED.encode(normal).encode()).digest()[:16]
