"""Reference log-probabilities, computed once: a content-addressed store of per-token values.

The key holds everything that the value depends on, so another epoch, seed, method or one more row
of feedback never pays twice and a changed base never meets an old value. An entry carries its token
count and a checksum; one that does not match is not used. SQLite in WAL mode: readers and writers
of several processes at once, and kill -9 leaves whole entries. It is a cache: deleting the file
loses time only. Does not live here: how values are computed (score.py).
"""

from __future__ import annotations

import hashlib
import sqlite3
import struct
import threading
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from thumbwheel.core.errors import StorageError
from thumbwheel.engine.score import Role, ScoreEngine
from thumbwheel.engine.tree import Branch, Example, TreeBatch

if TYPE_CHECKING:
    import torch

AT_ONCE = 500  # keys of one query; SQLite allows 999 variables in old builds
SCHEMA = """CREATE TABLE IF NOT EXISTS logps (
    key BLOB PRIMARY KEY, count INTEGER NOT NULL, crc INTEGER NOT NULL, data BLOB NOT NULL
) WITHOUT ROWID"""


class RefCache:
    """key -> log-probabilities of the scored tokens of one branch, fp32 (fp64 values are kept as
    such)."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._local = threading.local()
        self._query("SELECT 1")

    def get(self, keys: Mapping[bytes, int]) -> dict[bytes, torch.Tensor]:
        """The known ones of `keys` (key -> number of tokens expected). One with a wrong count or
        checksum is not known."""
        found: dict[bytes, torch.Tensor] = {}
        wanted = list(keys)
        for start in range(0, len(wanted), AT_ONCE):
            part = wanted[start : start + AT_ONCE]
            rows = self._query(
                "SELECT key, count, crc, data FROM logps WHERE key IN "
                f"({','.join('?' * len(part))})",
                part,
            )
            for key, count, crc, data in rows:
                values = _decode(count, crc, data, keys[key])
                if values is not None:
                    found[key] = values
        return found

    def put(self, logps: Mapping[bytes, torch.Tensor]) -> None:
        """Store all of `logps` in one transaction; an entry that is there is replaced."""
        rows = [(key, *_encode(values)) for key, values in logps.items()]
        try:
            connection = self._connection()
            with connection:
                connection.executemany("INSERT OR REPLACE INTO logps VALUES (?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise self._broken(error) from None

    def close(self) -> None:
        """Close this thread's connection."""
        connection = self._local.__dict__.pop("connection", None)
        if connection is not None:
            connection.close()

    def _query(
        self, statement: str, values: Sequence[bytes] = ()
    ) -> list[tuple[bytes, int, int, bytes]]:
        try:
            return self._connection().execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._broken(error) from None

    def _connection(self) -> sqlite3.Connection:
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            found = sqlite3.connect(self.path, timeout=60.0)
            found.execute("PRAGMA journal_mode=WAL")
            found.execute("PRAGMA synchronous=NORMAL")
            found.execute(SCHEMA)
            self._local.connection = found
        return found

    def _broken(self, error: sqlite3.Error) -> StorageError:
        return StorageError(
            f"reference cache {str(self.path)!r}",
            str(error),
            "Free space or release the lock; if the file is damaged delete it, only time is lost",
        )


def _encode(values: torch.Tensor) -> tuple[int, int, bytes]:
    import torch

    kept = values.detach().cpu().contiguous()
    data = (b"d" if kept.dtype == torch.float64 else b"f") + (
        kept if kept.dtype == torch.float64 else kept.float()
    ).numpy().tobytes()
    return kept.shape[0], zlib.crc32(data), data


def _decode(count: int, crc: int, data: bytes, expected: int) -> torch.Tensor | None:
    import torch

    if count != expected or zlib.crc32(data) != crc or data[:1] not in (b"d", b"f"):
        return None
    dtype = torch.float64 if data[:1] == b"d" else torch.float32
    if len(data) != 1 + count * dtype.itemsize:
        return None
    return (
        torch.frombuffer(bytearray(data[1:]), dtype=dtype) if count else torch.zeros(0, dtype=dtype)
    )


def branch_key(identity: Sequence[str], prompt: Sequence[int], branch: Branch) -> bytes:
    """sha256 over the engine's reference identity, the prompt ids, the completion ids and the mask;
    every field length-prefixed."""
    digest = hashlib.sha256()
    for text in identity:
        raw = text.encode()
        digest.update(struct.pack("<q", len(raw)) + raw)
    for ids in (prompt, branch.ids, branch.targets):
        digest.update(struct.pack(f"<q{len(ids)}q", len(ids), *ids))
    return digest.digest()


def reference_logps(
    engine: ScoreEngine, examples: Sequence[Example], tokens: int, cache: RefCache
) -> dict[bytes, torch.Tensor]:
    """Reference log-probabilities of every branch of `examples` by its key.

    What `cache` does not know is scored, whole examples only and `tokens` at once, and stored in
    one transaction: what a run computes depends on its rows, not on what another thread or process
    finds meanwhile.
    """
    keys = [
        [branch_key(engine.reference_identity, one.prompt, branch) for branch in one.branches]
        for one in examples
    ]
    counts = {
        key: len(part.targets)
        for one, own in zip(examples, keys, strict=True)
        for key, part in zip(own, one.branches, strict=True)
    }
    known = cache.get(counts)
    missing = [
        one for one, own in zip(examples, keys, strict=True) if any(key not in known for key in own)
    ]
    found: dict[bytes, torch.Tensor] = {}
    for batch, logp in engine.map_batches(missing, tokens, _scored) if missing else ():
        found |= {
            key: logp[part]
            for key, part in zip(_batch_keys(engine, batch), batch.branch_slices, strict=True)
        }
    if found:
        cache.put(found)
    return known | found


def _scored(engine: ScoreEngine, batch: TreeBatch) -> torch.Tensor:
    return engine.score(batch, Role.REF).logp.cpu()


def batch_reference_logp(
    engine: ScoreEngine, batch: TreeBatch, known: Mapping[bytes, torch.Tensor]
) -> torch.Tensor:
    """[M] reference log-probabilities of `batch`, whose branches are all `known`."""
    import torch

    return torch.cat([known[key] for key in _batch_keys(engine, batch)]).to(engine.device)


def _batch_keys(engine: ScoreEngine, batch: TreeBatch) -> list[bytes]:
    pairs: list[tuple[Example, Branch]] = [
        (example, branch) for example in batch.examples for branch in example.branches
    ]
    return [
        branch_key(engine.reference_identity, example.prompt, branch) for example, branch in pairs
    ]
