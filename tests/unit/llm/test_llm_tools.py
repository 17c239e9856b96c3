"""Where the programs of llama.cpp are looked for, and that getting them leaves nothing halfway."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command_line import Run
from tests.waiting import until
from thumbwheel.core.errors import NotFound, StorageError
from thumbwheel.llm import install, tools


@pytest.fixture(autouse=True)
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any of them."""
    monkeypatch.delenv("THUMBWHEEL_LLAMA_CPP", raising=False)
    monkeypatch.setattr(tools, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(install, "cache_folder", lambda: tmp_path / "cache")
    (tmp_path / "path").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "path"))


def program(path: Path, script: str = "echo 'version: 7 (abc)'") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_setting_then_path_then_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tools.find("llama-server") is None
    with pytest.raises(NotFound, match="thumbwheel tools install --build"):
        tools.require("llama-server")
    built = program(tmp_path / "cache" / tools.BUILD / "bin" / "llama-server")
    assert tools.find("llama-server") == tools.Tool("llama-server", built, "build")
    program(tmp_path / "path" / "llama-server", "echo nonsense; exit 3")
    on_path = tools.require("llama-server")
    assert (on_path.origin, on_path.version) == ("PATH", "does not run: it ended with 3")
    program(tmp_path / "own" / "build" / "bin" / "llama-server")
    monkeypatch.setenv("THUMBWHEEL_LLAMA_CPP", str(tmp_path / "own"))
    tool = tools.require("llama-server")
    assert (tool.origin, tool.version) == ("setting", "7 (abc)")
    monkeypatch.setenv("THUMBWHEEL_LLAMA_CPP", str(tmp_path / "nowhere"))
    with pytest.raises(NotFound, match="no such folder"):
        tools.find("llama-server")


def test_library_and_bindings_are_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (tmp_path / "path", tmp_path / "own"):
        for file in ("libllama.so", "llama_cpp/llama_cpp.py"):
            program(folder / file)
    monkeypatch.setenv("THUMBWHEEL_LLAMA_CPP", str(tmp_path / "own"))
    monkeypatch.chdir(tmp_path / "own")
    assert [tools.find(name) for name in tools.PAIR] == [None, None]
    for folder, file in ((tools.PREBUILT, "libllama.so"), (tools.SOURCE, "llama_cpp/llama_cpp.py")):
        program(tmp_path / "cache" / folder / file)
    assert [tools.require(name).origin for name in tools.PAIR] == ["download", "download"]


def test_an_old_converter_is_not_taken(tmp_path: Path) -> None:
    script = tmp_path / "cache" / tools.SOURCE / "vendor" / "llama.cpp" / "convert_hf_to_gguf.py"
    script.parent.mkdir(parents=True)
    script.write_text("")
    assert tools.find("converter") is None
    for part in ("conversion", "gguf-py"):
        (script.parent / part).mkdir()
    assert tools.require("converter").path == script


def test_the_list_says_what_helps(command_line: Run, tmp_path: Path) -> None:
    program(tmp_path / "path" / "llama-quantize", "echo usage: llama-quantize; exit 1")
    code, out, _ = command_line("tools", "list", "--json")
    listing = json.loads(out)
    assert code == 0
    assert listing["llama-server"] is None
    assert listing["llama-quantize"] == {
        "path": str(tmp_path / "path" / "llama-quantize"),
        "origin": "PATH",
        "version": "states none",
    }
    _, out, _ = command_line("tools", "list")
    assert "missing" in out


def test_a_program_that_the_library_replaces_is_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tools.fix("llama-quantize").startswith("Run: thumbwheel tools install (")
    library = tools.Tool("library", tmp_path, "download")
    monkeypatch.setattr(tools, "find", lambda name: library if name == "library" else None)
    assert tools.fix("llama-quantize").startswith("Not needed")


def archive(
    content: bytes = b"library", name: str = "package/bins/linux-x64/libllama.v1.so"
) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for entry in (
            name,
            "package/bins/linux-x64/libggml.v1.so",
            "package/LICENSE",
            "package/bins/linux-x64/other.node",
        ):
            info = tarfile.TarInfo(entry)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes, str], None]:
    """Puts an `npm` on the PATH that packs these bytes, and pins their hash unless it is told
    another."""
    monkeypatch.setattr(install.platform, "system", lambda: "Linux")
    monkeypatch.setattr(install.platform, "machine", lambda: "x86_64")

    def pack(content: bytes, script: str = "") -> None:
        (tmp_path / "packed").write_bytes(content)
        copy = f'/bin/cp {tmp_path / "packed"} "$5/library.tgz"'
        program(tmp_path / "path" / "npm", script or copy)
        digest = base64.b64encode(hashlib.sha512(archive()).digest()).decode()
        monkeypatch.setitem(install.NPM, ("Linux", "x86_64"), ("linux-x64", f"sha512-{digest}"))

    return pack


def get_library() -> Path:
    install._install_folder(tools.PREBUILT, install._get_library)
    return install.cache_folder() / tools.PREBUILT


