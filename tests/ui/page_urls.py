"""The URL of every page in the world of operations (tests/worlds/operations_world.py), by the name
of the page. A page without one fails the tests that look at all of them."""

from __future__ import annotations

URLS: dict[str, str] = {
    "home": "/",
    "overview": "/agents/support",
    "start": "/start",
    "traces": "/agents/support/traces",
    "trace": "/agents/support/traces/order-42",
    "trace-lineage": "/agents/support/traces/order-42/lineage",
    "rate": "/agents/support/rate",
    "bench": "/agents/support/rate/july",
    "raters": "/agents/support/rate/july/raters",
    "data-plan": "/agents/support/data",
    "datasets": "/agents/support/datasets",
    "dataset": "/agents/support/datasets/{dataset}",
    "cases": "/agents/support/cases",
    "runs": "/agents/support/runs",
    "compare": "/agents/support/runs/compare?runs=run_sft,run_dpo",
    "run": "/agents/support/runs/run_sft",
    "train": "/agents/support/train",
    "models": "/agents/support/models",
    "model": "/agents/support/models/v3",
    "evaluations": "/agents/support/evaluations",
    "evaluation": "/agents/support/evaluations/v3",
    "experiments": "/agents/support/experiments",
    "experiment": "/agents/support/experiments/{experiment}",
    "experiment-start": "/agents/support/experiments/new",
    "deployments": "/agents/support/deployments",
    "playground": "/agents/support/playground?second=v1",
    "loop": "/agents/support/loop",
    "gate": "/agents/support/gate",
    "jobs": "/jobs",
    "job": "/jobs/{job}",
    "settings": "/settings",
    "keys": "/keys",
    "users": "/users",
    "audit": "/audit?verify=true",
}
"""`{...}` are ids of that world."""
