"""Names by which other systems call a person's opinion in their scores and annotations, and what
such a score is as feedback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.core import ids
from thumbwheel.importers.fields import clip, is_number, number_of
from thumbwheel.importers.marks import (
    AGAINST,
    RATINGS,
    SCORES,
    SEVERAL,
    THUMBS,
    Mark,
    MarkColumn,
    Reading,
    Scale,
    Scales,
    Words,
    plain,
    read_mark,
    reading_of,
)
from thumbwheel.importers.types import SCALES, Unreadable

METRICS = (
    "helpful",
    "is-helpful",
    "score",
    "reward",
    "reward-score",
    "overall-score",
    "unhelpful",
    "bad",
    "is-bad",
    "undesirable",
    "is-undesirable",
    "flagged",
)
"""Names of marks under which a judge's metrics stand too, where they are scores of a server."""


def _opinions() -> dict[str, str]:
    kinds = {"thumb": THUMBS, "against": AGAINST, "rating": RATINGS, "score": SCORES}
    opinions: dict[str, str] = {}
    for kind, names in kinds.items():
        opinions |= {name: kind for name in names if name not in METRICS}
    return opinions


OPINIONS: Mapping[str, str] = _opinions()
"""Name of a score, as `plain` spells it -> the kind of opinion that it is."""


WHOSE = frozenset({"user", "end", "customer", "client", "human", "visitor", "people"})
"""Words that say that a score is a person's."""
OPINION_WORDS: Mapping[str, frozenset[str]] = {
    "thumb": frozenset({"feedback", "thumb", "thumbs", "like", "vote", "reaction"}),
    "rating": frozenset({"rating", "stars", "csat"}),
    "score": frozenset({"score"}),
}
"""Kind of an opinion -> words that are one beside those."""


def opinion_of(name: str, opinions: Mapping[str, str] = OPINIONS) -> str | None:
    """Return the kind of opinion that a score of this name is; None if it is none.

    >>> opinion_of("customer_feedback"), opinion_of("user-toxicity"), opinion_of("feedback-thumbs")
    ('thumb', None, 'thumb')
    """
    kind = opinions.get(plain(name))
    if kind is not None:
        return kind
    words = set(plain(name).split("-"))
    for kind, usual_words in OPINION_WORDS.items():
        rest = words - usual_words
        if rest != words and rest <= WHOSE and (rest or kind == "thumb"):
            return kind
    return None


def named_opinions(columns: Mapping[str, str]) -> dict[str, str]:
    """Return a kind of opinion for each name of a score, from a person's choice (kind -> names)."""
    named: dict[str, str] = {}
    for kind, names in columns.items():
        named |= dict.fromkeys(map(plain, names.split(SEVERAL)), kind)
    return named


def judgement(
    name: str,
    score: Any,
    label: Any,
    opinions: Mapping[str, str] = OPINIONS,
    scales: Scales | None = None,
    column: MarkColumn | None = None,
) -> dict[str, Any]:
    """Return the kind, name, value and scale of the feedback that a named score or label is. A
    score whose name says that it is an opinion becomes one; any other becomes a label, because it
    is unknown whether more of it is better, and so does an opinion in unknown words. `column` has
    all scores of that name, if they are known. Raises Unreadable for a value that is neither number
    nor text, that says nothing, or that is outside its scale.

    >>> judgement("user_feedback", 1, None)
    {'kind': 'thumb', 'value': True}
    >>> judgement("toxicity", 0.25, None)
    {'kind': 'label', 'name': 'toxicity', 'value': '0.25'}
    """
    opinion = opinion_of(name, opinions)
    text = label if isinstance(label, str) and label.strip() else None
    if opinion is None:
        return {"kind": "label", "name": name, "value": _label(name, score, text)}
    stated = _of_name(name, opinion, scales or {})
    mark = _mark_of_words(text, stated.get(name))
    has_number = is_number(score)
    if text is not None and mark is None and not has_number:
        return {"kind": "label", "name": name, "value": text}
    value = score
    is_word = mark is not None and mark.number is None
    is_of_words = isinstance(stated.get(name), Words)
    if is_word and (opinion == "thumb" or not has_number or is_of_words):
        value = text
    elif score is None or isinstance(score, str):
        value = text if text is not None else number_of(score, f"score {name}")
    if not isinstance(value, bool | int | float | str):
        raise Unreadable(f"score {name} {clip(value)} is no number")
    if column is None:
        reading = _reading_alone(name, opinion, value, scales or {})
    else:
        reading = reading_of(name, opinion, column, stated)
    signal = reading.signal(value)
    if signal is None:
        raise Unreadable(f"score {name} {clip(value)} says nothing")
    if "scale" in signal and signal["scale"] == _usual_scale(signal["kind"]):
        del signal["scale"]
    return signal