def test_the_library_is_unpacked_whole(npm: Callable[[bytes, str], None]) -> None:
    npm(archive(), "")
    folder = get_library()
    assert (folder / "libllama.so").read_bytes() == b"library"
    assert {path.name for path in folder.iterdir()} == {
        "libllama.so",
        "libllama.v1.so",
        "libggml.so",
        "libggml.v1.so",
        "LICENSE",
        "bins",
    }
    assert tools.require("library").origin == "download"
    assert get_library() == folder, "a second time changes nothing"


@pytest.mark.parametrize(
    "broken", [archive()[:80], b"", archive(b"other")], ids=["cut off", "empty", "another"]
)
def test_a_broken_download_leaves_nothing(npm: Callable[[bytes, str], None], broken: bytes) -> None:
    npm(broken, "")
    with pytest.raises(StorageError, match="damaged or was changed"):
        get_library()
    assert list(install.cache_folder().iterdir()) == []


def test_a_failed_download_says_its_last_words(npm: Callable[[bytes, str], None]) -> None:
    npm(b"", "echo getaddrinfo ENOTFOUND; exit 1")
    with pytest.raises(StorageError, match=r"(?s)npm pack: it ended with 1.*ENOTFOUND"):
        get_library()
    assert list(install.cache_folder().iterdir()) == []


def test_an_archive_cannot_write_elsewhere(
    npm: Callable[[bytes, str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bad = archive(name="package/bins/../../../lib-escaped")
    npm(bad, "")
    digest = base64.b64encode(hashlib.sha512(bad).digest()).decode()
    monkeypatch.setitem(install.NPM, ("Linux", "x86_64"), ("linux-x64", f"sha512-{digest}"))
    with pytest.raises(StorageError):
        get_library()
    assert not list(tmp_path.rglob("lib-escaped"))


def test_a_python_that_cannot_unpack_safely_downloads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(tarfile, "data_filter")
    for make in (install._get_source, install._get_library):
        with pytest.raises(NotFound, match=r"Use Python 3\.11\.4 or newer"):
            make(install.cache_folder())


def test_a_folder_that_is_not_whole_is_made_anew(
    npm: Callable[[bytes, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm(archive(), "")
    source(tmp_path)
    (tmp_path / "cache" / tools.PREBUILT).mkdir()
    (tmp_path / "cache" / tools.PREBUILT / "libllama.so").write_text("half")
    install.install()
    assert tools.require("library").path.read_bytes() == b"library"
    assert tools.require("converter").path.is_file()


def test_an_interruption_ends_what_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = program(
        tmp_path / "make", f"/bin/sleep 600 & echo $! > {tmp_path}/child; echo '[ 1%]'; wait"
    )

    class Interrupted:
        def match(self, line: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(install, "PROGRESS", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        install._run([str(script)], "make", "", progress="building")
    state = Path("/proc") / (tmp_path / "child").read_text().strip() / "stat"
    until(lambda: not state.exists() or state.read_text().split()[2] == "Z")


def source(tmp_path: Path) -> None:
    """A source package in the cache."""
    folder = tmp_path / "cache" / tools.SOURCE
    for part in ("vendor/llama.cpp/conversion", "vendor/llama.cpp/gguf-py", "llama_cpp"):
        (folder / part).mkdir(parents=True)
    for name in ("convert_hf_to_gguf.py", "CMakeLists.txt", "LICENSE"):
        (folder / "vendor" / "llama.cpp" / name).write_text("")
    (folder / "llama_cpp" / "llama_cpp.py").write_text("")


def test_a_missing_compiler_is_named_and_nothing_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source(tmp_path)
    monkeypatch.setattr(install, "find", lambda name: tools.Tool(name, tmp_path / name, "PATH"))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(
        NotFound, match=r"cmake and a C\+\+ compiler.*sudo apt-get install cmake g\+\+"
    ):
        install.install(build=True)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [tools.SOURCE]


def test_a_build_is_put_in_its_place_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source(tmp_path)
    monkeypatch.setattr(install, "find", lambda name: tools.Tool(name, tmp_path / name, "PATH"))
    program(tmp_path / "path" / "c++")
    build = (
        'echo "[ 50%] Building"; /bin/mkdir "$2/bin"; echo > "$2/bin/llama-server"; echo > '
        '"$2/bin/llama-quantize"'
    )
    make = 'if [ "$1" = --build ]; then ' + build + '; LAST; else /bin/mkdir -p "$4"; fi'
    program(tmp_path / "path" / "cmake", make.replace("LAST", "echo error: no space >&2; exit 2"))
    with pytest.raises(StorageError, match=r"(?s)ended with 2.*no space"):
        install.install(build=True)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [tools.SOURCE]
    program(tmp_path / "path" / "cmake", make.replace("LAST", "true"))
    install.install(build=True)
    assert sorted(os.listdir(tmp_path / "cache" / tools.BUILD / "bin")) == [
        "llama-quantize",
        "llama-server",
    ]
    assert tools.require("llama-server").origin == "build"
