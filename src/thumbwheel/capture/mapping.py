"""Tables with any columns: which column is what, as a person says, or guessed from its name; the
guess is shown and never silent.

Lives here: what a column can be, the guesses, and the records of a row. Two columns of which either
could be the same thing are not guessed between: the one that is meant has to be named. Numbers are
of the stated scale (`SCALES`, or `--scale rating=1:10`). To add something a column can be: a line
in MEANINGS, and in `row_records`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from thumbwheel.capture.fields import moment, name_of, number_of, unpacked
from thumbwheel.capture.pairs import Verdict, messages_of, pair_records, split_pair
from thumbwheel.capture.types import (
    SCALES,
    AnyRecord,
    CaseRecord,
    FeedbackRecord,
    Rater,
    Scale,
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
class ColumnMapping:
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
            if high:
                how += f", from {low:g} to {high:g} (other: --scale {meaning}=LOW:HIGH)"
            lines.append(f"{meaning} <- {column} ({how})")
        return lines


def map_columns(
    keys: Iterable[str], named: Mapping[str, str], scales: Scales, where: str
) -> ColumnMapping:
    """Which of the columns `keys` is what; `named`: meaning -> column, as a person says. Raises
    InputError for an unknown meaning or column, for two that fit, and for a table without
    prompts."""
    names = list(keys)
    for meaning, column in named.items():
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

    # guess the others by name
    columns = dict(named)
    free = [name for name in names if name not in named.values()]
    for meaning, usual_names in MEANINGS.items():
        fits = [name for name in free if name.casefold().replace(" ", "_") in usual_names]
        if meaning in named or not fits:
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
        raise InputError(
            where,
            f"none of its columns {', '.join(names[:20])} is known to hold the prompt",
            "Name it, for example: --column prompt=COLUMN --column response=COLUMN --column "
            "rating=COLUMN",
        )
    in_order = {meaning: columns[meaning] for meaning in MEANINGS if meaning in columns}
    return ColumnMapping(in_order, frozenset(columns) - set(named), scales)


def row_records(row: Mapping[str, Any], mapping: ColumnMapping) -> list[AnyRecord]:
    """The records of a row: a pair, or a trace with its feedback, or a case where there is no
    answer. Raises Unreadable."""
    values = {}
    for meaning, column in mapping.columns.items():
        if row.get(column) not in (None, ""):
            values[meaning] = row[column]
    used = set(mapping.columns.values())
    rest = {key: value for key, value in row.items() if key not in used and value is not None}
    common = {
        "session": name_of(values.get("session")),
        "subject": name_of(values.get("subject")),
        "occurred_at": moment(values.get("occurred_at")),
    }
    rater_id = name_of(values.get("rater"))
    rater = Rater(id=rater_id) if rater_id else None

    # a pair
    if "chosen" in values or "rejected" in values:
        prompt = _prompt(values) if "prompt" in values else None
        prompt, chosen, rejected = split_pair(prompt, values.get("chosen"), values.get("rejected"))
        verdicts: list[Verdict] = [(rater, [[0], [1]])]
        return pair_records(prompt, (chosen, rejected), verdicts, rest, **common)

    # no answer: a case, or a prompt alone
    prompt = _prompt(values)
    case = None
    if "reference" in values:
        case = CaseRecord.model_validate({"input": prompt, "reference": values["reference"]})
    if "response" not in values:
        if case is not None:
            return [case]
        return [TraceRecord.model_validate({"input": prompt, "metadata": rest or None} | common)]

    # an answer with its feedback
    fields = {
        "id": name_of(values.get("id")),
        "input": prompt,
        "output": _text(values, "response"),
        "steps": [{"served_model": name_of(values.get("model"))}],
        "metadata": rest or None,
    }
    trace = TraceRecord.model_validate(fields | common)
    shared = {
        "targets": [trace.as_target()],
        "rater": rater,
        "occurred_at": common["occurred_at"],
    }
    signals = _signals(values, mapping.scales)
    feedback = [FeedbackRecord.model_validate(shared | signal) for signal in signals]
    return [trace, *feedback] if case is None else [case, trace, *feedback]


def _prompt(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    prompt = values.get("prompt")
    if isinstance(prompt, str) and prompt.lstrip().startswith("[{"):
        prompt = unpacked(prompt)
    if prompt is None:
        raise Unreadable("its prompt is empty")
    if not isinstance(prompt, str | list):
        prompt = str(prompt)
    messages = messages_of(prompt)
    if "system" in values:
        return [{"role": "system", "content": _text(values, "system")}, *messages]
    return messages


def _text(values: Mapping[str, Any], meaning: str) -> str:
    value = values.get(meaning)
    if value is None:
        raise Unreadable(f"its {meaning} is empty")
    if isinstance(value, dict | list):
        raise Unreadable(f"its {meaning} is no text")
    return str(value)


def _signals(values: Mapping[str, Any], scales: Scales) -> list[dict[str, Any]]:
    signals: list[dict[str, Any]] = []
    if "thumb" in values:
        signals.append({"kind": "thumb", "value": thumb_of(values["thumb"])})
    for kind in ("rating", "score"):
        if kind not in values:
            continue
        low, high = scales.get(kind, SCALES[kind])
        value = number_of(values[kind], kind)
        if not low <= value <= high:
            raise Unreadable(
                f"{kind} {value:g} is outside its scale, {low:g} to {high:g}; another one: "
                f"--scale {kind}=LOW:HIGH"
            )
        signals.append({"kind": kind, "value": value, "scale": Scale(min=low, max=high)})
    if "correction" in values:
        signals.append({"kind": "correction", "value": _text(values, "correction")})
    if "comment" in values:
        comment = _text(values, "comment")
        if not signals:
            return [{"kind": "comment", "value": comment}]
        signals[0]["comment"] = comment
    return signals


def thumb_of(value: Any) -> bool:
    """Up (True) or down; raises Unreadable for anything else."""
    word = str(value).strip().casefold()
    if word not in UP | DOWN:
        raise Unreadable(
            f"thumb {str(value)[:40]!r} is neither up (true, 1, up, yes, ...) nor down (false, 0, "
            "-1, down, no, ...)"
        )
    return word in UP
