"""What a file that is sent would become, before anything of it is stored. The same file, sent to
the route of `import` with the same options, is stored like this."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi import Path as PathParameter

from thumbwheel.access.needs import needs
from thumbwheel.access.route import AGENT
from thumbwheel.access.turn_route import TurnRoute
from thumbwheel.access.work_shares import in_file_turn
from thumbwheel.capture.uploads import Upload
from thumbwheel.core import present
from thumbwheel.core.field_words import describe_fields
from thumbwheel.core.ids import slug_of
from thumbwheel.datasets.preview import FilePreview, preview_file
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers.detect import Options
from thumbwheel.server.api.bodies import uploaded
from thumbwheel.server.api.parameters import NO_NUL

FILE = "path"
"""The parameter that names the file, as that of `import`."""
AgentName = Annotated[
    str, PathParameter(pattern=NO_NUL, min_length=1, max_length=400, description="The agent.")
]


def router() -> APIRouter:
    """Return the router for previews of imports."""
    describe_fields(FilePreview)
    routes = APIRouter(route_class=TurnRoute)

    @routes.post(
        f"{AGENT}/imports/previews",
        operation_id="imports.preview",
        dependencies=[needs("run", recorded=False)],
        response_model=FilePreview,
        tags=["import"],
        openapi_extra={
            "x-thumbwheel": {"upload": FILE},
            "requestBody": {
                "required": True,
                "content": {
                    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
                },
            },
        },
    )
    async def preview(
        request: Request,
        agent: AgentName,
        path: Annotated[str, Query(pattern=NO_NUL, description="The name of the file.")],
        upload: Annotated[Upload, Depends(uploaded(FILE))],
        source: Annotated[
            str | None, Query(pattern=NO_NUL, description="The format; detected without it.")
        ] = None,
        column: Annotated[
            list[str] | None, Query(description="COLUMN=MEANING of a table, repeatable.")
        ] = None,
        scale: Annotated[
            list[str] | None, Query(description="MEANING=WORST:BEST of a scale, repeatable.")
        ] = None,
        timezone: Annotated[
            str | None,
            Query(pattern=NO_NUL, description="The zone of times that are written without one."),
        ] = None,
        gold: Annotated[
            bool, Query(description="Somebody reviewed the cases in the file.")
        ] = False,
    ) -> Response:
        """Show what an import of this file would store: its first rows, the meaning of its columns,
        and how many answers people called good and bad in it. Nothing is stored.

        `column` and `scale` are those of `import`; what they leave open is guessed. What keeps the
        file from being imported is in `problem`.
        """
        ws: Workspace = request.app.state.workspace
        shown = await in_file_turn(
            preview_file,
            upload.path,
            slug_of(agent),
            case_rule=ws.case_rule,
            source=source,
            options=Options.parsed(column, scale, gold=gold, timezone=timezone),
            config=ws.settings(DatasetConfig, "dataset").label,
        )
        text = present.json_text(shown, indent=None).replace(f"{upload.folder}/", "")
        return Response(text, media_type="application/json")

    return routes
