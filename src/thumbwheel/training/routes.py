"""The routes of the commands that plan, build and train, and of those of reward models."""

from __future__ import annotations

from collections.abc import Iterator

from thumbwheel.access.route import AGENT, Route
from thumbwheel.training.algorithms import ALGORITHMS

LOCAL = (
    "callbacks",
    "reward_functions",
    "report_to",
    "rollouts",
    "endpoint_url",
    "endpoint_model",
    "endpoint_server",
    "endpoint_logprobs",
    "endpoint_adapters",
    "export",
    "quant",
    "register_ollama",
    "model_name",
)
"""Settings of methods that name code to run, a server to send texts to, or a folder to write to;
thumbwheel.yaml of the server sets them. What becomes of the version is asked by requests of its
own, which need more."""


def _methods() -> Iterator[Route]:
    """Yield the routes of `train METHOD`, those of plugins too."""
    for name in ALGORITHMS.names():
        example = {"base": "HuggingFaceTB/SmolLM2-135M-Instruct", "dry_run": True}
        yield Route(f"train {name}", "POST", f"{AGENT}/runs/{name}", "run", example, LOCAL)


ROUTES = (
    Route("plan", "POST", "/api/plan", "read", {"file": "ratings.jsonl"}, upload="file"),
    Route("dataset plan", "GET", f"{AGENT}/data-plan", "read"),
    Route(
        "dataset build",
        "POST",
        f"{AGENT}/datasets",
        "run",
        {"method": "auto"},
        gives={f"{AGENT}/datasets/{{name}}": "/id"},
    ),
    *_methods(),
    Route("train auto", "POST", f"{AGENT}/runs/auto", "run", {"dry_run": True}),
    Route("run list", "GET", f"{AGENT}/runs", "read"),
    Route("run compare", "GET", f"{AGENT}/runs/compare", "read"),
    Route(
        "run note",
        "PUT",
        f"{AGENT}/runs/{{run}}/note",
        "edit",
        {"text": "too short", "tag": ["baseline"]},
    ),
    Route("run delete", "DELETE", f"{AGENT}/runs/{{run}}", "edit"),
    Route("run reproduce", "POST", f"{AGENT}/runs/{{run}}/reproductions", "run"),
    Route(
        "reward-model list",
        "GET",
        f"{AGENT}/reward-models",
        "read",
        gives={f"{AGENT}/reward-models/{{name}}": "/0/name"},
    ),
    Route("reward-model show", "GET", f"{AGENT}/reward-models/{{name}}", "read"),
    Route(
        "reward-model score",
        "POST",
        f"{AGENT}/reward-models/{{name}}/scores",
        "run",
        {"prompt": "Where is my parcel?", "answer": "On its way."},
    ),
)
