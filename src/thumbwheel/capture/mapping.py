"""Tables of anybody's: which column is what, as it is told, or guessed from its name; the guess is
shown and never silent.

Lives here: what a column can be, the guesses, and the records of a row. Two columns of which either
could be the same thing are not guessed between: the one that is meant has to be named. Numbers are
of the stated scale (`SCALES`, or `--scale rating=1:10`). To add something a column can be: a line
in MEANINGS, and in `records`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from thumbwheel.capture.fields import moment, name_of, number_of, unpacked
from thumbwheel.capture.pairs import messages_of, pair_records, split_pair
from thumbwheel.capture.source import AnyRecord
from thumbwheel.capture.types import (
    SCALES,
    CaseRecord,
    FeedbackRecord,
    Rater,
    Scale,
    TargetRef,
    TraceRecord,
    Unreadable,
)
from thumbwheel.core.errors import InputError
from thumbwheel.core.plugins import nearest

MEANINGS: Mapping[str, tuple[str, ...]] = {
    "prompt": (
        "prompt",
        "question",
        "query",
        "input",
        "instruction",
        "user_message",
        "user_input",
        "messages",
    ),
    "response": (
        "response",
        "answer",
        "output",
        "completion",
        "reply",
        "generation",
        "model_output",
        "assistant_message",
    ),
    "chosen": ("chosen", "preferred", "preferred_response", "better"),
    "rejected": ("rejected", "non_preferred", "rejected_response", "worse"),
    "thumb": (
        "thumb",
        "thumbs",
        "feedback",
        "vote",
        "liked",
        "like",
        "upvote",
        "helpful",
        "is_helpful",
    ),
    "rating": ("rating", "stars", "star_rating", "user_rating"),
    "score": ("score", "reward", "reward_score"),
    "correction": (
        "correction",
        "corrected",
        "corrected_response",
        "edited_response",
        "ideal_response",
        "expected_response",
    ),
    "comment": ("comment", "comments", "note", "notes", "feedback_text", "reason"),
    "reference": ("reference", "reference_answer", "ground_truth", "expected_answer", "gold"),
    "system": ("system", "system_prompt"),
    "rater": ("rater", "rater_id", "annotator", "annotator_id", "worker", "reviewer", "rated_by"),
    "subject": ("subject", "user", "user_id", "userid", "customer_id"),
    "session": ("session", "session_id", "sessionid", "conversation_id", "chat_id", "thread_id"),
    "id": ("id", "trace_id", "run_id", "message_id"),
    "model": ("model", "model_id", "model_name"),
    "occurred_at": (
        "occurred_at",
        "timestamp",
        "created_at",
        "created",
        "date",
        "time",
        "datetime",
    ),
}
"""What a column can be -> the names, in small letters, by which it is known."""
ASKED = ({"prompt"}, {"chosen", "rejected"})
"""A table that has none of these together says nothing that could be learned from."""
UP = frozenset(
    {
        "true",
        "1",
        "1.0",
        "up",
        "thumbs_up",
        "thumbs up",
        "yes",
        "y",
        "positive",
        "good",
        "like",
        "liked",
        "helpful",
        "👍",
    }
)
DOWN = frozenset(
    {
        "false",
        "0",
        "0.0",
        "-1",
        "-1.0",
        "down",
        "thumbs_down",
        "thumbs down",
        "no",
        "n",
        "negative",
        "bad",
        "dislike",
        "👎",
    }
)

Scales = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Mapped:
    """Meaning -> column, and the scales of its numbers."""

    columns: Mapping[str, str]
    guessed: frozenset[str]
    scales: Scales

    def words(self) -> list[str]:
        """One line a column, for people."""
        lines = []
        for meaning, column in self.columns.items():
            how = "guessed from its name" if meaning in self.guessed else "as told"
            low, high = self.scales.get(meaning) or SCALES.get(meaning, (0.0, 0.0))
            scale = (
                f", from {low:g} to {high:g} (other: --scale {meaning}=LOW:HIGH)" if high else ""
            )
            lines.append(f"{meaning} <- {column} ({how}{scale})")
        return lines


def mapped(keys: Iterable[str], told: Mapping[str, str], scales: Scales, where: str) -> Mapped:
    """Which of the columns `keys` is what. Raises InputError for an unknown meaning or column, for
    two that fit, and for a table without prompts."""
    names = list(keys)
    for meaning, column in told.items():
        if meaning not in MEANINGS:
            raise InputError(
                f"--column {meaning}={column}",
                "there is no such meaning",
                f"Known: {', '.join(MEANINGS)}.{nearest(meaning, MEANINGS)}",
            )
        if column not in names:
            raise InputError(
                f"--column {meaning}={column}",
                f"{where} has no such column",
                f"It has: {', '.join(names)}.{nearest(column, names)}",
            )
    columns = dict(told)
    for meaning, known in MEANINGS.items():
        fits = [
            name
            for name in names
            if name.casefold().replace(" ", "_") in known and name not in told.values()
        ]
        if meaning in told or not fits:
            continue
        exact = [name for name in fits if name.casefold() == meaning]
        if len(fits) > 1 and len(exact) != 1:
            raise InputError(
                where,
                f"its columns {' and '.join(fits)} could both be the {meaning}",
                f"Say which: --column {meaning}={fits[0]}",
            )
        columns[meaning] = (exact or fits)[0]
    if not any(needed <= columns.keys() for needed in ASKED):
        why = f"none of its columns {', '.join(names[:20])} is known to hold the prompt"
        raise InputError(
            where,
            why,
            "Name it, for example: --column prompt=COLUMN --column response=COLUMN --column "
            "rating=COLUMN",
        )
    return Mapped(
        {meaning: columns[meaning] for meaning in MEANINGS if meaning in columns},
        frozenset(columns) - set(told),
        scales,
    )


def records(row: Mapping[str, Any], as_: Mapped) -> list[AnyRecord]:
    """The records of a row: a pair, or a trace with its feedback, or a case where there is no
    answer. Raises Unreadable."""
    of = {meaning: row.get(column) for meaning, column in as_.columns.items()}
    of = {meaning: value for meaning, value in of.items() if value not in (None, "")}
    rest = {
        key: value
        for key, value in row.items()
        if key not in as_.columns.values() and value is not None
    }
    more = {
        "session": name_of(of.get("session")),
        "subject": name_of(of.get("subject")),
        "occurred_at": moment(of.get("occurred_at")),
    }
    rater = name_of(of.get("rater"))
    who = Rater(id=rater) if rater else None
    if "chosen" in of or "rejected" in of:
        asked, *answers = split_pair(
            _prompt(of) if "prompt" in of else None, of.get("chosen"), of.get("rejected")
        )
        return pair_records(asked, (answers[0], answers[1]), [(who, [[0], [1]])], rest, **more)
    prompt = _prompt(of)
    if "response" not in of and "reference" in of:
        return [_case(of, prompt)]
    if "response" not in of:
        return [TraceRecord.model_validate({"input": prompt, "metadata": rest or None} | more)]
    step = {"served_model": name_of(of.get("model"))}
    fields = {
        "id": name_of(of.get("id")),
        "input": prompt,
        "output": _text(of, "response"),
        "steps": [step],
        "metadata": rest or None,
    }
    trace = TraceRecord.model_validate(fields | more)
    shared = {
        "targets": [TargetRef(kind="trace", id=trace.identified()[0])],
        "rater": who,
        "occurred_at": more["occurred_at"],
    }
    given = [FeedbackRecord.model_validate(shared | one) for one in _signals(of, as_.scales)]
    return [*([_case(of, prompt)] if "reference" in of else []), trace, *given]


def _prompt(of: Mapping[str, Any]) -> list[dict[str, Any]]:
    value = of.get("prompt")
    value = unpacked(value) if isinstance(value, str) and value.lstrip().startswith("[{") else value
    if value is None:
        raise Unreadable("its prompt is empty")
    messages = messages_of(value if isinstance(value, str | list) else str(value))
    return (
        [{"role": "system", "content": _text(of, "system")}, *messages]
        if "system" in of
        else messages
    )


def _text(of: Mapping[str, Any], meaning: str) -> str:
    value = of.get(meaning)
    if value is None:
        raise Unreadable(f"its {meaning} is empty")
    if isinstance(value, dict | list):
        raise Unreadable(f"its {meaning} is no text")
    return str(value)


def _case(of: Mapping[str, Any], prompt: list[dict[str, Any]]) -> CaseRecord:
    return CaseRecord.model_validate({"input": prompt, "reference": of["reference"]})


def _signals(of: Mapping[str, Any], scales: Scales) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if "thumb" in of:
        found.append({"kind": "thumb", "value": thumb_of(of["thumb"])})
    for kind in ("rating", "score"):
        if kind in of:
            low, high = scales.get(kind, SCALES[kind])
            value = number_of(of[kind], kind)
            if not low <= value <= high:
                raise Unreadable(
                    f"{kind} {value:g} is outside its scale, {low:g} to {high:g}; another one: "
                    f"--scale {kind}=LOW:HIGH"
                )
            found.append({"kind": kind, "value": value, "scale": Scale(min=low, max=high)})
    if "correction" in of:
        found.append({"kind": "correction", "value": _text(of, "correction")})
    if "comment" in of:
        comment = _text(of, "comment")
        return (
            [found[0] | {"comment": comment}, *found[1:]]
            if found
            else [{"kind": "comment", "value": comment}]
        )
    return found


def thumb_of(value: Any) -> bool:
    """Up (True) or down; raises Unreadable for anything else."""
    word = str(value).strip().casefold()
    if word not in UP | DOWN:
        raise Unreadable(
            f"thumb {str(value)[:40]!r} is neither up (true, 1, up, yes, ...) nor down (false, 0, "
            "-1, down, no, ...)"
        )
    return word in UP
