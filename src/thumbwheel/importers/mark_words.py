"""Words that speak for an answer or against it, in the languages that people write, and words of
somebody who says neither.

`plain` (`marks.py`) spells them: small letters, hyphens. Not here: numbers, and what a word means
in a column of others (`marks.py`). To add a language: a line in YES_OR_NO_ELSEWHERE and one in
OPINIONS_ELSEWHERE.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

UP = frozenset(
    {
        "true",
        "up",
        "thumbs-up",
        "thumb-up",
        "thumbsup",
        "upvote",
        "yes",
        "y",
        "positive",
        "pos",
        "good",
        "great",
        "excellent",
        "like",
        "liked",
        "helpful",
        "pass",
        "passed",
        "correct",
        "right",
        "accept",
        "accepted",
        "approved",
        "desirable",
        "chosen",
        "satisfied",
        "happy",
        "+1",
        "thumbs-up-sign",
        "good-response",
        "very-good",
        "very-satisfied",
        "very-helpful",
        "win",
        "won",
        "success",
        "successful",
        "succeeded",
        "resolved",
        "solved",
        "upvoted",
        "preferred",
        "agree",
        "useful",
        "love",
        "loved",
        "perfect",
        "amazing",
        "awesome",
        "acceptable",
        "accurate",
        "adequate",
        "faithful",
        "grounded",
        "high-quality",
        "is-correct",
        "is-good",
        "is-helpful",
        "mostly-helpful",
        "okay",
        "ok",
        "outstanding",
        "relevant",
        "somewhat-helpful",
        "strongly-agree",
        "superb",
        "wonderful",
        "👍",
        "😀",
        "😃",
        "😄",
        "😊",
        "🙂",
        "😍",
        "❤",
        "✅",
        "✓",
        "✔",
        "☑",
        "t",
        "p",
    }
)
DOWN = frozenset(
    {
        "false",
        "down",
        "thumbs-down",
        "thumb-down",
        "thumbsdown",
        "downvote",
        "no",
        "n",
        "negative",
        "neg",
        "bad",
        "poor",
        "terrible",
        "dislike",
        "disliked",
        "unhelpful",
        "not-helpful",
        "fail",
        "failed",
        "incorrect",
        "wrong",
        "reject",
        "rejected",
        "undesirable",
        "unsatisfied",
        "dissatisfied",
        "unhappy",
        "thumbs-down-sign",
        "bad-response",
        "very-bad",
        "very-dissatisfied",
        "very-unsatisfied",
        "very-poor",
        "lose",
        "loss",
        "lost",
        "failure",
        "unresolved",
        "unsolved",
        "downvoted",
        "not-preferred",
        "disagree",
        "useless",
        "hate",
        "hated",
        "awful",
        "worse",
        "unacceptable",
        "inaccurate",
        "inadequate",
        "irrelevant",
        "low-quality",
        "mostly-unhelpful",
        "strongly-disagree",
        "ungrounded",
        "unfaithful",
        "👎",
        "😠",
        "😡",
        "😞",
        "😢",
        "🙁",
        "☹",
        "❌",
        "✗",
        "✘",
        "💔",
        "-1",
        "f",
    }
)
YES_OR_NO_ELSEWHERE: Mapping[str, tuple[str, str]] = {
    "Arabic": ("نعم صحيح", "لا خطأ"),
    "Chinese": ("是 对 對 真", "否 不是 不对 不對 假"),
    "Czech": ("ano pravda", "ne nepravda"),
    "Danish, Norwegian, Swedish": ("ja sand sant", "nej nei falsk falskt"),
    "Dutch": ("ja waar", "nee onwaar"),
    "Finnish": ("kyllä tosi", "ei epätosi"),
    "French": ("oui vrai o", "non faux"),
    "German": ("ja wahr j", "nein falsch"),
    "Greek": ("ναι", "όχι"),
    "Hebrew": ("כן", "לא"),
    "Hindi": ("हाँ हां", "नहीं"),
    "Hungarian": ("igen igaz", "nem hamis"),
    "Indonesian": ("ya benar", "tidak salah"),
    "Italian": ("sì si vero", "no falso"),
    "Japanese": ("はい", "いいえ"),
    "Korean": ("예 네", "아니요 아니오"),
    "Polish": ("tak prawda", "nie fałsz"),
    "Portuguese": ("sim verdadeiro s", "não nao falso"),
    "Romanian": ("da adevărat", "nu fals"),
    "Russian, Ukrainian": ("да так истина", "нет ні ложь"),
    "Spanish": ("sí si verdadero", "no falso"),
    "Turkish": ("evet doğru", "hayır hayir yanlış"),
    "Vietnamese": ("có", "không"),
}
"""Language -> its words for yes and true, and for no and false, also as spreadsheets write them."""
OPINIONS_ELSEWHERE: Mapping[str, tuple[str, str]] = {
    "Arabic": ("جيد مفيد ممتاز", "سيئ غير-مفيد"),
    "Chinese": (
        "好 很好 赞 点赞 好评 有用 有帮助 满意 正确 喜欢 讚 滿意",
        "差 很差 坏 踩 点踩 差评 没用 没帮助 不满意 错误 不好 不喜欢 不滿意",
    ),
    "Dutch": ("goed nuttig tevreden", "slecht fout ontevreden"),
    "French": (
        "bon bonne bien utile excellent satisfait correct",
        "mauvais mauvaise mal inutile insatisfait incorrect",
    ),
    "German": (
        "gut sehr-gut hilfreich richtig zufrieden positiv daumen-hoch hoch",
        "schlecht sehr-schlecht unzufrieden negativ daumen-runter runter",
    ),
    "Italian": ("buono bene utile ottimo positivo", "cattivo male inutile pessimo negativo"),
    "Japanese": ("良い よい いいね 高評価 満足", "悪い よくない 良くない 低評価 不満"),
    "Korean": ("좋아요 좋음 만족", "싫어요 나쁨 불만족 별로"),
    "Polish": ("dobry dobra dobre dobrze", "zły zła złe źle"),
    "Portuguese": ("bom boa bem útil ótimo positivo", "mau má ruim mal inútil péssimo negativo"),
    "Russian": (
        "хорошо хороший полезно верно нравится отлично",
        "плохо плохой бесполезно неверно ужасно",
    ),
    "Spanish": ("bueno buena bien útil positivo", "malo mala mal inútil negativo"),
    "Turkish": ("iyi faydalı beğendim", "kötü faydasız beğenmedim"),
}
"""Language -> its words for a good and for a bad answer."""


def _words_elsewhere(side: int) -> frozenset[str]:
    """Return the words of other languages that speak for an answer (0) or against it (1)."""
    words: set[str] = set()
    for language_words in (*YES_OR_NO_ELSEWHERE.values(), *OPINIONS_ELSEWHERE.values()):
        words.update(language_words[side].split())
    return frozenset(words)


FOR_AN_ANSWER = UP | _words_elsewhere(0)
AGAINST_AN_ANSWER = DOWN | _words_elsewhere(1)
NEGATION = re.compile(r"(?:not|isn't|wasn't|nicht|pas|no|niet|не|ikke|inte)-(.+)")
"""A word that is denied: "not helpful", "nicht gut"."""
NOBODY = frozenset(
    {
        "",
        "-",
        "--",
        "---",
        "none",
        "null",
        "nan",
        "n/a",
        "na",
        "nil",
        "neutral",
        "unrated",
        "not-rated",
        "no-rating",
        "no-feedback",
        "unknown",
        "skip",
        "skipped",
        "undefined",
        "#n/a",
        "ignore",
        "ignored",
        "abstain",
        "unsure",
        "not-sure",
        "no-opinion",
        "unlabeled",
        "unlabelled",
        "neither",
        "keine-angabe",
        "offered",
        "unoffered",
        "😐",
    }
)
"""Words of somebody who says neither."""

YES_NO = frozenset(
    {
        *(
            word
            for words in YES_OR_NO_ELSEWHERE.values()
            for side in words
            for word in side.split()
        ),
        "true",
        "false",
        "yes",
        "no",
        "y",
        "n",
        "right",
    }
)
"""Words that also say something else than an opinion, beside single letters and those of other
languages."""
OF_A_TEST = frozenset({"negative", "neg", "fail", "failed", "lost", "loss"})
"""Words against something, which may be the fault that was looked for."""
