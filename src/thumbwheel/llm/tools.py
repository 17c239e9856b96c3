"""The programs of llama.cpp, where they are on this machine: found, never installed by themselves.

Searched in this order: the folder of `THUMBWHEEL_LLAMA_CPP`, the PATH, what `thumbwheel tools
install --build` built, what `thumbwheel tools install` downloaded; library and bindings only among
the last two. install.py downloads and builds.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from thumbwheel.core.errors import NotFound

SETTING = "THUMBWHEEL_LLAMA_CPP"
"""Environment variable with a folder: a build, a release or a checkout of llama.cpp."""
_FOLDER: ContextVar[Path | None] = ContextVar("folder of llama.cpp", default=None)
"""What `programs_of` names for a call."""
SOURCE, BUILD, PREBUILT = "source-0.3.36", "build-0.3.36", "prebuilt-3.22.1"
"""Folders of the cache; a new version of ours gets new ones."""
SUBFOLDERS = ("", "bin", "build/bin", "lib", "vendor/llama.cpp")
"""Where in such a folder the files may lie."""
LIBRARY = ("libllama.so", "libllama.dylib")

FILES = {
    "llama-server": ("llama-server", "llama-server.exe"),
    "llama-quantize": ("llama-quantize", "llama-quantize.exe"),
    "converter": ("convert_hf_to_gguf.py",),
    "library": LIBRARY,
    "bindings": ("llama_cpp/llama_cpp.py",),
}
"""Tool -> how its file is called."""
PAIR = ("library", "bindings")
"""These fit each other in the versions that we pin, so others are never taken."""
FOR = {
    "llama-server": "answers over HTTP from a GGUF file",
    "llama-quantize": "writes a GGUF file in a smaller precision",
    "converter": "writes a Hugging Face model as GGUF",
    "library": "computes in a child process: quantising without a compiler, parity",
    "bindings": "how Python calls the library",
}
FIX = {
    "llama-server": "Install llama.cpp so that it is on the PATH, or run: thumbwheel tools install "
    "--build",
    "llama-quantize": "Run: thumbwheel tools install (no compiler needed), or install llama.cpp "
    "so that it is on the PATH",
    "converter": "Run: thumbwheel tools install",
    "library": "Run: thumbwheel tools install",
    "bindings": "Run: thumbwheel tools install",
}


@dataclass(frozen=True)
class Tool:
    """A program or library of llama.cpp. `origin`: setting, PATH, build or download."""

    name: str
    path: Path
    origin: str

    @property
    def version(self) -> str:
        """What it says itself, else what its folder is called."""
        return _version(self.path) if self.name.startswith("llama-") else self.path.parent.name


@contextmanager
def programs_of(folder: Path | None) -> Iterator[None]:
    """Search `folder` before everything else, as if THUMBWHEEL_LLAMA_CPP named it; None changes
    nothing. Raises NotFound if there is no such folder."""
    if folder is not None and not folder.is_dir():
        raise NotFound(f"folder {str(folder)!r}", "it does not exist", "Name a folder of llama.cpp")
    token = _FOLDER.set(folder)
    try:
        yield
    finally:
        _FOLDER.reset(token)


def find(name: str) -> Tool | None:
    """Return the tool called `name`, or None. Raises NotFound if `THUMBWHEEL_LLAMA_CPP` names no
    folder."""
    for tool in _candidates(name):
        if _complete(name, tool.path):
            return tool
    return None


def _candidates(name: str) -> Iterator[Tool]:
    folders = [("build", cache_folder() / BUILD)]
    folders += [("download", cache_folder() / folder) for folder in (SOURCE, PREBUILT)]
    if name not in PAIR:
        if setting := str(_FOLDER.get() or os.environ.get(SETTING, "")):
            for path in _paths_in(_setting_folder(setting), name):
                yield Tool(name, path, "setting")
        for file in FILES[name]:
            if program := shutil.which(file):
                yield Tool(name, Path(program), "PATH")
    for origin, folder in folders:
        for path in _paths_in(folder, name):
            yield Tool(name, path, origin)


def _setting_folder(text: str) -> Path:
    folder = Path(text).expanduser()
    if not folder.is_dir():
        raise NotFound(
            f"{SETTING}={text!r}",
            "there is no such folder",
            "Name a folder of llama.cpp, or unset it",
        )
    return folder


def _paths_in(folder: Path, name: str) -> Iterator[Path]:
    return (folder / within / file for within in SUBFOLDERS for file in FILES[name])


def _complete(name: str, path: Path) -> bool:
    """Return whether the file exists and, for the converter, also the modules beside it: older ones
    were one long file, which cannot be guided."""
    return path.is_file() and (
        name != "converter"
        or ((path.parent / "conversion").is_dir() and (path.parent / "gguf-py").is_dir())
    )


def fix(name: str) -> str:
    """Return how to get a missing tool; for a program that an installed tool replaces, that it is
    not needed."""
    if name == "llama-quantize" and find("library"):
        return (
            "Not needed: the library quantises. For the program: thumbwheel tools install --build"
        )
    return FIX[name]


def require(name: str) -> Tool:
    """Return the tool called `name`. Raises NotFound with the fix if it is missing."""
    tool = find(name)
    if tool is None:
        elsewhere = "" if name in PAIR else "in THUMBWHEEL_LLAMA_CPP, on the PATH or "
        raise NotFound(
            f"{name} ({FOR[name]})", f"it is not {elsewhere}among the installed programs", fix(name)
        )
    return tool


def cache_folder() -> Path:
    """Return the folder for downloads and builds, shared by all homes of this user."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("thumbwheel")) / "llama.cpp"


@cache
def _version(program: Path) -> str:
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run: {error}"
    output = done.stdout + done.stderr
    if match := re.search(r"version: (.+)", output):
        return match.group(1)
    return "states none" if "usage:" in output else f"does not run: it ended with {done.returncode}"
