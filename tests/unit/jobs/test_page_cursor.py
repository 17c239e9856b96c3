"""A cursor of a list reads what it wrote and refuses everything else."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime

import pytest

from thumbwheel.core.errors import InputError
from thumbwheel.db.page_cursor import PageCursor

LAST = PageCursor(datetime(2026, 7, 5, 8, 30, 0, 123, tzinfo=UTC), "job_06h1")


def text_of(*content: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode()


def test_a_cursor_is_read_as_it_was_written() -> None:
    assert PageCursor.read(LAST.to_text()) == LAST


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "é",
        text_of(),
        text_of("2026-07-05", "job_06h1"),
        text_of("2026-07-05T08:30:00+00:00", 3),
        text_of("monday", "job_06h1"),
    ],
    ids=["empty", "short", "accent", "no-parts", "no-zone", "no-text", "no-time"],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="unknown cursor"):
        PageCursor.read(text)
