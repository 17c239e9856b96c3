"""Adds an adapter that was trained with another tool as a candidate version."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.adapter_import import ImportedAdapter, import_adapter
from thumbwheel.engine.base_check import find_base
from thumbwheel.models import versions
from thumbwheel.models.types import ModelVersion

ORIGIN = "origin.json"
"""File beside the adapter: where it came from."""


def add_adapter(
    ws: Workspace, agent: str, adapter: Path, base: str
) -> tuple[ModelVersion, ImportedAdapter]:
    """Add the adapter as a candidate; return it and the imported adapter. The same adapter over the
    same base is the same version.

    Raises ModelError for an adapter that does not fit the base or cannot be reproduced, Conflict
    for a base that is the export of a tainted version.
    """
    base_model = find_base(base, ws.home.cache)
    versions.check_base(ws, base_model.folder)
    with tempfile.TemporaryDirectory(prefix="thumbwheel-adapter-") as scratch:
        folder = Path(scratch)
        imported = import_adapter(adapter, base_model, folder)
        origin = {"folder": adapter.name, "kind": imported.kind, "trained": "elsewhere"}
        (folder / ORIGIN).write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
        parent = versions.ensure_base(ws, agent, base_model.name, base_model.fingerprint)
        return versions.add_candidate(ws, parent, None, folder), imported
