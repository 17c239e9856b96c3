"""The hosts of a home: each has a folder of its own, known by a random id.

The folders of a cluster have a row each (cluster.py), with the name of their machine, so that
people can be told where a file is, and the address under which the other hosts reach it.
"""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from pydantic import Field, field_validator
from sqlalchemy.dialects.postgresql import insert

from thumbwheel.core.addresses import is_loopback
from thumbwheel.core.config import Config, Home
from thumbwheel.core.files import create, unwritable
from thumbwheel.db.engine import Database
from thumbwheel.db.schema import hosts
from thumbwheel.db.write_locks import ROWS

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")
"""A name, an address, or an address of IPv6 in brackets."""


class HostConfig(Config):
    """How the other hosts of the home reach this one."""

    address: str | None = None
    """Name or address of this host, without a port. With it, model servers of this host listen on
    all its addresses, and the other hosts call them there with their tokens [default: they listen
    on 127.0.0.1 alone]"""
    labels: list[str] = Field(default_factory=list)
    """What this host is for, as `gpu` or `nights`: `jobs.needs` of a kind of jobs names labels."""

    @field_validator("address")
    @classmethod
    def _is_reachable(cls, address: str | None) -> str | None:
        if address is None:
            return None
        if not NAME.fullmatch(address):
            raise ValueError(f"{address!r} is no name or address: write it as gpu-1 or 10.0.0.7")
        if is_loopback(address) or address == "0.0.0.0":
            raise ValueError(f"{address!r} leads every other host to itself")
        return address


@dataclass(frozen=True)
class HostRow:
    """A folder of the home."""

    folder: str
    """The id of the folder."""
    name: str
    """The name of its machine."""
    address: str | None
    """Where the other hosts reach it; None if they do not."""
    software: dict[str, Any] | None = None
    """What runs there (host_software.py); None if it has not said so yet."""


def folder_id(home: Home) -> str:
    """Return the random id of a home's folder; create it if there is none. Raises StorageError."""
    path = home.host_id
    try:
        if not path.exists():
            create(path, f"{secrets.token_hex(8)}\n".encode("ascii"))
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise unwritable(f"file {str(path)!r}", error) from error


def register(database: Database, home: Home) -> None:
    """Record the folder of a host of a cluster, unless it is recorded already."""
    folder, name = folder_id(home), socket.gethostname()
    query = sa.select(hosts.c.name).where(hosts.c.folder == folder)
    with database.read() as connection:
        if connection.execute(query).scalar() == name:
            return
    row = insert(hosts).values(folder=folder, name=name, recorded_at=datetime.now(UTC))
    renamed = row.on_conflict_do_update(index_elements=[hosts.c.folder], set_={"name": name})
    database.write(lambda connection: connection.execute(renamed), ROWS)


def set_address(database: Database, home: Home, address: str | None) -> None:
    """Record where the other hosts reach this one."""
    is_this = hosts.c.folder == folder_id(home)
    is_other = hosts.c.address.is_distinct_from(address)
    update = hosts.update().where(is_this, is_other).values(address=address)
    database.write(lambda connection: connection.execute(update), ROWS)


def set_software(database: Database, home: Home, software: Mapping[str, Any]) -> None:
    """Record what this host runs, unless that is recorded already."""
    is_this = hosts.c.folder == folder_id(home)
    with database.read() as connection:
        if connection.execute(sa.select(hosts.c.software).where(is_this)).scalar() == software:
            return
    update = hosts.update().where(is_this).values(software=dict(software))
    database.write(lambda connection: connection.execute(update), ROWS)


def remove(database: Database, folder: str) -> None:
    """Remove the row of a folder."""
    delete = hosts.delete().where(hosts.c.folder == folder)
    database.write(lambda connection: connection.execute(delete), ROWS)


def all_hosts(connection: sa.Connection) -> list[HostRow]:
    """Return the folders of the home, the oldest first; none for a home that is no cluster."""
    query = sa.select(hosts.c.folder, hosts.c.name, hosts.c.address, hosts.c.software)
    rows = connection.execute(query.order_by(hosts.c.recorded_at, hosts.c.folder))
    return [HostRow(row.folder, row.name, row.address, row.software) for row in rows]


def name_of(connection: sa.Connection, folder: str | None) -> str:
    """Return how people are told about a host that has this folder."""
    query = sa.select(hosts.c.name).where(hosts.c.folder == folder)
    name = connection.execute(query).scalar()
    return "another host" if name is None else f"host {name} (folder {folder})"
