"""The three ways to a first rated answer: record an app, import a file, or look at an example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.server.pages.page import PageRequest


def load_start(asked: PageRequest) -> Mapping[str, Any]:
    """Load the three ways to begin, for one more agent."""
    return ways_to_begin(asked)


def ways_to_begin(asked: PageRequest) -> dict[str, Any]:
    """Return which ways to begin are open to the principal."""
    principal = asked.principal
    return {
        "may_import": principal.may("run", None),
        "may_record": principal.may("own", None) and principal.may("deploy", None),
        "asks_for_key": not asked.gate.admits_apps,
    }
