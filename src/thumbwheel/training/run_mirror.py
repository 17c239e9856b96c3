"""Brings what a run leaves behind on the host that computes it into the folder of the run.

The worker reads, uploads and records from its own folder, as for a run of its own host, so the host
that computes has nothing to write to the database or a bucket. Checkpoints appear whole or not at
all; of a log that grows only its new bytes are read. The status comes last: all that it speaks of
is there already.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from thumbwheel.training.checkpoint import PREFIX
from thumbwheel.training.rundir import SPEC, RunDir

CHUNK = 4 << 20
"""Bytes of one transfer."""
LOCK = "lock"
OF_RESUMING = ("fitted.json", "metrics.jsonl")
"""Files beside the checkpoints that a resumed run needs."""


@dataclass(frozen=True)
class FileState:
    """What tells whether a file has changed."""

    inode: int
    size: int
    modified: int


class RemoteFolder(Protocol):
    """The folder of a run on the host that computes it. Paths are relative."""

    def listing(self) -> dict[str, FileState]:
        """Return path -> state of every file."""

    def read(self, path: str, offset: int, size: int) -> bytes | None:
        """Return up to `size` bytes of a file, or None if it is gone."""

    def write(self, path: str, offset: int, content: bytes) -> None:
        """Write into a file; create it and its folder."""


@dataclass
class LocalFolder:
    """The same, on the host that has it."""

    path: Path

    def listing(self) -> dict[str, FileState]:
        """Return path -> state of every file."""
        states: dict[str, FileState] = {}
        for folder, _, names in os.walk(self.path):
            for name in names:
                path = Path(folder) / name
                try:
                    stat = path.stat()
                except FileNotFoundError:  # a run replaces its files
                    continue
                relative = path.relative_to(self.path).as_posix()
                states[relative] = FileState(stat.st_ino, stat.st_size, stat.st_mtime_ns)
        return states

    def read(self, path: str, offset: int, size: int) -> bytes | None:
        """Return up to `size` bytes of a file, or None if it is gone."""
        try:
            with (self.path / path).open("rb") as stream:
                stream.seek(offset)
                return stream.read(size)
        except FileNotFoundError:
            return None

    def write(self, path: str, offset: int, content: bytes) -> None:
        """Write into a file; create it and its folder."""
        target = self.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("r+b" if offset else "wb") as stream:
            stream.seek(offset)
            stream.write(content)


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def send(run: RunDir, remote: RemoteFolder) -> None:
    """Give a host what it needs to go on with the run: its checkpoints, and its metrics so far."""
    paths = [run.path / name for name in OF_RESUMING]
    paths += sorted(run.checkpoints.glob(f"{PREFIX}*/*"))
    for path in paths:
        if not path.is_file():
            continue
        name = path.relative_to(run.path).as_posix()
        with path.open("rb") as stream:
            offset = 0
            while content := stream.read(CHUNK):
                remote.write(name, offset, content)
                offset += len(content)


@dataclass
class RunMirror:
    """Keeps the folder of a run as one host has it. `status` is the name of that file there."""

    run: RunDir
    remote: RemoteFolder
    status: str = "status.json"
    is_first: bool = True
    """Whether the host has the first rank, which writes all but status and log of the others."""
    _seen: dict[str, FileState] = field(default_factory=dict)

    def skip_present(self) -> None:
        """Take what the host has now for what is in the folder already."""
        self._seen = self.remote.listing()

    def sync(self) -> None:
        """Bring what is new."""
        # Read before the listing: whatever it says is done is in the listing.
        status = self.remote.read(self.status, 0, CHUNK)
        files = self.remote.listing()
        # The metrics come before the checkpoints, and so no checkpoint is here without its lines.
        for name, state in files.items():
            is_status = name.startswith("status") and name.endswith(".json")
            is_of_rank = is_status or name.startswith("log")
            if "/" in name or name in (SPEC, LOCK, self.status) or name.startswith("."):
                continue
            if (is_of_rank or self.is_first) and self._seen.get(name) != state:
                self._bring(name, state)
        if self.is_first:
            self._bring_folders(files)
        if status:
            _replace(self.run.path / self.status, status)

    def _bring_folders(self, files: dict[str, FileState]) -> None:
        """Bring the checkpoints that are new, remove those that are gone, bring the adapter."""
        folders: dict[str, dict[str, FileState]] = {}
        for name, state in files.items():
            folder, _, _ = name.rpartition("/")
            if folder.startswith(f"checkpoints/{PREFIX}") or folder == "adapter":
                folders.setdefault(folder, {})[name] = state
        for folder, states in folders.items():
            is_same = all(self._seen.get(name) == state for name, state in states.items())
            if not (is_same and (self.run.path / folder).is_dir()):
                self._bring_folder(folder, states)
        for path in self.run.checkpoints.glob(f"{PREFIX}*"):
            if f"checkpoints/{path.name}" not in folders:
                shutil.rmtree(path, ignore_errors=True)

    def _bring_folder(self, folder: str, states: dict[str, FileState]) -> None:
        final = self.run.path / folder
        temporary = final.with_name(f"tmp-{final.name}")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for name in states:
            with (temporary / Path(name).name).open("wb") as stream:
                for content in self._content(name, 0):
                    if content is None:  # the run has removed the checkpoint meanwhile
                        shutil.rmtree(temporary)
                        return
                    stream.write(content)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(temporary, final)
        self._seen |= states

    def _bring(self, name: str, state: FileState) -> None:
        """Bring a file: what was appended to it, or all of one that is another."""
        target, before = self.run.path / name, self._seen.get(name)
        has_grown = before is not None and before.inode == state.inode and target.exists()
        offset = before.size if has_grown and before and before.size <= state.size else 0
        contents = []
        for content in self._content(name, offset):
            if content is None:
                return
            contents.append(content)
        content = b"".join(contents)
        if offset:
            with target.open("r+b") as stream:
                stream.seek(offset)
                stream.write(content)
        else:
            _replace(target, content)
        read = offset + len(content)
        self._seen[name] = FileState(state.inode, read, state.modified)

    def _content(self, name: str, offset: int) -> Iterator[bytes | None]:
        """Yield the rest of a file in parts, None if it is gone."""
        while True:
            content = self.remote.read(name, offset, CHUNK)
            if content == b"":
                return
            yield content
            if content is None:
                return
            offset += len(content)
