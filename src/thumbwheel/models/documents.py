"""JSON documents about an agent: content-addressed artifacts, looked up by kind and agent.

A document is an object with the key `agent`. The same content is the same document. Its meaning is
up to the stage that stores it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from thumbwheel.core import ids
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import ROWS
from thumbwheel.models import store
from thumbwheel.models.artifacts import Artifacts


@dataclass(frozen=True)
class Document:
    """A document, its hash and when it was first stored."""

    sha256: str
    content: dict[str, Any]
    recorded_at: datetime


def save(ws: Workspace, kind: str, content: Mapping[str, Any]) -> str:
    """Store `content`, which names its agent, and return its hash."""
    data = as_bytes(content)
    sha256 = Artifacts.of(ws).put_bytes(data)
    ws.db.write(
        lambda connection: store.record_artifacts(connection, kind, {sha256: len(data)}), ROWS
    )
    return sha256


def as_bytes(content: Mapping[str, Any]) -> bytes:
    """Return the bytes that are stored and hashed, also for a document's file."""
    return ids.canonical(dict(content)).encode("utf-8", "surrogatepass")


def documents(ws: Workspace, kind: str, agent: str) -> list[Document]:
    """Return the documents of a kind about `agent`, newest first. Raises StorageError for a damaged
    one."""
    with ws.db.read() as connection:
        records = store.artifacts_of(connection, kind)
    blobs = Artifacts.of(ws)
    matches = []
    for sha256, recorded_at in records:
        content = json.loads(blobs.path(sha256).read_bytes())
        if content.get("agent") == agent:
            matches.append(Document(sha256, content, recorded_at))
    return matches


def delete(ws: Workspace, hashes: Collection[str]) -> int:
    """Delete documents; return how many files were deleted. Safe to repeat after a crash."""
    ws.db.write(lambda connection: store.forget_artifacts(connection, hashes))
    blobs = Artifacts.of(ws)
    return sum(blobs.remove(sha256) for sha256 in sorted(hashes))
