"""The exports of a version, and their files: sent whole or in ranges, so that a large one that was
cut off goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse
from pydantic import with_config
from typing_extensions import TypedDict

from thumbwheel.access.needs import needs
from thumbwheel.access.route import AGENT
from thumbwheel.core import present
from thumbwheel.core.errors import Conflict, NotFound
from thumbwheel.core.ids import slug_of
from thumbwheel.core.plugins import nearest
from thumbwheel.db.workspace import Workspace
from thumbwheel.export.package import exports
from thumbwheel.export.types import Export
from thumbwheel.models import versions
from thumbwheel.server.api.bodies import BoundedRoute
from thumbwheel.server.api.parameters import NO_NUL

EXPORTS = f"{AGENT}/versions/{{version}}/exports"
BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}

AgentName = Annotated[
    str, PathParameter(pattern=NO_NUL, min_length=1, max_length=400, description="The agent.")
]
VersionName = Annotated[
    str,
    PathParameter(
        pattern=NO_NUL,
        min_length=1,
        max_length=400,
        description="The version: v3, an alias, latest or an id.",
    ),
]
ExportId = Annotated[
    str,
    PathParameter(
        pattern=NO_NUL, min_length=1, max_length=400, description="The id of the export."
    ),
]
FileName = Annotated[
    str,
    PathParameter(
        pattern=NO_NUL,
        min_length=1,
        max_length=400,
        description="The name of the file, as the list of exports has it.",
    ),
]


@with_config(use_attribute_docstrings=True)
class ListedExport(TypedDict):
    """An export of a version."""

    id: str
    """Ours."""
    version: str
    """v3."""
    format: str
    """As `export --format` takes it."""
    quant: str | None
    """Precision."""
    files: dict[str, dict[str, Any]]
    """Name of a file -> its hash and size."""
    deployable: bool
    """Whether it may be served."""
    accepted: str | None
    """Who accepted it beyond the limits."""


def router() -> APIRouter:
    """Return the router for exports and their files."""
    routes = APIRouter(route_class=BoundedRoute)

    @routes.get(
        EXPORTS,
        operation_id="exports.list",
        dependencies=[needs("read")],
        response_model=list[ListedExport],
        tags=["export"],
    )
    def list_exports(request: Request, agent: AgentName, version: VersionName) -> Response:
        """List the exports of a version with their files, oldest first."""
        rows = [_as_json(each) for each in _exports(request, agent, version)]
        return Response(present.json_text(rows, indent=None), media_type="application/json")

    @routes.get(
        f"{EXPORTS}/{{export}}/files/{{file:path}}",
        operation_id="exports.file",
        dependencies=[needs("read")],
        response_class=Response,
        responses={
            200: {"description": "The file.", "content": BINARY},
            206: {"description": "The part that Range names.", "content": BINARY},
            416: {"description": "The file has no such part.", "content": {"text/plain": {}}},
        },
        tags=["export"],
    )
    def read_file(
        request: Request, agent: AgentName, version: VersionName, export: ExportId, file: FileName
    ) -> Response:
        """Return a file of an export; its ETag is its SHA-256."""
        listed = {each.id: each for each in _exports(request, agent, version)}
        if export not in listed:
            raise NotFound(
                f"export {export!r}", f"{version} has none of that id", "List them first"
            )
        path = file_of(listed[export], file)
        headers = {"etag": f'"{listed[export].files[file]["sha256"]}"'}
        return FileResponse(path, 200, headers, "application/octet-stream", filename=path.name)

    return routes


def file_of(export: Export, name: str) -> Path:
    """Return the path of the export's file with exactly this name.

    Raises NotFound for any other name, even if it is a valid path or the file is gone, and Conflict
    for an export that must be withdrawn.
    """
    folder = export.path.resolve()
    if name not in export.files:
        fix = f"It has: {', '.join(export.files)}.{nearest(name, export.files)}"
        raise NotFound(f"file {name[:100]!r}", f"export {export.id} has none of that name", fix)
    if (folder / versions.TAINTED).exists():
        raise Conflict(
            f"export {export.id}",
            "data that the model was trained on was erased",
            "Train again without it, and export the new version",
        )
    if export.host is not None:
        raise Conflict(
            f"file {name!r} of export {export.id}",
            f"it is in the folder of host {export.host}",
            "Ask the server of that host, or export the version here",
        )
    path = (folder / name).resolve()
    if not path.is_file() or not path.is_relative_to(folder):
        raise NotFound(f"file {name!r}", "it is not where it was exported to", "Export again")
    return path


def _exports(request: Request, agent: str, version: str) -> list[Export]:
    ws: Workspace = request.app.state.workspace
    return exports(ws, versions.version(ws, slug_of(agent), version))


def _as_json(export: Export) -> ListedExport:
    """Return the export as JSON for clients, without its path on the server."""
    return {
        "id": export.id,
        "version": export.version,
        "format": export.format,
        "quant": export.quant,
        "files": {name: dict(about) for name, about in export.files.items()},
        "deployable": export.deployable,
        "accepted": export.accepted,
    }
