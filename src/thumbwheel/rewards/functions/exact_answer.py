r"""`exact_answer`: the final answer equals the reference, as numbers where both are numbers,
otherwise as text.

The final answer is what stands in the last `\boxed{...}`, else after the last `####`, else after
the last line that begins with `A:`, `Answer:` or `Final answer:`. Without any of these it is the
last number of the text when the reference is a number, and otherwise the whole text. The reference
may itself be a worked solution that ends in such a mark, as in GSM8K.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from thumbwheel.core.config import Config
from thumbwheel.core.normal_form import normal_form
from thumbwheel.rewards.function import Case, JudgementStatus, RewardFunction, Score, Unjudgeable

LONGEST_NUMBER = 400
"""Digits; the decimals of a float64 end well before."""

NUMBER = re.compile(
    r"[-+]?(?:(?:{0})(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?(?:\s*/\s*(?:{0}))?".format(
        r"\d{1,3}(?:,\d{2,3})*,\d{3}(?!\d)|\d+"
    )
)
"""Commas stand between thousands (or lakhs), and nowhere else."""
WRITTEN = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?(?:\s*/\s*\d[\d,]*)?")
"""What looks like one number, whether or not it is."""
WIDE = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {ord("−"): "-"}
"""Full-width letters to plain ones, and the minus; the whole of NFKC would make digits of
exponents."""
FRACTION = re.compile(r"\\[dt]?frac\{(-?\d+)\}\{(\d+)\}")
LINE_MARK = re.compile(
    r"^[ \t>*_]*(?:final\s+answer|answer|a)[ \t*_]*:[ \t*_]*(.*)$", re.IGNORECASE | re.MULTILINE
)
CURRENCY = "$€£¥₹"


class ExactAnswerConfig(Config):
    """Settings of `exact_answer`."""

    require_mark: bool = False
    """An answer without a mark (boxed, ####, "A:") is wrong, even when its last number is right."""
    tolerance: float = 0.0
    """Numbers are equal when they differ by at most this share of the reference."""
    case_sensitive: bool = False
    """Compare text with its case."""


class ExactAnswer(RewardFunction[ExactAnswerConfig]):
    Config = ExactAnswerConfig
    case_settings = frozenset({"case_sensitive", "require_mark", "tolerance"})
    version = 2

    def judge(self, case: Case) -> Score:
        """Return 1 if the final answer equals the reference, else 0; evidence: both, as they were
        compared."""
        if case.reference is None or isinstance(case.reference, dict | list):
            return Score.none(
                JudgementStatus.NOT_APPLICABLE,
                "the case has no reference that is a text or a number",
            )
        wanted_text = case.reference if isinstance(case.reference, str) else str(case.reference)
        mark, expected = marked(wanted_text)
        wanted = number(expected)
        form_asked = self.config.require_mark or mark is not None
        mark, answer = marked(case.text)
        if mark is None and wanted is not None:
            answer = last_number(case.text)
        well_formed = (mark is not None) if form_asked else None
        equal = self._equal(answer, expected, wanted) and not (
            self.config.require_mark and mark is None
        )
        return Score(
            float(equal),
            evidence={"found": answer[:200], "expected": expected[:200], "mark": mark},
            well_formed=well_formed,
        )

    def _equal(self, answer: str, expected: str, wanted: tuple[Decimal, Decimal] | None) -> bool:
        if wanted is None:
            case_sensitive = self.config.case_sensitive
            return text(answer, case_sensitive) == text(expected, case_sensitive)
        answer_number = number(answer)
        if answer_number is None:
            return False
        left = Fraction(answer_number[0]) / Fraction(answer_number[1])
        right = Fraction(wanted[0]) / Fraction(wanted[1])
        tolerance = Fraction(str(self.config.tolerance))
        return left == right or abs(left - right) <= abs(right) * tolerance


def marked(answer: str) -> tuple[str | None, str]:
    r"""Return the mark that was found ("boxed", "####", "line" or None) and the final answer after
    it (else the whole text).

    >>> marked("so 3 + 4 = 7\n#### 7")
    ('####', '7')
    """
    start = answer.rfind("\\boxed{")
    if start >= 0 and (inside := _braced(answer, start + len("\\boxed{"))) is not None:
        return "boxed", inside
    start = answer.rfind("####")
    if start >= 0:
        return "####", answer[start + 4 :].strip().split("\n")[0].strip()
    lines = LINE_MARK.findall(answer)
    return ("line", lines[-1].strip()) if lines else (None, answer.strip())


def _braced(answer: str, start: int) -> str | None:
    depth = 1
    for index in range(start, len(answer)):
        depth += {"{": 1, "}": -1}.get(answer[index], 0)
        if depth == 0:
            return answer[start:index].strip()
    return None


def last_number(answer: str) -> str:
    """Return the last number in the text as written, with a plain minus; empty if there is none."""
    numbers = WRITTEN.findall(answer.translate(WIDE))
    return numbers[-1].rstrip(",") if numbers else ""


def number(written: str) -> tuple[Decimal, Decimal] | None:
    """Return the number that the text is, as (numerator, denominator), or None for text that is no
    number.

    Currency and percent signs, thousands separators, units after a space and a final full stop are
    left out. Raises Unjudgeable for a number that is too long to compare.

    >>> number("$70,000.") == (Decimal(70000), Decimal(1))
    True
    """
    bare = normal_form("NFKC", written).replace("−", "-").strip().strip("*_`'\" ")
    bare = FRACTION.sub(r"\1/\2", bare)
    bare = re.sub(rf"^([-+]?)\s*[{CURRENCY}]\s*", r"\1", bare).rstrip("%").rstrip(". ")
    if not (match := NUMBER.match(bare)) or not re.fullmatch(
        r",?(?:\s+[^\d\s]\S*){0,3}", bare[match.end() :]
    ):
        return None
    if len(match[0]) > LONGEST_NUMBER:
        raise Unjudgeable(
            f"a number of {len(match[0])} characters; at most {LONGEST_NUMBER} are compared"
        )
    top, _, bottom = match[0].replace(",", "").partition("/")
    try:
        numerator, denominator = Decimal(top.strip()), Decimal(bottom.strip() or "1")
    except InvalidOperation:
        return None
    if abs(numerator.adjusted()) > LONGEST_NUMBER:
        raise Unjudgeable(
            f"a number with the exponent {numerator.adjusted()}; at most {LONGEST_NUMBER} are "
            "compared"
        )
    return (numerator, denominator) if denominator else None


def text(written: str, case_sensitive: bool = False) -> str:
    """Normalize the text for comparison: NFKC, one space between words, no quotes or marks around
    it, no final full stop, and folded case unless `case_sensitive`."""
    bare = " ".join(normal_form("NFKC", written).split()).strip("*_`'\" ").rstrip(".").strip()
    return bare if case_sensitive else bare.casefold()
