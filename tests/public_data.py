"""Where tests find the real public data: `THUMBWHEEL_TEST_DATA`, else ../shared/data beside the
checkout.

Without it they are skipped, or fail where it is demanded (required.py)."""

from __future__ import annotations

import os
from pathlib import Path

from tests.required import missing

DATA = Path(os.environ.get("THUMBWHEEL_TEST_DATA") or Path(__file__).parents[2] / "shared" / "data")


def public_data(name: str) -> Path:
    """The file `name` of the public data; skips the test where it is absent, or fails it."""
    path = DATA / name
    if not path.exists():
        missing(
            "data",
            f"public data is absent: {path} (set THUMBWHEEL_TEST_DATA to the folder that holds "
            f"{name})",
        )
    return path
