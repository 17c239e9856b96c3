"""Deletes the files of a home, besides the database and the datasets, that may hold an erased
subject's text.

Run folders of tainted runs keep their settings, status and figures. The cache is deleted whole,
since it can be made again. Every step may be repeated. Rows are deleted in subject_data.py,
datasets in erase.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from thumbwheel.capture.inbox import REJECTED
from thumbwheel.capture.uploads import sweep_uploads
from thumbwheel.core.files import replace
from thumbwheel.datasets.files import BUILDING, PARTS
from thumbwheel.datasets.rewrite import is_affected_file
from thumbwheel.db.workspace import Workspace
from thumbwheel.erasure import file_records
from thumbwheel.erasure.types import SubjectRows
from thumbwheel.models import documents
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.blob_location import bucket_of
from thumbwheel.models.versions import TAINTED
from thumbwheel.report.types import Tainted
from thumbwheel.report.written_reports import REPORTS, noted_lines
from thumbwheel.training.rundir import SPEC, RunDir
from thumbwheel.training.stored_checkpoints import forget_stored, stored_runs

WITHOUT_TEXT = (SPEC, "status.json", "metrics.jsonl", "lock")
"""Files of a run that hold only settings and figures."""
SHORT = 3
"""A name with fewer characters is only found as a whole JSON string."""


def check_idle(ws: Workspace) -> None:
    """Raise Conflict while a run of this home trains, because it would write checkpoints again."""
    for folder in _folders(ws.home.runs):
        with suppress(FileNotFoundError):
            os.close(RunDir(folder).lock())


def purge(
    ws: Workspace,
    doomed: SubjectRows,
    tainted: Tainted,
    exports: Iterable[str],
) -> dict[str, int]:
    """Delete the files; return kind -> number of deleted files or lines, without zeros."""
    count: Counter[str] = Counter()
    for folder in _folders(ws.home.runs):
        if folder.name in tainted.runs:
            count["files of runs"] += remove_text(folder)
        _forget_raters(folder / SPEC, doomed.raters)
    count["checkpoints in the bucket"] += _remove_stored_checkpoints(ws, doomed, tainted)
    count["files of the cache"] += _remove(ws.home.cache)
    count["uploaded files"] += sweep_uploads(ws, kept_seconds=0)
    for unfinished in ws.home.path.glob(f"{BUILDING}*"):
        count["unfinished files"] += _remove(unfinished)
    count["unfinished files"] += Artifacts.of(ws).sweep() + _remove_parts(ws)
    count["datasets' files"] += _remove_blobs(ws, doomed.ids)
    fitted = tainted.classifiers | tainted.judge_agreements | tainted.calibrations
    count["classifiers and judges' statements"] += documents.delete(ws, fitted)
    names = set(doomed.ids).union(*doomed.names.values())
    count["refused lines of the inbox"] += _remove_rejected(ws.home.inbox / REJECTED, names)
    count["reports"] += _remove_reports(ws, tainted)
    for path in [*exports, *_noted_copies(ws, tainted)]:
        _mark_export(Path(path))
    return {what: number for what, number in count.items() if number}


def _remove_stored_checkpoints(ws: Workspace, doomed: SubjectRows, tainted: Tainted) -> int:
    """Delete the checkpoints of tainted runs from the bucket of the home; return of how many runs.
    Their specs name raters: where one is erased, the checkpoints of all runs go."""
    bucket = bucket_of(ws)
    if bucket is None:
        return 0
    run_ids = stored_runs(ws)
    if not doomed.raters:
        run_ids &= tainted.runs
    for run_id in sorted(run_ids):
        forget_stored(ws, bucket, run_id)
    return len(run_ids)


def _remove_parts(ws: Workspace) -> int:
    """Delete the rows of datasets under construction from the bucket of the home; return the number
    of files. A build that needs them fails."""
    bucket = bucket_of(ws)
    return 0 if bucket is None else bucket.remove(PARTS)


def _folders(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    return sorted(child for child in path.iterdir() if child.is_dir())


def _remove(path: Path) -> int:
    """Delete a file or a folder; return the number of files."""
    if not path.exists():
        return 0
    if path.is_file():
        path.unlink()
        return 1
    files = sum(child.is_file() for child in path.rglob("*"))
    shutil.rmtree(path)
    return files


def remove_text(run_folder: Path) -> int:
    """Delete the files of a run except its settings, status and figures; return how many."""
    removed = 0
    for path in sorted(run_folder.iterdir()):
        if path.name not in WITHOUT_TEXT:
            removed += _remove(path)
    return removed


def _forget_raters(spec_file: Path, raters: Collection[str]) -> None:
    """Remove the rows that `raters` judged from a run's list of raters."""
    try:
        spec = json.loads(spec_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    raters_of = spec.get("raters", {})
    erased = set(raters)
    remaining = {row: names for row, names in raters_of.items() if erased.isdisjoint(names)}
    if len(remaining) < len(raters_of):
        replace(spec_file, json.dumps(spec | {"raters": remaining}, indent=2))


def _remove_blobs(ws: Workspace, ids: frozenset[str]) -> int:
    """Delete dataset blobs that no dataset, version or reward model uses, and unrecorded ones with
    rows from these `ids`; return how many."""
    blobs, removed = Artifacts.of(ws), 0
    with ws.db.read() as connection:
        used, kinds = file_records.files_in_use(connection), file_records.artifact_kinds(connection)
    for sha256 in blobs.all():
        if sha256 in used or kinds.get(sha256, "dataset") != "dataset":
            continue
        if sha256 in kinds or is_affected_file(blobs.path(sha256), ids):
            blobs.remove(sha256)
            removed += 1
    unused = {sha256 for sha256, kind in kinds.items() if kind == "dataset"} - used
    ws.db.write(lambda connection: file_records.forget_artifacts(connection, unused))
    return removed


def _remove_rejected(path: Path, names: Collection[str]) -> int:
    """Remove the refused lines that contain one of `names`; return how many."""
    if not path.exists() or not names:
        return 0
    # Texts may hold other characters that Python takes for the end of a line.
    with path.open(encoding="utf-8", newline="\n") as stream:
        lines = list(stream)
    pattern = re.compile("|".join(_name_pattern(name) for name in sorted(names)))
    remaining = [line for line in lines if not pattern.search(_unescaped(line))]
    if len(remaining) < len(lines):
        replace(path, "".join(remaining))
    return len(lines) - len(remaining)


def _name_pattern(name: str) -> str:
    escaped = re.escape(name)
    return rf"(?<!\w){escaped}(?!\w)" if len(name) >= SHORT else f'"{escaped}"'


def mentions(names: Collection[str]) -> Callable[[str], bool]:
    """Return a function that tells whether a text contains one of `names`; a short name must be the
    whole text."""
    short = {name for name in names if len(name) < SHORT}
    long = [re.escape(name) for name in sorted(names) if len(name) >= SHORT]
    pattern = re.compile(rf"(?<!\w)({'|'.join(long)})(?!\w)") if long else None

    def is_mentioned(text: str) -> bool:
        return text in short or (pattern is not None and pattern.search(text) is not None)

    return is_mentioned


def _unescaped(line: str) -> str:
    """Return a refused line with the escapes of both levels of JSON undone."""
    with suppress(ValueError):
        outer = json.loads(line)
        text = str(outer.get("text", ""))
        with suppress(ValueError):
            text += "\n" + json.dumps(json.loads(text), ensure_ascii=False)
        return f"{outer.get('reason')}\n{text}"
    return line


def _noted_reports(ws: Workspace) -> list[dict[str, Any]]:
    return [line for line in noted_lines(ws) if "path" in line]


def _noted_copies(ws: Workspace, tainted: Tainted) -> list[str]:
    """Return the folders with copies of reward models that judged tainted versions."""
    copies = [line for line in noted_lines(ws) if "folder" in line]
    return [line["folder"] for line in copies if line["version"] in tainted.versions]


def _is_unchanged(report: Mapping[str, Any]) -> bool:
    sha256: str = report["sha256"]
    return hashlib.sha256(Path(report["path"]).read_bytes()).hexdigest() == sha256


def _remove_reports(ws: Workspace, tainted: Tainted) -> int:
    """Delete the reports of tainted versions that are still unchanged where they were written;
    return how many."""
    lines, removed = noted_lines(ws), 0
    remaining = []
    for line in lines:
        is_copy = "folder" in line
        if is_copy or line["version"] not in tainted.versions | tainted.shown:
            remaining.append(line)
        elif Path(line["path"]).is_file() and _is_unchanged(line):
            removed += _remove(Path(line["path"]))
    if len(remaining) < len(lines):
        kept_lines = [json.dumps(line) + "\n" for line in remaining]
        replace(ws.home.path / REPORTS, "".join(kept_lines))
    return removed


def changed_reports(ws: Workspace, tainted: Tainted) -> list[str]:
    """Return the paths of tainted versions' reports that were changed after they were written;
    their owner must delete them."""
    changed = set()
    for report in _noted_reports(ws):
        path = Path(report["path"])
        of_tainted = report["version"] in tainted.versions | tainted.shown
        if of_tainted and path.is_file() and not _is_unchanged(report):
            changed.add(str(path))
    return sorted(changed)


def _mark_export(folder: Path) -> None:
    """Write a note into an exported folder that it must be withdrawn."""
    if folder.is_dir():
        text = (
            "Data that this model was trained on was erased. Do not serve it; retrain without that "
            "data and export the new version.\n"
        )
        with suppress(OSError):
            (folder / TAINTED).write_text(text, encoding="utf-8")
