"""The route of the command of exports."""

from __future__ import annotations

from thumbwheel.access.route import AGENT, Route

ROUTES = (
    Route(
        "export",
        "POST",
        f"{AGENT}/versions/{{version}}/exports",
        "run",
        {"format": "gguf", "quant": "Q8_0"},
        local=("tree",),
        folders={"to": "exports/{new}"},
    ),
)
