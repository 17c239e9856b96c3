"""A replay: recorded traces that a version answered again."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from thumbwheel.core.config import Config
from thumbwheel.core.errors import DataError

MOST_TRACES = 1_000
"""Traces of a replay; its page and its file show all of them."""

Winner = Literal["recorded", "replayed", "tie"]


class ReplaySpec(Config):
    """Which traces a version answers again."""

    version: str
    """The version that answers: v3, an alias, or latest."""
    agent: str
    """The agent."""
    traces: tuple[str, ...] = Field(min_length=1, max_length=MOST_TRACES)
    """Ids of the recorded traces, in the order in which they are shown."""
    max_new_tokens: int = Field(default=256, ge=1)
    """Tokens of an answer, at most."""


class TraceReplay(Config):
    """What became of a replay. The answers are traces, so that an erasure finds them."""

    id: str
    """The id of the replay, made from what was asked."""
    agent: str
    """The agent."""
    version: str
    """The version that answered, as v3."""
    answered: int
    """Traces that the version answered."""
    equal: int
    """Answers that are the recorded ones, word for word."""
    left_out: dict[str, str]
    """Trace id -> why it was not answered."""

    def require_answers(self) -> None:
        """Raise DataError if no trace was answered."""
        if self.answered == 0:
            reasons = "; ".join(dict.fromkeys(self.left_out.values()))
            raise DataError(
                f"the replay by {self.version}",
                f"none of the {len(self.left_out)} traces was answered: {reasons}",
                "Choose other traces",
            )


class ReplayedTrace(Config):
    """A recorded answer beside the answer of the version."""

    recorded: str
    """Id of the recorded trace."""
    replayed: str
    """Id of the trace with the new answer."""
    question: str
    """The last message of the conversation."""
    before: str
    """The recorded answer."""
    after: str
    """The new answer."""
    answered_by: str
    """The version or the model that gave the recorded answer, where it is known."""
    is_equal: bool
    """Whether the new answer is the recorded one, word for word."""
    votes: dict[Winner, int]
    """Which answer people preferred -> how many."""


class ShownReplay(Config):
    """A replay with its answers side by side."""

    id: str
    """The id of the replay."""
    agent: str
    """The agent."""
    version: str
    """The version that answered, as v3."""
    traces: tuple[ReplayedTrace, ...]
    """The recorded answers beside the new ones, in the order of the request."""
    equal: int
    """Answers that are the recorded ones, word for word."""
    votes: dict[Winner, int]
    """Which answer people preferred -> how many."""
