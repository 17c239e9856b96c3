"""Fields and values of the agents' decisions in their two spellings: as declared (`PROJECT`,
`recommendedItemId`) and as written live (`Project`, `recommended_item_id`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

STORED_REWARD = "decision_reward"
"""The name of the score that a decision's stored reward is kept as: the weighted sum, from -5 to
5."""
STORED_COMPONENTS = "decision_reward_components"
"""The name of the label that the stored components of that sum are kept as: JSON, group -> name ->
number."""
FIELDS = {
    "recommended_item_id": "recommendedItemId",
    "alternative_items": "alternativeItems",
    "integration_decision": "integrationDecision",
    "integration_location": "location",
    "integration_method": "method",
    "new_section_header": "newSectionHeading",
    "suggested_content": "suggestedContent",
    "generated_content": "generatedContent",
    "generated_document": "generatedContent",
    "source_citations": "sourceCitations",
    "urgency": "status",
}
"""Live field -> declared field."""
VALUES: Mapping[str, Mapping[str, str]] = {
    "swimlane": {"EXPEDITE": "Expedite", "PROJECT": "Project", "HABIT": "Habit", "HOME": "Home"},
    "priority": {"HIGH": "High", "MEDIUM": "Medium", "LOW": "Low"},
    "status": {"TODO": "To Do", "ON_HOLD": "On Hold", "COMPENDIUM": "Compendium", "TRASH": "Trash"},
    "type": {
        "CONFLICT": "Conflict",
        "DEPENDENCY": "Dependency",
        "REDUNDANCY": "Redundancy",
        "RELATED": "Relation",
        "SUGGESTION": "Suggestion",
    },
    "method": {"NEW_SECTION": "CREATE_SECTION"},
}
"""Declared field -> declared value -> live value."""
KEYS = {
    "FILER": ("swimlane", "priority", "labels", "status", "reasoning", "confidence"),
    "LIBRARIAN": ("findings", "reasoning"),
    "PRIORITIZER": ("recommendedItemId", "reasoning", "confidence"),
    "STORER": ("location", "method", "reasoning", "confidence"),
    "RETRIEVER": ("generatedContent", "sourceCitations", "reasoning", "confidence"),
}
"""Agent -> the declared fields that its prompt asks for, in the order of the answer."""
BACK = {key: {live: declared for declared, live in words.items()} for key, words in VALUES.items()}
KINDS = (
    ("STORER", {"integrationDecision", "location", "method"}),
    ("PRIORITIZER", {"recommendedItemId"}),
    ("LIBRARIAN", {"findings"}),
    ("RETRIEVER", {"generatedContent", "generated_document_length", "source_citations_count"}),
    ("FILER", {"swimlane"}),
)
"""Agent -> fields that only its actions have."""


def declared(action: Mapping[str, Any]) -> dict[str, Any]:
    """Return an action in the declared spelling, lists of findings included."""
    return {
        FIELDS.get(key, key): _declared_value(FIELDS.get(key, key), value)
        for key, value in action.items()
    }


def _declared_value(key: str, value: Any) -> Any:
    if isinstance(value, list):
        return [declared(part) if isinstance(part, dict) else part for part in value]
    return BACK[key].get(value, value) if isinstance(value, str) and key in BACK else value


def spelled_keys(agent: str, action: Mapping[str, Any]) -> list[str]:
    """Return the fields of `KEYS` in the spelling of this action.

    >>> spelled_keys("PRIORITIZER", {"recommended_item_id": "i1"})
    ['recommended_item_id', 'reasoning', 'confidence']
    """
    return spelled(KEYS[agent], action)


def spelled(fields: Sequence[str], action: Mapping[str, Any]) -> list[str]:
    """Return declared fields as this action spells them; fields that it lacks, as they are
    declared."""
    spellings = {FIELDS.get(key, key): key for key in action}
    return [spellings.get(field, field) for field in fields]


def spelled_value(field: str, value: str, action: Mapping[str, Any]) -> str:
    """Return a declared value of a declared field in the spelling of this action."""
    return VALUES[field].get(value, value) if _is_live(dict(action)) else value


def in_order(agent: str | None, action: Mapping[str, Any]) -> dict[str, Any]:
    """Return the action with its fields in the order of the agent's answers, others after them by
    name: a database keeps no order.

    >>> list(in_order("FILER", {"confidence": 1, "aside": 2, "urgency": "To Do", "swimlane":
    ...     "HOME"}))
    ['swimlane', 'urgency', 'confidence', 'aside']
    """
    answer_order = KEYS.get(agent or "", ())

    def position(key: str) -> tuple[int, str]:
        field = FIELDS.get(key, key)
        return (answer_order.index(field) if field in answer_order else len(answer_order)), key

    return {key: _sorted(action[key]) for key in sorted(action, key=position)}


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(part) for part in value] if isinstance(value, list) else value


def apply_change(action: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return `action` with the fields of `change`, each spelled as `action` spells its fields."""
    spellings = {FIELDS.get(key, key): key for key in action}
    live = _is_live(dict(action))
    changed = dict(action)
    for key, value in declared(change).items():
        name = spellings.get(key, key)
        changed[name] = _live_value(key, value) if live or name in FIELDS else value
    return changed


def _live_value(key: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_live_object(part) if isinstance(part, dict) else part for part in value]
    return VALUES[key].get(value, value) if isinstance(value, str) and key in VALUES else value


def _live_object(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _live_value(key, part) for key, part in value.items()}


def _is_live(value: Any) -> bool:
    """Return whether any value has the live spelling."""
    if isinstance(value, list):
        return any(map(_is_live, value))
    if not isinstance(value, dict):
        return False
    for key, part in value.items():
        live_values = BACK.get(FIELDS.get(str(key), str(key)), {})
        if _is_live(part) or (isinstance(part, str) and part in live_values):
            return True
    return False


def agent_of(action: Mapping[str, Any]) -> str | None:
    """Return the agent of an action, by fields that no other agent has; None if it is unknown."""
    action_fields = {FIELDS.get(key, key) for key in action}
    return next((agent for agent, fields in KINDS if action_fields & fields), None)
