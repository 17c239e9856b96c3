"""The Atom feed of an agent: what people are told, for feed readers. A reader presents a key as the
password of basic authentication."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Request, Response
from fastapi import Path as PathParameter

from thumbwheel.access.needs import needs
from thumbwheel.access.turn_route import TurnRoute
from thumbwheel.models.versions import require_agent
from thumbwheel.notify.feed import MEDIA_TYPE, atom
from thumbwheel.notify.notices import notices
from thumbwheel.notify.settings import NotifyConfig
from thumbwheel.server.notifier import long_dead


class FeedResponse(Response):
    """A feed."""

    media_type = MEDIA_TYPE


def router() -> APIRouter:
    """Return the router of the feed."""
    routes = APIRouter(route_class=TurnRoute)

    @routes.get(
        "/api/agents/{agent}/feed.atom",
        operation_id="feed",
        summary="What people are told of an agent, as an Atom feed",
        dependencies=[needs("read")],
        response_class=FeedResponse,
    )
    def feed(
        request: Request, agent: Annotated[str, PathParameter(description="The agent.")]
    ) -> Response:
        ws = request.app.state.workspace
        learner = require_agent(ws, agent)
        watch = getattr(request.app.state, "watch", None)
        now = datetime.now(UTC)
        current = notices(ws, learner, {} if watch is None else long_dead(watch), now)
        address = ws.settings(NotifyConfig, "notify").url or str(request.base_url)
        return FeedResponse(atom(learner, current, address.rstrip("/"), now))

    return routes
