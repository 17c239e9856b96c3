"""The settings of thumbwheel.yaml over HTTP, for the home's owner (app/settings_changes.py)."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Request
from fastapi import Path as PathParameter

from thumbwheel.access import audit
from thumbwheel.access.audit import Act
from thumbwheel.access.needs import needs
from thumbwheel.access.types import Principal
from thumbwheel.app.settings_changes import (
    SettingChange,
    change_settings,
    flat,
    reset_setting,
)
from thumbwheel.core.config import Config
from thumbwheel.db.workspace import Workspace
from thumbwheel.server.api.bodies import BoundedRoute
from thumbwheel.server.api.parameters import NO_NUL

Section = Annotated[
    str,
    PathParameter(
        pattern=NO_NUL, min_length=1, max_length=200, description="The section of thumbwheel.yaml."
    ),
]
Setting = Annotated[
    str,
    PathParameter(
        pattern=NO_NUL, min_length=1, max_length=200, description="The name of the setting."
    ),
]
State = Annotated[
    str | None,
    Header(
        alias="if-match",
        max_length=200,
        description="The hash of the file as it was read; 412 if the file has changed since.",
    ),
]
Changes = Annotated[
    dict[str, Any],
    Body(
        description="Setting -> value, as in the file; a group is an object of its settings",
        examples=[{"min_cases": 50}],
    ),
]
OWN = needs("own", recorded=False)
"""The route writes the audit log itself, with the values."""


class ShownChange(Config):
    """A setting that was changed."""

    setting: str
    """Its name, with that of its group: `label.folds`"""
    before: bool | int | float | str | None
    """What was in force"""
    after: bool | int | float | str | None
    """What the file says now; null where the default is in force again"""
    needs_restart: bool
    """Whether it is in force only once the server has started again"""


class ShownChanges(Config):
    """What was changed."""

    section: str
    """The section of the file"""
    changes: list[ShownChange]
    """Each setting"""


def router() -> APIRouter:
    """Return the router for changing settings."""
    routes = APIRouter(route_class=BoundedRoute)

    @routes.put("/api/settings/{section}", operation_id="settings.change", dependencies=[OWN])
    def change(
        request: Request, section: Section, asked: Changes, if_match: State = None
    ) -> ShownChanges:
        """Change numbers, switches and choices of a section in the settings file. Everything else
        of the file, comments too, stays as it is."""
        ws: Workspace = request.app.state.workspace
        changes = change_settings(ws, section, dict(flat(asked)), if_match)
        return _recorded(request, ws, section, changes)

    @routes.delete(
        "/api/settings/{section}/{setting}",
        operation_id="settings.reset",
        dependencies=[OWN],
    )
    def reset(
        request: Request, section: Section, setting: Setting, if_match: State = None
    ) -> ShownChanges:
        """Remove a setting from the settings file, so that its default is in force again."""
        ws: Workspace = request.app.state.workspace
        return _recorded(request, ws, section, [reset_setting(ws, section, setting, if_match)])

    return routes


def _recorded(
    request: Request, ws: Workspace, section: str, changes: list[SettingChange]
) -> ShownChanges:
    """Write the audit log, and return the changes."""
    principal: Principal = request.state.principal
    values = {change.setting: [change.before, change.after] for change in changes}
    audit.record(
        ws, Act(principal.id, "settings.change", None, {"section": section, "values": values})
    )
    return ShownChanges(
        section=section, changes=[ShownChange(**vars(change)) for change in changes]
    )
