"""What a call may use of a model's API: its own module, because a server of a model reads no
database."""

from __future__ import annotations

from enum import StrEnum


class CallFeature(StrEnum):
    """What a call used, in words that complete "of the calls used"."""

    STRUCTURED_OUTPUT = "structured output"
    TOOLS = "tools"
    PROVIDER_TOOLS = "tools that run at the provider"
    STORED_STATE = "conversations that the provider keeps"
    MEDIA = "pictures, sounds or files"
    SEVERAL_ANSWERS = "several answers at once"
    PENALTIES = "penalties or a bias of tokens"
    GRAMMAR = "a grammar"
    EMBEDDINGS = "embeddings"
    OWN_PROMPT = "prompts that go around the chat template"
