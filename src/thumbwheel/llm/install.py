"""Gets the parts of llama.cpp that are missing into the cache of this user, and builds its
programs; only when asked to.

Both downloads are pinned by hash. Everything is made in a folder of its own and renamed when it is
whole: a broken download, a failed build or a full disk leave nothing. The converter comes from the
source package of llama-cpp-python, the library from npm's @node-llama-cpp.
"""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from thumbwheel.core import log
from thumbwheel.core.errors import MissingExtra, NotFound, StorageError
from thumbwheel.core.files import unwritable
from thumbwheel.core.hardware import usable_cores
from thumbwheel.llm.tools import BUILD, FILES, PREBUILT, SOURCE, Tool, cache_folder, find
from thumbwheel.sdk.disk import sync

SDIST, SDIST_HASH = (
    "llama-cpp-python==0.3.36",
    "sha256-gy2waZAH8b6Vp+Qe8S6IkmsCuoNkYeNqNjctsnYMGi4=",
)
NPM_VERSION = "3.22.1"
NPM = {
    ("Linux", "x86_64"): (
        "linux-x64",
        "sha512-5uCCDNqWCNfaAm8aR/Uzxbo4HBpKgNF91kCHPepKhgMgV2OAmatoefbOlMihsqCiH2Od35E/eUHQCFbfRBJuOg==",
    ),
    ("Linux", "aarch64"): (
        "linux-arm64",
        "sha512-W+7naKCXX9/eEjjFmRS8vvx91QyLXDbeFexxZc3bh/PtQABZgmRL3C0AtYYXn4YGTj/3Qor4lWZn2tpjZFPLdQ==",
    ),
}
"""Machine -> npm package and the hash of its archive. On others the library is built."""
UNUSED = re.compile(
    r"[^/]+/(\.git|\.github|docs|tests|examples|docker|vendor/llama\.cpp/(docs|models|tests|media|benches|examples))/"
)
"""Two thirds of the source package: what neither the converter nor the build reads."""

LLAMA_CPP = "vendor/llama.cpp"
CONTENTS = {
    SOURCE: (
        "llama_cpp/llama_cpp.py",
        *(
            f"{LLAMA_CPP}/{part}"
            for part in ("CMakeLists.txt", "convert_hf_to_gguf.py", "conversion", "gguf-py")
        ),
    ),
    PREBUILT: ("libllama.so", "libggml.so"),
    BUILD: ("bin/llama-server", "bin/llama-quantize"),
}
"""Folder of the cache -> what it has to hold; one that does not is made anew."""

FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
    # the folder is moved when it is whole, and may be moved again
    "-DCMAKE_INSTALL_RPATH=$ORIGIN;@loader_path",
    "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",  # would download while it builds
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
)
COMPILERS = (
    "Install them (Debian, Ubuntu: sudo apt-get install cmake g++; macOS: xcode-select --install, "
    "then pip install cmake)"
)
PROGRESS = re.compile(r"^\[ *(\d+)(?:%|/(\d+))\]")
"""The progress that make or ninja prints."""


def install(build: bool = False) -> list[Tool]:
    """Install the converter and the library if no folder has them, build the programs with `build`,
    and return the tools that are available afterwards.

    Raises NotFound for a missing compiler and a Python that is too old, StorageError for a broken
    download or a full disk.
    """
    for name in CONTENTS:
        if not _complete(name):
            shutil.rmtree(cache_folder() / name, ignore_errors=True)
    missing_source = build and not (cache_folder() / SOURCE).is_dir()
    if missing_source or not (find("converter") and find("bindings")):
        _install_folder(SOURCE, _get_source)
    machine = (platform.system(), platform.machine())
    if find("library") is None and machine in NPM:
        _install_folder(PREBUILT, _get_library)
    elif find("library") is None and not build:
        log.say(
            f"there is no prebuilt library for {' '.join(machine)}; build it: thumbwheel tools "
            "install --build"
        )
    if build and not (cache_folder() / BUILD).is_dir():
        _install_folder(BUILD, _build)
    return [tool for name in FILES if (tool := find(name))]


