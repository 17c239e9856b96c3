"""The page "who may say what" (docs/19) names every operation with what it needs, as the code has
it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from fastapi.routing import iter_route_contexts

from tests.worlds.gateway_world import opened_home, running
from thumbwheel.access.needs import Need, Public

PAGE = Path(__file__).parents[2] / "docs" / "19-access.md"
ORDER = ("read", "rate", "edit", "run", "decide", "deploy", "own", "call")
HEAD = "| needs | operations |\n|---|---|\n"


def table(folder: Path) -> str:
    """Verb -> the operations of the server that need it, as the page has them."""
    by_verb: dict[str, set[str]] = defaultdict(set)
    with opened_home(folder) as ws, running(ws) as gateway:
        for route in iter_route_contexts(gateway.application.api.routes):
            dependant = getattr(route, "dependant", None)
            for dependency in dependant.dependencies if dependant else ():
                call = dependency.call
                if isinstance(call, Need) and route.path.startswith(("/api/", "/a/", "/v1/")):
                    name = route.operation_id or route.path.removeprefix("/a/{agent}")
                    by_verb[call.verb or "somebody"].add(f"`{name}`")
                if isinstance(call, Public) and route.path.startswith("/api/"):
                    by_verb["nobody"].add(f"`{route.path}`")
    verbs = [verb for verb in (*ORDER, "somebody", "nobody") if by_verb[verb]]
    rows = [f"| `{verb}` | {', '.join(sorted(by_verb[verb]))} |" for verb in verbs]
    return HEAD + "\n".join(rows) + "\n"


def test_the_page_has_every_operation_with_what_it_needs(tmp_path: Path) -> None:
    wanted = table(tmp_path / "home")
    page = PAGE.read_text()
    if wanted not in page:
        pytest.fail(f"put this into {PAGE.name}:\n{wanted}")
