"""Buckets that are missing, somebody else's, slow, broken, or unfit: each a clear error, and
nothing stored half."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.s3_proxy import Request, S3Proxy
from tests.servers.s3_server import S3Server
from thumbwheel.core.errors import ConfigError, InputError, StorageError
from thumbwheel.models.blob_cache import BlobCache, release
from thumbwheel.models.blob_stores.bucket import BucketStore
from thumbwheel.models.bucket import SINGLE, Bucket, BucketAddress

SHORT = 2.0
"""Seconds that a client waits for a storage which says nothing."""


@pytest.fixture
def proxy(bucket: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    with S3Proxy(s3_server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


def bucket_at(address: str, seconds: float = 60.0) -> Bucket:
    return Bucket(BucketAddress.parse(address), seconds)


def store_at(address: str, folder: Path, limit: int = 10**9, seconds: float = 60.0) -> BucketStore:
    return BucketStore(bucket_at(address, seconds), BlobCache(folder / "cache", limit))


def put(store: BucketStore, content: bytes) -> str:
    return store.put(io.BytesIO(content), "a test")


@pytest.mark.parametrize(
    "address",
    ["", "wheel", "s3://", "s3://UPPER", "s3://wheel//x", "s3://wheel/../x", "http://wheel/x"],
    ids=["empty", "no scheme", "no name", "capitals", "no part", "way out", "http"],
)
def test_an_address_names_a_bucket(address: str) -> None:
    with pytest.raises(InputError, match="it names no bucket"):
        BucketAddress.parse(address)


def test_a_sound_bucket_is_fit_and_nothing_stays_of_the_trial(
    bucket: str, s3_server: S3Server
) -> None:
    bucket_at(f"s3://{bucket}/home").require_fit()
    assert "Contents" not in s3_server.client.list_objects_v2(Bucket=bucket)


def test_a_storage_that_ignores_the_condition_is_refused(
    proxy: S3Proxy, bucket: str, s3_server: S3Server
) -> None:
    proxy.dropped_headers.add("if-none-match")
    with pytest.raises(ConfigError, match="ignores If-None-Match"):
        bucket_at(f"s3://{bucket}").require_fit()
    assert "Contents" not in s3_server.client.list_objects_v2(Bucket=bucket)


def test_a_bucket_with_object_lock_is_refused(s3_server: S3Server, bucket: str) -> None:
    locked = s3_server.bucket(ObjectLockEnabledForBucket=True)
    with pytest.raises(ConfigError, match="has object lock"):
        bucket_at(f"s3://{locked}").require_fit()
    versions = s3_server.client.list_object_versions(Bucket=locked)
    assert "Versions" not in versions


def test_a_missing_bucket_says_so(bucket: str, tmp_path: Path) -> None:
    gone = f"s3://{bucket}-gone"
    with pytest.raises(StorageError, match="there is no bucket"):
        bucket_at(gone).require_fit()
    store = store_at(gone, tmp_path)
    with pytest.raises(StorageError, match="there is no bucket"):
        put(store, b"weights")
    with pytest.raises(StorageError, match="there is no bucket"):
        store.path("0" * 64)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def refuse(request: Request) -> bool:
    return request.answer(403, "AccessDenied")


def overloaded(request: Request) -> bool:
    return request.answer(503, "SlowDown")


def hang(request: Request) -> bool:
    return request.hang()


def cut(request: Request) -> bool:
    return request.cut()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "why"),
    [
        pytest.param(refuse, "refuses these credentials", id="foreign"),
        pytest.param(overloaded, "answered 503", id="overloaded"),
        pytest.param(hang, "did not answer in 2 s", id="slow"),
        pytest.param(cut, "cannot be reached", id="cut off"),
    ],
)
def test_a_bucket_that_does_not_work_is_a_clear_error_and_leaves_nothing(
    fault: object, why: str, proxy: S3Proxy, bucket: str, s3_server: S3Server, tmp_path: Path
) -> None:
    address = f"s3://{bucket}"
    sha256 = put(store_at(address, tmp_path), b"stored before")
    store = store_at(address, tmp_path, seconds=SHORT if fault is hang else 60.0)
    store._cache.remove(sha256)
    proxy.fault = fault  # type: ignore[assignment]
    with pytest.raises(StorageError, match=why):
        put(store, b"weights")
    with pytest.raises(StorageError, match=why):
        store.path(sha256)
    with pytest.raises(StorageError, match=why):
        store.bucket.require_fit()
    proxy.fault = None
    store = store_at(address, tmp_path)
    assert list(store.sizes()) == [sha256]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert store.path(sha256).read_bytes() == b"stored before"


@pytest.mark.slow
def test_a_storage_that_goes_in_mid_upload_leaves_no_object(
    proxy: S3Proxy, bucket: str, s3_server: S3Server, tmp_path: Path
) -> None:
    parts = []

    def fault(request: Request) -> bool:
        if "partNumber" in request.path:
            parts.append(request.path)
        return bool(parts) and request.cut()

    store = store_at(f"s3://{bucket}", tmp_path)
    content = os.urandom(SINGLE + 100)
    proxy.fault = fault
    with pytest.raises(StorageError, match="cannot be reached"):
        put(store, content)
    assert parts
    proxy.fault = None
    assert store.sizes() == {}
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    # the storage was away, so it still has the upload, until somebody sweeps
    assert s3_server.client.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert store.sweep() == 1
    assert "Uploads" not in s3_server.client.list_multipart_uploads(Bucket=bucket)
    sha256 = put(store, content)
    assert list(store.sizes()) == [sha256]


def test_without_credentials_nothing_is_asked(
    bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="there are no credentials"):
        bucket_at(f"s3://{bucket}").require_fit()


def test_every_version_of_what_is_removed_goes(
    bucket: str, s3_server: S3Server, tmp_path: Path
) -> None:
    client = s3_server.client
    enabled = {"Status": "Enabled"}
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration=enabled)
    store = store_at(f"s3://{bucket}/home", tmp_path)
    sha256, other = put(store, b"weights"), put(store, b"others")
    key = f"home/sha256/{sha256[:2]}/{sha256}"
    client.put_object(Bucket=bucket, Key=key, Body=b"an older one")
    client.delete_object(Bucket=bucket, Key=key)
    client.put_object(Bucket=bucket, Key=key, Body=b"weights")
    assert len(client.list_object_versions(Bucket=bucket, Prefix=key)["Versions"]) == 3
    assert store.remove(sha256)
    answer = client.list_object_versions(Bucket=bucket)
    assert [entry["Key"] for entry in answer["Versions"]] == [f"home/sha256/{other[:2]}/{other}"]
    assert "DeleteMarkers" not in answer


def test_a_damaged_file_of_the_cache_goes_and_is_fetched_again(bucket: str, tmp_path: Path) -> None:
    store = store_at(f"s3://{bucket}", tmp_path)
    sha256 = put(store, b"weights")
    path = store.path(sha256)
    path.write_bytes(b"Weights")
    with pytest.raises(StorageError, match="in the cache of this host has the hash"):
        store.path(sha256)
    assert not path.exists()
    assert store.path(sha256).read_bytes() == b"weights"


def test_the_cache_is_bounded_and_keeps_what_is_in_use(bucket: str, tmp_path: Path) -> None:
    store = store_at(f"s3://{bucket}", tmp_path, limit=2_500)
    hashes = [put(store, bytes([number]) * 1_000) for number in range(3)]
    paths = [store.path(sha256) for sha256 in hashes]
    assert all(path.exists() for path in paths), "this process uses them"
    release(paths[0])
    release(paths[2])
    newest = store.path(put(store, b"x" * 1_000))
    assert [path.exists() for path in paths] == [False, True, False]
    assert newest.exists()
    assert len(store.sizes()) == 4
    assert store.path(hashes[0]).read_bytes() == bytes(1_000), "it is fetched again"


def test_blobs_that_no_host_uses_any_more_leave_the_cache(bucket: str, tmp_path: Path) -> None:
    store = store_at(f"s3://{bucket}", tmp_path)
    used, erased = put(store, b"used"), put(store, b"erased")
    assert store.forget_cached({used}) == 1
    assert store._cache.hashes() == [used]
    assert erased in store.sizes()