def _install_folder(name: str, make: Callable[[Path], None]) -> None:
    """Let `make` fill a folder, and move it into the cache as `name` once it is complete."""
    target = cache_folder() / name
    with _staging(target) as folder:
        make(folder)
        for path in [*folder.rglob("*"), folder]:
            if not path.is_symlink():
                sync(path)
        try:
            folder.rename(target)
        except OSError:
            if not _complete(name):  # otherwise another process was first, with the same
                raise


def _complete(name: str) -> bool:
    return all((cache_folder() / name / part).exists() for part in CONTENTS[name])


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    folder = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(
            tempfile.mkdtemp(prefix=f".{target.name}-", suffix=".unfinished", dir=target.parent)
        )
        yield folder
    except (OSError, tarfile.TarError) as error:
        fix = "Free some space, then run the same command again"
        raise unwritable(repr(str(target)), error, fix) from error
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _get_source(folder: Path) -> None:
    """Download the source archive with pip, which knows this machine's package index, and unpack
    it; the package is not installed."""
    _check_python()
    log.say(f"downloading {SDIST} (77 MB): converter and source code of llama.cpp, MIT")
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        pinned, download = Path(scratch) / "requirements.txt", Path(scratch) / "got"
        digest = base64.b64decode(SDIST_HASH.removeprefix("sha256-")).hex()
        # pip runs code of the archive: it has to know the hash before
        pinned.write_text(f"{SDIST} --hash=sha256:{digest}\n")
        command = [
            sys.executable,
            "-P",
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            "llama-cpp-python",
        ]
        fix = "Check that this machine can reach its package index, then run the same command again"
        _run(
            [*command, "--require-hashes", "-r", str(pinned), "-d", str(download)],
            "pip download",
            fix,
            folder=scratch,
        )
        _unpack(_single_file(download), SDIST_HASH, folder, lambda name: not UNUSED.match(name))


def _check_python() -> None:
    if not hasattr(tarfile, "data_filter"):
        raise NotFound(
            f"a safe way to unpack in Python {platform.python_version()}",
            "its tarfile would let an archive write outside of its folder",
            "Use Python 3.11.4 or newer, then run the same command again",
        )


def _get_library(folder: Path) -> None:
    _check_python()
    name, expected = NPM[platform.system(), platform.machine()]
    log.say(
        f"downloading @node-llama-cpp/{name} {NPM_VERSION} (11 MB): the library of llama.cpp, MIT"
    )
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        if npm := shutil.which("npm"):
            command = [
                npm,
                "pack",
                f"@node-llama-cpp/{name}@{NPM_VERSION}",
                "--silent",
                "--pack-destination",
                scratch,
            ]
            _run(
                command,
                "npm pack",
                "See whether this machine reaches the npm registry, then run the same command "
                "again",
                folder=scratch,
            )
        else:
            _fetch(
                f"https://registry.npmjs.org/@node-llama-cpp/{name}/-/{name}-{NPM_VERSION}.tgz",
                Path(scratch) / "library.tgz",
            )
        _unpack(
            _single_file(Path(scratch)),
            expected,
            folder,
            lambda name: "/bins/" not in name or "/lib" in name,
        )
    for path in [*folder.glob("bins/*/*"), *folder.glob("LICENSE")]:
        path.rename(folder / path.name)
    for plain in ("libllama.so", "libggml.so"):
        (folder / plain).symlink_to(next(folder.glob(plain.replace(".so", ".v*.so"))).name)


