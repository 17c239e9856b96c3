"""GGUF files from Hugging Face folders, and smaller ones from larger: by llama.cpp's own programs,
each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from thumbwheel.core.errors import MissingExtra, ModelError, StorageError
from thumbwheel.llm import tools
from thumbwheel.llm.convert_child import UNKNOWN
from thumbwheel.llm.library import quantize

DIRECT = ("F32", "F16", "BF16", "Q8_0")
"""Precisions that the converter writes itself."""
TAIL = 6
"""Lines of a program that an error shows."""
DISK_FULL = ("No space left", "File too large", "Disk quota exceeded", "iostream error")
"""How programs say that the disk is full."""


def convert(model: Path, out: Path, precision: str, family: str, ends: Sequence[int]) -> None:
    """Write the model folder `model` as the GGUF file `out`; `ends` are the tokens that end an
    answer, the end of a turn first.

    Raises ModelError for an architecture or a tokenizer that llama.cpp does not have, StorageError
    for a full disk.
    """
    script = tools.require("converter").path
    _child(
        script,
        [str(model), "--outfile", str(out), "--outtype", precision.lower()],
        family,
        ends,
        model,
    )


def convert_vocabulary(model: Path, out: Path, family: str, ends: Sequence[int]) -> None:
    """Write the tokenizer of the model folder `model`, without its weights, as the GGUF file `out`;
    raises as `convert`."""
    script = tools.require("converter").path
    arguments = [str(model), "--outfile", str(out), "--vocab-only"]
    _child(script, arguments, family, ends, model)


def convert_adapter(adapter: Path, base: Path, out: Path, precision: str, family: str) -> None:
    """Write the PEFT adapter `adapter` over the model folder `base` as the GGUF file `out`."""
    script = tools.require("converter").path.with_name("convert_lora_to_gguf.py")
    arguments = [
        str(adapter),
        "--base",
        str(base),
        "--outfile",
        str(out),
        "--outtype",
        precision.lower(),
    ]
    _child(script, arguments, family, (), base)


def check_quantizer(precision: str) -> None:
    """Raise NotFound where nothing here can write `precision`, before any work is done for it."""
    if precision not in DIRECT and not tools.find("library"):
        tools.require("llama-quantize")


def requantize(whole: Path, out: Path, precision: str) -> str:
    """Write `whole`, a GGUF file in 16 or 32 bits, in a smaller `precision`; return the name of the
    program or library used.

    Uses llama-quantize if it is found, else the library; never leaves the larger file instead.
    """
    program = tools.find("llama-quantize")
    if program is None:
        quantize(whole, out, precision)
        return "the library of llama.cpp"
    done = subprocess.run(
        [program.path, whole, out, precision],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode or not out.is_file():
        raise _error(f"{whole.name} as {precision}", done)
    return "llama-quantize"


def _child(
    script: Path, arguments: Sequence[str], family: str, ends: Sequence[int], model: Path
) -> None:
    settings = json.dumps({"family": family, "ends": list(ends)})
    command = [
        sys.executable,
        "-P",
        "-m",
        "thumbwheel.llm.convert_child",
        str(script),
        settings,
        *arguments,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=_environment(), check=False
    )
    if done.returncode:
        raise _error(f"model {model.name!r} as GGUF", done, family)


def _environment() -> Mapping[str, str]:
    """Return this process's environment, offline, with this package on the child's path."""
    paths = [str(Path(__file__).parents[2])]
    if existing := os.environ.get("PYTHONPATH"):
        paths.append(existing)
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "HF_HUB_OFFLINE": "1",
        "TQDM_DISABLE": "1",
        "PYTHONWARNINGS": "ignore",
    }


def _error(what: str, done: subprocess.CompletedProcess[str], family: str = "") -> Exception:
    output = done.stdout + done.stderr
    last = "\n".join(output.strip().splitlines()[-TAIL:])
    if any(word in output for word in DISK_FULL):
        return StorageError(
            what,
            f"it cannot be written: {last.splitlines()[-1]}",
            "Free some space, then run the same command again",
        )
    if "No module named" in output:
        return MissingExtra.of(
            "converting to GGUF",
            output.rpartition("No module named ")[2].split()[0].strip("'"),
            "gguf",
        )
    if UNKNOWN in output:
        why = (
            "llama.cpp does not know how its tokenizer splits text, and a model of family "
            f"{family!r} does not tell"
        )
        return ModelError(what, why, "Export it with --format merged")
    if "is not supported" in output or "NotImplementedError" in output:
        return ModelError(
            what,
            f"llama.cpp's converter does not support a model of family {family!r} "
            f"({last.splitlines()[-1]})",
            "Export it with --format merged",
        )
    return ModelError(
        what,
        f"the program ended with {done.returncode}:\n{last}",
        "Export it with --format merged, or report it",
    )
