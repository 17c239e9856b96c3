"""The split in train, dev and gate: by group, stable, salted; adding data never moves a group that was there before.

A group is a session, or a prompt where there is no session; `split_of(prompt id)` is also the split of a case, so that an
evaluation can use the cases whose prompt is in `gate`. Nothing here reads data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from thumbwheel.datasets.types import SPLITS, DatasetConfig, Message

INSTRUCTIONS = {"system", "developer"}


def split_of(group: str, config: DatasetConfig) -> str:
    """`train`, `dev` or `gate`, by sha256(salt:group) alone.

    >>> split_of("msg_1", DatasetConfig()) == split_of("msg_1", DatasetConfig())
    True
    """
    place = int.from_bytes(hashlib.sha256(f"{config.salt}:{group}".encode()).digest()[:8], "big") / 2**64
    if place < config.gate:
        return "gate"
    return "dev" if place < config.gate + config.dev else "train"


def group_of(prompt_id: str, session_id: str | None = None) -> str:
    """What is kept together: the session, else the prompt. The group of a case is its prompt (`cases.input_id`)."""
    return session_id or prompt_id


def strictest(*splits: str) -> str:
    """The split that wins where one prompt stands in several: gate over dev over train."""
    return max(splits, key=SPLITS.index)


def prompt_key(prompt: Sequence[Message]) -> bytes:
    """What makes two prompts the same question: everything but system messages and white space.

    A system prompt with a date or a new version in it must not let a held-out question back into training.
    """
    asked = [message for message in prompt if message["role"] not in INSTRUCTIONS] or list(prompt)
    plain = [{key: " ".join(value.split()) if isinstance(value, str) else value for key, value in message.items()} for message in asked]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).digest()[:16]
