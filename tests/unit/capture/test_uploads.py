"""Files that were sent to the server for an import, and what becomes of them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from thumbwheel.capture.jobs import ImportSpec, run_import
from thumbwheel.capture.uploads import KEPT_SECONDS, sweep_uploads
from thumbwheel.core.errors import InputError, NotFound
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs import queue

LINE = '{"type": "trace", "id": "t1", "input": "Where?", "output": "Here."}\n'


def uploaded(ws: Workspace, upload: str = "upl_1") -> Path:
    path = ws.home.uploads / upload / "r.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(LINE)
    return path


def test_a_file_is_removed_once_it_is_imported(empty_ws: Workspace) -> None:
    path = uploaded(empty_ws)
    spec = ImportSpec(source="jsonl", path="r.jsonl", upload="upl_1", agent="a")
    report = run_import(empty_ws, spec)
    assert (report.path, report.stored) == ("r.jsonl", 1)
    assert not path.parent.exists()
    with pytest.raises(InputError, match="no longer exists"):
        run_import(empty_ws, spec)


def test_an_error_names_the_file_as_its_sender_did(empty_ws: Workspace) -> None:
    path = uploaded(empty_ws)
    spec = ImportSpec(source="nothing", path="r.jsonl", upload="upl_1", agent="a")
    with pytest.raises(NotFound) as refusal:
        run_import(empty_ws, spec)
    assert str(empty_ws.home.path) not in str(refusal.value)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError) as unreadable:
        run_import(empty_ws, spec.model_copy(update={"source": "csv"}))
    assert str(empty_ws.home.path) not in str(unreadable.value)
    assert path.exists()  # the job may be tried again


@pytest.mark.parametrize(
    ("upload", "name"), [("..", "thumbwheel.db"), ("upl_1/..", "x"), ("upl_1", "../upl_1/r.jsonl")]
)
def test_an_upload_is_no_path(empty_ws: Workspace, upload: str, name: str) -> None:
    uploaded(empty_ws)
    with pytest.raises(InputError, match="no longer exists"):
        run_import(empty_ws, ImportSpec(source="jsonl", path=name, upload=upload, agent="a"))


def test_files_that_no_job_reads_are_removed_after_a_day(empty_ws: Workspace) -> None:
    waiting, old, new = (uploaded(empty_ws, f"upl_{name}") for name in ("0w", "0o", "0n"))
    job = queue.enqueue(empty_ws, "import", {"upload": "upl_0w"})
    before = time.time() - KEPT_SECONDS - 1
    for path in (waiting, old):
        os.utime(path.parent, (before, before))
    assert sweep_uploads(empty_ws) == 1
    assert (waiting.exists(), old.exists(), new.exists()) == (True, False, True)
    queue.cancel(empty_ws, job.id)
    assert sweep_uploads(empty_ws, kept_seconds=0) == 2
    assert not list(empty_ws.home.uploads.iterdir())
