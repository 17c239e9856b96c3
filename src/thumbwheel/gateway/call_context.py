"""Whose call it is, and what it belongs to: agent, session, subject, parent, metadata.

Our own headers come first. Headers and fields that apps send already are understood too, so that
an app which only changed its base URL is recorded with its sessions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from thumbwheel.gateway.event_stream import parsed
from thumbwheel.gateway.protocol import CallContext, Headers
from thumbwheel.importers.recordable import BoundedCopier, name_of
from thumbwheel.importers.types import OWNER_MARKS

AGENT_HEADER = "x-thumbwheel-agent"
PARENT_HEADER = "x-thumbwheel-parent"
FEEDBACK_ID_HEADER = "x-thumbwheel-feedback-id"
METADATA_HEADER = "x-thumbwheel-metadata"
SESSION_HEADERS = ("x-thumbwheel-session", "x-openwebui-chat-id", "helicone-session-id")
SUBJECT_HEADERS = ("x-thumbwheel-subject", "x-openwebui-user-id", "helicone-user-id")
NOTED_HEADERS = {
    "x-openwebui-message-id": "openwebui_message_id",
    "x-openwebui-task": "openwebui_task",
}
"""Header -> the key of the metadata under which its value is kept."""
SESSION_KEYS = ("session_id", "conversation_id", "thread_id", "chat_id")
"""Keys of a request's metadata that name the session."""
_CLAUDE_SESSION = re.compile(r"_session_([0-9a-fA-F-]{36})$")


def openai_context(body: Mapping[str, Any], headers: Headers) -> CallContext:
    """Return the context of a request to OpenAI's API. `prompt_cache_key` is stored as metadata but
    names no session: apps use one key for everybody, which would merge them all into one
    session."""
    metadata = _mapping(body.get("metadata"))
    conversation = body.get("conversation")
    if isinstance(conversation, Mapping):
        conversation = conversation.get("id")
    for key in ("prompt_cache_key", "previous_response_id"):
        if isinstance(body.get(key), str):
            metadata[key] = body[key]
    return _context(
        headers,
        session=_session_of(metadata) or name_of(conversation),
        subject=name_of(body.get("user")) or name_of(body.get("safety_identifier")),
        metadata=metadata,
    )


def anthropic_context(body: Mapping[str, Any], headers: Headers) -> CallContext:
    """Return the context of a request to Anthropic's API, whose `metadata.user_id` is the subject.
    Claude Code writes its session into it."""
    metadata = _mapping(body.get("metadata"))
    user = metadata.pop("user_id", None)
    session = _session_of(metadata)
    if isinstance(user, str):
        inside = parsed(user.encode("utf-8", "replace")) if user.startswith("{") else None
        match = _CLAUDE_SESSION.search(user)
        if isinstance(inside, dict):
            session = session or _session_of(inside)
        elif match is not None:
            session, user = session or match[1], user[: match.start()]
    return _context(headers, session=session, subject=name_of(user), metadata=metadata)


def ollama_context(body: Mapping[str, Any], headers: Headers) -> CallContext:
    """Return the context of a request to Ollama's API, from its headers alone."""
    return _context(headers, session=None, subject=None, metadata={})


def _context(
    headers: Headers, *, session: str | None, subject: str | None, metadata: dict[str, Any]
) -> CallContext:
    """Build the context; headers take precedence over the body."""
    for header, key in NOTED_HEADERS.items():
        if headers.get(header):
            metadata[key] = _text(headers[header])
    if METADATA_HEADER in headers:
        text = _text(headers[METADATA_HEADER])
        header_metadata = parsed(text.encode("utf-8", "replace"))
        if not isinstance(header_metadata, dict):
            header_metadata = {"note": text}
        metadata |= header_metadata
    for mark in OWNER_MARKS:
        metadata.pop(mark, None)  # what data is for is said by its owner, not by a request
    recorder = BoundedCopier(characters=20_000, values=2_000)
    return CallContext(
        agent=_name(headers, AGENT_HEADER),
        session=_name(headers, *SESSION_HEADERS) or session,
        subject=_name(headers, *SUBJECT_HEADERS) or subject,
        parent=_name(headers, PARENT_HEADER),
        feedback_id=_name(headers, FEEDBACK_ID_HEADER),
        metadata=recorder.value(metadata) or None,
    )


def _session_of(metadata: Mapping[str, Any]) -> str | None:
    names = (name_of(metadata.get(key)) for key in SESSION_KEYS)
    return next((name for name in names if name is not None), None)


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _name(headers: Headers, *names: str) -> str | None:
    for name in names:
        value = name_of(_text(headers[name])) if name in headers else None
        if value is not None:
            return value
    return None


def _text(value: str) -> str:
    """Decode a header's text. Servers decode headers as Latin-1, and clients write UTF-8 into
    them."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return value
