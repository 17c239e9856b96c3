"""Finds the files of a base model.

It is a folder, a GGUF file, a model of the local Ollama, one that `thumbwheel models fetch` got, or
a hub id that is in the Hugging Face cache or can be downloaded.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from thumbwheel.core.errors import InputError, MissingExtra, ModelError, NotFound
from thumbwheel.models import ollama_store
from thumbwheel.models.gguf.header import is_gguf
from thumbwheel.models.known_bases import KNOWN_BASES

if TYPE_CHECKING:
    from huggingface_hub import DryRunFileInfo

NEEDED = ("torch", "transformers", "peft", "safetensors")
NAMES = (
    "the folder with config.json and the safetensors, a GGUF file, a model of Ollama as "
    "ollama:llama3.2, or a Hugging Face id"
)
"""What may be named as a base."""
LEAST_FREE, SHARE_KEPT_FREE = 10**9, 0.05
"""Bytes and share of a disk that a download leaves free."""
FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
"""What is fetched of a repository: no code and no pickles."""


@dataclass(frozen=True)
class Base:
    """A base model as it is now; `engine.base_check.find_base` looks one up."""

    name: str
    """The absolute path of the folder or the GGUF file, the name of a model of Ollama, or a hub
    id."""
    folder: Path
    fingerprint: str
    """Of its weights."""


def require_training() -> None:
    """Raise MissingExtra unless the packages that training needs are installed; imports none of
    them."""
    for module in NEEDED:
        if find_spec(module) is None:
            raise MissingExtra.of("training", module, "train")


def locate(base: str) -> tuple[str, Path]:
    """Return (name, folder) of `base`.

    The name of a folder and of a GGUF file is its absolute path, others stay unchanged. The folder
    of a GGUF file is made if it does not exist yet. Raises InputError for a blank name, ModelError
    if `base` is none of them.
    """
    if not base.strip():
        raise InputError(f"base model {base!r}", "it is blank", f"Name {NAMES}")
    folder = Path(base).expanduser()
    if folder.is_dir():
        require_regular_files(folder)
        return name_of(base), folder.resolve()
    if (file := gguf_file(base)) is not None:
        from thumbwheel.models.gguf.base import folder_of

        require_training()
        return file.name, folder_of(file.path, file.sha256)
    if folder.exists() or base.startswith((".", "/", "~")) or base.count("/") > 1:
        why = "it is no GGUF file" if folder.exists() else "there is no such folder or file"
        raise ModelError(f"base model {base!r}", why, f"Name {NAMES}")
    return base, _from_hub(base)


@dataclass(frozen=True)
class GgufFile:
    """The GGUF file of a base."""

    name: str
    """The name of the base."""
    path: Path
    sha256: str | None
    """Its hash, where its name says it."""


def gguf_file(base: str) -> GgufFile | None:
    """Return the GGUF file of `base`; None for a folder and a hub id. Raises NotFound for a model
    that Ollama does not have, and for one that was not fetched yet."""
    if base.startswith(ollama_store.PREFIX):
        model = ollama_store.find_model(base.removeprefix(ollama_store.PREFIX))
        return GgufFile(f"{ollama_store.PREFIX}{model.name}", model.blob, model.sha256)
    file = Path(base).expanduser()
    if is_gguf(file):
        return GgufFile(str(file.resolve()), file.resolve(), None)
    if base in KNOWN_BASES and not file.exists():
        from thumbwheel.models.fetch import fetched_file

        entry = KNOWN_BASES[base]
        if fetched_file(entry).is_file():
            return GgufFile(base, fetched_file(entry), entry.sha256)
        raise NotFound(
            f"base {base!r}", "it has not been fetched yet", f"Run: thumbwheel models fetch {base}"
        )
    return None


def name_of(base: str) -> str:
    """Return the name of `base` in records, which means the same from any folder."""
    folder = Path(base).expanduser()
    if folder.is_dir():
        return str(folder.resolve())
    file = gguf_file(base)
    return base if file is None else file.name


def loadable(base: str) -> str:
    """Return the name that transformers loads for `base`: for a GGUF file its folder, else the name
    itself."""
    return base if gguf_file(base) is None else str(locate(base)[1])


def require_regular_files(folder: Path) -> None:
    """Raise ModelError if something in the folder is neither a file nor a folder: whoever opens a
    FIFO or a device waits for it, perhaps for ever."""
    for path in sorted(folder.iterdir()):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ModelError(
                f"base model {str(folder)!r}",
                f"its file {path.name!r} is a FIFO, a socket or a device",
                "Put the model's own file in its place",
            )


def in_hub_cache(base: str) -> bool:
    """Return whether the weights of a hub id are in the Hugging Face cache of this machine."""
    try:
        folder = _cached(base)
    except (OSError, ValueError):
        return False
    return any(folder.glob("*.safetensors"))


def _cached(base: str) -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(base, allow_patterns=FILES, local_files_only=True))


def _require_room(base: str, files: Sequence[DryRunFileInfo]) -> None:
    """Raise ModelError if the disk would have too little room after a download: whoever may train
    names any repository, and all agents are served from this disk."""
    from huggingface_hub import constants

    needed = sum(file.file_size or 0 for file in files if file.will_download)
    cache = Path(constants.HF_HUB_CACHE)
    there = next(folder for folder in (cache, *cache.parents) if folder.exists())
    disk = shutil.disk_usage(there)
    reserve = max(LEAST_FREE, int(SHARE_KEPT_FREE * disk.total))
    if needed > disk.free - reserve:
        raise ModelError(
            f"base model {base!r}",
            f"its files have {needed / 1e9:,.1f} GB, and {disk.free / 1e9:,.1f} GB of the disk are "
            f"free, of which {reserve / 1e9:,.1f} GB are kept for what comes in",
            "Choose a smaller base, or make room",
        )


def _from_hub(base: str) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return _cached(base)
    except HFValidationError as error:
        raise ModelError(
            f"base model {base!r}",
            f"no such folder, and no hub id: {error}",
            "Give a folder or NAME/MODEL",
        ) from None
    except (OSError, ValueError):  # not in the cache
        pass
    if constants.HF_HUB_OFFLINE:
        raise ModelError(
            f"base model {base!r}",
            "there is no such folder here, it is not in the Hugging Face cache, and the hub was "
            "not asked because HF_HUB_OFFLINE is set",
            "Give a folder saved with save_pretrained, or unset HF_HUB_OFFLINE and run it once "
            "while online",
        )
    try:
        _require_room(base, snapshot_download(base, allow_patterns=FILES, dry_run=True))
        return Path(snapshot_download(base, allow_patterns=FILES))
    except Exception as error:
        if not type(error).__module__.startswith(
            ("huggingface_hub", "httpx", "requests")
        ) and not isinstance(error, (OSError, ValueError)):
            raise
        why = textwrap.shorten(str(error), 200, placeholder=" ...")
        raise ModelError(
            f"base model {base!r}",
            "there is no such folder here, it is not in the Hugging Face cache, and the hub did "
            f"not give it ({why})",
            "Give a folder saved with save_pretrained, or download the model once while online",
        ) from None
