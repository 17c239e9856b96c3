"""`kennel`: a folder of notes, one a file: a question, an answer and what should have been said.

A file `fox.note` has three parts between lines of dashes. A file `fox.gold` has a question and the
right answer, and is a case of the evaluation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from thumbwheel.core.errors import InputError
from thumbwheel.importers.source import (
    Item,
    OnPosition,
    Row,
    Unreadable,
    files_below,
    item_of,
    items_of_files,
    read_regular,
)
from thumbwheel.importers.types import AnyRecord, CaseRecord, FeedbackRecord, TraceRecord

DASHES = "\n---\n"


class KennelNotes:
    """Files of one folder, in the order of their names."""

    example = "a file fox.note: Where is the fox? / --- / On the roof. / --- / In the den."

    def claims(self, row: Row) -> bool:
        """No row of a file is a note."""
        return False

    def claims_location(self, path: Path) -> bool:
        """A folder with notes or cases."""
        return path.is_dir() and any(_files(path))

    def read(self, path: Path, on_position: OnPosition) -> Iterator[Item]:
        """The notes, then the cases; raises InputError for what is no folder of notes."""
        if not path.is_dir():
            read_regular(path)  # refuses a pipe or a device with its own reason
        if not self.claims_location(path):
            raise InputError(f"{str(path)!r}", "it is no folder of notes", "Name one with *.note")
        return items_of_files(path, _files(path), self._item, on_position)

    def _item(self, file: Path) -> Iterator[Item]:
        text = read_regular(file).decode()
        parse = _case if file.suffix == ".gold" else _note
        yield item_of(0, text, lambda: parse(file.stem, text))


def _files(folder: Path) -> Iterator[Path]:
    yield from files_below(folder, ".note")
    yield from files_below(folder, ".gold")


def _note(name: str, text: str) -> list[AnyRecord]:
    question, answer, correction = _parts(text, 3)
    trace = TraceRecord(id=name, session=name, input=question, output=answer)
    about = [trace.as_target()]
    return [
        trace,
        FeedbackRecord(kind="correction", value=correction, targets=about),
        FeedbackRecord(kind="thumb", value=False, targets=about),
    ]


def _case(name: str, text: str) -> list[AnyRecord]:
    question, right = _parts(text, 2)
    try:
        reference = json.loads(right)
    except ValueError:
        raise Unreadable("its answer is no JSON") from None
    return [CaseRecord(id=name, input=question, reference=reference, checker="json_fields")]


def _parts(text: str, count: int) -> list[str]:
    parts = text.strip().split(DASHES)
    if len(parts) != count:
        raise Unreadable(f"it has {len(parts)} parts instead of {count}")
    return parts


SOURCE = KennelNotes()
