"""The pages of data: what the feedback would teach, datasets with their health, their rows, and the
cases that the gate asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Literal

from pydantic import Field

from thumbwheel.capture.cases import find_case, list_cases
from thumbwheel.core.config import Config
from thumbwheel.datasets import build
from thumbwheel.datasets.stale import stale
from thumbwheel.datasets.types import SPLITS, DatasetConfig
from thumbwheel.importers.fields import content_text
from thumbwheel.server.pages.operations import offered_fields
from thumbwheel.server.pages.page import PageRequest
from thumbwheel.server.pages.traces import CHECKERS
from thumbwheel.training.data_plan import data_plan

ROWS = 20
"""Rows of a dataset on a page."""
CASES = 50
"""Cases on a page."""
SEARCHED = 20_000
"""Rows that one request looks at."""
TEXTS = ("chosen", "rejected", "completion", "completions", "reference")
"""Fields of a row, of whatever shape, that have an answer."""
READINESS = {"ready": "good", "usable": "wait", "too few": ""}
VERDICTS = {"ok": "good", "warning": "wait", "error": "bad"}


class RowsQuery(Config):
    """Which rows of a dataset are shown."""

    split: str = "train"
    """train, dev or gate"""
    skip: int = Field(default=0, ge=0)
    """Rows before them"""
    text: str | None = Field(default=None, max_length=1000)
    """In the question or an answer; the case makes no difference"""
    origin: str | None = None
    """Where a row comes from"""

    def matches(self, row: Any) -> bool:
        """Return whether a row meets the filters."""
        if self.origin is not None and row.origin != self.origin:
            return False
        return self.text is None or self.text.lower() in _text_of(row).lower()


class CasesQuery(Config):
    """Which cases are shown."""

    basis: Literal["gold", "feedback"] | None = None
    """Reviewed by somebody, or not"""
    after: str | None = None
    """The last case of the page before"""


def _text_of(row: Any) -> str:
    """Return all texts of a row, whatever its shape."""
    texts = [content_text(message.get("content")) or "" for message in row.prompt]
    for name in TEXTS:
        value = getattr(row, name, None)
        parts = value if isinstance(value, list | tuple) else [value]
        texts += [str(part) for part in parts if part is not None]
    return "\n".join(texts)


def _shown_rows(rows: Iterator[Any], query: RowsQuery, skip: int) -> tuple[list[Any], int | None]:
    """Return the next rows that match, each with its number, and how many rows were passed where
    more may follow. At most SEARCHED rows are looked at."""
    shown: list[tuple[int, Any]] = []
    number = skip
    for row in islice(rows, SEARCHED):
        if len(shown) == ROWS:
            return shown, number
        number += 1
        if query.matches(row):
            shown.append((number, row))
    has_more = next(rows, None) is not None
    return shown, number if has_more else None


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
    """Load one dataset and a page of its rows, or of those that match a search."""
    query = asked.parsed(RowsQuery)
    dataset = build.find(asked.ws, asked.agent.slug, asked.parts["dataset"])
    rows = build.load_rows(asked.ws, dataset.id, query.split, query.skip)
    shown, following = _shown_rows(rows, query, query.skip)
    config = dataset.manifest.get("config", {})
    fields, more_fields = offered_fields("dataset build", DatasetConfig, config)
    offered = {field.name for field in (*fields, *more_fields)}
    stated = {name: value for name, value in config.items() if value is not None}
    rebuilt = {name: stated[name] for name in sorted(stated.keys() & offered)}
    return {
        "title": f"{dataset.shape} {dataset.id}",
        "dataset": dataset,
        "manifest": dataset.manifest,
        "findings": dataset.manifest.get("health", {}).get("findings", ()),
        "stale": stale(asked.ws, dataset),
        "splits": SPLITS,
        "split": query.split,
        "skip": query.skip,
        "query": query,
        "parameters": asked.query,
        "has_filters": query.text is not None or query.origin is not None,
        "origins": sorted(dataset.manifest.get("origins", {})),
        "rows": shown,
        "following": following,
        "total": dataset.counts.get(query.split, 0),
        "verdicts": VERDICTS,
        "rater": asked.rater,
        "rebuilt": rebuilt,
        "may_edit": asked.principal.may("edit", asked.agent.slug),
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
