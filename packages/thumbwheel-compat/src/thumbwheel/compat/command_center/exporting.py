"""`export_to_ollama` for a checkpoint folder: the adapter merged into its own base, as GGUF, and in
Ollama where that is asked for.

A bare folder has no gate, so it is exported unchecked.
`thumbwheel.compat.export_to_ollama` takes a version of an agent, compares the file with the trained
model, and deploys only what the gate approved.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from thumbwheel.compat.command_center.modelfile_text import read_modelfile
from thumbwheel.compat.exporting import ExportResult
from thumbwheel.compat.isaa.exporting import GGUFExporter, OllamaDeployer
from thumbwheel.core import log
from thumbwheel.core.errors import Conflict, InputError, NotFound, ThumbwheelError
from thumbwheel.export.gguf_file import SUFFIX
from thumbwheel.llm import tools

MODEL_NAME = "cc-widget-selector"
TEMPERATURE = 0.0
QUANTIZATION = "q4_k_m"
EXPORTS = Path("rl_checkpoints/export")
ADAPTER = "adapter_config.json"


def export_to_ollama(
    checkpoint_path: str | Path,
    model_name: str = MODEL_NAME,
    base_model: str | None = None,
    quantization: str = QUANTIZATION,
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
            path = Path(
                GGUFExporter(model, output_dir=folder).convert(quantization, f"{model_name}.gguf")
            )
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


def merge_lora_weights(base_model_path: str, lora_path: str | Path, output_path: str | Path) -> str:
    """Write the base with the adapter of `lora_path` merged in to `output_path`, and return it.
    Raises NotFound for a folder without an adapter, InputError for another base than the
    adapter's, Conflict for a folder that is there."""
    target = Path(output_path)
    if not (Path(lora_path) / ADAPTER).is_file():
        raise NotFound(
            f"adapter {str(lora_path)!r}", "there is none", f"Name a folder with an {ADAPTER}"
        )
    if target.exists():
        raise Conflict(f"folder {str(target)!r}", "it exists already", "Name another output_path")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".merged-", dir=target.parent) as scratch:
        _merged(Path(lora_path), base_model_path, Path(scratch)).rename(target)
    return str(target)


def find_llama_cpp() -> str | None:
    """Return the folder of llama.cpp's converter, None if there is none."""
    converter = tools.find("converter")
    return str(converter.path.parent) if converter else None


def convert_to_gguf(
    model_path: str | Path,
    output_path: str | Path,
    quantization: str = QUANTIZATION,
    llama_cpp_path: str | Path | None = None,
) -> str:
    """Write a model folder of Hugging Face as a GGUF file, and return its path. Raises as
    `GGUFExporter.convert` does."""
    target = Path(output_path)
    if target.suffix != SUFFIX:
        target = target.with_name(target.name + SUFFIX)
    exporter = GGUFExporter(model_path, llama_cpp_path, target.parent)
    return exporter.convert(quantization, target.name)


def register_with_ollama(
    modelfile_content: str, model_name: str, modelfile_path: str | Path | None = None
) -> bool:
    """Make a model of Ollama from the text of a Modelfile, which is also written to
    `modelfile_path`. Raises InputError for a text that cannot be read."""
    modelfile = read_modelfile(modelfile_content)
    if modelfile_path is not None:
        Path(modelfile_path).write_text(modelfile_content, encoding="utf-8")
    OllamaDeployer().create_from(modelfile, model_name)
    return True


def list_ollama_models() -> list[str]:
    """Return the names of Ollama's models; none where it does not answer."""
    try:
        return [model["name"] for model in OllamaDeployer().list_models()]
    except ThumbwheelError as error:
        log.say(str(error))
        return []


def delete_ollama_model(model_name: str) -> bool:
    """Remove a model of Ollama. Return whether there was one."""
    return OllamaDeployer().delete_model(model_name)


def get_export_status(export_dir: str | Path = EXPORTS) -> dict[str, Any]:
    """Return export_dir, its GGUF files (name, size_mb, path) and the names of Ollama's models."""
    files = []
    for path in sorted(Path(export_dir).glob(f"*{SUFFIX}")):
        size = path.stat().st_size / 1e6
        files.append({"name": path.name, "size_mb": size, "path": str(path)})
    return {
        "export_dir": str(export_dir),
        "gguf_files": files,
        "ollama_models": list_ollama_models(),
    }


def _merged(checkpoint: Path, base_model: str | None, scratch: Path) -> Path:
    """Return the folder of a checkpoint's complete model: the checkpoint itself, or, for an
    adapter, its base with the adapter merged in, written to `scratch`. Raises InputError if
    `base_model` is not the base of the adapter."""
    from thumbwheel.engine.load import adapter_base
    from thumbwheel.export.formats import FORMATS
    from thumbwheel.export.types import ExportSource
    from thumbwheel.models.base import locate

    if not (checkpoint / ADAPTER).is_file():
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
