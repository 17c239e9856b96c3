"""The page of an agent's loop: what it did, what it will do and why not, what waits for a person,
and feedback that is held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from thumbwheel.access.types import VERBS
from thumbwheel.core.errors import InputError
from thumbwheel.loop.cycle_checks import default_base
from thumbwheel.loop.cycle_types import CycleConfig
from thumbwheel.loop.decision_card import decision_card
from thumbwheel.loop.inbox import decisions
from thumbwheel.loop.loops import CAREFUL, status
from thumbwheel.loop.quarantine import quarantines
from thumbwheel.loop.trigger_types import LoopStatus, TriggerConfig
from thumbwheel.models import versions
from thumbwheel.server.pages.forms import FormField
from thumbwheel.server.pages.operations import CHECK_TONES, offered_fields
from thumbwheel.server.pages.page import PageRequest
from thumbwheel.server.pages.training import offered_bases
from thumbwheel.training.base_picker import available_bases, proposed_base

MAIN = ("least", "every_hours", "window", "quiet", "timezone")
"""Settings of the triggers that most people look at."""
MAIN_OF_A_CYCLE = ("base", "deploy", "auto_deploy", "auto_promote", "experiment")
FEWEST_EVENTS, MOST_EVENTS = 10, 50
"""Between these the form proposes how many new events start a cycle: as many as came so far."""
TONES = {"finished": "good", "failed": "bad", "running": "wait", "stopped": "wait"}


def load_loop(asked: PageRequest) -> Mapping[str, Any]:
    """Load the status of the agent's loop, with its decisions, quarantines and settings."""
    agent = asked.agent
    current = status(asked.ws, agent)
    triggers, more_triggers = offered_fields("loop enable", TriggerConfig, current.settings, MAIN)
    cycles, more_cycles = offered_fields(
        "loop enable", CycleConfig, {**CAREFUL, **current.settings}, MAIN_OF_A_CYCLE
    )
    may = {verb: asked.principal.may(verb, agent.slug) for verb in VERBS}
    if may["deploy"] and not current.enabled:
        triggers = [_proposed_least(field, current) for field in triggers]
        cycles = [_proposed_base(asked, field, current) for field in cycles]
    names = {version.id: version.name for version in versions.versions(asked.ws, agent)}
    return {
        "status": current,
        "cards": [decision_card(asked.ws, pending) for pending in current.waiting],
        "card_tones": CHECK_TONES,
        "decisions": [*reversed(decisions(asked.ws, agent, every=True))],
        "quarantines": [*reversed(quarantines(asked.ws, agent, every=True))],
        "fields": [*triggers, *cycles],
        "more_fields": [*more_triggers, *more_cycles],
        "names": names,
        "tones": TONES,
        "may": may,
        "who": asked.principal.name,
    }


def _proposed_least(field: FormField, current: LoopStatus) -> FormField:
    """Return the field `least`, filled in with a number that the agent's feedback reaches, and what
    it follows from. Other fields, and a number that somebody chose, stay."""
    default = TriggerConfig.model_fields["least"].default
    if field.name != "least" or current.settings["least"] != default:
        return field
    events = current.new.informative
    proposal = max(FEWEST_EVENTS, min(MOST_EVENTS, events))
    help_text = f"{field.help} {events:,} are new now; {proposal} is proposed."
    return replace(field, value=str(proposal), help=help_text, always=True)


def _proposed_base(asked: PageRequest, field: FormField, current: LoopStatus) -> FormField:
    """Return the field `base` as a choice that has to be made, if neither the agent's versions nor
    its settings name one. It is filled in with the base that this machine trains comfortably."""
    if field.name != "base" or current.settings.get("base"):
        return field
    try:
        name = default_base(asked.ws, asked.agent)
    except InputError:
        bases = available_bases()
        proposal = proposed_base(bases)
        choices = ["", *offered_bases(asked.ws, bases)]
        chosen = proposal.name if proposal and proposal.name in choices else ""
        help_text = "No version has been trained yet, so a cycle needs to know its base model."
        return replace(
            field,
            kind="select",
            choices=choices,
            value=chosen,
            help=help_text,
            required=True,
            always=True,
        )
    return replace(field, help=f"{field.help} Unset, {name}.")
