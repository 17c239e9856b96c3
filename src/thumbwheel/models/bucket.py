"""A bucket of an object storage that speaks S3, below one prefix.

Objects are written by `obstore`, which creates a small one only where none of its key exists. What
obstore does not know is asked by `botocore`: versions of objects, object lock, uploads that nobody
finished. Both take endpoint, region and credentials from the variables and files of AWS.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core.errors import ConfigError, InputError, MissingExtra, StorageError
from thumbwheel.models.blob_store import CHUNK, UNFINISHED, unwritable_blob

if TYPE_CHECKING:
    from obstore.store import S3Credential

SCHEME = "s3://"
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
PREFIX = re.compile(r"[A-Za-z0-9!_.*'()-]+(/[A-Za-z0-9!_.*'()-]+)*")
SINGLE = 16 << 20
"""Bytes up to which an object is one request. A larger one is sent in parts."""
PARTS = 9_000
"""Parts of an object, at most: S3 takes 10,000."""
CONNECT_SECONDS = 5.0
RETRIES = 3
RENEWED = timedelta(minutes=15)
"""After this time the credentials are asked for again."""
NO_LOCK = ("ObjectLockConfigurationNotFoundError", "NotImplemented", "MethodNotAllowed", "501")
"""Answers of a bucket without object lock, and of storages that do not know it."""
UNKNOWN = ("NotImplemented", "MethodNotAllowed", "501")
"""Answers of a storage that does not know a request."""


@dataclass(frozen=True)
class BucketAddress:
    """`s3://bucket/prefix`."""

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, text: str) -> BucketAddress:
        """Read an address. Raises InputError.

        >>> BucketAddress.parse("s3://wheel/home/one/")
        BucketAddress(bucket='wheel', prefix='home/one')
        """
        bucket, _, prefix = text.removeprefix(SCHEME).partition("/")
        prefix = prefix.rstrip("/")
        is_prefix = not prefix or PREFIX.fullmatch(prefix)
        is_plain = not {".", ".."} & set(prefix.split("/"))
        is_bucket = BUCKET.fullmatch(bucket)
        if not text.startswith(SCHEME) or not is_bucket or not is_prefix or not is_plain:
            raise InputError(
                f"address {text!r}",
                "it names no bucket",
                "Write it as s3://BUCKET or s3://BUCKET/PREFIX",
            )
        return cls(bucket, prefix)

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


class Bucket:
    """The objects below the prefix of an address, by keys relative to it."""

    def __init__(self, address: BucketAddress, timeout: float) -> None:
        self.address, self._timeout = address, timeout
        for module in ("obstore", "botocore"):
            try:
                __import__(module)
            except ImportError:
                raise MissingExtra.of(f"blobs in {address}", module, "s3") from None

    @property
    def name(self) -> str:
        return str(self.address)

    # objects

    def upload(self, key: str, file: Path) -> bool:
        """Store a file under `key` unless there is an object already; return whether it was stored.
        Raises StorageError, and then nothing is stored."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        size = file.stat().st_size
        with self._explained(f"object {key!r}"):
            if size > SINGLE:
                # no storage creates an object of parts only where there is none
                if self._size(key) == size:
                    return False
                chunk = max(SINGLE, -(-size // PARTS))
                obstore.put(
                    self._store, key, file, use_multipart=True, chunk_size=chunk, max_concurrency=4
                )
                return True
            try:
                obstore.put(self._store, key, file.read_bytes(), mode="create")
            except AlreadyExistsError:
                return False
        return True

    def replace(self, key: str, file: Path) -> None:
        """Store a file under `key` in place of a damaged object. Raises StorageError."""
        import obstore

        with self._explained(f"object {key!r}"):
            obstore.put(self._store, key, file, chunk_size=SINGLE, max_concurrency=4)

    def download(self, key: str, file: Path) -> str | None:
        """Write an object into a new file and return its sha256; None if there is no object. Raises
        StorageError, and then there is no file."""
        import obstore

        digest = hashlib.sha256()
        try:
            with self._explained(f"object {key!r}"):
                try:
                    content = obstore.get(self._store, key)
                except FileNotFoundError as error:
                    self._require_bucket(error)
                    return None
                with _writing(file) as out:
                    for chunk in content.stream(min_chunk_size=CHUNK):
                        block = bytes(chunk)
                        digest.update(block)
                        out.write(block)
        except BaseException:
            file.unlink(missing_ok=True)
            raise
        return digest.hexdigest()

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return key -> bytes of the objects whose keys begin with `prefix` and a slash."""
        import obstore

        sizes: dict[str, int] = {}
        with self._explained(f"objects of {prefix!r}"):
            for batch in obstore.list(self._store, prefix=prefix):
                sizes.update({entry["path"]: entry["size"] for entry in batch})
        return sizes

    def exists(self, key: str) -> bool:
        """Return whether there is an object of this key. Raises StorageError."""
        with self._explained(f"object {key!r}"):
            return self._size(key) is not None

    def remove(self, prefix: str) -> int:
        """Delete the object `prefix` and those below it, with every version; return how many
        objects there were."""
        import obstore

        keys = list(self.sizes(prefix))
        with self._explained(f"object {prefix!r}"):
            if self._size(prefix) is not None:
                keys.append(prefix)
            if self._has_versions():
                self._remove_versions(prefix)
            else:
                obstore.delete(self._store, keys)
        return len(keys)

    def abandon_uploads(self) -> int:
        """End the uploads in parts that nobody finished; return how many."""
        count = 0
        with self._explained("unfinished uploads"):
            for page in self._pages("list_multipart_uploads", self._full("")):
                for upload in page.get("Uploads", ()):
                    names = {"Key": upload["Key"], "UploadId": upload["UploadId"]}
                    self._client.abort_multipart_upload(Bucket=self.address.bucket, **names)
                    count += 1
        return count

    # what a bucket has to be able to do

    def require_fit(self) -> None:
        """Try the bucket. Raises ConfigError if it overwrites what exists, or keeps what is
        deleted; StorageError if it cannot be reached, written or read."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        self._refuse_object_lock()
        key = f"trial/{secrets.token_hex(8)}"
        first, second = b"first", b"second"
        try:
            with self._explained("a new object"):
                obstore.put(self._store, key, first, mode="create")
                try:
                    obstore.put(self._store, key, second, mode="create")
                except AlreadyExistsError:
                    content = bytes(obstore.get(self._store, key).bytes())
                else:
                    content = second
        finally:
            with suppress(StorageError):
                self.remove(key)
        if content != first:
            raise ConfigError(
                f"blobs in {self.name}",
                "the object storage wrote over an object that was to be created (it ignores "
                "If-None-Match), so two hosts could overwrite each other",
                "Use a storage with conditional writes, or upgrade it",
            )

    def _refuse_object_lock(self) -> None:
        from botocore.exceptions import ClientError

        with self._explained("its object lock"):
            try:
                answer = self._client.get_object_lock_configuration(Bucket=self.address.bucket)
            except ClientError as error:
                if _code(error) in NO_LOCK:
                    return
                raise
        if answer.get("ObjectLockConfiguration", {}).get("ObjectLockEnabled") == "Enabled":
            raise ConfigError(
                f"blobs in {self.name}",
                "the bucket has object lock, so what people ask to be erased could not be deleted",
                "Name a bucket without object lock",
            )

    # inside

    @cached_property
    def _client(self) -> Any:
        import botocore.config
        import botocore.session

        # it says at each start where it found the credentials
        logging.getLogger("botocore").setLevel(logging.WARNING)
        session = botocore.session.Session()
        if session.get_credentials() is None:
            raise ConfigError(
                f"blobs in {self.name}",
                "there are no credentials for the object storage",
                "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile of AWS",
            )
        config = botocore.config.Config(
            s3={"addressing_style": "path"},
            connect_timeout=CONNECT_SECONDS,
            read_timeout=self._timeout,
            retries={"mode": "standard", "total_max_attempts": RETRIES},
        )
        region = session.get_config_variable("region") or "us-east-1"
        return session.create_client("s3", region_name=region, config=config)

    @cached_property
    def _store(self) -> Any:
        from obstore.store import S3Store

        client = self._client
        endpoint = client.meta.endpoint_url
        credentials = client._request_signer._credentials

        def current_credentials() -> S3Credential:
            frozen = credentials.get_frozen_credentials()
            return {
                "access_key_id": frozen.access_key,
                "secret_access_key": frozen.secret_key,
                "token": frozen.token,
                "expires_at": datetime.now(UTC) + RENEWED,
            }

        return S3Store(
            self.address.bucket,
            prefix=self.address.prefix or None,
            endpoint=endpoint,
            region=client.meta.region_name,
            virtual_hosted_style_request=False,
            credential_provider=current_credentials,
            client_options={
                "allow_http": endpoint.startswith("http://"),
                "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
                "timeout": timedelta(seconds=self._timeout),
            },
            retry_config={
                "max_retries": RETRIES,
                "retry_timeout": timedelta(seconds=2 * self._timeout),
            },
        )

    def _full(self, key: str) -> str:
        return f"{self.address.prefix}/{key}" if self.address.prefix else key

    def _size(self, key: str) -> int | None:
        import obstore

        try:
            return int(obstore.head(self._store, key)["size"])
        except FileNotFoundError:
            return None

    def _require_bucket(self, error: FileNotFoundError) -> None:
        """Raise the error again if the bucket itself is missing."""
        if "NoSuchBucket" in str(error):
            raise error

    def _has_versions(self) -> bool:
        from botocore.exceptions import ClientError

        try:
            answer = self._client.get_bucket_versioning(Bucket=self.address.bucket)
        except ClientError as error:
            if _code(error) in UNKNOWN:
                return False
            raise
        return answer.get("Status") in ("Enabled", "Suspended")

    def _remove_versions(self, prefix: str) -> None:
        full = self._full(prefix)
        for page in self._pages("list_object_versions", full):
            for entry in [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]:
                if entry["Key"] == full or entry["Key"].startswith(f"{full}/"):
                    names = {"Key": entry["Key"], "VersionId": entry["VersionId"]}
                    self._client.delete_object(Bucket=self.address.bucket, **names)

    def _pages(self, operation: str, prefix: str) -> Iterator[dict[str, Any]]:
        pages: Iterator[dict[str, Any]] = self._client.get_paginator(operation).paginate(
            Bucket=self.address.bucket, Prefix=prefix
        )
        yield from pages

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Raise errors of the libraries as StorageError."""
        from botocore.exceptions import BotoCoreError, ClientError
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, ClientError, BotoCoreError, FileNotFoundError, ValueError) as error:
            why, fix = self._reason(error)
            raise StorageError(f"{what} of {self.name}", why, fix) from error

    def _reason(self, error: Exception) -> tuple[str, str]:
        """Return why a request failed, and what to do."""
        endpoint = self._client.meta.endpoint_url
        text = str(error)
        if "NoSuchBucket" in text:
            fix = "Create it, or correct the setting blobs"
            return f"there is no bucket {self.address.bucket!r} at {endpoint}", fix
        if re.search(r"\b(401|403)\b|AccessDenied|Forbidden|SignatureDoesNotMatch", text):
            fix = "Name a bucket of yours, or give these credentials the right to read and write it"
            return "the object storage refuses these credentials", fix
        if re.search(r"timed out|timeout on endpoint|kind: Timeout", text, re.IGNORECASE):
            why = f"the object storage at {endpoint} did not answer in {self._timeout:g} s"
        elif status := _status(error):
            why = f"the object storage at {endpoint} answered {status}"
        else:
            why = f"the object storage at {endpoint} cannot be reached ({_first_line(text)})"
        return why, "Nothing was stored half. Try again when the object storage works"


@contextmanager
def _writing(file: Path) -> Iterator[Any]:
    """Open a new file for writing. Raises StorageError for a full disk."""
    try:
        with file.open("wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unwritable_blob(file.name.removeprefix(UNFINISHED), error) from error


def _status(error: Exception) -> str | None:
    """Return the HTTP status that the storage answered with, if it answered."""
    answer = getattr(error, "response", None)
    if answer is not None:
        return f"{answer['ResponseMetadata']['HTTPStatusCode']} {_code(error)}"
    status = re.search(r"status code: (\d{3}[A-Za-z ]*)", str(error))
    return status[1] if status else None


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _first_line(text: str) -> str:
    return text.split("\n")[0].rpartition(" - ")[2].strip()
