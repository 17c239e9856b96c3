"""What a mark means: whether a word, a number or true and false speak for an answer or against it.

Every source asks here, so that one word has one meaning. A mark is read alone where it cannot be
mistaken (true, thumbsUp, 4/5, 80 %, ★★★); plain numbers are read by all numbers of their column,
because a 1 is the best of 0 and 1 and the worst of 1 to 5. What cannot be read is refused and
named, and nobody is taken to have said anything by null or "neutral".

Lives here: names of marks, numbers, columns of them. Not here: the words (`mark_words.py`), which
keys of a row a source looks at (`training_rows.py`, `mapping.py`, `opinions.py`).
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from thumbwheel.core.present import shortened
from thumbwheel.importers.fields import is_number
from thumbwheel.importers.mark_words import (
    AGAINST_AN_ANSWER,
    FOR_AN_ANSWER,
    NEGATION,
    NOBODY,
    OF_A_TEST,
    YES_NO,
)
from thumbwheel.importers.types import SCALES, Unreadable

SEVERAL = "\n"
"""Between several names that a person gave one meaning."""


@dataclass(frozen=True)
class Words:
    """The words of a scale, from the worst to the best."""

    words: tuple[str, ...]


Scale = tuple[float, float] | Words
Scales = Mapping[str, Scale]
"""Name of a mark, or its kind -> the worst and the best number of its scale, or its words, as a
person says."""

THUMBS = (
    "thumb",
    "thumbs",
    "feedback",
    "feedbacks",
    "user-feedback",
    "human-feedback",
    "vote",
    "liked",
    "like",
    "is-liked",
    "upvote",
    "upvoted",
    "helpful",
    "is-helpful",
    "thumbs-up",
    "thumb-up",
    "thumbs-rating",
    "user-thumb",
    "user-thumbs",
)
RATINGS = ("rating", "stars", "star-rating", "user-rating", "user-stars", "human-rating")
SCORES = (
    "score",
    "reward",
    "reward-score",
    "user-score",
    "overall-score",
    "quality",
    "helpfulness",
    "correctness",
)
AGAINST = (
    "thumbs-down",
    "thumb-down",
    "downvote",
    "downvoted",
    "dislike",
    "disliked",
    "unhelpful",
    "is-bad",
    "bad",
    "undesirable",
    "is-undesirable",
    "flagged",
)
"""Names of marks that speak against an answer where they are true; false says nothing."""
LABELS = (
    "label",
    "kto-tag",
    "kto",
    "desirable",
    "is-desirable",
    "is-good",
    "good",
    "is-positive",
    "accepted",
    "is-accepted",
    "approved",
    "is-correct",
    "correct",
    "verdict",
    "sentiment",
    "grade",
    "preference",
)
"""Names under which rows of training data have a verdict; elsewhere they may be anything."""
COUNTS = ("upvotes", "downvotes", "likes", "dislikes", "votes")
"""Names of counts of votes, of which nobody says how many are many."""
RATINGS_ELSEWHERE = (
    "bewertung bewertungen sterne voto étoiles évaluation avis puntuación valoración calificación "
    "estrellas avaliação classificação estrelas valutazione stelle beoordeling waardering sterren "
    "ocena hodnocení betyg arvio puan оценка рейтинг 评分 评价 評分 評価 평점 평가 تقييم"
)
FEEDBACK_ELSEWHERE = (
    "daumen rückmeldung hilfreich nützlich zufrieden retour utile satisfait opinión útil "
    "satisfecho satisfeito отзыв полезно 反馈 回饋 有用 有帮助 满意 피드백 フィードバック"
)
"""What other languages call a rating, and feedback."""
WORDS: Mapping[str, frozenset[str]] = {
    "rating": frozenset(
        {
            "rating",
            "ratings",
            "star",
            "stars",
            "csat",
            *RATINGS_ELSEWHERE.split(),
        }
    ),
    "score": frozenset(
        {
            "accuracy",
            "advantage",
            "advantages",
            "correctness",
            "harmlessness",
            "helpfulness",
            "nps",
            "quality",
            "reward",
            "rewards",
            "score",
            "scores",
            "truthfulness",
            "usefulness",
        }
    ),
    "against": frozenset(
        {
            "bad",
            "complaint",
            "dislike",
            "disliked",
            "dissatisfied",
            "downvote",
            "downvoted",
            "escalated",
            "failed",
            "flagged",
            "hallucinated",
            "hallucination",
            "harmful",
            "incorrect",
            "negative",
            "rejected",
            "reopened",
            "toxic",
            "undesirable",
            "unacceptable",
            "unhelpful",
            "unresolved",
            "unsafe",
            "unsatisfied",
            "unsolved",
            "worse",
            "wrong",
        }
    ),
    "thumb": frozenset(
        {
            "accept",
            "acceptable",
            "acceptance",
            "accepted",
            "approval",
            "approved",
            "assessment",
            "assessments",
            "better",
            "chosen",
            "correct",
            "desirable",
            "evaluation",
            "fb",
            "feedback",
            "feedbacks",
            "good",
            "grade",
            "happy",
            "helpful",
            "judgement",
            "judgment",
            "kto",
            "label",
            "labels",
            "like",
            "liked",
            "ok",
            "okay",
            "opinion",
            "outcome",
            "pass",
            "passed",
            "positive",
            "preference",
            "preferred",
            "reaction",
            "reactions",
            "resolved",
            "safe",
            "satisfaction",
            "satisfied",
            "sentiment",
            "solved",
            "success",
            "successful",
            "thumb",
            "thumbs",
            "upvote",
            "upvoted",
            "useful",
            "verdict",
            "vote",
            "value",
            "winner",
            *FEEDBACK_ELSEWHERE.split(),
        }
    ),
}
"""Words of a name under which rows of training data may have what somebody said of an answer, by
kind; the first kind counts of which the name has a word."""
OPPOSITES: Mapping[str, str] = {
    "thumbs-up": "thumbs-down",
    "thumb-up": "thumb-down",
    "upvote": "downvote",
    "upvoted": "downvoted",
    "like": "dislike",
    "liked": "disliked",
    "helpful": "unhelpful",
    "good": "bad",
    "desirable": "undesirable",
    "positive": "negative",
}
"""Name of a mark for an answer -> that of the mark against it; of two that stand beside each other
each is a button, and one that nobody pressed says nothing."""
DENIED = frozenset({"not", "non", "no", "never"})
FAULTS = frozenset(
    {"bias", "error", "errors", "harm", "harmfulness", "penalty", "risk", "toxicity", "violation"}
)
"""Words for what is wrong with an answer: a number of them may count in either direction."""
QUALITIES = frozenset(
    {
        "accuracy",
        "correctness",
        "harmlessness",
        "helpfulness",
        "nps",
        "quality",
        "truthfulness",
        "usefulness",
    }
)
"""Words for scores which people give from 1 to 5 as often as from 0 to 1."""
RANKS = frozenset({"rank", "ranking"})
"""Words for a place among other answers, which may stand in another row."""
NUMBERED = frozenset({"rating", "score"})
NUMBERS = ("value", "score", "rating", "stars", "rating-value")
ENDS = ("max", "max-score", "max-rating", "out-of", "scale", "best", "best-rating", "maximum")
STARTS = ("min", "min-score", "min-rating", "worst", "worst-rating", "minimum")
"""Keys of an object that holds a number, and of the ends of its scale."""
VOTES = re.compile(r"(thumbs?-(up|down)|(up|down)?votes?|(dis)?likes?)-counts?|(num|n)-(dis)?likes")
"""Names of counts of votes."""
OF_OTHERS = frozenset(
    {
        "prompt",
        "input",
        "instruction",
        "question",
        "query",
        "context",
        "difficulty",
        "expected",
        "reference",
    }
)
"""Words that say that a mark is about something else than the answer."""
ABOUT_MARKS = frozenset(
    {
        "id",
        "ids",
        "model",
        "models",
        "name",
        "type",
        "by",
        "at",
        "time",
        "date",
        "timestamp",
        "url",
        "source",
        "split",
        "count",
        "version",
        "scale",
        "reason",
        "rationale",
        "explanation",
        "comment",
        "comments",
        "text",
        "note",
        "notes",
        "prompt",
        "guideline",
        "guidelines",
        "function",
        "config",
        "schema",
        "studio",
    }
)
"""Last words of names that stand beside a mark and are none."""
SORTS = frozenset({"type", "split", "source", "version"})
"""Of them those under which a file says which answers are which."""

LONGEST_WORD = 40

FEW = 8
"""Different numbers of a column that are remembered; two-valued columns have fewer."""
_LOOKS = re.compile("[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff]")
"""Colours of skin and forms of emoji."""
_NUMBER = r"[+-]?(?:\d+(?:[.,]\d+)?|\.\d+)(?:e[+-]?\d+)?"
_PLAIN = re.compile(_NUMBER, re.IGNORECASE)
_OF = re.compile(rf"({_NUMBER})\s*(?:/|of|out of|von|sur)\s*(\d+)(?:\s*stars?)?", re.IGNORECASE)
_PERCENT = re.compile(rf"({_NUMBER})\s*(?:%|percent)", re.IGNORECASE)
_STARS = re.compile(rf"({_NUMBER})\s*(?:stars?|sterne?|étoiles?|★|⭐)", re.IGNORECASE)
_SIGN_AND_WORD = re.compile(
    r"(?P<sign>\d{1,2}|[^\w\s])(?:\s*[-–—:=.)])?\s*(?P<word>[^\W\d_][^\d]{0,38})"
)
_DRAWN = re.compile(r"([★⭐*]+)([☆✩]*)")


def plain(name: str) -> str:
    """Return a name in lower case with hyphens.

    >>> plain("User Feedback"), plain("user_rating"), plain("thumbsUp")
    ('user-feedback', 'user-rating', 'thumbs-up')
    """
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "-", name.strip())
    return re.sub(r"[\s_-]+", "-", parted.casefold())


def kind_of_name(name: str, in_training_data: bool = False) -> str | None:
    """Return the kind of mark with this name: thumb, rating, score, against, count or unclear; None
    if it is no mark.

    >>> kind_of_name("Star_Rating"), kind_of_name("label"), kind_of_name("label", True)
    ('rating', None, 'thumb')
    >>> kind_of_name("was_resolved", True), kind_of_name("not_toxic", True)
    ('thumb', 'unclear')
    >>> kind_of_name("hallucination_score", True)
    'unclear'
    """
    word = plain(name)
    for kind, names in (
        ("thumb", THUMBS),
        ("rating", RATINGS),
        ("score", SCORES),
        ("against", AGAINST),
    ):
        if word in names:
            return kind
    if not in_training_data:
        return None
    if word in LABELS:
        return "thumb"
    if word in COUNTS or VOTES.fullmatch(word):
        return "count"
    return _kind_of_words(word.split("-"))


def _kind_of_words(words: list[str]) -> str | None:
    """Return the kind of mark whose name has these words: unclear if one of them is a negation,
    None if it is no mark."""
    if not _may_be_of_answer(words):
        return None
    speaks_against = bool((WORDS["against"] | FAULTS).intersection(words))
    for kind, usual_words in WORDS.items():
        if not usual_words.intersection(words):
            continue
        is_turned = kind in NUMBERED and speaks_against  # hallucination_score: is more better?
        return "unclear" if is_turned or DENIED.intersection(words) else kind
    return "unclear" if words[-1] in RANKS | {"toxicity", "harmfulness"} else None


def may_sort_answers(name: str) -> bool:
    """Return whether the values of this name can sort answers into good and bad ones, if all of
    them are words of an opinion.

    >>> may_sort_answers("verdict"), may_sort_answers("response_type"), may_sort_answers("comment")
    (True, True, False)
    """
    words = plain(name).split("-")
    return not OF_OTHERS.intersection(words) and words[-1] not in ABOUT_MARKS - SORTS


def may_be_of_answer(name: str) -> bool:
    """Return whether a mark of this name can be about the answer.

    >>> may_be_of_answer("status"), may_be_of_answer("input_quality"), may_be_of_answer("rating_id")
    (True, False, False)
    """
    return _may_be_of_answer(plain(name).split("-"))


def _may_be_of_answer(words: list[str]) -> bool:
    return words[-1] not in ABOUT_MARKS and not OF_OTHERS.intersection(words)


@dataclass(frozen=True)
class Mark:
    """One value, as far as it can be understood alone: a thumb, a number, or nothing said. A number
    may tell its scale."""

    thumb: bool | None = None
    number: float | None = None
    scale: tuple[float, float] | None = None

    @property
    def says_nothing(self) -> bool:
        return self.thumb is None and self.number is None


def read_mark(value: Any) -> Mark | None:
    """Return the mark that `value` is, or None if it is not one.

    >>> read_mark("thumbsUp"), read_mark("BAD").thumb, read_mark("neutral").says_nothing
    (Mark(thumb=True, number=None, scale=None), False, True)
    >>> read_mark("4,5").number, read_mark("5/5").scale, read_mark("80 %").number
    (4.5, (1.0, 5.0), 80.0)
    """
    if value is None or isinstance(value, bool):
        return Mark(thumb=value)
    if value in ([], {}):
        return Mark()  # a list of marks that nobody gave
    if isinstance(value, int | float):
        if math.isnan(value):
            return Mark()
        return Mark(number=value) if math.isfinite(value) else None
    if not isinstance(value, str):
        return None
    text = unicodedata.normalize("NFC", _LOOKS.sub("", value)).replace("−", "-").strip()
    word = plain(text).strip(":!. ") if text != "--" else text
    if word in NOBODY or text in NOBODY:
        return Mark()
    if _PLAIN.fullmatch(text) and text != "+1":
        return Mark(number=_number(text))
    thumb = _thumb_of_word(word)
    if thumb is not None:
        return Mark(thumb=thumb)
    return _with_scale(text) or _of_sign_and_word(text)


def _thumb_of_word(word: str) -> bool | None:
    """Return whether a word speaks for an answer or against it; None for any other word."""
    if word in FOR_AN_ANSWER:
        return True
    denied = NEGATION.fullmatch(word)
    if word in AGAINST_AN_ANSWER or (denied and denied[1] in FOR_AN_ANSWER):
        return False
    return None


def _of_sign_and_word(text: str) -> Mark | None:
    """Return the mark in a choice of a form: a sign or a number with the word that it stands for,
    such as "👍 good" or "5 - Excellent". The word decides, and a sign must not contradict it."""
    match = _SIGN_AND_WORD.fullmatch(text)
    if match is None:
        return None
    word = plain(match["word"]).strip(":!. ")
    if word in NOBODY:
        return Mark()
    thumb, sign = _thumb_of_word(word), _thumb_of_word(match["sign"])
    if match["sign"].isdecimal():
        sign = thumb  # how many are many is not said by one row
    return Mark(thumb=thumb) if thumb is not None and sign is thumb else None


def is_unpressed(name: str, value: Any, others: Mapping[str, Any]) -> bool:
    """Return whether a mark is a button for an answer that nobody pressed, beside one against it.
    `others`: name -> value of all marks of the row. Raises Unreadable where both were pressed.

    >>> is_unpressed("thumbsUp", 0, {"thumbs_down": 0}), is_unpressed("thumb", 0, {"flagged": 0})
    (True, False)
    """
    opposite = OPPOSITES.get(plain(name))
    blame = next((part for other, part in others.items() if plain(other) == opposite), None)
    if opposite is None or blame is None:
        return False
    if _is_yes(value) and _is_yes(blame):
        raise Unreadable(f"{name} and {opposite} are both {value!r}: nobody can say which counts")
    mark = read_mark(value)
    return mark is not None and (mark.thumb is False or mark.number == 0)


def _is_yes(value: Any) -> bool:
    mark = read_mark(value)
    return mark is not None and (mark.thumb is True or mark.number == 1)


def is_opinion_word(value: Any) -> bool:
    """Return whether a text can only be an opinion: good, thumbs down, 👍; not yes, true or 1.

    >>> is_opinion_word("Rejected"), is_opinion_word("yes"), is_opinion_word("English")
    (True, False, False)
    """
    if not isinstance(value, str) or len(value) > LONGEST_WORD:
        return False
    mark = read_mark(value)
    word = plain(value).strip(":!. ")
    is_other = word in YES_NO or (len(word) == 1 and word.isascii())
    return mark is not None and mark.thumb is not None and not is_other


def _is_letter(value: Any) -> bool:
    return isinstance(value, str) and len(value.strip()) == 1 and value.strip().isalpha()


def number_of_scale(value: Any) -> Any:
    """Return an object that holds a number and the end of its scale as the text that says both, any
    other value as it is.

    >>> number_of_scale({"value": 1, "max": 5})
    '1/5'
    """
    if not isinstance(value, dict):
        return value
    by_name = {plain(str(name)): part for name, part in value.items()}
    most = [by_name[name] for name in ENDS if is_number(by_name.get(name))]
    numbers = [by_name[name] for name in NUMBERS if is_number(by_name.get(name))]
    least = [by_name[name] for name in STARTS if by_name.get(name) is not None]
    if len(most) != 1 or len(numbers) != 1 or (least and least[0] not in (0, 1)):
        return value
    return f"{numbers[0]}/{most[0]}"


def _number(text: str) -> float:
    return float(text.replace(",", "."))


def _with_scale(text: str) -> Mark | None:
    if match := _PERCENT.fullmatch(text):
        return Mark(number=_number(match[1]), scale=(0.0, 100.0))
    if match := _OF.fullmatch(text):
        number, most = _number(match[1]), float(match[2])
        # people who write a number of so many count from 1, unless it is 0
        low = 0.0 if number < 1 or most > 10 else 1.0
        return Mark(number=number, scale=(low, most)) if low <= number <= most > low else None
    if match := _STARS.fullmatch(text):
        number = _number(match[1])
        return Mark(number=number, scale=SCALES["rating"]) if 1 <= number <= 5 else None
    if match := _DRAWN.fullmatch(text):
        count, most = len(match[1]), len(match[1]) + len(match[2])
        return Mark(number=count, scale=(1.0, float(max(most, 5)))) if most <= 10 else None
    return None


@dataclass
class MarkColumn:
    """What all values of a column of marks have in common."""

    count: int = 0
    """Values that say something."""
    words: int = 0
    """Of them those that can be understood alone."""
    unknown: int = 0
    """Of them those that cannot be understood."""
    has_other_letters: bool = False
    """Whether a single letter is among those that cannot be understood."""
    low: float = math.inf
    high: float = -math.inf
    distinct: set[float] = field(default_factory=set)

    def add(self, value: Any) -> None:
        mark = read_mark(value)
        if mark is None:
            self.count += 1
            self.unknown += 1
            self.has_other_letters |= _is_letter(value)
            return
        if mark.says_nothing:
            return
        self.count += 1
        if mark.number is None or mark.scale is not None:
            self.words += 1
            return
        self.low, self.high = min(self.low, mark.number), max(self.high, mark.number)
        if len(self.distinct) < FEW:
            self.distinct.add(mark.number)

    @property
    def has_numbers(self) -> bool:
        return bool(self.distinct)


ONLY_ONE = (
    "{name} has no other number than 1, which is the worst of 1 to 5 and the best of 0 and 1; say "
    "which: --scale {name}=1:5 or --scale {name}=0:1"
)
UNREADABLE: Mapping[str, str] = {
    "unclear": "may speak for the answer or against it; write up or down beside each answer",
    "count": "counts votes, and nobody says how many are many; write up or down beside each answer",
    "pointing": "is about single messages of the chat; write each mark into its message",
}
"""Kinds of marks of which no value can be read, with the reason."""


@dataclass(frozen=True)
class Reading:
    """How the marks of a column are read."""

    name: str
    kind: str
    """thumb, rating, score, against, count, unclear or pointing."""
    scale: tuple[float, float] | None = None
    """The worst and the best of its numbers; None: they are thumbs."""
    zero_is_nothing: bool = False
    problem: str = ""
    """Why its numbers cannot be read."""
    stated_words: tuple[str, ...] = ()
    """The words of its scale, from the worst to the best, as a person says."""
    are_letters_grades: bool = False
    """Whether its single letters are those of another scale than yes and no."""

    def signal(self, value: Any) -> dict[str, Any] | None:
        """Kind, value and scale of the feedback that `value` is; None where nobody said anything.
        Raises Unreadable."""
        if (word := self._stated_word(value)) is not None:
            return self._stated(word)
        is_readable = self.kind not in UNREADABLE
        mark = self._understood(value) if is_readable or self.kind != "pointing" else None
        if mark is not None and mark.says_nothing:
            return None
        if mark is None or not is_readable:
            raise Unreadable(f"{self.name} {shortened(repr(value))} {UNREADABLE[self.kind]}")
        if self.kind == "against":
            return self._against(mark, value)
        if mark.thumb is not None:
            return {"kind": "thumb", "value": mark.thumb}
        if mark.scale is not None:
            return self._number(mark.number, mark.scale)
        if self.problem:
            raise Unreadable(self.problem)
        if self.scale is not None:
            return self._number(mark.number, self.scale)
        if mark.number == 0 and self.zero_is_nothing:
            return None
        return {"kind": "thumb", "value": bool(mark.number and mark.number > 0)}

    def _stated_word(self, value: Any) -> str | None:
        """Return the word of the stated scale that `value` is; None if it is none."""
        word = plain(str(value)) if isinstance(value, str | bool) else ""
        return word if word in self.stated_words else None

    def _understood(self, value: Any) -> Mark:
        """Return `value` as a mark. Raises Unreadable for a value that is none."""
        mark = read_mark(value)
        if mark is None or (self.are_letters_grades and _is_letter(value)):
            raise Unreadable(
                f"{self.name} {shortened(repr(value))} is no mark that is understood, such as up "
                f"and down, true and false, 4/5 or a number; say what its words mean: --scale "
                f"{self.name}=WORST:BEST"
            )
        return mark

    def _stated(self, word: str) -> dict[str, Any]:
        """Return the feedback that a word of the stated scale stands for."""
        position, last = self.stated_words.index(word), len(self.stated_words) - 1
        if last == 1:
            return {"kind": "thumb", "value": position == 1}
        return {"kind": "rating", "value": position, "scale": {"min": 0, "max": last}}

    def _against(self, mark: Mark, value: Any) -> dict[str, Any] | None:
        is_said = mark.thumb
        if is_opinion_word(value):
            if is_said or plain(value) in OF_A_TEST:
                raise Unreadable(f"{self.name} {shortened(repr(value))} {UNREADABLE['unclear']}")
            return {"kind": "thumb", "value": False}
        if mark.number in (0, 1) and mark.scale is None:
            is_said = mark.number == 1
        if is_said is None:
            raise Unreadable(f"{self.name} {mark.number!r} is neither true nor false")
        # nobody praises an answer by not voting against it
        return {"kind": "thumb", "value": False} if is_said else None

    def _number(self, number: float | None, scale: tuple[float, float]) -> dict[str, Any]:
        worst, best = scale
        low, high = min(scale), max(scale)
        kind = "rating" if self.kind == "thumb" else self.kind
        if number is None or not low <= number <= high:
            raise Unreadable(
                f"{self.name} {number:g} is outside its scale, {low:g} to {high:g}; another one: "
                f"--scale {self.name}=WORST:BEST"
            )
        # where the lowest number is the best, the same distances from the other end
        value = number if worst < best else low + high - number
        return {"kind": kind, "value": value, "scale": {"min": low, "max": high}}

    def words(self) -> str:
        """Return how numbers are read, for people."""
        if self.scale is None:
            return "up or down"
        worst, best = self.scale
        note = "" if worst < best else ", where the lowest is the best"
        return f"from {worst:g} to {best:g}{note}"


def reading_of(
    name: str,
    kind: str,
    column: MarkColumn | None,
    scales: Scales | None = None,
    column_name: str = "",
) -> Reading:
    """Return how the marks called `name` are read, judging by all their values; `column_name` if
    their column has another one. A scale from a person takes precedence."""
    scales = scales or {}
    stated = scales.get(name) or scales.get(kind)
    if isinstance(stated, Words):
        reading = _by_numbers(name, kind, column, None)
        return replace(reading, stated_words=tuple(map(plain, stated.words)))
    reading = _by_numbers(name, kind, column, stated)
    words = set(plain(column_name or name).rpartition(".")[2].split("-"))
    if stated is None and words & QUALITIES and column is not None and column.distinct == {1}:
        reading = Reading(name, kind, problem=ONLY_ONE.format(name=name))
    return replace(reading, are_letters_grades=column is not None and column.has_other_letters)


def _by_numbers(
    name: str, kind: str, column: MarkColumn | None, stated: tuple[float, float] | None
) -> Reading:
    """Return how the numbers among the marks called `name` are read."""
    if kind in ("against", "count", "unclear", "pointing"):
        return Reading(name, kind)
    if stated is not None:
        return Reading(name, "rating" if kind == "thumb" else kind, stated)
    if column is None or not column.has_numbers:
        return Reading(name, kind, None if kind == "thumb" else SCALES[kind])
    if column.distinct <= {-1, 0, 1}:
        return _two_valued(name, kind, column.distinct)
    if kind == "thumb":
        return _numbers_of_thumbs(name, column)
    low, high = SCALES[kind]
    if low <= column.low and column.high <= high:
        return Reading(name, kind, (low, high))
    problem = (
        f"{name} has numbers from {column.low:g} to {column.high:g}, outside the usual scale of "
        f"{low:g} to {high:g}; say theirs: --scale {name}=WORST:BEST"
    )
    return Reading(name, kind, problem=problem)


def _two_valued(name: str, kind: str, values: set[float]) -> Reading:
    """Return how marks are read whose numbers are all -1, 0 or 1."""
    if -1 in values:
        return Reading(name, "thumb", zero_is_nothing=0 in values)
    if kind == "score":
        return Reading(name, kind, SCALES[kind])
    if kind == "thumb" or 0 in values:
        return Reading(name, "thumb")
    return Reading(name, kind, problem=ONLY_ONE.format(name=name))


def _numbers_of_thumbs(name: str, column: MarkColumn) -> Reading:
    """Return how numbers under the name of a thumb are read: as scores from 0 to 1, else they are a
    problem."""
    if column.low >= 0 and column.high <= 1:
        return Reading(name, "score", SCALES["score"])
    problem = (
        f"{name} has numbers from {column.low:g} to {column.high:g}, which are no thumbs; say "
        f"their scale: --scale {name}=WORST:BEST"
    )
    return Reading(name, "thumb", problem=problem)


def thumb_of(value: Any, what: str = "thumb") -> bool:
    """Return True (up) or False (down) for a single value. Raises Unreadable for anything else."""
    mark = read_mark(value)
    if mark is not None and mark.thumb is not None:
        return mark.thumb
    if mark is not None and mark.scale is None and mark.number in (1, 0, -1):
        return mark.number == 1
    raise Unreadable(
        f"{what} {shortened(repr(value))} is neither up (true, 1, up, yes, ...) nor down (false, "
        "0, -1, down, no, ...)"
    )
