"""The prompt of a decision: the agent's state as a chat, with a system prompt and one labelled line
for each fact.

The labels, limits and order of a FILER's, LIBRARIAN's and PRIORITIZER's lines are those of the
training lines that the agents' own system exports, so that a decision reads the same from its table
and from such a file. The system prompts are ours. States come in two shapes, as declared and as
written live; both are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from thumbwheel.compat.ocd.spelling import KEYS, VALUES, spelled_keys, spelled_value

State = Mapping[str, Any]
MOST_PROJECTS, MOST_ITEMS, MOST_INTEGRATIONS = 10, 20, 10
"""How many of each a prompt shows."""
PROJECT_LETTERS, CONTEXT_LETTERS, ITEM_LETTERS = 500, 1000, 100
"""Letters of a project's content, of the project that a new item belongs to, and of an existing
item."""
ROLES = {
    "FILER": (
        "You file what a person wrote down for their project management. Decide from the "
        "instructions, the routing notes and the projects:"
        " the swimlane (EXPEDITE for what is urgent or asked for by others, HOME for the "
        "household, HABIT for what is practised again and"
        " again, PROJECT for everything else), the priority, the labels (the goals and the "
        "project that the instructions name), and"
        " whether it should be done now."
    ),
    "LIBRARIAN": (
        "You compare a new item with its project and with the items that are there. Find "
        "conflicts with the project's aims, redundancies,"
        " relations, dependencies, and suggestions for the next step. No finding is an answer too."
    ),
    "PRIORITIZER": (
        "You choose the one item that a person should work on next. Weigh the strategic goals, "
        "urgency against importance, the time of"
        " day and the person's energy, what is blocked, and that changing between kinds of work "
        "costs time."
    ),
    "STORER": (
        "You decide how a completed item becomes part of its document: where it goes and how, so "
        "that the text stays coherent, the content"
        " can be found again, and nothing stands there twice."
    ),
    "RETRIEVER": (
        "You write a document, or answer a question, from the documents that you are given and "
        "from nothing else. Keep the person's own"
        " style, leave nothing important out, and name the source of everything."
    ),
}
"""Agent -> what it is asked to do."""


def prompt_of(agent: str | None, state: State, action: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the chat that `agent` answered. An agent without lines of its own gets the state as
    JSON, whatever the order of its keys."""
    lines = LINES.get(agent or "")
    if lines is None:
        return [{"role": "user", "content": _json(state, indent=2)}]
    user = "\n".join(lines(state)).strip()
    return [*system_of(agent, action), {"role": "user", "content": user}]


