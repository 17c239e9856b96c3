"""The salted hash that splits prompts into train, dev and gate, and the keys by which two prompts,
or two turns of a dialogue, are the same.

Nothing here reads data. Which prompts are split together is decided in `split_assignment`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache

from thumbwheel.core.normal_form import normal_form
from thumbwheel.datasets.types import DatasetConfig, Message

INSTRUCTIONS = {"system", "developer"}
_SORTED = json.JSONEncoder(sort_keys=True)


def split_of(group: str, config: DatasetConfig, *, held_out: bool = False) -> str | None:
    """Return `train`, `dev` or `gate`, by sha256(salt:group) alone. With `held_out` it is dev or
    gate, and None if both are empty.

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
    """Return the position of `group` from 0 to 1, by sha256(salt:group) alone."""
    return int.from_bytes(hashlib.sha256(f"{salt}:{group}".encode()).digest()[:8], "big") / 2**64


def group_of(prompt_id: str, cluster_id: str | None = None) -> str:
    """Return the unit that a confidence interval counts: the session, else the prompt of the case
    (`cluster_id`), else the prompt. The group of a case is its prompt."""
    return cluster_id or prompt_id


def prompt_key(prompt: Sequence[Message]) -> bytes:
    """Return a key that is equal for the same question: system messages, white space, case and
    Unicode forms do not matter.

    Otherwise a system prompt with a date in it, or a new version of it, could let a held-out
    question back into training.
    """
    return _digest(_without_instructions(prompt))


def group_key(prompt: Sequence[Message], tools: object = None) -> bytes:
    """Return a key that is equal for comparable answers: the same question, instructions and
    tools."""
    return _digest([*prompt, {"tools": tools}])


def dialogue_keys(prompt: Sequence[Message]) -> tuple[int, list[int]]:
    """Return the key of a prompt, 64 bits that are equal if `prompt_key` is, and the turns that its
    history holds (`turn_key`)."""
    key = 0
    turns: list[int] = []
    for message in _without_instructions(prompt):
        content = message.get("content")
        if message["role"] == "assistant" and key and isinstance(content, str):
            turns.append(turn_key(key, content))
        key = _hash64(
            key.to_bytes(8, "big")
            + _SORTED.encode(_normal(message)).encode("utf-8", "surrogatepass")
        )
    return key, turns


def turn_key(key: int, answer: str) -> int:
    """Return the key of a turn: a prompt (by its key) and an answer to it."""
    return _hash64(key.to_bytes(8, "big") + plain(answer).encode("utf-8", "surrogatepass"))


def asked_text(prompt: Sequence[Message]) -> str:
    """Return the text of all messages but instructions: the question and the dialogue before it."""
    messages = [message for message in prompt if message.get("role") not in INSTRUCTIONS]
    return "\n".join(str(message.get("content") or "") for message in messages)


def plain(text: str) -> str:
    """Return the text without differences in white space, case and Unicode forms.

    >>> plain("What  IS\\nit?") == plain("what is it?")
    True
    """
    return " ".join(normal_form("NFKC", text).casefold().split())


def _without_instructions(prompt: Sequence[Message]) -> Sequence[Message]:
    """Return the messages of `prompt` without instructions; all if it has nothing else."""
    return [message for message in prompt if message["role"] not in INSTRUCTIONS] or prompt


def _normal(message: Message) -> Message:
    return {
        key: plain(value) if isinstance(value, str) else value for key, value in message.items()
    }


def _hash64(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def _digest(messages: Sequence[Message]) -> bytes:
    normal = [_normal(message) for message in messages]
    return hashlib.sha256(_SORTED.encode(normal).encode()).digest()[:16]
