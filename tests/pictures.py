"""Pages in a real browser, Debian's chromium without a window: their pictures, and what scripts
make of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
from matplotlib.image import imread
from PIL import Image
from playwright.sync_api import Page

from tests.required import missing

BROWSER = "chromium"
LEAST_COLOURS = 30
"""A page with text and charts has more; an empty or broken one does not."""


def take_picture(page: Path, picture: Path, width: int, height: int) -> None:
    """Write the top of the local file `page` as a PNG of `width` times `height` pixels."""
    size = f"--window-size={width},{height}"
    _browse("--hide-scrollbars", size, f"--screenshot={picture}", page.as_uri())


def dump_page(address: str, profile: Path) -> str:
    """The page at `address` as HTML, when its scripts have had their time. What it stores stays in
    the folder `profile`."""
    return _browse(
        f"--user-data-dir={profile}", "--virtual-time-budget=20000", "--dump-dom", address
    )


def _browse(*arguments: str) -> str:
    """What the browser prints."""
    browser = shutil.which(BROWSER)
    if browser is None:
        missing("all", f"{BROWSER} is not installed")
    # CI is root in a container, and the pages are our own
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", *arguments]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60, text=True)
    return done.stdout


def shrink(picture: Path) -> None:
    """Write the PNG anew with a palette, which a page of text does not look different with."""
    colours = Image.open(picture).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    colours.save(picture, optimize=True)


def without_folder(page: Page, folder: Path) -> None:
    """Show `folder`, which lies where the tests ran, as one that a reader could have."""
    page.evaluate(
        """([folder, shown]) => {
          const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
          while (texts.nextNode())
            texts.currentNode.data = texts.currentNode.data.replaceAll(folder, shown);
        }""",
        [str(folder), "/srv/thumbwheel"],
    )


def check_picture(picture: Path, width: int, height: int) -> None:
    pixels = imread(picture)
    assert pixels.shape[:2] == (height, width)
    colours = np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)
    assert len(colours) > LEAST_COLOURS
