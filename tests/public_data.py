"""Where tests find the real public data: `THUMBWHEEL_TEST_DATA`, else ../shared/data beside the checkout; absent, they skip."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("THUMBWHEEL_TEST_DATA") or Path(__file__).parents[2] / "shared" / "data")


def public_data(name: str) -> Path:
    """The file `name` of the public data; skips the test where it is absent."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"public data is absent: {path} (set THUMBWHEEL_TEST_DATA to the folder that holds {name})")
    return path
