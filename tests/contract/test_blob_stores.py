"""What every blob store fulfils: the hash is the name, damage is seen, and nothing is stored half.

The bucket is moto's; with THUMBWHEEL_TEST_S3=s3://BUCKET/PREFIX it is that one, at the endpoint and
with the credentials of AWS's variables.
"""

from __future__ import annotations

import hashlib
import io
import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.servers.s3_server import named_store
from thumbwheel.core.errors import StorageError
from thumbwheel.models.blob_cache import BlobCache
from thumbwheel.models.blob_store import CHUNK, BlobStore, relative_path
from thumbwheel.models.blob_stores.bucket import BucketStore
from thumbwheel.models.blob_stores.folder import FolderStore
from thumbwheel.models.bucket import SINGLE, Bucket, BucketAddress

GIGABYTE = 10**9


@pytest.fixture
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """A place in a bucket that nobody else uses; it is empty again afterwards."""
    base = named_store() or f"s3://{request.getfixturevalue('bucket')}"
    address = f"{base}/contract-{uuid.uuid4().hex[:8]}"
    yield address
    if named_store():
        bucket = Bucket(BucketAddress.parse(address), 60)
        bucket.remove("sha256")


@pytest.fixture(params=["folder", "bucket"])
def arguments(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """What `opened` opens a store by: also another process."""
    if request.param == "folder":
        return [str(tmp_path / "blobs")]
    return [str(tmp_path / "cache"), request.getfixturevalue("address")]


def opened(arguments: list[str]) -> BlobStore:
    folder, *address = arguments
    if not address:
        return FolderStore(Path(folder))
    bucket = Bucket(BucketAddress.parse(address[0]), 60)
    return BucketStore(bucket, BlobCache(Path(folder), GIGABYTE))


@pytest.fixture
def blobs(arguments: list[str]) -> BlobStore:
    return opened(arguments)


def put(blobs: BlobStore, content: bytes) -> str:
    return blobs.put(io.BytesIO(content), "a test")


def damage(blobs: BlobStore, sha256: str, content: bytes) -> None:
    """Put other content in the place of a blob, behind the back of the store."""
    if isinstance(blobs, BucketStore):
        import obstore

        key = relative_path(sha256).as_posix()
        obstore.put(blobs.bucket._store, key, content, mode="overwrite")
        blobs._cache.remove(sha256)
    else:
        (blobs.files / relative_path(sha256)).write_bytes(content)


def unfinished(blobs: BlobStore) -> list[Path]:
    return list(blobs.files.rglob("incoming-*"))


@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 17], ids=["empty", "one", "chunk", "more"])
def test_the_hash_is_the_name_and_the_content_comes_back(blobs: BlobStore, size: int) -> None:
    content = random.Random(size).randbytes(size)
    sha256 = put(blobs, content)
    assert sha256 == hashlib.sha256(content).hexdigest()
    assert blobs.path(sha256).read_bytes() == content
    assert blobs.path(sha256).is_relative_to(blobs.files)
    assert blobs.sizes() == {sha256: size}


def test_another_process_reads_what_one_stored(blobs: BlobStore, arguments: list[str]) -> None:
    sha256 = put(blobs, b"weights")
    if isinstance(blobs, BucketStore):
        blobs._cache.remove(sha256)  # as on another host
    assert opened(arguments).path(sha256).read_bytes() == b"weights"


@pytest.mark.slow
def test_a_large_blob_goes_in_parts(blobs: BlobStore, arguments: list[str]) -> None:
    content = random.Random(1).randbytes(SINGLE + CHUNK)
    sha256 = put(blobs, content)
    assert put(blobs, content) == sha256
    damage(blobs, sha256, content[:-1])
    with pytest.raises(StorageError, match="damaged or changed"):
        blobs.path(sha256)
    assert put(blobs, content) == sha256
    assert hashlib.sha256(blobs.path(sha256).read_bytes()).hexdigest() == sha256
    if isinstance(blobs, BucketStore):
        blobs._cache.remove(sha256)
        assert hashlib.sha256(blobs.path(sha256).read_bytes()).hexdigest() == sha256
    assert not unfinished(blobs)


