"""Reference log-probabilities, computed once: a content-addressed cache of per-token values.

The key holds everything that the value depends on, so another epoch, seed, method or one more row
of feedback computes nothing twice, and a changed base never meets an old value. An entry has its
token count and a checksum; one that does not match is not used. The file is SQLite in WAL mode:
several processes read and write at once, and kill -9 leaves whole entries. Deleting it loses time
only.
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
from thumbwheel.engine.ranks import Ranks
from thumbwheel.engine.score import Role, ScoreEngine
from thumbwheel.engine.tree import Branch, Example, TreeBatch

if TYPE_CHECKING:
    import torch

KEYS_PER_QUERY = 500  # SQLite allows 999 variables in old builds
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
        """Return the log-probabilities of those `keys` (key -> number of tokens expected) that are
        stored with the right count and checksum."""
        logps: dict[bytes, torch.Tensor] = {}
        wanted = list(keys)
        for start in range(0, len(wanted), KEYS_PER_QUERY):
            part = wanted[start : start + KEYS_PER_QUERY]
            marks = ",".join("?" * len(part))
            statement = f"SELECT key, count, crc, data FROM logps WHERE key IN ({marks})"
            for key, count, crc, data in self._query(statement, part):
                values = _decode(count, crc, data, keys[key])
                if values is not None:
                    logps[key] = values
        return logps

    def put(self, logps: Mapping[bytes, torch.Tensor]) -> None:
        """Store all of `logps` in one transaction; existing entries are replaced."""
        rows = [(key, *_encode(values)) for key, values in logps.items()]
        try:
            connection = self._connection()
            with connection:
                connection.executemany("INSERT OR REPLACE INTO logps VALUES (?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise self._storage_error(error) from None

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
            raise self._storage_error(error) from None

    def _connection(self) -> sqlite3.Connection:
        """Return this thread's connection."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=60.0)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(SCHEMA)
            self._local.connection = connection
        return connection

    def _storage_error(self, error: sqlite3.Error) -> StorageError:
        return StorageError(
            f"reference cache {str(self.path)!r}",
            str(error),
            "Free space or release the lock; if the file is damaged, delete it (this costs time "
            "only)",
        )


def _encode(values: torch.Tensor) -> tuple[int, int, bytes]:
    import torch

    values = values.detach().cpu().contiguous()
    if values.dtype == torch.float64:
        data = b"d" + values.numpy().tobytes()
    else:
        data = b"f" + values.float().numpy().tobytes()
    return values.shape[0], zlib.crc32(data), data


def _decode(count: int, crc: int, data: bytes, expected: int) -> torch.Tensor | None:
    import torch

    if count != expected or zlib.crc32(data) != crc or data[:1] not in (b"d", b"f"):
        return None
    dtype = torch.float64 if data[:1] == b"d" else torch.float32
    if len(data) != 1 + count * dtype.itemsize:
        return None
    if count == 0:
        return torch.zeros(0, dtype=dtype)
    return torch.frombuffer(bytearray(data[1:]), dtype=dtype)


def branch_key(identity: Sequence[str], prompt: Sequence[int], branch: Branch) -> bytes:
    """Return the sha256 over the engine's reference identity, the prompt ids, the completion ids
    and the mask, every field length-prefixed."""
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
    """Return the reference log-probabilities of every branch of `examples` by its key.

    Examples with a branch missing from `cache` are scored whole, `tokens` at once, and stored in
    one transaction: the computation of a run depends on its rows, not on entries that another
    thread or process adds meanwhile. Of several ranks the first one looks up, so that all miss the
    same.
    """
    # the keys of every example, and how many tokens each has
    identity = engine.reference_identity
    keys: list[list[bytes]] = []
    counts: dict[bytes, int] = {}
    for example in examples:
        example_keys = [branch_key(identity, example.prompt, branch) for branch in example.branches]
        keys.append(example_keys)
        for key, branch in zip(example_keys, example.branches, strict=True):
            counts[key] = len(branch.targets)

    # score the examples of which a branch is missing
    cached = _looked_up(engine.ranks, counts, cache)
    missing: list[Example] = []
    for example, example_keys in zip(examples, keys, strict=True):
        if any(key not in cached for key in example_keys):
            missing.append(example)
    computed: dict[bytes, torch.Tensor] = {}
    if missing:
        for batch, logp in engine.map_batches(missing, tokens, _reference_logp):
            batch_keys = _batch_keys(engine, batch)
            for key, branch_slice in zip(batch_keys, batch.branch_slices, strict=True):
                computed[key] = logp[branch_slice]
    if computed and engine.ranks.is_first:
        cache.put(computed)
    return cached | computed


def _looked_up(
    ranks: Ranks, counts: Mapping[bytes, int], cache: RefCache
) -> dict[bytes, torch.Tensor]:
    """Return what the first rank finds in `cache` under these keys."""

    def look_up() -> list[torch.Tensor | None]:
        cached = cache.get(counts)
        return [cached.get(key) for key in counts]

    values = ranks.from_first(look_up, "reference log-probabilities")
    return {key: value for key, value in zip(counts, values, strict=True) if value is not None}


def _reference_logp(engine: ScoreEngine, batch: TreeBatch) -> torch.Tensor:
    return engine.score(batch, Role.REF).logp.cpu()


def batch_reference_logp(
    engine: ScoreEngine, batch: TreeBatch, logps: Mapping[bytes, torch.Tensor]
) -> torch.Tensor:
    """Return [M] reference log-probabilities of `batch`, whose branches are all in `logps`."""
    import torch

    return torch.cat([logps[key] for key in _batch_keys(engine, batch)]).to(engine.device)


def _batch_keys(engine: ScoreEngine, batch: TreeBatch) -> list[bytes]:
    identity = engine.reference_identity
    keys: list[bytes] = []
    for example in batch.examples:
        keys += [branch_key(identity, example.prompt, branch) for branch in example.branches]
    return keys
