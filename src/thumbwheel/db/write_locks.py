"""Which writes of a home exclude each other.

SQLite has one writer, so there every write excludes every other. On PostgreSQL every write takes
the home, and then what it names:

* `WHOLE_HOME`: alone in the home. Erasure, retention, `db copy` and migrations, and whatever names
  nothing else: the safe choice.
* `of_agent(agent_id)`: whatever reads rows of an agent and writes by what it read, such as the next
  number of a version, an alias, a decision, feedback that takes another back.
* `JOBS`: the state of jobs, workers and schedules.
* `ACCESS`: keys, users, sessions, and the chain of the audit log.
* `ROWS`: nothing. For a write whose every statement holds on its own, whatever others write.

The locks are taken before the first statement and until the commit, always in the same order. Rows
that belong to no agent (messages, artifacts) are inserted where they do not exist, which needs no
lock.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class WriteLock:
    """The names that a write has to itself, in order; with `is_whole_home` everything."""

    names: tuple[str, ...] = ()
    is_whole_home: bool = False
    is_quiet: bool = False
    """Whether nobody keeps what is written in memory, so that the write is not announced
    (`changes.py`)."""

    def __and__(self, other: WriteLock) -> WriteLock:
        """Return the lock of a write that needs both."""
        names = tuple(sorted({*self.names, *other.names}))
        is_whole_home = self.is_whole_home or other.is_whole_home
        return WriteLock(names, is_whole_home, self.is_quiet and other.is_quiet)


WHOLE_HOME = WriteLock(is_whole_home=True)
ROWS = WriteLock()
JOBS = WriteLock(("jobs",))
ACCESS = WriteLock(("access",))


def of_agent(agent_id: str, *, is_quiet: bool = False) -> WriteLock:
    """Return the lock of what one agent has."""
    return WriteLock((f"agent {agent_id}",), is_quiet=is_quiet)


def lock_number(name: str) -> int:
    """Return the number under which PostgreSQL knows a lock."""
    digest = hashlib.sha256(f"thumbwheel {name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
