"""A base of terabytes that whoever may train names: it would fill the disk from which everybody is
served."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from thumbwheel.core.errors import ModelError
from thumbwheel.models import base

pytest.importorskip("huggingface_hub")
FREE, TOTAL = 100 * 10**9, 1000 * 10**9


@pytest.mark.parametrize(
    ("sizes", "is_taken"),
    [
        ([700 * 10**9], False),
        ([30 * 10**9, 30 * 10**9], False),
        ([40 * 10**9, 5 * 10**9], True),
        ([None, 10**9], True),
    ],
)
def test_no_download_fills_the_disk(
    sizes: list[int | None], is_taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloaded: list[str] = []

    def snapshot(
        name: str, *, local_files_only: bool = False, dry_run: bool = False, **_: Any
    ) -> Any:
        if local_files_only:
            raise OSError("not cached")
        if dry_run:
            here = SimpleNamespace(file_size=10**15, will_download=False)
            return [here, *(SimpleNamespace(file_size=size, will_download=True) for size in sizes)]
        downloaded.append(name)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "none" / "hub"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=FREE, total=TOTAL))
    if is_taken:
        assert base.locate("somebody/small") == ("somebody/small", tmp_path)
    else:
        with pytest.raises(ModelError, match=r"50\.0 GB are kept"):
            base.locate("somebody/huge")
    assert bool(downloaded) == is_taken
