"""The folder of safetensors that is made of a GGUF file, once for all homes of this user.

Its name in the cache is the hash of the file, so the same file under another name is the same base.
The folder appears when it is whole. `gguf_source.json` in it says what it was made of.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from thumbwheel.core import ids, log
from thumbwheel.core.errors import ModelError
from thumbwheel.core.files import replace, unwritable
from thumbwheel.core.locks import wait_for
from thumbwheel.models.gguf.architectures import config_of
from thumbwheel.models.gguf.header import GgufHeader, damaged, read_header
from thumbwheel.models.gguf.pre_tokenizers import NAMES
from thumbwheel.models.gguf.tokenizer import (
    PROBES,
    TokenDifference,
    build_tokenizer,
    encoder,
    first_difference,
    name_of_pre_tokenizer,
    refusal,
    tokenizer_with,
)
from thumbwheel.models.gguf.weights import bits_a_weight, stored_dtype, types, write_model
from thumbwheel.sdk.disk import sync

SOURCE = "gguf_source.json"
HASHES = "hashes.json"
"""File of the cache: path -> bytes, nanoseconds of the last change and hash of a GGUF file."""


@dataclass(frozen=True)
class GgufSource:
    """What a folder in the cache was made of."""

    sha256: str
    """Of the GGUF file."""
    size: int
    """Its bytes."""
    bits: float
    """In which it holds a weight, on average."""
    types: dict[str, int]
    """How it stores its matrices: type -> how many."""
    dtype: str
    """In which the folder holds them."""
    architecture: str
    pre_tokenizer: str
    tokens_compared: bool
    """Whether its tokens were compared with llama.cpp's."""

    @property
    def quantised(self) -> bool:
        """Whether weights were rounded to blocks, so that the first ones are lost."""
        return self.bits < 15

    @property
    def description(self) -> str:
        """`Q4_1, 5.7 bits a weight`."""
        return f"{next(iter(self.types), 'F32')}, {self.bits:.1f} bits a weight"


def cache_folder() -> Path:
    """Return the folder of the bases that are made from files, for all homes of this user."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("thumbwheel")) / "bases"


def source_of(folder: Path) -> GgufSource | None:
    """Return the GGUF file that a base's folder was made from; None if it was made from no GGUF
    file."""
    try:
        return GgufSource(**json.loads((folder / SOURCE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def folder_of(file: Path, sha256: str | None = None) -> Path:
    """Return the folder of the model in a GGUF file, made if it does not exist yet.

    `sha256` is the file's hash if its name states it; the file must match it. Raises ModelError for
    a file whose model or tokenizer cannot be rebuilt, StorageError for a full disk.
    """
    expected = sha256 or _remembered_hash(file)
    if expected is not None and source_of(cache_folder() / expected) is not None:
        return cache_folder() / expected
    header = read_header(file)
    log.say(f"reading {file.name} ({file.stat().st_size / 1e6:,.0f} MB), once")
    # what can be refused at once is refused before the file is read to its end
    config = config_of(header)
    tokenizer = build_tokenizer_checked(header)
    actual = file_hash(file)
    if sha256 not in (None, actual):
        raise damaged(file, f"its hash is sha256:{actual}, which is not the one in its name")
    target = cache_folder() / actual
    with _made_once(target) as folder:
        if folder is not None:
            _write(header, config, tokenizer, actual, folder)
    return target


def file_hash(file: Path) -> str:
    """Return the sha256 of a GGUF file, read anew only when the file has changed."""
    remembered = _remembered_hash(file)
    if remembered is not None:
        return remembered
    before = _state(file)
    sha256 = ids.file_hash(file)
    if before == _state(file):
        entries = _hashes() | {str(file.resolve()): [*before, sha256]}
        # without the note the file is only read again
        with suppress(OSError):
            cache_folder().mkdir(parents=True, exist_ok=True)
            replace(cache_folder() / HASHES, json.dumps(entries, indent=1))
    return sha256


def _remembered_hash(file: Path) -> str | None:
    entry = _hashes().get(str(file.resolve()))
    return str(entry[2]) if entry is not None and entry[:2] == _state(file) else None


def _hashes() -> dict[str, Any]:
    try:
        return dict(json.loads((cache_folder() / HASHES).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _state(file: Path) -> list[int]:
    """Return the file's size in bytes, and the nanoseconds of its last change."""
    status = file.stat()
    return [status.st_size, status.st_mtime_ns]


