"""The software and the clock of a host, which have to be those of the other hosts of a cluster.

Each host records its software in its row (hosts.py): when it joins, and whenever its server or a
worker starts. The clock of the database is the clock that all hosts share.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import sqlalchemy as sa

from thumbwheel.core.clock import Clock, utc_now
from thumbwheel.core.errors import ConfigError
from thumbwheel.core.figures import duration
from thumbwheel.db.hosts import HostRow
from thumbwheel.sdk.version import __version__

PACKAGE = Path(__file__).parent.parent
"""The folder with the code of Thumbwheel."""
FINGERPRINT_LENGTH = 12
TEXTS = ("thumbwheel", "code", "python")
CLOCK_SECONDS = 60.0
"""Seconds by which the clock of a host may differ from that of the database."""
CLOCK_FIX = "Set the clock of this machine by a time server: sudo timedatectl set-ntp true"


@dataclass(frozen=True)
class HostSoftware:
    """What a host runs."""

    thumbwheel: str
    """Version of Thumbwheel."""
    code: str
    """Fingerprint of its code: two installations from git may both call themselves 0.1.0."""
    python: str
    """Version of Python."""
    ray: str | None
    """Version of Ray; None without it."""

    @classmethod
    def read(cls, row: Mapping[str, str | None]) -> HostSoftware:
        """Return what a row says, also one of a later version with more in it."""
        thumbwheel, code, python = (row.get(name) or "" for name in TEXTS)
        return cls(thumbwheel, code, python, row.get("ray"))

    def difference(self, other: HostSoftware) -> tuple[str, str] | None:
        """Return what runs here and what runs on the other host, if one home cannot have both.

        Ray refuses another version of itself and of Python on any host, so those are compared
        where both hosts have Ray.
        """
        if self.thumbwheel != other.thumbwheel:
            return f"thumbwheel {self.thumbwheel}", f"thumbwheel {other.thumbwheel}"
        if self.code != other.code:
            name = f"thumbwheel {self.thumbwheel} with code"
            return f"{name} {self.code}", f"{name} {other.code}"
        if self.ray is None or other.ray is None:
            return None
        if (self.ray, self.python) != (other.ray, other.python):
            here = f"Ray {self.ray} with Python {self.python}"
            return here, f"Ray {other.ray} with Python {other.python}"
        return None


@cache
def code_fingerprint(package: Path = PACKAGE) -> str:
    """Return a fingerprint of all Python files of the package."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:FINGERPRINT_LENGTH]


def software_of_host() -> HostSoftware:
    """Return what this host runs."""
    try:
        ray = version("ray")
    except PackageNotFoundError:
        ray = None
    return HostSoftware(__version__, code_fingerprint(), platform.python_version(), ray)


def require_same_software(others: Sequence[HostRow]) -> None:
    """Raise ConfigError if another host is known to run other software."""
    here = software_of_host()
    for host in others:
        if host.software is None:
            continue  # it has not started since hosts record it
        difference = here.difference(HostSoftware.read(host.software))
        if difference is not None:
            raise ConfigError(
                f"{difference[0]} of this host",
                f"host {host.name} of the cluster runs {difference[1]}",
                "Install the same on both and start `thumbwheel serve` there once. A host that is "
                f"gone is struck off: thumbwheel cluster forget {host.folder}",
            )


def clock_difference(connection: sa.Connection, now: Clock = utc_now) -> float:
    """Return by how many seconds the clock of this host is ahead of that of the PostgreSQL
    database, as far as it is certain: the time of the answer's way is left out."""
    before = now()
    database_time = connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
    after = now()
    if before > database_time:
        return float((before - database_time).total_seconds())
    return min(0.0, float((after - database_time).total_seconds()))


def require_same_clock(connection: sa.Connection, now: Clock = utc_now) -> None:
    """Raise ConfigError if the clock of this host is not that of the database."""
    seconds = clock_difference(connection, now)
    if abs(seconds) > CLOCK_SECONDS:
        raise ConfigError(
            f"the clock of this host ({now():%Y-%m-%d %H:%M:%S} UTC)",
            f"it is {clock_text(seconds)} that of the database",
            CLOCK_FIX,
        )


def clock_text(seconds: float) -> str:
    """Return a difference of clocks in words, as `2 h ahead of`."""
    return f"{duration(abs(seconds))} {'ahead of' if seconds > 0 else 'behind'}"


def version_text(row: Mapping[str, str | None] | None) -> str | None:
    """Return the version of Thumbwheel in the row of a host, with the fingerprint of its code."""
    return None if row is None else f"{row['thumbwheel']} ({row['code']})"


def as_row(software: HostSoftware) -> dict[str, str | None]:
    """Return the form in which a row has what a host runs."""
    return asdict(software)
