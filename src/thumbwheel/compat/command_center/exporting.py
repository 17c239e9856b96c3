"""`export_to_ollama` for a checkpoint folder: the adapter merged into its own base, as GGUF, and in
Ollama where that is asked for.

A bare folder has no gate, so it is exported unchecked.
`thumbwheel.compat.export_to_ollama` takes a version of an agent, compares the file with the trained
model, and deploys only what the gate approved.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from thumbwheel.compat.exporting import ExportResult
from thumbwheel.compat.isaa.exporting import GGUFExporter, OllamaDeployer
from thumbwheel.core.errors import InputError, ThumbwheelError

MODEL_NAME = "cc-widget-selector"
TEMPERATURE = 0.0


def export_to_ollama(
    checkpoint_path: str | Path,
    model_name: str = MODEL_NAME,
    base_model: str | None = None,
    quantization: str = "q4_k_m",
    output_dir: str | Path | None = None,
    register: bool = True,
) -> ExportResult:
    """Write MODEL_NAME.gguf into `output_dir` (default: `export` beside the checkpoint), and make a
    model of it in Ollama.

    The base is the one that the adapter names; another `base_model` is an error. A failure is in
    the result.
    """
    checkpoint = Path(checkpoint_path)
    folder = Path(output_dir) if output_dir else checkpoint.parent / "export"
    result = ExportResult(False)
    try:
        if register:
            OllamaDeployer().list_models()  # without an Ollama nothing is converted
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".merged-", dir=folder) as scratch:
            model = _merged(checkpoint, base_model, Path(scratch))
            path = Path(GGUFExporter(model, folder).convert(quantization, f"{model_name}.gguf"))
        result = ExportResult(False, str(path), file_size_mb=path.stat().st_size / 1e6)
        if register:
            OllamaDeployer().create_model(model_name, path, temperature=TEMPERATURE)
    except ThumbwheelError as error:
        return ExportResult(False, result.gguf_path, None, str(error), result.file_size_mb)
    served_as = model_name if register else None
    return ExportResult(True, result.gguf_path, served_as, None, result.file_size_mb)


def create_ollama_modelfile(
    gguf_path: str | Path,
    model_name: str = MODEL_NAME,
    system_prompt: str = "",
    temperature: float = TEMPERATURE,
    num_ctx: int = 4096,
) -> str:
    """Return the text of a Modelfile, which does not say the model's name: `ollama create
    MODEL_NAME` does. Raises InputError for what none can hold."""
    return OllamaDeployer().create_modelfile(gguf_path, system_prompt, temperature, num_ctx)


def _merged(checkpoint: Path, base_model: str | None, scratch: Path) -> Path:
    """Return the folder of a checkpoint's complete model: the checkpoint itself, or, for an
    adapter, its base with the adapter merged in, written to `scratch`. Raises InputError if
    `base_model` is not the base of the adapter."""
    from thumbwheel.engine.load import adapter_base
    from thumbwheel.export.formats import FORMATS
    from thumbwheel.export.types import ExportSource
    from thumbwheel.models.base import locate

    if not (checkpoint / "adapter_config.json").is_file():
        return checkpoint
    name, folder = locate(adapter_base(checkpoint))
    if base_model is not None and locate(base_model)[0] != name:
        raise InputError(
            f"base_model {base_model!r}",
            f"the adapter was trained over {name!r}",
            "Leave it out: the adapter names its base",
        )
    target = scratch / checkpoint.name
    target.mkdir()
    FORMATS.get("merged").write(ExportSource(str(folder), checkpoint, name), target)
    return target
