"""Pictures of pages, taken by a real browser: Debian's chromium, without a window."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
from matplotlib.image import imread

from tests.required import missing

BROWSER = "chromium"
LEAST_COLOURS = 30
"""A page with text and charts has more; an empty or broken one does not."""


def take_picture(page: Path, picture: Path, width: int, height: int) -> None:
    """Write the top of the local file `page` as a PNG of `width` times `height` pixels."""
    browser = shutil.which(BROWSER)
    if browser is None:
        missing("all", f"{BROWSER} is not installed")
    command = [
        browser,
        "--headless",
        "--no-sandbox",  # CI is root in a container; the page is our own file
        "--disable-gpu",
        "--hide-scrollbars",
        f"--window-size={width},{height}",
        f"--screenshot={picture}",
        page.as_uri(),
    ]
    subprocess.run(command, capture_output=True, check=True, timeout=60)


def check_picture(picture: Path, width: int, height: int) -> None:
    pixels = imread(picture)
    assert pixels.shape[:2] == (height, width)
    colours = np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)
    assert len(colours) > LEAST_COLOURS
