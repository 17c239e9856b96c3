"""Names by which other systems call a person's opinion in their scores and annotations, and what
such a score is as feedback."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from thumbwheel.capture.fields import number_of
from thumbwheel.capture.mapping import Scales
from thumbwheel.capture.types import SCALES, Unreadable
from thumbwheel.core import ids

OPINIONS: Mapping[str, str] = {
    "user-feedback": "thumb",
    "feedback": "thumb",
    "thumbs": "thumb",
    "thumb": "thumb",
    "user-rating": "rating",
    "rating": "rating",
    "stars": "rating",
    "user-score": "score",
    "quality": "score",
    "helpfulness": "score",
    "correctness": "score",
}
"""Name of a score, as `plain` spells it -> the kind of opinion that it is."""


def plain(name: str) -> str:
    """A name in small letters with hyphens.

    >>> plain("User Feedback"), plain("user_rating")
    ('user-feedback', 'user-rating')
    """
    return re.sub(r"[\s_]+", "-", name.strip().casefold())


UP = (
    "thumbs-up",
    "up",
    "positive",
    "good",
    "like",
    "true",
    "pass",
    "yes",
    "correct",
    "helpful",
    "1",
)
DOWN = (
    "thumbs-down",
    "down",
    "negative",
    "bad",
    "dislike",
    "false",
    "fail",
    "no",
    "incorrect",
    "unhelpful",
    "0",
    "-1",
)
"""Labels of a thumb as `plain` spells them."""


def judgement(
    name: str,
    score: Any,
    label: Any,
    opinions: Mapping[str, str] = OPINIONS,
    scales: Scales | None = None,
) -> dict[str, Any]:
    """Kind, name, value and scale of the feedback that a named score or label is. One whose name
    says that it is an opinion is one; any other is a label, because nobody says whether more of it
    is better. Raises Unreadable for what is neither number nor text, or outside its scale.

    >>> judgement("user_feedback", 1, None)
    {'kind': 'thumb', 'value': True}
    >>> judgement("toxicity", 0.25, None)
    {'kind': 'label', 'name': 'toxicity', 'value': '0.25'}
    """
    opinion = opinions.get(plain(name))
    text = label if isinstance(label, str) and label.strip() else None
    if opinion == "thumb" and text is not None and plain(text) in (*UP, *DOWN):
        return {"kind": "thumb", "value": plain(text) in UP}
    if opinion is not None and isinstance(score, bool):
        return {"kind": "thumb", "value": score}
    if opinion is None or (score is None and text is not None):
        return {"kind": "label", "name": name, "value": _label(name, score, text)}
    number = number_of(score, f"score {name}")
    if opinion == "thumb" and number in (1, 0, -1):
        return {"kind": "thumb", "value": number > 0}
    opinion = "score" if opinion == "thumb" else opinion
    scales = scales or {}
    low, high = scales.get(name) or scales.get(opinion) or SCALES[opinion]
    if not low <= number <= high:
        raise Unreadable(
            f"score {name} {number:g} is outside {low:g} to {high:g}; another scale: --scale "
            f"{name}=LOW:HIGH"
        )
    signal = {"kind": opinion, "value": number}
    if (low, high) != SCALES[opinion]:
        signal["scale"] = {"min": low, "max": high}
    return signal


def _label(name: str, score: Any, text: str | None) -> str | bool:
    if text is not None:
        return text
    if isinstance(score, bool):
        return score
    if isinstance(score, list | dict) and score:
        return ids.canonical(score)
    return f"{number_of(score, f'score {name}'):g}"
