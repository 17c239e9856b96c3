"""The files that a candidate sees: this interpreter, its standard library, a shell and plain tools,
copied once into a folder of their own.

A copy, because the interpreter may lie where an unprivileged user cannot look, and because a path
of the host would tell about the host. No site-packages: a candidate has the standard library.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from thumbwheel.sandbox.types import SandboxRefused

TOOLS = """
awk basename bash cat chmod cmp comm cp cut date dd diff dirname echo egrep env expr false find
grep head join ln ls mkdir mktemp mv nl od paste printf pwd readlink realpath rev rm rmdir sed seq
sh sleep sort split stat tac tail tar tee test touch tr true uniq wc xargs
"""
IGNORED = shutil.ignore_patterns(
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "ensurepip",
    "lib2to3",
    "tkinter",
    "turtledemo",
    "pydoc_data",
    "config-*",
    "*.opt-1.pyc",
    "*.opt-2.pyc",
    "_tkinter*",
    "_test*",
    "xx*",
    "*.a",
)
LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")
INSIDE = Path(__file__).parent / "inside"
FOLDERS = ("bin", "usr", "dev", "tmp", "py/bin", "py/lib", "app/inside")
PYTHON = "/py/bin/python3"


@dataclass(frozen=True)
class RootFiles:
    """Two folders of the host: the root of a sandbox, and our own programs that run within."""

    root: Path
    programs: Path


def root_files() -> RootFiles:
    """Return the folders, made if they are missing. Raises Refused if they cannot be made."""
    root = Path("/var/cache/thumbwheel") if os.geteuid() == 0 else _cache()
    interpreter = (
        f"{sys.version} {platform.machine()} {_interpreter().stat().st_mtime_ns}".encode()
        + Path(__file__).read_bytes()
    )
    programs = b"".join(file.read_bytes() for file in sorted(INSIDE.glob("*.py")))
    try:
        root.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            root.chmod(0o755)  # the unprivileged user that runs the code has to pass
        return RootFiles(
            _folder_for(root, "tree", interpreter, _fill_root),
            _folder_for(root, "inside", programs, _copy_programs),
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise SandboxRefused(
            f"the files of the sandbox cannot be laid out in {root}: {error}",
            f"Make {root} writable",
        ) from None


def _folder_for(root: Path, name: str, content: bytes, fill: Callable[[Path], None]) -> Path:
    """Return the folder for this content. Raises Refused if anybody but its owner can have changed
    it."""
    folder = root / f"{name}-{hashlib.sha256(content).hexdigest()[:16]}"
    if not folder.exists():
        _create_folder(root, folder, fill)
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise SandboxRefused(f"{folder} can be changed by somebody else", f"Run: rm -rf {folder}")
    return folder


def _cache() -> Path:
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("thumbwheel"))


def _interpreter() -> Path:
    return Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()


def _create_folder(root: Path, folder: Path, fill: Callable[[Path], None]) -> None:
    staging = Path(tempfile.mkdtemp(prefix="making-", dir=root))
    try:
        fill(staging)
        _make_readable(staging)
        staging.rename(folder)
    except OSError:
        if not folder.exists():  # otherwise another process was faster
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _fill_root(root: Path) -> None:
    for folder in FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
    standard = Path(sysconfig.get_path("stdlib"))
    library = root / "py/lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    shutil.copytree(
        standard, library, ignore=IGNORED, symlinks=False, ignore_dangling_symlinks=True
    )
    shutil.copy2(_interpreter(), root / "py/bin/python3")
    (root / "bin/python3").symlink_to(PYTHON)
    (root / "bin/python").symlink_to(PYTHON)
    (root / "usr/bin").symlink_to("/bin")
    programs = [root / "py/bin/python3", *library.glob("lib-dynload/*.so")]
    for name in TOOLS.split():
        path = shutil.which(name, path="/usr/bin:/bin")
        if path:
            shutil.copy2(Path(path).resolve(), root / "bin" / name)
            programs.append(root / "bin" / name)
    _libraries(root, programs)


def _copy_programs(root: Path) -> None:
    for file in INSIDE.glob("*.py"):
        shutil.copy2(file, root / file.name)


def _libraries(root: Path, programs: list[Path]) -> None:
    """Copy the shared libraries that the programs name into /py/lib, and the loader to where
    programs expect it."""
    environment = {
        "LD_LIBRARY_PATH": str(Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")),
        "PATH": "/usr/bin:/bin",
    }
    listing = subprocess.run(
        ["ldd", *map(str, programs)], env=environment, capture_output=True, text=True, check=False
    )
    for name in sorted(set(LIBRARY.findall(listing.stdout))):
        source, inside_path = Path(name), root / name.lstrip("/")
        loader = source.name.startswith("ld-")
        target = inside_path if loader else root / "py/lib" / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy2(source, target)


def _make_readable(root: Path) -> None:
    """Let everybody read and nobody else write, and let no file give its owner's rights."""
    for folder, _, files in os.walk(root):
        Path(folder).chmod(0o755)
        for name in files:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