def build_tokenizer_checked(header: GgufHeader) -> Any:
    """Build the tokenizer of a file and compare it with llama.cpp's if its library is installed.

    Raises ModelError for an unknown pre-tokenizer and for tokens that differ, with the first text
    that does.
    """
    try:
        tokenizer = build_tokenizer(header)
    except ModelError as error:
        raise _with_an_example(error, header) from None
    if difference := _difference(header, tokenizer):
        raise refusal(
            header.path,
            f"its tokens would not be those that are served: {difference}",
            "Give the model's own folder, with tokenizer.json, and report this file",
        )
    return tokenizer


def _with_an_example(error: ModelError, header: GgufHeader) -> ModelError:
    """Return the error about an unknown pre-tokenizer with a text that would be cut wrongly without
    it; any other error unchanged."""
    is_byte_pairs = header.metadata.get("tokenizer.ggml.model") == "gpt2"
    if not is_byte_pairs or name_of_pre_tokenizer(header) in NAMES:
        return error
    difference = _difference(header, tokenizer_with(header, NAMES["gpt-2"]))
    if difference is None:
        return error
    why = f"{error.why}. As GPT-2's, it would be {difference}"
    return ModelError(error.what, why, error.fix)


def can_compare() -> bool:
    """Tell whether llama.cpp's library is installed."""
    from thumbwheel.llm import tools

    return all(tools.find(name) is not None for name in tools.PAIR)


def _difference(header: GgufHeader, tokenizer: Any) -> TokenDifference | None:
    """Return the first probe that has other tokens in llama.cpp; None if there is none, or no
    library to ask."""
    if not can_compare():
        return None
    from thumbwheel.llm.library import tokenize

    special = "a" + "b".join(tokenizer.all_special_tokens) + " c"
    probes = (*PROBES, special)
    try:
        served = dict(zip(probes, tokenize(header.path, probes), strict=True))
    except ModelError as error:
        log.say(f"note: its tokens are not compared with llama.cpp's: {error.why}")
        return None
    return first_difference(encoder(tokenizer), served.__getitem__, probes)


@contextmanager
def _made_once(target: Path) -> Iterator[Path | None]:
    """Yield a new folder that becomes `target` when the work inside succeeds; None if another
    process made it meanwhile."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with wait_for(target.with_suffix(".lock")):
            if source_of(target) is not None:
                yield None
                return
            folder = Path(tempfile.mkdtemp(prefix=f".{target.name[:16]}-", dir=target.parent))
            try:
                yield folder
                for path in [*folder.rglob("*"), folder]:
                    sync(path)
                shutil.rmtree(target, ignore_errors=True)
                folder.rename(target)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        fix = "Free some space, then run the same command again"
        raise unwritable(f"base {str(target)!r}", error, fix) from error
    except Exception as error:
        # the writer of safetensors raises its own error for a full disk
        if type(error).__module__.startswith("safetensors"):
            raise unwritable(f"base {str(target)!r}", error) from error
        raise


def _write(
    header: GgufHeader, config: dict[str, Any], tokenizer: Any, sha256: str, folder: Path
) -> None:
    """Fill the folder of a base; its source is written last."""
    write_model(header, config, folder)
    tokenizer.save_pretrained(folder)
    source = GgufSource(
        sha256=sha256,
        size=header.path.stat().st_size,
        bits=round(bits_a_weight(header), 2),
        types=types(header),
        dtype=stored_dtype(header),
        architecture=header.architecture,
        pre_tokenizer=name_of_pre_tokenizer(header),
        tokens_compared=can_compare(),
    )
    (folder / SOURCE).write_text(json.dumps(asdict(source), indent=2) + "\n", encoding="utf-8")
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    log.say(f"{header.path.name}: {source.description}; {size / 1e6:,.0f} MB in {source.dtype}")
    if source.quantised:
        log.say(
            "what quantising took from the first weights is lost; training starts from the weights "
            "that are served"
        )
