"""Where a page of a list ends: lists begin with the newest row, and the next page goes on after the
last row of the one before, whatever came meanwhile."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import datetime

from thumbwheel.core.errors import InputError


@dataclass(frozen=True)
class PageCursor:
    """The last row of a page."""

    recorded_at: datetime
    id: str

    def to_text(self) -> str:
        """Return the cursor as clients get it in `after` of a page."""
        text = json.dumps([self.recorded_at.isoformat(), self.id])
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def read(cls, text: str) -> PageCursor:
        """Return the cursor that `to_text` wrote. Raises InputError for any other text."""
        try:
            padded = text + "=" * (-len(text) % 4)
            recorded_at, row_id = json.loads(base64.urlsafe_b64decode(padded))
            cursor = cls(datetime.fromisoformat(recorded_at), row_id)
        except (ValueError, TypeError):
            cursor = None
        # A time without a zone cannot be compared with those of rows.
        if cursor is None or cursor.recorded_at.tzinfo is None or not isinstance(cursor.id, str):
            raise InputError(
                f"--after {text!r}", "unknown cursor", "Give `after` of the page before"
            )
        return cursor
