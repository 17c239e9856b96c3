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

from thumbwheel.sandbox.types import Refused

TOOLS = """awk basename bash cat chmod cmp comm cp cut date dd diff dirname echo egrep env expr false find grep head join ln ls mkdir
mktemp mv nl od paste printf pwd readlink realpath rev rm rmdir sed seq sh sleep sort split stat tac tail tar tee test touch tr true uniq wc
xargs"""
LEFT_OUT = shutil.ignore_patterns(
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
class Tree:
    """Two folders of the host: the root of a sandbox, and our own programs that run within."""

    root: Path
    programs: Path


def tree() -> Tree:
    """The folders, made where they are missing. Raises Refused where they cannot be made."""
    root = Path("/var/cache/thumbwheel") if os.geteuid() == 0 else _cache()
    interpreter = (
        f"{sys.version} {platform.machine()} {_interpreter().stat().st_mtime_ns}".encode()
        + Path(__file__).read_bytes()
    )
    ours = b"".join(file.read_bytes() for file in sorted(INSIDE.glob("*.py")))
    try:
        root.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            root.chmod(0o755)  # the unprivileged user that runs the code has to pass
        return Tree(
            _made(root, "tree", interpreter, _fill), _made(root, "inside", ours, _copy_programs)
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise Refused(
            f"the files of the sandbox cannot be laid out in {root}: {error}",
            f"Make {root} writable",
        ) from None


def _made(root: Path, name: str, content: bytes, fill: Callable[[Path], None]) -> Path:
    """The folder for this content; nobody but its owner can have changed it."""
    made = root / f"{name}-{hashlib.sha256(content).hexdigest()[:16]}"
    if not made.exists():
        _make(root, made, fill)
    found = made.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Refused(f"{made} can be changed by somebody else", f"Run: rm -rf {made}")
    return made


def _cache() -> Path:
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("thumbwheel"))


def _interpreter() -> Path:
    return Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()


def _make(root: Path, made: Path, fill: Callable[[Path], None]) -> None:
    making = Path(tempfile.mkdtemp(prefix="making-", dir=root))
    try:
        fill(making)
        _open(making)
        making.rename(made)
    except OSError:
        if not made.exists():  # otherwise another process was faster
            raise
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _fill(place: Path) -> None:
    for folder in FOLDERS:
        (place / folder).mkdir(parents=True, exist_ok=True)
    standard = Path(sysconfig.get_path("stdlib"))
    kept = place / "py/lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    shutil.copytree(standard, kept, ignore=LEFT_OUT, symlinks=False, ignore_dangling_symlinks=True)
    shutil.copy2(_interpreter(), place / "py/bin/python3")
    (place / "bin/python3").symlink_to(PYTHON)
    (place / "bin/python").symlink_to(PYTHON)
    (place / "usr/bin").symlink_to("/bin")
    programs = [place / "py/bin/python3", *kept.glob("lib-dynload/*.so")]
    for name in TOOLS.split():
        found = shutil.which(name, path="/usr/bin:/bin")
        if found:
            shutil.copy2(Path(found).resolve(), place / "bin" / name)
            programs.append(place / "bin" / name)
    _libraries(place, programs)


def _copy_programs(place: Path) -> None:
    for file in INSIDE.glob("*.py"):
        shutil.copy2(file, place / file.name)


def _libraries(place: Path, programs: list[Path]) -> None:
    """Copy the shared libraries that the programs name into /py/lib, and the loader to where
    programs expect it."""
    environment = {
        "LD_LIBRARY_PATH": str(Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")),
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run(
        ["ldd", *map(str, programs)], env=environment, capture_output=True, text=True, check=False
    )
    for name in sorted(set(LIBRARY.findall(done.stdout))):
        source, inside = Path(name), place / name.lstrip("/")
        loader = source.name.startswith("ld-")
        target = inside if loader else place / "py/lib" / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy2(source, target)


def _open(place: Path) -> None:
    """Everybody may read, nobody may write, no file gives its owner's rights."""
    for folder, _, files in os.walk(place):
        Path(folder).chmod(0o755)
        for name in files:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