@pytest.mark.parametrize(
    "content",
    [b"", b"weight", b"weights and more", b"Weights"],
    ids=["empty", "short", "long", "case"],
)
def test_damage_is_seen_on_every_read_and_mended_by_storing_again(
    blobs: BlobStore, content: bytes
) -> None:
    sha256 = put(blobs, b"weights")
    damage(blobs, sha256, content)
    for _ in range(2):
        with pytest.raises(StorageError, match="damaged or changed"):
            blobs.path(sha256)
    assert put(blobs, b"weights") == sha256
    assert blobs.path(sha256).read_bytes() == b"weights"
    assert not unfinished(blobs)


def test_a_missing_blob_says_so(blobs: BlobStore) -> None:
    with pytest.raises(StorageError, match="not in this home"):
        blobs.path("0" * 64)
    assert blobs.sizes() == {}
    assert not unfinished(blobs)


@pytest.mark.parametrize(
    "name",
    ["", "abc", "../" * 20 + "etc", "A" * 64, "g" * 64, "0" * 63 + "/", "0" * 65],
    ids=["empty", "short", "way out", "capitals", "no digit", "slash", "long"],
)
def test_only_a_hash_names_a_blob(blobs: BlobStore, name: str) -> None:
    for use in (blobs.path, blobs.remove):
        with pytest.raises(StorageError, match="not a hexadecimal sha256"):
            use(name)


def test_what_is_removed_is_gone(blobs: BlobStore, arguments: list[str]) -> None:
    sha256, other = put(blobs, b"weights"), put(blobs, b"others")
    assert blobs.remove(sha256)
    assert not blobs.remove(sha256)
    for store in (blobs, opened(arguments)):
        with pytest.raises(StorageError, match="not in this home"):
            store.path(sha256)
    assert list(blobs.sizes()) == [other]
    assert put(blobs, b"weights") == sha256
    assert blobs.path(sha256).read_bytes() == b"weights"


def test_many_writers_and_readers_at_once(blobs: BlobStore) -> None:
    contents = [bytes([number]) * 50_000 for number in range(6)]

    def work(number: int) -> bool:
        content = contents[number % len(contents)]
        return blobs.path(put(blobs, content)).read_bytes() == content

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(24)))
    assert sorted(blobs.sizes().values()) == [50_000] * len(contents)
    assert not unfinished(blobs)


class Breaking(io.BytesIO):
    """A source that fails in the middle."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > 0:
            raise OSError(5, "Input/output error")
        return super().read(10)


def test_a_source_that_fails_leaves_nothing(blobs: BlobStore) -> None:
    with pytest.raises(StorageError, match="Input/output error"):
        blobs.put(Breaking(b"weights" * 100), "a bad disk")
    assert blobs.sizes() == {}
    assert not unfinished(blobs)


WRITER = """
import io, sys
from tests.contract.test_blob_stores import opened
blobs, number = opened(sys.argv[1:]), 0
while True:
    blobs.put(io.BytesIO(str(number).encode() * 300_000), "a writer")
    print(number, flush=True)
    number += 1
"""


def test_kill_9_leaves_only_whole_blobs_and_all_that_were_stored(
    blobs: BlobStore, arguments: list[str]
) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path])}
    command = [sys.executable, "-c", WRITER, *arguments]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert writer.stdout
    writer.stdout.readline()
    writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    numbers = [0, 1]
    lines = writer.communicate()[0].splitlines(keepends=True)
    numbers += [int(line) for line in lines if line.endswith("\n")]
    fresh = opened(arguments)
    for sha256 in fresh.sizes():
        assert hashlib.sha256(fresh.path(sha256).read_bytes()).hexdigest() == sha256
    for number in numbers:
        content = str(number).encode() * 300_000
        assert fresh.path(hashlib.sha256(content).hexdigest()).read_bytes() == content
    fresh.sweep()
    assert not unfinished(fresh)
