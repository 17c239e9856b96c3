"""The workers that the server starts: how many there are, and how many there shall be."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import Field

from thumbwheel.access.needs import needs
from thumbwheel.core.config import Config
from thumbwheel.core.errors import Conflict
from thumbwheel.jobs.queue import live_workers
from thumbwheel.jobs.supervisor import Supervisor
from thumbwheel.server.api.bodies import BoundedRoute

MOST = 64


class WorkersRequest(Config):
    """How many workers shall run."""

    count: int = Field(ge=0, le=MOST)
    """Processes that do jobs, each one at a time"""


class ShownWorkers(Config):
    """The workers of the home."""

    count: int
    """Those that this server starts"""
    alive: int
    """Those that gave a sign of life, also of other machines"""


def router() -> APIRouter:
    """Return the router for workers."""
    routes = APIRouter(route_class=BoundedRoute)

    @routes.get("/api/workers", operation_id="workers.show", dependencies=[needs("read")])
    def show(request: Request) -> ShownWorkers:
        """Show how many workers there are."""
        return _shown(request)

    @routes.put("/api/workers", operation_id="workers.resize", dependencies=[needs("own")])
    def resize(request: Request, asked: WorkersRequest) -> ShownWorkers:
        """Start workers, or stop some at their next checkpoint. After the next start the server
        has as many as its command says."""
        supervisor = _supervisor(request)
        if supervisor is None:
            raise Conflict(
                "the number of workers",
                "this server starts none; they are started on other machines or by a manager",
                "Change it there",
            )
        supervisor.resize(asked.count)
        request.app.state.has_workers = asked.count > 0
        return _shown(request)

    return routes


def _supervisor(request: Request) -> Supervisor | None:
    supervisor: Supervisor | None = getattr(request.app.state, "supervisor", None)
    return supervisor


def _shown(request: Request) -> ShownWorkers:
    supervisor = _supervisor(request)
    count = 0 if supervisor is None else supervisor.n_workers
    return ShownWorkers(count=count, alive=len(live_workers(request.app.state.workspace)))
