"""What has to be on disk before the next thing happens."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Return when what `path` holds would outlive a power cut: the bytes of a file, or the names in
    a folder; raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
