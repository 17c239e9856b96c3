"""Content-addressed artifacts: the hash is the name, damage is seen, a crash or a full disk leaves
nothing that looks whole."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thumbwheel.core.errors import StorageError
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.blob_store import CHUNK
from thumbwheel.models.blob_stores.folder import FolderStore


@pytest.fixture
def blobs(tmp_path: Path) -> Artifacts:
    return Artifacts(FolderStore(tmp_path / "blobs"))


def stored_files(folder: Path) -> list[Path]:
    return [
        path
        for path in (folder / "sha256").rglob("*")
        if path.is_file() and not path.name.startswith("incoming-")
    ]


@settings(max_examples=30, deadline=None)
@given(content=st.binary(max_size=200))
def test_the_hash_is_the_name_and_comes_back(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    blobs = Artifacts(FolderStore(tmp_path_factory.mktemp("blobs")))
    digest = blobs.put_bytes(content)
    assert digest == hashlib.sha256(content).hexdigest()
    assert blobs.path(digest).read_bytes() == content


def test_files_over_one_chunk_and_folders(blobs: Artifacts, tmp_path: Path) -> None:
    source = tmp_path / "adapter" / "inner"
    source.mkdir(parents=True)
    (source / "big.bin").write_bytes(random.Random(0).randbytes(2 * CHUNK + 17))
    (source.parent / "config.json").write_text("{}")
    files = blobs.put_folder(source.parent)
    assert list(files) == ["config.json", "inner/big.bin"]
    out = blobs.checkout(files, tmp_path / "out")
    assert (out / "inner/big.bin").read_bytes() == (source / "big.bin").read_bytes()
    assert blobs.put_folder(out) == files


def test_the_same_content_is_stored_once(blobs: Artifacts, tmp_path: Path) -> None:
    assert blobs.put_bytes(b"same") == blobs.put_bytes(b"same")
    assert len(stored_files(tmp_path / "blobs")) == 1
    assert not list((tmp_path / "blobs").rglob("incoming-*"))


@pytest.mark.parametrize("damage", [b"", b"weight", b"weights and more", b"Weights"])
def test_damage_is_seen_on_every_read_and_mended_by_storing_again(
    blobs: Artifacts, tmp_path: Path, damage: bytes
) -> None:
    digest = blobs.put_bytes(b"weights")
    blobs.path(digest).write_bytes(damage)
    with pytest.raises(StorageError, match="damaged or changed"):
        blobs.path(digest)
    with pytest.raises(StorageError, match="damaged or changed"):
        blobs.checkout({"w.bin": digest}, tmp_path / "out")
    assert not (tmp_path / "out" / "w.bin").exists()
    assert blobs.put_bytes(b"weights") == digest
    assert blobs.path(digest).read_bytes() == b"weights"


def test_a_missing_blob_says_so(blobs: Artifacts) -> None:
    with pytest.raises(StorageError, match="not in this home"):
        blobs.path("0" * 64)


@pytest.mark.parametrize(
    "bad", ["", "abc", "../" * 20 + "etc", "A" * 64, "g" * 64, "0" * 63 + "/", "0" * 65]
)
def test_only_a_hash_names_a_blob(blobs: Artifacts, bad: str) -> None:
    with pytest.raises(StorageError, match="not a hexadecimal sha256"):
        blobs.path(bad)


@pytest.mark.parametrize(
    "name", ["../out.bin", "a/../../out.bin", "/etc/thumbwheel-test", "", ".", "a/.."]
)
def test_traversal_names_are_refused(blobs: Artifacts, tmp_path: Path, name: str) -> None:
    digest = blobs.put_bytes(b"x")
    with pytest.raises(StorageError, match="leads outside its folder"):
        blobs.checkout({name: digest}, tmp_path / "target")
    assert not (tmp_path / "out.bin").exists()
    assert not Path("/etc/thumbwheel-test").exists()


def test_a_link_inside_the_target_is_no_way_out(blobs: Artifacts, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "link").symlink_to(tmp_path)
    with pytest.raises(StorageError, match="leads outside its folder"):
        blobs.checkout({"link/out.bin": blobs.put_bytes(b"x")}, tmp_path / "target")


def test_many_writers_and_readers_at_once(blobs: Artifacts, tmp_path: Path) -> None:
    contents = [bytes([number]) * 50_000 for number in range(8)]

    def work(number: int) -> bool:
        content = contents[number % len(contents)]
        digest = blobs.put_bytes(content)
        blobs.checkout({"one.bin": digest}, tmp_path / "out" / str(number % len(contents)))
        return blobs.path(digest).read_bytes() == content

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))
    assert len(stored_files(tmp_path / "blobs")) == len(contents)
    assert not list(tmp_path.rglob("incoming-*"))
    assert sorted(path.name for path in (tmp_path / "out").rglob("*") if path.is_file()) == [
        "one.bin"
    ] * len(contents)


WRITER = """
import sys
from pathlib import Path
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.blob_stores.folder import FolderStore
blobs, number = Artifacts(FolderStore(Path(sys.argv[1]))), 0
while True:
    blobs.put_bytes(str(number).encode() * 300_000)
    print(number, flush=True)
    number += 1
"""


def run(code: str, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )


def test_kill_9_leaves_only_whole_blobs(tmp_path: Path) -> None:
    writers = [run(WRITER, str(tmp_path / "blobs")) for _ in range(2)]
    for writer in writers:
        assert writer.stdout
        writer.stdout.readline()
    time.sleep(random.Random().uniform(0.05, 0.2))
    acknowledged = set()
    for writer in writers:
        writer.send_signal(signal.SIGKILL)
        acknowledged |= {
            int(line)
            for line in writer.communicate()[0].splitlines(keepends=True)
            if line.endswith("\n")
        }
    for path in stored_files(tmp_path / "blobs"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    blobs = Artifacts(FolderStore(tmp_path / "blobs"))
    for number in acknowledged:
        content = str(number).encode() * 300_000
        assert blobs.path(hashlib.sha256(content).hexdigest()).read_bytes() == content


FULL = """
import resource, signal, sys
from pathlib import Path
from thumbwheel.core.errors import StorageError
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.blob_stores.folder import FolderStore
blobs = Artifacts(FolderStore(Path(sys.argv[1])))
small = blobs.put_bytes(b"small")
big = blobs.put_bytes(b"x" * 200_000)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
out = Path(sys.argv[1]) / "out"
for attempt in (lambda: blobs.put_bytes(b"y" * 200_000), lambda: blobs.checkout({"f": big}, out)):
    try:
        attempt()
    except StorageError as error:
        print(error.exit_code, "cannot be written" in str(error))
assert blobs.path(small).read_bytes() == b"small"
"""


def test_a_full_disk_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    process = run(FULL, str(tmp_path / "blobs"))
    assert process.communicate()[0].split("\n")[:2] == ["7 True", "7 True"]
    assert process.returncode == 0
    assert len(stored_files(tmp_path / "blobs")) == 2
    assert not list((tmp_path / "blobs").rglob("incoming-*"))
    assert not [path for path in (tmp_path / "blobs" / "out").rglob("*") if path.is_file()]


def test_a_home_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("a file")
    with pytest.raises(StorageError, match="cannot be written"):
        Artifacts(FolderStore(tmp_path / "blobs")).put_bytes(b"x")
