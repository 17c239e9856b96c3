"""The job `export`."""

from __future__ import annotations

import shutil
from pathlib import Path

from pydantic import Field, model_validator

from thumbwheel.core.config import Config
from thumbwheel.db.workspace import Workspace
from thumbwheel.export import package
from thumbwheel.export.formats import FORMATS
from thumbwheel.export.layouts import LAYOUTS
from thumbwheel.export.types import CheckedExport, Export
from thumbwheel.jobs import current
from thumbwheel.models import versions
from thumbwheel.models.types import ModelVersion

OTHER_NAMES = {"lora": "adapter"}
"""Other names of formats -> ours."""


class ExportSpec(Config):
    """What to write, and where."""

    version: str
    """v3, an alias, or latest."""
    agent: str
    """The agent."""
    format: str | None = None
    """merged, adapter, gguf, lora_gguf or onnx; unset, lora_gguf where the base came from a GGUF
    file, else merged."""
    quant: str | None = None
    """Precision of gguf."""
    ladder: str | None = None
    """Several precisions side by side, separated by commas, or all."""
    to: Path | None = None
    """The new folder; unset, one of the version, format and precision below `parent`."""
    parent: Path = Path()
    """Where that folder lies."""
    tree: bool = False
    """Write AGENT/VERSION/policy below `to`."""
    accept: str | None = None
    """Keep it although parity fails: name and reason."""
    cases: int = Field(default=24, ge=0)
    """Held-out cases on which a smaller precision is compared."""

    @model_validator(mode="after")
    def _is_one_or_several(self) -> ExportSpec:
        if self.ladder is not None and (self.quant or self.accept or self.tree):
            raise ValueError(
                "ladder tries several precisions; quant, accept and tree are about one"
            )
        return self


FOLDER = "folder"
"""The note which folder an attempt began to write."""


def run_export(ws: Workspace, spec: ExportSpec) -> list[CheckedExport]:
    """Write the files, except the ones that an earlier attempt wrote."""
    version = versions.version(ws, spec.agent, spec.version)
    requested = spec.format or package.default_format(ws, version)
    format_name = OTHER_NAMES.get(requested, requested)
    quants: list[str | None] = [spec.quant]
    if spec.ladder is not None:
        names = FORMATS.get(format_name).quants
        if spec.ladder.lower() != "all":
            names = tuple(name.strip() for name in spec.ladder.split(","))
        quants = list(names)
    quants = list(dict.fromkeys(package.precision(format_name, quant) for quant in quants))

    folder = _folder(spec, version, format_name, quants[0] if quants else None)
    if current.notes().get(FOLDER) == str(folder):
        written = _written(ws, version, folder)
    else:
        written = {}
        current.note(ws, **{FOLDER: str(folder)})

    missing = [str(quant) for quant in quants if quant not in written]
    if spec.ladder is not None:
        for export in package.ladder(ws, version, format_name, missing, folder, spec.cases):
            written[export.quant] = export
    elif quants[0] not in written:
        write = LAYOUTS.get("tree") if spec.tree else package.export
        written[quants[0]] = write(
            ws, version, format_name, folder, spec.quant, spec.accept, spec.cases
        )
    return [CheckedExport.of(written[quant]) for quant in quants]


def _folder(spec: ExportSpec, version: ModelVersion, format_name: str, quant: str | None) -> Path:
    """Return the folder to write: one export, a tree, or the parent of several exports."""
    if spec.to is not None:
        folder = spec.to
    elif spec.ladder is not None:
        folder = spec.parent
    elif spec.tree:
        folder = spec.parent / "models"
    else:
        folder = spec.parent / package.default_name(version, format_name, quant)
    return folder.expanduser().resolve()


def _written(ws: Workspace, version: ModelVersion, folder: Path) -> dict[str | None, Export]:
    """Return the exports, by precision, that an earlier attempt wrote and recorded. Folders that it
    wrote without recording them are removed."""
    recorded = {}
    for export in package.exports(ws, version):
        if export.host is None and folder in (export.path, *export.path.parents):
            recorded[export.quant] = export
    folders = {export.path for export in recorded.values() if export.files}
    for manifest in sorted(folder.rglob(package.MANIFEST)):
        is_ours = package.manifest_of(manifest.parent).get("version_id") == version.id
        if is_ours and manifest.parent not in folders:
            shutil.rmtree(manifest.parent)
    return recorded
