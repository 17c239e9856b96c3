"""The page of an agent's system prompts, and how answers under each were judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.capture.prompts import NEWEST, prompts
from thumbwheel.server.pages.page import PageRequest


def load_prompts(asked: PageRequest) -> Mapping[str, Any]:
    """Load the prompts, and the one that a new version begins with."""
    agent = asked.agent
    versions = prompts(asked.ws, agent)
    by_id = {version.id: version for version in versions}
    return {
        "versions": versions,
        "newest": NEWEST,
        "edited": by_id.get(asked.query.get("edit", "")),
        "names": sorted({version.name for version in versions if version.name}),
        "may_edit": asked.principal.may("edit", agent.slug),
        "may_rate": asked.principal.may("rate", agent.slug),
    }
