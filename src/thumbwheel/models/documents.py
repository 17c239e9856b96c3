"""JSON documents that a stage keeps about an agent: content-addressed artifacts of a kind, found
again by kind and agent.

A document is an object with the key `agent`; the same content is the same document. What it means
is its stage's business.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from thumbwheel.core import ids
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import store
from thumbwheel.models.artifacts import Artifacts


@dataclass(frozen=True)
class Document:
    """A document, its hash and when it was first kept."""

    sha256: str
    content: dict[str, Any]
    recorded_at: datetime


def save(ws: Workspace, kind: str, content: Mapping[str, Any]) -> str:
    """Store `content`, which names its agent, and return its hash."""
    data = as_bytes(content)
    sha256 = Artifacts(ws.home.blobs).put_bytes(data)
    ws.db.write(lambda connection: store.record_artifacts(connection, kind, {sha256: len(data)}))
    return sha256


def as_bytes(content: Mapping[str, Any]) -> bytes:
    """What is stored, and what a file of it holds."""
    return ids.canonical(dict(content)).encode("utf-8", "surrogatepass")


def documents(ws: Workspace, kind: str, agent: str) -> list[Document]:
    """All of a kind about `agent`, newest first; raises StorageError for a damaged one."""
    with ws.db.read() as connection:
        known = store.artifacts_of(connection, kind)
    blobs = Artifacts(ws.home.blobs)
    found = (
        Document(sha256, json.loads(blobs.path(sha256).read_bytes()), at) for sha256, at in known
    )
    return [one for one in found if one.content.get("agent") == agent]


def delete(ws: Workspace, hashes: Collection[str]) -> int:
    """Take documents away; how many files that were. May be repeated, also after a kill in the
    middle."""
    ws.db.write(lambda connection: store.forget_artifacts(connection, hashes))
    blobs = Artifacts(ws.home.blobs)
    return sum(blobs.remove(one) for one in sorted(hashes))
