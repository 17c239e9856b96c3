"""What is written is executed: every fenced `sh`, `python` and `yaml` block of README and docs/
runs, in order, as a reader would.

A block of another kind (`text`, `json`, ...) is an illustration; one that names a program of others
(`sh openwebui`) runs where that is (tests/others/). Each page has a folder and a home of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doc_pages import PAGES, ROOT, blocks
from tests.pictures import check_picture, take_picture
from thumbwheel.app.settings import sections
from thumbwheel.core.config import Sources, check_sections

CHECKOUT = ("make ",)
ELSEWHERE = {"01-tutorial.md": "tests/e2e/test_tutorial.py looks at its answers, too"}
"""Page -> which other test runs it."""
REPORT_PIXELS = (1000, 800)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in ELSEWHERE], ids=lambda page: page.name
)
def test_a_page_runs(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    binaries = Path(sys.executable).parent
    environment = os.environ | {
        "THUMBWHEEL_HOME": str(tmp_path / "home"),
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "COLUMNS": "120",
    }
    if "$SERVER" in page.read_text():
        environment["SERVER"] = request.getfixturevalue("databases").empty()
    if "$BUCKET" in page.read_text():
        server = request.getfixturevalue("s3_server")
        environment |= server.environment | {"BUCKET": server.bucket()}
    for number, block in enumerate(blocks(page), 1):
        kind, text = block.kind, block.text
        if block.needs or kind not in ("sh", "python", "yaml"):
            continue
        if kind == "yaml":
            (tmp_path / "settings.yaml").write_text(text)
            check_sections(Sources.read(tmp_path / "settings.yaml", {}), sections())
            continue
        if kind == "sh" and any(line.startswith(CHECKOUT) for line in text.splitlines()):
            continue  # these are what CI itself does: a clean clone, make demo, make test
        command = (
            ["bash", "-euo", "pipefail", "-c", text]
            if kind == "sh"
            else [sys.executable, "-c", text]
        )
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (
            f"{page.name} block {number}:\n{text}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        )
    if page.name == "README.md":
        take_report_picture(tmp_path)


def take_report_picture(folder: Path) -> None:
    """The README's picture, of the report that its commands wrote. THUMBWHEEL_PICTURES names a
    folder that keeps it; docs/report.png shows the report of `make demo`."""
    pictures = Path(os.environ.get("THUMBWHEEL_PICTURES", folder)).resolve()
    picture = pictures / "report.png"
    take_picture(folder / "report.html", picture, *REPORT_PIXELS)
    check_picture(picture, *REPORT_PIXELS)


def test_the_readmes_picture_is_one() -> None:
    check_picture(ROOT / "docs" / "report.png", *REPORT_PIXELS)


def test_the_tree_in_the_readme_is_the_tree() -> None:
    shown = set(
        re.findall(
            r"^  (\w+)/",
            (ROOT / "README.md").read_text().split("src/thumbwheel/")[1].split("```")[0],
            re.MULTILINE,
        )
    )
    real = {
        path.name
        for path in (ROOT / "src" / "thumbwheel").iterdir()
        if path.is_dir() and path.name != "__pycache__"
    }
    assert shown == real


def test_every_link_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_command_is_in_the_docs() -> None:
    from thumbwheel.app.command_table import COMMANDS

    written = "\n".join(page.read_text() for page in PAGES)
    assert not [name for name in COMMANDS if f"thumbwheel {name}" not in written]


def test_every_figure_of_the_benchmarks_has_a_raw_file_that_says_its_conditions() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    files = set(re.findall(r"\]\(results/([^)]+)\)", page))
    assert len(files) >= 20
    for file in files:
        conditions = json.loads((ROOT / "docs" / "results" / file).read_text())["conditions"]
        for name in ("date", "command", "cpu", "commit"):
            assert conditions.get(name), f"{file} does not say its {name}"