def system_of(agent: str | None, action: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the agent's system message, which asks for the keys and values in the spelling of
    `action`; empty for an agent without one."""
    if agent not in ROLES:
        return []
    keys = spelled_keys(agent, action)
    choices = []
    for declared, spelled in zip(KEYS[agent], keys, strict=True):
        if declared in VALUES and declared in CHOSEN:
            values = [spelled_value(declared, value, action) for value in VALUES[declared]]
            choices.append(f"{spelled} is one of {', '.join(values)}")
    options = f" {'; '.join(choices)}." if choices else ""
    answer = (
        f"Answer with one JSON object with the keys {', '.join(keys)}, and with nothing "
        f"else.{options}"
    )
    return [{"role": "system", "content": f"{ROLES[agent]}\n\n{answer}"}]


CHOSEN = {"swimlane", "priority", "status"}
"""Keys whose values are chosen from a short list that the system prompt names."""


def _filer(state: State) -> Iterator[str]:
    item, project = _object(state, "item"), _object(state, "assignedOpus")
    yield f"Instructions: {_text(item, 'rawInstructions')}"
    yield f"Routing Notes: {_text(item, 'routingNotes', 'None')}"
    yield f"Item Title: {_text(item, 'title')}"
    yield ""
    if project:
        yield "Assigned Project:"
        yield f"- Name: {_text(project, 'name')}"
        yield f"- Type: {_text(project, 'opusType')}"
        yield f"- Content: {_text(project, 'content')[:PROJECT_LETTERS]}..."
        yield ""
    available = _objects(state, "availableOpuses")
    if available:
        yield "Available Projects:"
        for other in available[:MOST_PROJECTS]:
            yield f"- {_text(other, 'name')} ({_text(other, 'opusType')})"


def _librarian(state: State) -> Iterator[str]:
    item, project = _object(state, "newItem"), _object(state, "opus")
    corpus = _objects(state, "corpus")
    yield "New Item:"
    yield f"- Title: {_text(item, 'title')}"
    yield f"- Instructions: {_text(item, 'rawInstructions')}"
    yield f"- Routing Notes: {_text(item, 'routingNotes', 'None')}"
    yield ""
    yield "Project Context:"
    yield f"- Name: {_text(project, 'name')}"
    yield f"- Strategic: {bool(project.get('isStrategic'))}"
    yield f"- Content: {_text(project, 'content')[:CONTEXT_LETTERS]}..."
    yield ""
    yield f"Existing Items in Project ({len(corpus)} items):"
    for other in corpus[:MOST_ITEMS]:
        instructions = _text(other, "rawInstructions")[:ITEM_LETTERS]
        yield f"- [{_text(other, 'status')}] {_text(other, 'title')}: {instructions}..."


def _prioritizer(state: State) -> Iterator[str]:
    live = "todoItems" in state
    items = _objects(state, "todoItems" if live else "availableItems")
    yield f"Available TODO Items ({len(items)} items):"
    yield ""
    for item in items[:MOST_ITEMS]:
        yield f"- ID: {_text(item, 'id')}"
        yield f"  Title: {_text(item, 'title')}"
        yield f"  Swimlane: {_text(item, 'swimlane')}"
        yield f"  Priority: {_text(item, 'priority')}"
        yield f"  Labels: {_listed(item.get('labels'))}"
        if live:
            yield f"  Age: {_text(item, 'age', 'Unknown')} days"
            if item.get("opusName"):
                yield f"  Project: {item['opusName']}"
        else:
            yield f"  Age: {_text(item, 'statusChangedAt', 'Unknown')}"
        yield ""
    yield ""
    yield from _situation_live(state) if live else _situation(state)


def _situation(state: State) -> Iterator[str]:
    context, goals = _object(state, "userContext"), _object(state, "strategicState")
    limits = _object(state, "constraints")
    yield "User Context:"
    yield f"- Current Time: {_text(context, 'currentTime', 'Unknown')}"
    yield f"- Day of Week: {_text(context, 'dayOfWeek', 'Unknown')}"
    yield f"- Current Focus: {_text(context, 'currentFocus', 'None')}"
    yield ""
    yield "Strategic State:"
    yield f"- Income Goal Progress: {_number(goals, 'incomeGoalProgress'):.1%}"
    yield f"- Authority Goal Progress: {_number(goals, 'authorityGoalProgress'):.1%}"
    yield ""
    yield "Constraints:"
    yield f"- WIP Count: {_text(limits, 'wipCount', '0')}"
    yield f"- Blocked Count: {_text(limits, 'blockedCount', '0')}"
    yield f"- Average Cycle Time: {_number(limits, 'averageCycleTime'):.1f} days"


def _situation_live(state: State) -> Iterator[str]:
    context, goals = _object(state, "currentContext"), _object(state, "strategicGoals")
    limits = _object(state, "constraints")
    yield "User Context:"
    yield f"- Time of Day: {_text(context, 'timeOfDay', 'Unknown')}"
    yield f"- Recent Work: {_listed(context.get('recentWork'))}"
    yield f"- Energy Level: {_text(context, 'energyLevel', 'Unknown')}"
    yield ""
    yield "Strategic Goals:"
    for name in sorted(goals):
        yield f"- {name[:1].upper()}{name[1:]}: {_listed(goals[name])}"
    yield ""
    yield "Constraints:"
    deadlines = [
        f"{_text(deadline, 'itemId')} by {_text(deadline, 'deadline')}"
        for deadline in _objects(limits, "deadlines")
    ]
    yield f"- Deadlines: {_listed(deadlines)}"
    yield f"- Stakeholder Requests: {_listed(limits.get('stakeholderRequests'))}"


def _storer(state: State) -> Iterator[str]:
    item, target = _object(state, "completedItem"), _object(state, "targetOpus")
    yield "Completed Item:"
    yield f"- Title: {_text(item, 'title')}"
    yield f"- Instructions: {_text(item, 'rawInstructions') or _text(item, 'content')}"
    yield f"- Labels: {_listed(item.get('labels'))}"
    yield f"- Outcome: {_json(_object(item, 'outcomeMetrics'))}"
    yield ""
    content = target.get("content")
    length = len(content) if isinstance(content, str) else _text(target, "contentLength", "0")
    yield "Target Opus:"
    yield f"- Name: {_text(target, 'name')}"
    yield f"- Type: {_text(target, 'opusType', 'Unknown')}"
    yield f"- Content Length: {length} chars"
    sections = _objects(_object(target, "structure"), "sections")
    headings = [_text(section, "heading") or _text(section, "name") for section in sections]
    yield f"- Sections: {_listed(headings)}"
    integrations = _objects(state, "previousIntegrations")
    if integrations:
        yield ""
        yield "Previous Integrations:"
        for earlier in integrations[:MOST_INTEGRATIONS]:
            title, method = _text(earlier, "itemTitle"), _text(earlier, "method")
            yield f"- {title}: {method} at {_text(earlier, 'location')}"


def _retriever(state: State) -> Iterator[str]:
    documents = _objects(state, "relevantOpuses")
    yield f"Query: {_text(state, 'query')}"
    yield f"Request Type: {_text(state, 'requestType', 'Unknown')}"
    yield f"Parameters: {_json(_object(state, 'parameters'))}"
    yield ""
    yield f"Relevant Opuses ({len(documents)}):"
    for document in documents:
        content = document.get("content")
        if isinstance(content, str):
            text = f"{content[:PROJECT_LETTERS]}..."
        else:
            text = f"{_text(document, 'contentLength', '0')} chars"
        yield f"- {_text(document, 'name')} ({_text(document, 'opusType')}): {text}"
        yield ""


LINES: Mapping[str, Callable[[State], Iterator[str]]] = {
    "FILER": _filer,
    "LIBRARIAN": _librarian,
    "PRIORITIZER": _prioritizer,
    "STORER": _storer,
    "RETRIEVER": _retriever,
}
"""Agent -> the lines of its state."""


def _object(state: State, key: str) -> dict[str, Any]:
    value = state.get(key)
    return value if isinstance(value, dict) else {}


def _objects(state: State, key: str) -> list[dict[str, Any]]:
    value = state.get(key)
    if not isinstance(value, list):
        return []
    return [part for part in value if isinstance(part, dict)]


def _text(state: State, key: str, missing: str = "") -> str:
    value = state.get(key)
    return missing if value is None else str(value)


def _number(state: State, key: str) -> float:
    value = state.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def _listed(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _json(value: Any, indent: int | None = None) -> str:
    """Return JSON with sorted keys, as databases keep no order of keys."""
    return json.dumps(value, ensure_ascii=False, indent=indent, sort_keys=True)
