"""The job `import`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from thumbwheel.capture.ingest import ingest, rehearse
from thumbwheel.capture.uploads import read_upload
from thumbwheel.core import log
from thumbwheel.core.config import Config
from thumbwheel.core.secret_store import SecretStore
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers.detect import Options, address_of
from thumbwheel.importers.import_report import ImportReport
from thumbwheel.importers.location import Address, path_or_address, with_password
from thumbwheel.importers.rating_filter import RatingFilter
from thumbwheel.importers.server_api import is_server, require_key


class ImportSpec(Config):
    """What to bring in."""

    source: str
    """The format."""
    path: str | None = None
    """The file, folder or address; unset, the address in the source's environment variable."""
    upload: str | None = None
    """Which upload has the file `path`, where it was sent to the server."""
    agent: str
    """The agent that the data belongs to."""
    column: tuple[str, ...] = ()
    """NAME=ROLE of the columns of a table."""
    scale: tuple[str, ...] = ()
    """The ends of a scale."""
    timezone: str | None = None
    """The zone of times that are written without one."""
    key: str | None = None
    """The stored secret that the server wants, or the password of the database."""
    agent_type: str | None = None
    """Only the rows of this agent, as the data calls it."""
    tag: tuple[str, ...] = ()
    """Only ratings with one of these tags."""
    without_tag: tuple[str, ...] = ()
    """No ratings with these tags."""
    min_confidence: float | None = None
    """No ratings of what the app was less sure of."""
    gold: bool = False
    """Whether somebody reviewed the cases in it."""
    reviewer: str = "owner"
    """Who did."""
    rejects: Path | None = None
    """File for every refused line."""
    dry_run: bool = False
    """Read and check; store nothing."""


def run_import(ws: Workspace, spec: ImportSpec) -> ImportReport:
    """Import and return the report of the lines. Rows that exist already are recognised."""
    read = partial(imported, ws, spec)
    if spec.upload is not None and spec.path is not None:
        return read_upload(ws, spec.upload, spec.path, read)
    return read(address_of(spec.source) if spec.path is None else path_or_address(spec.path))


def imported(ws: Workspace, spec: ImportSpec, path: Path) -> ImportReport:
    """Import from this path, whatever path the spec names, and return the report of the lines."""
    ratings = RatingFilter(frozenset(spec.tag), frozenset(spec.without_tag), spec.min_confidence)
    options = Options.parsed(
        list(spec.column), list(spec.scale), spec.agent_type, spec.gold, ratings, spec.timezone
    )
    if spec.key is not None and isinstance(path, Address) and not is_server(path):
        path = with_password(path, SecretStore(ws.home.secrets).require(spec.key))
    elif spec.key is not None:
        options = replace(options, key=require_key(ws.home.secrets, spec.key, path))
    size = path.stat().st_size if path.is_file() else None
    with log.progress(f"import {path.name}", size, "bytes") as advance:
        last_position = 0

        def on_position(position: int) -> None:
            nonlocal last_position
            advance(position - last_position)
            last_position = position

        if spec.dry_run:
            report = rehearse(
                spec.agent,
                spec.source,
                path,
                case_rule=ws.case_rule,
                rejects=spec.rejects,
                on_position=on_position,
                options=options,
            )
            report.dry_run = True
            return report
        return ingest(
            ws,
            spec.agent,
            spec.source,
            path,
            rejects=spec.rejects,
            reviewer=spec.reviewer if spec.gold else None,
            on_position=on_position,
            options=options,
        )
