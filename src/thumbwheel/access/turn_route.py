"""Routes whose work takes turns with that of the same sender (work_shares.py)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, ParamSpec, TypeVar

from fastapi import Request
from fastapi.routing import APIRoute

from thumbwheel.access.credentials import Credentials
from thumbwheel.access.gate import AccessGate
from thumbwheel.access.types import ANONYMOUS
from thumbwheel.access.work_shares import CURRENT, CurrentShare, in_thread_turn, share_of

P = ParamSpec("P")
T = TypeVar("T")


class TurnRoute(APIRoute):
    """A route whose endpoint, if it works in a thread, gets one of those of its sender's share."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        if not iscoroutinefunction(endpoint):
            endpoint = _in_turns(endpoint)
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Any]:
        """Return FastAPI's handler, for which the share of the sender is the current one."""
        handle = super().get_route_handler()

        async def of_share(request: Request) -> Any:
            gate: AccessGate = request.app.state.gate
            identity = gate.identify(Credentials.of(request.headers))
            principal = ANONYMOUS if identity is None else identity.principal
            CURRENT.set(CurrentShare(gate.shares, share_of(principal)))
            return await handle(request)

        return of_share


def _in_turns(endpoint: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    @wraps(endpoint)
    async def answer(*args: P.args, **options: P.kwargs) -> T:
        return await in_thread_turn(endpoint, *args, **options)

    return answer
