"""The files of a home that may hold an erased subject's text outside the database and the datasets:
what goes, what stays.

Run folders of tainted runs keep their settings, their status and their figures; the cache goes as a
whole, for it can be made again. Every step may be repeated. Does not live here: rows (`store`),
datasets (`erase`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from thumbwheel.capture.inbox import REJECTED
from thumbwheel.datasets.rewrite import BUILDING, is_affected_file
from thumbwheel.db.workspace import Workspace
from thumbwheel.loop import store
from thumbwheel.loop.types import SubjectRows, Tainted
from thumbwheel.models import documents
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.versions import TAINTED
from thumbwheel.training.rundir import RunDir, replace

KEPT = ("spec.json", "status.json", "metrics.jsonl", "lock")
"""Files of a run that hold settings and figures only."""
REPORTS = "reports.jsonl"
"""File of the home that says where reports were written."""
SHORT = 3
"""Characters below which a name is looked for as a whole JSON text only."""


def check_idle(ws: Workspace) -> None:
    """Raise Conflict while a run of this home trains: it holds rows in memory and would write them
    again."""
    for folder in _folders(ws.home.runs):
        with suppress(FileNotFoundError):
            os.close(RunDir(folder).lock())


def purge(
    ws: Workspace,
    doomed: SubjectRows,
    tainted: Tainted,
    known_runs: Collection[str],
    exports: Iterable[str],
) -> dict[str, int]:
    """Take everything away; what -> how many files or lines."""
    count: Counter[str] = Counter()
    for folder in _folders(ws.home.runs):
        if folder.name in tainted.runs:
            count["files of runs"] += _strip(folder)
        elif folder.name not in known_runs and _mentions_ids(folder / "rows.jsonl", doomed.ids):
            count["files of runs"] += _remove(folder)
    count["files of the cache"] += _remove(ws.home.cache)
    count["unfinished files"] += (
        sum(_remove(path) for path in ws.home.path.glob(f"{BUILDING}*"))
        + Artifacts(ws.home.blobs).sweep()
    )
    count["datasets' files"] += _blobs(ws, doomed.ids)
    count["classifiers and judges' statements"] += documents.delete(
        ws, tainted.classifiers | tainted.judge_agreements
    )
    count["refused lines of the inbox"] += _rejected(ws.home.inbox / REJECTED, _names(doomed))
    count["reports"] += _reports(ws, tainted)
    for path in exports:
        _warn(Path(path))
    return {what: many for what, many in count.items() if many}


def _folders(path: Path) -> list[Path]:
    return sorted(one for one in path.iterdir() if one.is_dir()) if path.is_dir() else []


def _remove(path: Path) -> int:
    """Delete a file or a folder; how many files that were."""
    if not path.exists():
        return 0
    if path.is_file():
        path.unlink()
        return 1
    many = sum(one.is_file() for one in path.rglob("*"))
    shutil.rmtree(path)
    return many


def _strip(folder: Path) -> int:
    return sum(_remove(path) for path in sorted(folder.iterdir()) if path.name not in KEPT)


def _mentions_ids(path: Path, ids: Collection[str]) -> bool:
    if not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as stream:
        return any(one in line for line in stream for one in ids)


def _blobs(ws: Workspace, ids: frozenset[str]) -> int:
    """Delete files that no dataset, version or reward model names: those of datasets, and those of
    nobody that hold such rows."""
    blobs, many = Artifacts(ws.home.blobs), 0
    with ws.db.read() as connection:
        used, kinds = store.files_in_use(connection), store.artifact_kinds(connection)
    for sha256 in blobs.all():
        if sha256 in used or kinds.get(sha256, "dataset") != "dataset":
            continue
        if sha256 in kinds or is_affected_file(blobs.path(sha256), ids):
            blobs.remove(sha256)
            many += 1
    gone = {sha256 for sha256, kind in kinds.items() if kind == "dataset"} - used
    ws.db.write(lambda connection: store.forget_artifacts(connection, gone))
    return many


def _names(doomed: SubjectRows) -> set[str]:
    return {name for names in doomed.names.values() for name in names} | doomed.ids


def _rejected(path: Path, names: Collection[str]) -> int:
    """Drop the lines that name one of `names`; how many."""
    if not path.exists() or not names:
        return 0
    with path.open(
        encoding="utf-8", newline="\n"
    ) as stream:  # texts may hold other characters that end a line
        lines = list(stream)
    pattern = re.compile("|".join(_pattern(name) for name in sorted(names)))
    kept = [line for line in lines if not pattern.search(_plain(line))]
    if len(kept) < len(lines):
        replace(path, "".join(kept))
    return len(lines) - len(kept)


def _pattern(name: str) -> str:
    escaped = re.escape(name)
    return rf"(?<!\w){escaped}(?!\w)" if len(name) >= SHORT else f'"{escaped}"'


def _plain(line: str) -> str:
    """A refused line with the escapes of both levels of JSON undone."""
    with suppress(ValueError):
        outer = json.loads(line)
        text = str(outer.get("text", ""))
        with suppress(ValueError):
            text += "\n" + json.dumps(json.loads(text), ensure_ascii=False)
        return f"{outer.get('reason')}\n{text}"
    return line


def note_report(ws: Workspace, version_id: str, path: Path, content: str) -> None:
    """Remember that a report of a version is about to be written to `path`, so that an erasure
    finds it."""
    line = {"version": version_id, "path": str(path.absolute()), "sha256": _hash(content)}
    with (ws.home.path / REPORTS).open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
        out.flush()
        os.fsync(out.fileno())


def _hash(content: str) -> str:
    return hashlib.sha256(content.encode("utf-8", "backslashreplace")).hexdigest()


def _noted(ws: Workspace) -> list[dict[str, Any]]:
    path = ws.home.path / REPORTS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [
        json.loads(line) for line in lines if line.endswith("}")
    ]  # a kill may have left half a line


def _reports(ws: Workspace, tainted: Tainted) -> int:
    """Delete the reports of tainted versions that lie where they were written, unchanged."""
    noted, many = _noted(ws), 0
    left = []
    for one in noted:
        path = Path(one["path"])
        if one["version"] not in tainted.versions | tainted.shown:
            left.append(one)
        elif path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == one["sha256"]:
            many += _remove(path)
    if len(left) < len(noted):
        replace(ws.home.path / REPORTS, "".join(json.dumps(one) + "\n" for one in left))
    return many


def changed_reports(ws: Workspace, tainted: Tainted) -> list[str]:
    """Reports of tainted versions that were changed since they were written; they are left to their
    owner."""
    found = []
    for one in _noted(ws):
        path = Path(one["path"])
        if one["version"] in tainted.versions | tainted.shown and path.is_file():
            found += (
                [str(path)]
                if hashlib.sha256(path.read_bytes()).hexdigest() != one["sha256"]
                else []
            )
    return sorted(set(found))


def _warn(folder: Path) -> None:
    """Say in an exported folder that it is to be withdrawn."""
    if folder.is_dir():
        text = (
            "Data that this model was trained on was erased. Do not serve it; retrain without that "
            "data and export the new version.\n"
        )
        with suppress(OSError):
            (folder / TAINTED).write_text(text, encoding="utf-8")
