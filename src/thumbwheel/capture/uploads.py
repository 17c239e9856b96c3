"""Files that were sent to the server for an import: each in a folder of its own of the home, until
its job has succeeded.

The file of a job that failed or was cancelled stays for a day, so that the job can be tried again.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from thumbwheel.core.config import Home
from thumbwheel.core.errors import InputError, ThumbwheelError
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers.import_report import ImportReport
from thumbwheel.jobs import current
from thumbwheel.jobs.queue import jobs
from thumbwheel.jobs.types import JobState

REPORTS = TypeAdapter(ImportReport)
KIND = "import"
"""Of the jobs that read them."""
UPLOAD_ID = re.compile(r"upl_[0-9a-v]+")
UNENDED = (JobState.QUEUED, JobState.RUNNING, JobState.CANCELLING)
KEPT_SECONDS = 86_400.0
REPORT = "report"
"""The note what an earlier attempt reported, which may have removed the file already."""


@dataclass
class Upload:
    """A file that came as the body of a request. Its folder is removed with the request, unless a
    job reads it."""

    path: Path
    size: int
    sha256: str
    is_of_job: bool = False

    @property
    def folder(self) -> Path:
        """It has nothing else in it."""
        return self.path.parent

    def hand_over(self, upload: str) -> None:
        """Rename the upload to `upload`. If an earlier request sent the same file, its job has it
        already."""
        target = self.folder.with_name(upload)
        if target.exists():
            shutil.rmtree(self.folder)
            self.is_of_job = True
        elif target != self.folder:
            self.folder.rename(target)
        self.path = target / self.path.name


def uploaded_file(home: Home, upload: str, name: str) -> Path:
    """Return the path of an uploaded file. Raises InputError if it is not an upload, or no longer
    exists."""
    path = home.uploads / upload / name
    if not UPLOAD_ID.fullmatch(upload) or Path(name).name != name or not path.is_file():
        raise InputError(
            f"file {name[:100]!r}",
            "the upload no longer exists: it is removed a day after its import",
            "Send it again",
        )
    return path


def read_upload(
    ws: Workspace, upload: str, name: str, read: Callable[[Path], ImportReport]
) -> ImportReport:
    """Return what `read` reports of the file, and remove the file. A kill at any point loses
    nothing: the next attempt reads the file again, or has the report.

    Reports and errors use the sender's name of the file, because its path here means nothing to
    them.
    """
    if REPORT in current.notes():
        return REPORTS.validate_python(current.notes()[REPORT])
    path = uploaded_file(ws.home, upload, name)
    folder = f"{path.parent}/"
    try:
        report = read(path)
    except ThumbwheelError as error:
        raise renamed(error, folder) from None
    report.path = name
    current.note(ws, **{REPORT: REPORTS.dump_python(report, mode="json")})
    shutil.rmtree(path.parent, ignore_errors=True)
    return report


def renamed(error: ThumbwheelError, folder: str) -> ThumbwheelError:
    """Return the error without the folder in its texts."""
    texts = [text.replace(folder, "") for text in (error.what, error.why, error.fix)]
    return type(error)(*texts)


def sweep_uploads(ws: Workspace, kept_seconds: float = KEPT_SECONDS) -> int:
    """Remove the files that no unfinished job reads and that are older than `kept_seconds`; return
    their number."""
    waiting, _ = jobs(ws, states=UNENDED, kind=KIND, limit=100_000)
    in_use = {job.spec.get("upload") for job in waiting}
    oldest = time.time() - kept_seconds
    removed = 0
    for folder in ws.home.uploads.glob("upl_*"):
        with suppress(FileNotFoundError):  # its job has ended meanwhile
            if folder.name not in in_use and folder.stat().st_mtime <= oldest:
                shutil.rmtree(folder)
                removed += 1
    return removed
