"""The whole API: every route that the stages list."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import typer
from fastapi import APIRouter
from typer.main import get_command

from thumbwheel.access.route import Route
from thumbwheel.app.command_table import COMMANDS, add_commands, leaves
from thumbwheel.app.dialects import add_dialects
from thumbwheel.app.job_routes import ROUTES as JOBS
from thumbwheel.capture.command_routes import ROUTES as CAPTURE
from thumbwheel.datasets.routes import ROUTES as DATASETS
from thumbwheel.deploy.routes import ROUTES as DEPLOY
from thumbwheel.erasure.routes import ROUTES as ERASURE
from thumbwheel.evaluation.routes import ROUTES as EVALUATION
from thumbwheel.export.routes import ROUTES as EXPORT
from thumbwheel.loop.routes import ROUTES as LOOP
from thumbwheel.notify.routes import ROUTES as NOTIFY
from thumbwheel.report.routes import ROUTES as REPORT
from thumbwheel.review.label_routes import ROUTES as LABELS
from thumbwheel.review.routes import ROUTES as REVIEW
from thumbwheel.rewards.routes import ROUTES as REWARDS
from thumbwheel.server.api import (
    agents,
    endpoint,
    events,
    export_files,
    feed,
    import_preview,
    secrets,
    settings,
    workers,
)
from thumbwheel.server.api.bodies import BoundedRoute
from thumbwheel.server.api.endpoint import Operation
from thumbwheel.server.api.parameters import Signature
from thumbwheel.training.routes import ROUTES as TRAINING

ROUTES: tuple[Route, ...] = (
    *CAPTURE,
    *REWARDS,
    *LABELS,
    *REVIEW,
    *DATASETS,
    *TRAINING,
    *EVALUATION,
    *EXPORT,
    *DEPLOY,
    *REPORT,
    *ERASURE,
    *LOOP,
    *NOTIFY,
    *JOBS,
)


def commands() -> dict[str, Any]:
    """Return path -> typer command for every command of the command line."""
    app = typer.Typer()
    add_commands(app, COMMANDS)
    return dict(leaves(get_command(app)))


@cache
def operations() -> dict[str, Operation]:
    """Return route name -> operation."""
    by_path = commands()
    signatures = {route.command: Signature.of(by_path[route.command]) for route in ROUTES}
    by_name: dict[str, Operation] = {}
    for route in sorted(ROUTES, key=lambda route: route.state is not None):
        state = by_name[route.state] if route.state else None
        by_name[route.name] = Operation(route, signatures[route.command], state)
    return by_name


@cache
def api_router() -> APIRouter:
    """Return the router of all commands, built once per process.

    Paths with more fixed words are matched first, so that a path parameter does not take a fixed
    word of another path.
    """
    routes = APIRouter(route_class=BoundedRoute)
    routes.include_router(agents.router())
    routes.include_router(events.router())
    routes.include_router(export_files.router())
    routes.include_router(feed.router())
    routes.include_router(import_preview.router())
    routes.include_router(secrets.router())
    routes.include_router(settings.router())
    routes.include_router(workers.router())
    by_name = operations()
    for route in sorted(ROUTES, key=lambda route: route.path.count("{")):
        endpoint.add(routes, by_name[route.name])
    return routes


def dialect_router(names: Iterable[str]) -> APIRouter:
    """Return the router for these dialects. Raises NotFound if one does not exist."""
    routes = APIRouter(route_class=BoundedRoute)
    add_dialects(routes, names)
    return routes
