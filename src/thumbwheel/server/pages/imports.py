"""The page on which a file is looked at, its columns are named, and it is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.core.config import Config
from thumbwheel.importers.sources import SOURCES
from thumbwheel.models.versions import agents
from thumbwheel.server.pages.page import PageRequest

MEANING_NAMES: Mapping[str, str] = {
    "prompt": "question",
    "response": "answer",
    "thumb": "thumb: good or bad",
    "rating": "rating",
    "score": "score from 0 to 1",
    "against": "complaint: true is bad",
    "rater": "who rated",
    "correction": "better answer",
    "comment": "comment",
    "chosen": "better answer of two",
    "rejected": "worse answer of two",
    "reference": "right answer, of a test case",
    "system": "system prompt",
    "context": "what the question is about",
    "history": "earlier turns",
    "subject": "person asked for",
    "session": "conversation",
    "id": "id of the answer",
    "model": "model",
    "occurred_at": "time",
    "metadata": "nothing of these",
}
"""What a column can be -> its name in the list above the column, the usual ones first."""


class ImportQuery(Config):
    """What the page begins with."""

    agent: str = ""
    """The agent that the file is for"""
    gold: bool = False
    """Whether somebody reviewed the cases in it"""


def load_import(asked: PageRequest) -> Mapping[str, Any]:
    """Load the form of an import, with the agents that the principal may import for."""
    query = asked.parsed(ImportQuery)
    names = [agent.slug for agent in agents(asked.ws) if asked.principal.may("run", agent.slug)]
    chosen = query.agent or (names[0] if len(names) == 1 else "")
    return {
        "agents": names,
        "chosen": chosen,
        "gold": query.gold,
        "may_add_gold": asked.principal.may_somewhere("edit"),
        "sources": SOURCES.names(),
        "meanings": MEANING_NAMES,
        "rater": asked.rater,
    }
