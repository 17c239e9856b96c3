"""The tutorial runs as it is written, on the real small model: from a CSV of ratings to an app that
is answered by a version which learned from them."""

from __future__ import annotations

import csv
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doc_pages import ROOT, blocks

PAGE = ROOT / "docs" / "01-tutorial.md"
RATINGS = ROOT / "docs" / "examples" / "ratings.csv"
MOST_COMMANDS = 8
WORDS = {"six": 6, "seven": 7, "eight": 8}
MINUTES, CORES = 15, 2
"""The machine's time that the page may take, all processes together."""


def commands() -> list[str]:
    """Return the commands of the page up to the answers, without those that only show what another
    one would do."""
    lines = "\n".join(block.text for block in blocks(PAGE) if block.kind == "sh").splitlines()
    asked = [line for line in lines if re.search(r"\b(thumbwheel|curl) ", line)]
    until_answered = asked[: 1 + next(n for n, line in enumerate(asked) if "curl" in line)]
    return [line for line in until_answered if "--dry-run" not in line]


def test_the_tutorial_takes_few_commands() -> None:
    assert len(commands()) <= MOST_COMMANDS
    stated = re.search(r"It\s+takes\s+(\w+)\s+commands", PAGE.read_text())
    assert stated is not None and WORDS[stated[1]] == len(commands())


def test_the_page_shows_the_first_lines_of_its_file() -> None:
    first = "".join(RATINGS.read_text().splitlines(keepends=True)[:3])
    assert first in [block.text for block in blocks(PAGE)]


@pytest.mark.slow
@pytest.mark.timeout(3600)  # other programs may be busy; the processor's time is what counts
def test_an_app_is_answered_by_what_learned_from_the_ratings(tmp_path: Path) -> None:
    shutil.copytree(RATINGS.parent, tmp_path / "examples")
    environment = os.environ | {
        "THUMBWHEEL_HOME": str(tmp_path / "home"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "120",
    }
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    for block in blocks(PAGE):
        if block.kind not in ("sh", "python"):
            continue
        program = {"sh": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}
        done = subprocess.run(
            [*program[block.kind], block.text],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{block.text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
    assert seconds < 60 * MINUTES * CORES

    answers = {}
    for model in ("desk:before", "desk"):
        reply = json.loads((tmp_path / f"answer-{model}.json").read_text())
        answers[model] = reply["choices"][0]["message"]["content"].strip()
    with RATINGS.open() as file:
        teams = {row["answer"] for row in csv.DictReader(file)}
    assert answers["desk"] in teams
    assert answers["desk:before"] not in teams
    assert "x-thumbwheel-version: v0" in (tmp_path / "headers-desk:before.txt").read_text()
    assert "x-thumbwheel-version: v1" in (tmp_path / "headers-desk.txt").read_text()
