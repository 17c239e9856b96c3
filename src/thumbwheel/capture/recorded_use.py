"""What an agent's recorded calls used of a model's API, so that somebody can say whether another
server could have answered them.

Only calls that the gateway recorded and that were answered count. What of it a target can do is
the target's (deploy/target.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.capture import trace_queries
from thumbwheel.capture.call_feature import CallFeature
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import Agent

MOST_CALLS = 2_000
"""Newest calls that are looked at."""
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
NEUTRAL: dict[str, float] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "repeat_penalty": 1,
    "min_p": 0,
    "typical_p": 1,
}
"""Parameters that change how likely tokens are, and the values with which they change nothing."""


@dataclass(frozen=True)
class AnsweredCall:
    """A call that was answered."""

    features: frozenset[CallFeature]
    tokens: int | None
    """Of prompt and answer; None where the server did not tell them."""


def recent_calls(ws: Workspace, agent: Agent, since: datetime) -> list[AnsweredCall]:
    """Return the newest answered calls since then that the gateway recorded, at most
    MOST_CALLS."""
    with ws.db.read() as connection:
        rows = trace_queries.answered_calls(connection, agent.id, since, MOST_CALLS)
        rows = [row for row in rows if _protocol(row) is not None]
        with_media = trace_queries.inputs_with(
            connection, {row["input_id"] for row in rows}, _has_media
        )
    calls = []
    for row in rows:
        features = set(_features(row))
        if row["input_id"] in with_media:
            features.add(CallFeature.MEDIA)
        counts = (row["prompt_tokens"], row["completion_tokens"])
        tokens = None if None in counts else sum(counts)
        calls.append(AnsweredCall(frozenset(features), tokens))
    return calls


def _protocol(row: sa.RowMapping) -> str | None:
    """Return the protocol that the gateway noted; None for a trace that came otherwise."""
    metadata = row["metadata"]
    remarks = metadata.get("gateway") if isinstance(metadata, Mapping) else None
    protocol = remarks.get("protocol") if isinstance(remarks, Mapping) else None
    return protocol if isinstance(protocol, str) else None


def _features(row: sa.RowMapping) -> Iterator[CallFeature]:
    sampling = row["sampling"] if isinstance(row["sampling"], Mapping) else {}
    if _protocol(row) == "openai_embeddings":
        yield CallFeature.EMBEDDINGS
    if any(_is_schema(form) for form in _forms(sampling)):
        yield CallFeature.STRUCTURED_OUTPUT
    if any(_is_many(sampling.get(name)) for name in ("n", "best_of")):
        yield CallFeature.SEVERAL_ANSWERS
    biased = [name for name, value in NEUTRAL.items() if sampling.get(name) not in (None, value)]
    if biased or sampling.get("logit_bias"):
        yield CallFeature.PENALTIES
    if sampling.get("grammar"):
        yield CallFeature.GRAMMAR
    if any(sampling.get(name) for name in ("suffix", "template", "raw", "echo")):
        yield CallFeature.OWN_PROMPT
    if row["metadata"].get("previous_response_id"):
        yield CallFeature.STORED_STATE
    tools = row["input"].get("tools") if isinstance(row["input"], Mapping) else None
    if isinstance(tools, Sequence) and tools:
        yield CallFeature.TOOLS
        if not all(_is_function(tool) for tool in tools):
            yield CallFeature.PROVIDER_TOOLS


def _forms(sampling: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the settings for the form of the answer in each of the APIs; None for a missing one."""
    yield sampling.get("response_format")
    yield sampling.get("format")
    yield sampling.get("json_schema")
    for name in ("text", "output_config"):
        holder = sampling.get(name)
        yield holder.get("format") if isinstance(holder, Mapping) else None


def _is_schema(form: Any) -> bool:
    if isinstance(form, Mapping):
        return bool(form) and form.get("type") != "text"
    return bool(form == "json")


def _is_many(count: Any) -> bool:
    return isinstance(count, int) and count > 1


def _is_function(tool: Any) -> bool:
    return isinstance(tool, Mapping) and isinstance(tool.get("function"), Mapping)


def _has_media(message: Mapping[str, Any]) -> bool:
    """Return whether a message has a part that is no text."""
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(kind, str) and kind not in TEXT_PARTS:
            return True
    return False
