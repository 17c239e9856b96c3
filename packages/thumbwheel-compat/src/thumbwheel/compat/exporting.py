"""`export_to_ollama`: a version as GGUF, and in Ollama where that is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from thumbwheel.compat.script_home import open_home
from thumbwheel.core.errors import ThumbwheelError


@dataclass(frozen=True)
class ExportResult:
    """The result of an export; `error_message` says why it failed."""

    success: bool
    gguf_path: str | None = None
    ollama_model_name: str | None = None
    error_message: str | None = None
    file_size_mb: float | None = None


def export_to_ollama(
    agent: str,
    version: str = "latest",
    model_name: str | None = None,
    quantization: str | None = None,
    register: bool = True,
    *,
    output_dir: str | Path | None = None,
    home: str | Path | None = None,
) -> ExportResult:
    """Write `version` of `agent` as GGUF (by default in the precision that this machine's memory
    holds) and deploy it in Ollama.

    The base comes from the version itself. Only an approved version is deployed.
    """
    from thumbwheel.deploy.deploy import deploy
    from thumbwheel.export.package import export
    from thumbwheel.models import versions

    path = size = None
    folder = Path(output_dir) if output_dir else None
    served_as = model_name or f"toolbox-{agent}"
    try:
        with open_home(home, "info") as ws:
            model_version = versions.version(ws, agent, version)
            exported = export(ws, model_version, "gguf", folder, quantization)
            name = next(name for name in exported.files if name.endswith(".gguf"))
            path = str(exported.path / name)
            size = exported.files[name]["size"] / 1e6
            if register:
                settings = {"name": served_as}
                deploy(ws, model_version, "ollama", quant=exported.quant, settings=settings)
    except ThumbwheelError as error:
        return ExportResult(False, path, None, str(error), size)
    return ExportResult(True, path, served_as if register else None, None, size)
