"""The page of an agent's loop: what it did, what it will do and why not, what waits for a person,
and feedback that is held."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.access.types import VERBS
from thumbwheel.loop.cycle_types import CycleConfig
from thumbwheel.loop.decision_card import decision_card
from thumbwheel.loop.inbox import decisions
from thumbwheel.loop.loops import CAREFUL, status
from thumbwheel.loop.quarantine import quarantines
from thumbwheel.loop.trigger_types import TriggerConfig
from thumbwheel.models import versions
from thumbwheel.server.pages.operations import CHECK_TONES, offered_fields
from thumbwheel.server.pages.page import PageRequest

MAIN = ("least", "every_hours", "window", "quiet", "timezone")
"""Settings of the triggers that most people look at."""
MAIN_OF_A_TURN = ("deploy", "auto_deploy", "auto_promote", "experiment")
TONES = {"finished": "good", "failed": "bad", "running": "wait", "stopped": "wait"}


def load_loop(asked: PageRequest) -> Mapping[str, Any]:
    """Load the status of the agent's loop, with its decisions, quarantines and settings."""
    agent = asked.agent
    current = status(asked.ws, agent)
    triggers, more_triggers = offered_fields("loop enable", TriggerConfig, current.settings, MAIN)
    turns, more_turns = offered_fields(
        "loop enable", CycleConfig, {**CAREFUL, **current.settings}, MAIN_OF_A_TURN
    )
    names = {version.id: version.name for version in versions.versions(asked.ws, agent)}
    return {
        "status": current,
        "cards": [decision_card(asked.ws, pending) for pending in current.waiting],
        "card_tones": CHECK_TONES,
        "decisions": [*reversed(decisions(asked.ws, agent, every=True))],
        "quarantines": [*reversed(quarantines(asked.ws, agent, every=True))],
        "fields": [*triggers, *turns],
        "more_fields": [*more_triggers, *more_turns],
        "names": names,
        "tones": TONES,
        "may": {verb: asked.principal.may(verb, agent.slug) for verb in VERBS},
        "who": asked.principal.name,
    }
