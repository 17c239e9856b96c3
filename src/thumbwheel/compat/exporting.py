"""`export_to_ollama`: a version as GGUF, and in Ollama where that is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from thumbwheel.app.open import opener
from thumbwheel.core.errors import ThumbwheelError


@dataclass(frozen=True)
class ExportResult:
    """What became of an export; `error_message` says why it is no success."""

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
    from thumbwheel.deploy.switch import deploy
    from thumbwheel.export.package import export

    path = size = None
    try:
        with opener(Path(home) if home else None, None, "info")() as ws:
            done = export(
                ws, agent, version, "gguf", Path(output_dir) if output_dir else None, quantization
            )
            name = next(name for name in done.files if name.endswith(".gguf"))
            path, size = str(done.path / name), done.files[name]["size"] / 1e6
            served_as = model_name or f"toolbox-{agent}"
            if register:
                deploy(ws, agent, version, "ollama", quant=done.quant, settings={"name": served_as})
    except ThumbwheelError as error:
        return ExportResult(False, path, None, str(error), size)
    return ExportResult(True, path, served_as if register else None, None, size)
