"""A version in the form that a target takes: an export that is there already and still whole, or a
new one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from thumbwheel.core import ids
from thumbwheel.core.errors import Conflict, StorageError
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.store import FOLDER
from thumbwheel.deploy.types import Kind, Package
from thumbwheel.engine.base_check import locate_unchanged
from thumbwheel.evaluation.responders import base_of
from thumbwheel.evaluation.rows import training_prompts
from thumbwheel.export.package import export, exports, precision
from thumbwheel.export.types import Export
from thumbwheel.models import versions
from thumbwheel.models.base import locate, require_training
from thumbwheel.models.types import ModelVersion

PROMPTS = 48
"""Prompts of the agent that are looked at; most targets take a form that was compared on many more
positions already."""


@dataclass(frozen=True)
class Plan:
    """What a deployment would do."""

    version: str
    target: str
    kind: Kind
    quant: str | None
    export: Export | None
    """The one that is used again; None: `folder` is written."""
    folder: Path


def plan(
    ws: Workspace, one: ModelVersion, target: str, kinds: Sequence[Kind], quant: str | None
) -> Plan:
    """Choose the form of `one` for a target that takes `kinds`, the first of which it is unless the
    version has no such form."""
    if quant is not None:
        kinds = [kind for kind in kinds if kind in (Kind.GGUF, Kind.LORA_GGUF)]
    lora = _is_lora(ws, one)
    chosen = next(
        (kind for kind in kinds if lora or kind not in (Kind.ADAPTER, Kind.LORA_GGUF)), None
    )
    if chosen is None:
        why = "it takes no quantised files" if quant else "it takes LoRA adapters only"
        raise Conflict(
            f"version {one.name} on target {target!r}",
            why,
            "Choose another target, or leave --quant out",
        )
    if one.adapter is None and chosen is Kind.MERGED:
        return Plan(one.name, target, chosen, None, None, locate(one.base)[1])
    quant = precision(chosen.value, quant)
    known = [
        found
        for found in exports(ws, one.id)
        if (found.format, found.quant) == (chosen.value, quant) and found.path.is_dir()
    ]
    usable = next((found for found in reversed(known) if found.deployable and found.files), None)
    name = "-".join(part for part in (one.agent, one.name, chosen.value, quant) if part)
    return Plan(
        one.name,
        target,
        chosen,
        quant,
        usable,
        usable.path if usable else ws.home.path / "exports" / name,
    )


def package(ws: Workspace, one: ModelVersion, planned: Plan, accept: str | None = None) -> Package:
    """The files of `planned`, verified; what is not there is exported. Raises ModelError for a base
    that has changed or an export that is not the trained model and that nobody accepted,
    StorageError for damaged files and a full disk."""
    require_training()
    _, base = locate_unchanged(one, ws.home.cache)
    whole = one.adapter is None and planned.kind is Kind.MERGED
    done = None if whole else planned.export or _exported(ws, one, planned, accept)
    if done is not None:
        _verify(done)
    folder = base if done is None else done.path
    hf = planned.kind in (Kind.ADAPTER, Kind.MERGED)
    return Package(
        agent=one.agent,
        version=one.name,
        name=f"{one.agent}-{one.name}",
        kind=planned.kind,
        folder=folder,
        files={}
        if done is None
        else {name: str(file["sha256"]) for name, file in done.files.items()},
        base=_base_file(ws, one, planned, accept)
        if planned.kind is Kind.LORA_GGUF
        else base
        if planned.kind is Kind.ADAPTER
        else folder,
        base_fingerprint=one.base_fingerprint if whole or planned.kind is Kind.ADAPTER else None,
        tokenizer=folder if hf else base,
        place=ws.home.path / FOLDER / planned.target,
        export_id=None if done is None else done.id,
        stops=() if done is None else done.stops,
        system=common_system(prompts(ws, one)),
    )


def _exported(ws: Workspace, one: ModelVersion, planned: Plan, accept: str | None) -> Export:
    return export(
        ws, one.agent, one.name, planned.kind.value, planned.folder, planned.quant, accept
    )


def _base_file(ws: Workspace, one: ModelVersion, planned: Plan, accept: str | None) -> Path:
    """The GGUF file of the version's base."""
    base = base_of(ws, one)
    found = package(ws, base, plan(ws, base, planned.target, [Kind.GGUF], planned.quant), accept)
    return found.model


def _is_lora(ws: Workspace, one: ModelVersion) -> bool:
    folder = versions.adapter_folder(ws, one)
    return (
        folder is not None
        and json.loads((folder / "adapter_config.json").read_text(encoding="utf-8")).get(
            "peft_type"
        )
        == "LORA"
    )


def _verify(done: Export) -> None:
    for name, file in done.files.items():
        path = done.path / name
        try:
            found = ids.file_hash(path)
        except OSError as error:
            found = error.strerror or str(error)
        if found != file["sha256"]:
            what = f"file {str(path)!r} of the {done.format} export of {done.version}"
            why = f"it is not the one that was exported ({found[:40]})"
            raise StorageError(
                what,
                why,
                f"Remove the folder {str(done.path)!r}: the version is then exported anew",
            )


def prompts(ws: Workspace, one: ModelVersion) -> list[list[dict[str, Any]]]:
    """Of the agent's own prompts, each once."""
    unique = {
        json.dumps(prompt, sort_keys=True): prompt
        for prompt in islice(training_prompts(ws, one), 4 * PROMPTS)
    }
    return list(unique.values())[:PROMPTS]


def common_system(found: Sequence[list[dict[str, Any]]]) -> str | None:
    """The instructions that all prompts begin with, where they are the same ones."""
    texts = {
        str(prompt[0].get("content")) if prompt and prompt[0].get("role") == "system" else None
        for prompt in found
    }
    return texts.pop() if len(texts) == 1 else None