def _fetch(url: str, path: Path) -> None:
    import httpx2

    try:
        with (
            httpx2.stream("GET", url, follow_redirects=True, timeout=60.0) as reply,
            path.open("wb") as out,
        ):
            reply.raise_for_status()
            with log.progress(
                "downloading", float(reply.headers.get("content-length", 0)) or None, "bytes"
            ) as advance:
                for block in reply.iter_bytes(1 << 18):
                    out.write(block)
                    advance(len(block))
    except httpx2.HTTPError as error:
        raise StorageError(
            url,
            f"the download failed: {error}",
            "Check that this machine can reach it, then run the same command again",
        ) from None


def _single_file(folder: Path) -> Path:
    return next(path for path in folder.iterdir() if path.is_file())


def _unpack(archive: Path, expected: str, folder: Path, wanted: Callable[[str], bool]) -> None:
    """Unpack the wanted files of `archive` without its one top folder. Raises StorageError if it is
    not the archive that this version was tested with."""
    kind, _, _ = expected.partition("-")
    with archive.open("rb") as stream:
        digest = hashlib.file_digest(stream, kind).digest()
    if f"{kind}-{base64.b64encode(digest).decode()}" != expected:
        raise StorageError(
            f"download {archive.name!r}",
            "it is damaged or was changed: its hash differs",
            "Run the same command again",
        )
    with tarfile.open(archive) as tar:
        for member in tar:
            _, _, member_name = member.name.partition("/")
            if member_name and wanted(member.name):
                member.name = member_name
                tar.extract(member, folder, filter="data")


def _build(folder: Path) -> None:
    """Build llama-server, llama-quantize and the library for this machine's processor. Raises
    NotFound if a build tool is missing."""
    programs = {"cmake": ("cmake",), "a C++ compiler": ("c++", "g++", "clang++")}
    missing = [what for what, names in programs.items() if not any(map(shutil.which, names))]
    if missing and not (missing == ["a C++ compiler"] and os.environ.get("CXX")):
        raise NotFound(
            " and ".join(missing),
            "building llama.cpp needs them, and they are not on the PATH",
            f"{COMPILERS}, then run the same command again",
        )
    cores = usable_cores()
    log.say(f"building llama.cpp on {cores} cores; on two it takes about ten minutes")
    source, output = cache_folder() / SOURCE / LLAMA_CPP, folder / "made"
    fix = "Read the lines above; another compiler may be named by CXX"
    extra_flags = shlex.split(os.environ.get("CMAKE_ARGS", ""))  # as -DGGML_CUDA=ON
    _run(["cmake", "-S", str(source), "-B", str(output), *FLAGS, *extra_flags], "cmake", fix)
    targets = ["--target", "llama-server", "--target", "llama-quantize"]
    _run(
        ["cmake", "--build", str(output), "--parallel", str(cores), *targets],
        "the build of llama.cpp",
        fix,
        progress="building",
    )
    shutil.move(output / "bin", folder / "bin")
    shutil.copyfile(source / "LICENSE", folder / "LICENSE")
    shutil.rmtree(output)


def _run(
    command: Sequence[str], what: str, fix: str, progress: str = "", folder: str | None = None
) -> None:
    """Run a command to its end in `folder`, with a bar if the program reports its progress. Raises
    StorageError with its last lines if it fails.

    An interrupt ends the program and every process that it started.
    """
    last: deque[str] = deque(maxlen=15)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=folder,
            start_new_session=True,
        )
    except OSError as error:
        raise StorageError(what, str(error), fix) from error
    with process, log.progress(progress or what, 100 if progress else None, "%") as advance:
        shown = 0.0
        assert process.stdout  # noqa: S101
        try:
            for line in process.stdout:
                last.append(line.rstrip())
                if progress and (match := PROGRESS.match(line)):
                    now = 100 * int(match[1]) / int(match[2] or 100)
                    advance(max(0.0, now - shown))
                    shown = max(shown, now)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        if any("No module named pip" in line for line in last):
            raise MissingExtra(
                what,
                "this Python has no pip",
                "Run: python -m ensurepip, then the same command again",
            )
        raise StorageError(what, f"it ended with {process.returncode}:\n" + "\n".join(last), fix)
