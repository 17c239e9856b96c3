"""Fields and values of the agents' decisions in their two spellings: as declared (`PROJECT`, `recommendedItemId`) and as written live
(`Project`, `recommended_item_id`).

Lives here: the table, both ways. Not here: what a decision is (`sources/decisions`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FIELDS = {
    "recommended_item_id": "recommendedItemId",
    "alternative_items": "alternativeItems",
    "integration_decision": "integrationDecision",
    "integration_location": "location",
    "integration_method": "method",
    "new_section_header": "newSectionHeading",
    "suggested_content": "suggestedContent",
    "generated_content": "generatedContent",
    "source_citations": "sourceCitations",
    "urgency": "status",
}
"""Live field -> declared field."""
VALUES: Mapping[str, Mapping[str, str]] = {
    "swimlane": {"EXPEDITE": "Expedite", "PROJECT": "Project", "HABIT": "Habit", "HOME": "Home"},
    "priority": {"HIGH": "High", "MEDIUM": "Medium", "LOW": "Low"},
    "status": {"TODO": "To Do", "ON_HOLD": "On Hold", "COMPENDIUM": "Compendium", "TRASH": "Trash"},
    "type": {
        "CONFLICT": "Conflict", "DEPENDENCY": "Dependency", "REDUNDANCY": "Redundancy", "RELATED": "Relation", "SUGGESTION": "Suggestion",
    },
    "method": {"NEW_SECTION": "CREATE_SECTION"},
}  # fmt: skip
"""Declared field -> declared value -> live value."""
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
    """An action in the declared spelling, lists of findings included."""
    return {FIELDS.get(key, key): _declared_value(FIELDS.get(key, key), value) for key, value in action.items()}


def _declared_value(key: str, value: Any) -> Any:
    if isinstance(value, list):
        return [declared(one) if isinstance(one, dict) else one for one in value]
    return BACK[key].get(value, value) if isinstance(value, str) and key in BACK else value


def like(action: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """`action` with the fields of `change`, each spelled as `action` spells its own."""
    own = {FIELDS.get(key, key): key for key in action}
    live = _is_live(dict(action))
    found = dict(action)
    for key, value in declared(change).items():
        name = own.get(key, key)
        found[name] = _live_value(key, value) if live or name in FIELDS else value
    return found


def _live_value(key: str, value: Any) -> Any:
    if isinstance(value, list):
        return [{name: _live_value(name, part) for name, part in one.items()} if isinstance(one, dict) else one for one in value]
    return VALUES[key].get(value, value) if isinstance(value, str) and key in VALUES else value


def _is_live(found: Any) -> bool:
    """Whether any value is spelled the live way."""
    if isinstance(found, list):
        return any(map(_is_live, found))
    if not isinstance(found, dict):
        return False
    own = ((BACK.get(FIELDS.get(str(key), str(key)), {}), value) for key, value in found.items())
    return any(_is_live(value) or (isinstance(value, str) and value in words) for words, value in own)


def agent_of(action: Mapping[str, Any]) -> str | None:
    """Whose action it is, by fields that no other agent has."""
    own = {FIELDS.get(key, key) for key in action}
    return next((agent for agent, fields in KINDS if own & fields), None)
