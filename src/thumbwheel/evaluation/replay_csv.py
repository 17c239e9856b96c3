"""The file of a replay: a row for each recorded trace."""

from __future__ import annotations

import csv
import io

from thumbwheel.core.spreadsheet import cell
from thumbwheel.evaluation.replay_types import ShownReplay

COLUMNS = (
    *("recorded_trace", "replayed_trace", "question", "recorded_by", "recorded_answer"),
    *("version", "replayed_answer", "equal"),
    *("votes_recorded", "votes_replayed", "ties"),
)


def csv_of(shown: ShownReplay) -> str:
    """Return the answers of a replay as CSV, with cells that no spreadsheet computes."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for row in shown.traces:
        values = (
            *(row.recorded, row.replayed, row.question, row.answered_by, row.before),
            *(shown.version, row.after, "yes" if row.is_equal else "no"),
            *(row.votes.get(winner, 0) for winner in ("recorded", "replayed", "tie")),
        )
        writer.writerow([cell(value) for value in values])
    return text.getvalue()
