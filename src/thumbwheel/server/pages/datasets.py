"""The pages of data: what the feedback would teach, datasets with their health, their rows, and the
cases that the gate asks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Literal

from pydantic import Field

from thumbwheel.capture.cases import find_case, list_cases
from thumbwheel.core.config import Config
from thumbwheel.datasets import build
from thumbwheel.datasets.stale import stale
from thumbwheel.datasets.types import SPLITS, DatasetConfig
from thumbwheel.server.pages.page import PageRequest
from thumbwheel.server.pages.traces import CHECKERS
from thumbwheel.training.data_plan import data_plan

ROWS = 20
"""Rows of a dataset on a page."""
CASES = 50
"""Cases on a page."""
READINESS = {"ready": "good", "usable": "wait", "too few": ""}
VERDICTS = {"ok": "good", "warning": "wait", "error": "bad"}


class RowsQuery(Config):
    """Which rows of a dataset are shown."""

    split: str = "train"
    """train, dev or gate"""
    skip: int = Field(default=0, ge=0)
    """Rows before them"""


class CasesQuery(Config):
    """Which cases are shown."""

    basis: Literal["gold", "feedback"] | None = None
    """Reviewed by somebody, or not"""
    after: str | None = None
    """The last case of the page before"""


def load_plan(asked: PageRequest) -> Mapping[str, Any]:
    """Load the agent's data plan, as `dataset plan --json` prints it."""
    config = asked.ws.settings(DatasetConfig, "dataset")
    plan = data_plan(asked.ws, asked.agent.slug, config)
    return {
        "plan": plan.to_json(),
        "tones": READINESS,
        "may_run": asked.principal.may("run", asked.agent.slug),
    }


def load_list(asked: PageRequest) -> Mapping[str, Any]:
    """Load the agent's datasets, newest first."""
    existing = build.datasets(asked.ws, asked.agent.slug)
    rows = []
    for dataset in reversed(existing):
        findings = dataset.manifest.get("health", {}).get("findings", ())
        problems = [row for row in findings if row["verdict"] in ("warning", "error")]
        rows.append({"dataset": dataset, "problems": problems, "stale": stale(asked.ws, dataset)})
    return {
        "rows": rows,
        "splits": SPLITS,
        "verdicts": VERDICTS,
        "may_run": asked.principal.may("run", asked.agent.slug),
    }


def load_dataset(asked: PageRequest) -> Mapping[str, Any]:
    """Load one dataset and a page of its rows."""
    query = asked.parsed(RowsQuery)
    dataset = build.find(asked.ws, asked.agent.slug, asked.parts["dataset"])
    rows = build.load_rows(asked.ws, dataset.id, query.split, query.skip)
    return {
        "title": f"{dataset.shape} {dataset.id}",
        "dataset": dataset,
        "manifest": dataset.manifest,
        "findings": dataset.manifest.get("health", {}).get("findings", ()),
        "stale": stale(asked.ws, dataset),
        "splits": SPLITS,
        "split": query.split,
        "skip": query.skip,
        "rows": list(islice(rows, ROWS)),
        "at_once": ROWS,
        "total": dataset.counts.get(query.split, 0),
        "verdicts": VERDICTS,
        "may_run": asked.principal.may("run", asked.agent.slug),
    }


def load_cases(asked: PageRequest) -> Mapping[str, Any]:
    """Load a page of the cases, newest first."""
    query = asked.parsed(CasesQuery)
    counts, cases = list_cases(
        asked.ws, asked.agent.slug, basis=query.basis, limit=CASES + 1, after=query.after
    )
    has_more = len(cases) > CASES
    cases = cases[:CASES]
    return {
        "counts": counts,
        "cases": cases,
        "after": cases[-1]["id"] if has_more else None,
        "basis": query.basis,
        "parameters": asked.query,
        "may_edit": asked.principal.may("edit", asked.agent.slug),
        "may_import": asked.principal.may("run", asked.agent.slug),
        "checkers": CHECKERS,
        "rater": asked.rater,
    }


def load_case(asked: PageRequest) -> Mapping[str, Any]:
    """Load one case, with what makes an answer to it right."""
    case = find_case(asked.ws, asked.agent, asked.parts["case"])
    return {
        "title": f"Case {case.id}",
        "case": case,
        "checkers": CHECKERS,
        "rater": asked.rater,
        "may_edit": asked.principal.may("edit", asked.agent.slug),
    }
