"""Finds the files of a base model: a folder, or a hub id that is in the Hugging Face cache or can
be downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from thumbwheel.core.errors import InputError, MissingExtra, ModelError

NEEDED = ("torch", "transformers", "peft", "safetensors")
FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
"""What is fetched of a repository: no code and no pickles."""


@dataclass(frozen=True)
class Base:
    """A base model as it is now; `engine.base_check.find_base` looks one up."""

    name: str
    """The folder's absolute path, or a hub id."""
    folder: Path
    fingerprint: str
    """Of its weights."""


def require_training() -> None:
    """Raise MissingExtra unless what training needs is installed; imports none of it."""
    for module in NEEDED:
        if find_spec(module) is None:
            raise MissingExtra.of("training", module, "train")


def locate(base: str) -> tuple[str, Path]:
    """(name, folder) of `base`: a folder's name is its absolute path, a hub id stays one. Raises
    ModelError when it is neither."""
    if not base.strip():
        raise InputError(
            f"base model {base!r}",
            "it is blank",
            "Name the folder with config.json and the safetensors, or a Hugging Face id",
        )
    folder = Path(base).expanduser()
    if folder.is_dir():
        require_regular_files(folder)
        return str(folder.resolve()), folder.resolve()
    if folder.exists() or base.startswith((".", "/", "~")) or base.count("/") > 1:
        why = "it is a file" if folder.exists() else "there is no such folder"
        raise ModelError(
            f"base model {base!r}",
            why,
            "Name the folder with config.json and the safetensors, or a Hugging Face id",
        )
    return base, _from_hub(base)


def require_regular_files(folder: Path) -> None:
    """Raise ModelError where something in the folder is neither a file nor a folder: whoever opens
    a FIFO or a device waits for it, perhaps for ever."""
    for path in sorted(folder.iterdir()):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ModelError(
                f"base model {str(folder)!r}",
                f"its file {path.name!r} is a FIFO, a socket or a device",
                "Put the model's own file in its place",
            )


def _from_hub(base: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(base, allow_patterns=FILES, local_files_only=True))
    except HFValidationError as error:
        raise ModelError(
            f"base model {base!r}",
            f"no such folder, and no hub id: {error}",
            "Give a folder or NAME/MODEL",
        ) from None
    except (OSError, ValueError):  # not in the cache
        pass
    try:
        return Path(snapshot_download(base, allow_patterns=FILES))
    except Exception as error:
        if not type(error).__module__.startswith(
            ("huggingface_hub", "httpx", "requests")
        ) and not isinstance(error, (OSError, ValueError)):
            raise
        why = " ".join(str(error).split())[:200]
        raise ModelError(
            f"base model {base!r}",
            "there is no such folder here, it is not in the Hugging Face cache, and the hub did "
            f"not give it ({why})",
            "Give a folder saved with save_pretrained, or download the model once while online",
        ) from None