def _mark_of_words(text: str | None, scale: Scale | None) -> Mark | None:
    """Return a label as a mark, also by the words of a stated scale; None if it is none."""
    if text is None:
        return None
    if isinstance(scale, Words) and plain(text) in map(plain, scale.words):
        return Mark(thumb=True)  # an opinion in any case; its reading says which
    return read_mark(text)


def _reading_alone(name: str, opinion: str, value: Any, scales: Scales) -> Reading:
    """Return how a score is read if the other scores are unknown: by its documented scale."""
    stated = _of_name(name, opinion, scales)
    mark = read_mark(value)
    if stated or mark is None or mark.number is None:
        return reading_of(name, opinion, None, stated)
    if opinion == "thumb" and mark.number not in (1, 0, -1):
        return Reading(name, "score", SCALES["score"])
    return reading_of(name, opinion, None)


def _of_name(name: str, opinion: str, scales: Scales) -> Scales:
    """Return the scale that a person gave for this score, or for its kind; {} if there is none."""
    stated = scales.get(name) or scales.get(opinion)
    return {name: stated} if stated else {}


def _usual_scale(kind: str) -> dict[str, float] | None:
    ends = SCALES.get(kind)
    return {"min": ends[0], "max": ends[1]} if ends else None


def _label(name: str, score: Any, text: str | None) -> str | bool:
    if text is not None:
        return text
    if isinstance(score, bool):
        return score
    if isinstance(score, list | dict) and score:
        return ids.canonical(score)
    return f"{number_of(score, f'score {name}'):g}"


def langfuse_signal(
    name: str,
    value: Any,
    data_type: Any,
    text: Any = None,
    opinions: Mapping[str, str] = OPINIONS,
    scales: Scales | None = None,
    column: MarkColumn | None = None,
) -> dict[str, Any]:
    """Return the kind, name, value and scale of the feedback that a score of Langfuse is, by its
    type: NUMERIC, BOOLEAN, CATEGORICAL (its word counts, its number is a code), TEXT, CORRECTION.
    Raises Unreadable."""
    words = text if isinstance(text, str) and text.strip() else None
    if words is None and isinstance(value, str):
        words = value
    if data_type == "CORRECTION":
        return {"kind": "correction", "value": words}
    is_opinion = opinion_of(name, opinions) is not None
    if data_type == "TEXT" and words is not None:
        mark = read_mark(words)
        if is_opinion and mark is not None and mark.thumb is not None:
            return judgement(name, None, words, opinions, scales)
        if is_opinion:
            return {"kind": "comment", "value": words}
        return {"kind": "label", "name": name, "value": words}
    if data_type == "CATEGORICAL" or (data_type is None and isinstance(value, str)):
        if words is None:
            raise Unreadable(f"score {name} has no category")
        return judgement(name, None, words, opinions, scales)
    if value is None or value == "":
        raise Unreadable(f"score {name} has no value")
    if data_type == "BOOLEAN" and not isinstance(value, bool):
        mark = read_mark(value)
        is_true = mark.thumb if mark is not None else None
        value = is_true if is_true is not None else number_of(value, f"score {name}") > 0
    return judgement(name, value, None, opinions, scales, column)
