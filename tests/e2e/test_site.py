"""The documentation as a site: every page is in its navigation and in the index, it builds offline,
and no link of it leads nowhere."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests import floor_plan
from tests.doc_pages import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
LINK = re.compile(r'(?:href|src)="([^"]+)"')
SIZE = re.compile(r"<tspan[^>]*>[\d,]+</tspan>")
"""Lines of code in the floor plan, which may be those of some commits ago."""


def entries(nav: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the pages of a navigation."""
    for entry in nav:
        for target in entry.values():
            if isinstance(target, str):
                yield target
            else:
                yield from entries(target)


def test_the_navigation_has_every_page_once() -> None:
    config = tomllib.loads((ROOT / "zensical.toml").read_text())
    assert sorted(entries(config["project"]["nav"])) == PAGES


def test_the_index_links_to_every_other_page() -> None:
    linked = set(re.findall(r"\]\(([^)#]+)\)", (DOCS / "index.md").read_text()))
    assert linked == set(PAGES) - {"index.md"}


def test_no_page_links_out_of_the_documentation() -> None:
    for page in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            inside = (page.parent / target).resolve().is_relative_to(DOCS)
            assert inside, f"{page.name} links to {target}, which the site has not"


def test_the_floor_plan_is_that_of_the_import_graph() -> None:
    drawn, stored = floor_plan.drawn(), floor_plan.PICTURE.read_text()
    assert SIZE.sub("", stored) == SIZE.sub("", drawn), "draw it: python -m tests.floor_plan"


@pytest.mark.slow
def test_the_site_builds_and_every_link_leads_somewhere() -> None:
    command = [str(Path(sys.executable).parent / "zensical"), "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    site = ROOT / "build" / "site"
    broken = []
    for page in site.rglob("*.html"):
        for link in LINK.findall(page.read_text()):
            parts = urlsplit(unescape(link))
            if parts.scheme or parts.netloc or not parts.path or page.name == "404.html":
                continue
            target = (page.parent / unquote(parts.path)).resolve()
            if not target.exists():
                broken.append(f"{page.relative_to(site)}: {link}")
    assert not broken, broken[:20]
    reference = (site / "reference" / "python" / "index.html").read_text()
    for name in ("trace", "feedback", "TraceCollector", "RewardFunction", "Target"):
        assert f'.{name}"' in reference, name
