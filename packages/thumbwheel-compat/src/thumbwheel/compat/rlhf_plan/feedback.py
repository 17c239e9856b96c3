"""`FeedbackCollector` of the plan: feedback as JSON lines, on disk when `collect` returns, and the
good and bad answers that follow from it.

Contradicting feedback is resolved as in every dataset: each rater's newest feedback counts, the
majority decides, and a tie decides nothing. A correction is a good answer, and the answer that it
corrects is bad. A missing rating is no opinion.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from thumbwheel.compat.jsonl_file import append, read
from thumbwheel.compat.rlhf_plan.source import parse
from thumbwheel.compat.script_home import open_home
from thumbwheel.core import log
from thumbwheel.core.errors import InputError
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers.types import Unreadable
from thumbwheel.models.types import Agent

AGENT = "assistant"
"""The agent whose feedback this is, in the home beside the file."""
BUFFERED = 10_000
"""Entries of this process that `feedback_buffer` holds; the file has all."""
LOWEST, HIGHEST = 1, 5


@dataclass
class FeedbackEntry:
    """Feedback of one person on one answer."""

    query: str
    response: str
    feedback_type: str
    rating: int | None = None
    correction: str | None = None
    timestamp: datetime | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the object of the JSON line: every key, None where nothing is known, and the time
        with a space in place of the T."""
        return asdict(self) | {"timestamp": None if self.timestamp is None else str(self.timestamp)}


class FeedbackCollector:
    """Feedback in `storage_path`. A home beside it (`feedback.home`) is where it becomes training
    data.
    """

    def __init__(self, storage_path: str | Path = "data/feedback.jsonl") -> None:
        self.storage_path = Path(storage_path)
        self.home = self.storage_path.with_suffix(".home")
        self.feedback_buffer: deque[FeedbackEntry] = deque(maxlen=BUFFERED)

    def collect(
        self,
        query: str,
        response: str,
        feedback_type: str,
        rating: int | None = None,
        correction: str | None = None,
        **metadata: Any,
    ) -> FeedbackEntry:
        """Store feedback: thumbs_up, thumbs_down, rating (1 to 5) or correction.

        `user_id` among the metadata is the rater, `session_id` the session. Raises InputError, and
        stores nothing, for what is no feedback.
        """
        entry = FeedbackEntry(
            query,
            response,
            feedback_type,
            rating,
            correction,
            datetime.now().astimezone(),
            metadata,
        )
        line = entry.to_dict()
        try:
            parse(line)
            append(self.storage_path, line)
        except (Unreadable, ValueError, TypeError) as error:
            # a record's ValidationError is a ValueError too
            what = f"feedback {feedback_type!r}"
            raise InputError(what, str(error), "See FeedbackCollector.collect") from None
        self.feedback_buffer.append(entry)
        return entry

    def get_training_data(
        self,
        min_rating: int = 4,
        max_samples: int = 10_000,
    ) -> dict[str, list[dict[str, Any]]]:
        """Return {"positive": [...], "negative": [...]}: at most `max_samples` judged answers each,
        the ones that were stored last.

        Each has query, response and the keys of the last line about it. `min_rating` is the lowest
        good rating, 4 or 5; 1 and 2 are bad.
        """
        from thumbwheel.datasets.evidence import read_evidence
        from thumbwheel.datasets.shapes.labels import Labels
        from thumbwheel.datasets.types import DatasetConfig, Drop, Tally
        from thumbwheel.rewards.types import LabelConfig

        if min_rating not in (4, HIGHEST):
            raise InputError(
                f"min_rating {min_rating!r}",
                "a good rating is 4 or 5, and 3 says neither",
                "Give 4 or 5",
            )
        if max_samples < 0:
            raise InputError(f"max_samples {max_samples!r}", "it is a count", "Give 0 or more")
        good_from = (min_rating - LOWEST) / (HIGHEST - LOWEST)
        config = DatasetConfig(dev=0, gate=0, label=LabelConfig(good_from=good_from))
        lines = self._lines()
        samples: dict[str, list[dict[str, Any]]] = {"positive": [], "negative": []}
        if not lines:
            return samples

        with self.open() as ws, ws.db.read() as connection:
            for evidence in read_evidence(connection, Agent.named(AGENT), config, Tally()):
                query = str(evidence.prompt[-1]["content"])
                for row in Labels().rows(evidence, config):
                    if isinstance(row, Drop):
                        continue
                    line = lines.get((query, row.completion)) or {"feedback_type": row.origin}
                    side = "positive" if row.label else "negative"
                    samples[side].append(line | {"query": query, "response": row.completion})

        order = {key: number for number, key in enumerate(lines)}
        for side, answers in samples.items():
            answers.sort(
                key=lambda answer: order.get((answer["query"], answer["response"]), -1),
                reverse=True,
            )
            samples[side] = answers[:max_samples]
        return samples

    def count_answers(self) -> int:
        """Return how many different answers there is feedback on."""
        return len(self._lines())

    @contextmanager
    def open(self) -> Iterator[Workspace]:
        """Open the home with everything that was collected so far; it is closed at the end."""
        from thumbwheel.capture.ingest import ingest

        with open_home(self.home) as ws:
            if self.storage_path.exists() and self.storage_path.stat().st_size:
                report = ingest(ws, AGENT, "feedback_jsonl", self.storage_path)
                if report.refused:
                    reason = report.refusals[0]["reason"]
                    log.say(f"{report.refused} lines are no feedback, the first because: {reason}")
            yield ws

    def _lines(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Return (query, response) -> the last line about it, in the order of these lines.

        Lines that are not feedback are skipped here and counted by `open`.
        """
        lines: dict[tuple[str, str], dict[str, Any]] = {}
        rows, _ = read(self.storage_path)
        for row in rows:
            query, response = row.get("query"), row.get("response")
            if isinstance(query, str) and isinstance(response, str):
                lines.pop((query, response), None)
                lines[query, response] = row
        return lines
