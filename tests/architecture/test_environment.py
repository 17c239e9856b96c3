"""Every variable of ours that the code reads stands in the list of docs/30-operations.md, and
nothing else of ours does."""

from __future__ import annotations

import re

from tests.distributions import ROOT, source_files

GENERIC = "THUMBWHEEL_SECTION__KEY"


def test_the_list_of_variables_is_whole() -> None:
    page = (
        (ROOT / "docs" / "30-operations.md")
        .read_text()
        .split("| variable | what it does |")[1]
        .split("\n\n")[0]
    )
    listed = set(re.findall(r"`(THUMBWHEEL_[A-Z_]+)`", page)) - {GENERIC}
    read: set[str] = set()
    for path in source_files():
        read |= {
            name for name in re.findall(r"THUMBWHEEL_[A-Z_]+", path.read_text()) if "__" not in name
        }
    assert GENERIC in page
    assert listed == {name for name in read if not name.endswith("_")}
