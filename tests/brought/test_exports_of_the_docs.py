"""docs/15 lists what the code reads, and the products whose files it names."""

from __future__ import annotations

import re
from pathlib import Path

from thumbwheel.importers.foreign import FOREIGN
from thumbwheel.importers.sources import SOURCES

PAGE = (Path(__file__).parents[2] / "docs" / "15-sources.md").read_text()
EXPORTS = PAGE.partition("## Exports by product and menu path")[2].partition("\n## ")[0]
PRODUCT = re.compile(r"\b[A-Z][A-Za-z]+(?:[ -][A-Z][A-Za-z]+)*")


def test_every_source_is_on_the_page() -> None:
    missing = [name for name in SOURCES.names() if f"`{name}`" not in PAGE]
    assert not missing


def test_every_source_of_the_table_exists() -> None:
    rows = [line.split("|") for line in EXPORTS.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 50
    names = set(SOURCES.names())
    for row in rows:
        assert len(row) == 7, row
        cell = row[3].partition(" with ")[0]
        sources = re.findall(r"`([a-z_]+)`", cell)
        assert set(sources) <= names and (sources or "none" in cell or "what" in cell), row


def test_every_product_that_is_refused_by_name_is_in_the_table() -> None:
    described = [text for _, *texts in FOREIGN for text in texts[:1]]
    assert len(described) > 20
    missing = [name for text in described for name in PRODUCT.findall(text) if name not in EXPORTS]
    assert not missing
