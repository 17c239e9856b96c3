"""Every method has a page, and what the page says of settings is what the settings are. Its snippets run in tests/e2e/test_docs.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from thumbwheel.training.algorithms import ALGORITHMS

PAGES = Path(__file__).parents[2] / "docs" / "methods"
ROW = re.compile(r"^\| (`[^|]+) \|([^|]*)\|", re.MULTILINE)


def section(page: str, title: str) -> str:
    return page.split(f"## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_a_method_has_a_page_with_its_true_defaults(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text()
    for title in ("Try it", "Settings", "Metrics", "When it goes wrong"):
        assert f"## {title}\n" in page
    fields = ALGORITHMS.get(name).Config.model_fields
    rows = ROW.findall(section(page, "Settings"))
    assert rows
    for setting, default in rows:
        field = fields[setting.strip("`")]
        said = {None: "unset", (): "none"}.get(field.default, str(field.default))
        assert said == default.strip(), f"{setting}: the page says {default.strip()}, the default is {field.default}"


def test_every_page_is_of_a_method() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} <= set(ALGORITHMS.names())
