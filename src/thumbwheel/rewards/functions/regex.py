"""`regex`: the answer matches a pattern; with a group, what the group caught equals the reference.

Matching is stopped after `timeout` seconds (the `regex` package counts inside its matcher), so a
pattern that backtracks for ever over a hostile answer is a failed score.
"""

from __future__ import annotations

import math
import re
from typing import Any

from pydantic import Field, field_validator

from thumbwheel.core.config import Config
from thumbwheel.core.errors import MissingExtra
from thumbwheel.rewards.function import Case, JudgementStatus, RewardFunction, Score, Unjudgeable

LONGEST_PATTERN = 1000
MOST_REPEATS = 20_000
"""The package writes counted repeats out when it compiles, so that `(?:(?:a{1000}){1000}){1000}`
would take all memory."""

MOST_WRITTEN = 400_000
"""Repeats times characters: what is repeated may be nearly the whole pattern."""

COUNTS = re.compile(r"(\))?\{(\d*)(?:,(\d*))?\}")


class RegexConfig(Config):
    """Settings of `regex`."""

    pattern: str = Field(max_length=LONGEST_PATTERN)
    """The pattern, in the syntax of Python's `re`."""
    ignore_case: bool = False
    """Letters match in either case."""
    full: bool = False
    """The whole answer has to match, instead of a part of it."""
    group: str | int | None = None
    """Compare what this group caught with the reference, instead of only matching."""
    timeout: float = Field(default=0.25, gt=0, le=5)
    """Seconds for one answer."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        compiled(pattern, False)
        return pattern


class Regex(RewardFunction[RegexConfig]):
    Config = RegexConfig
    case_settings = frozenset({"full", "group", "ignore_case", "pattern"})

    def judge(self, case: Case) -> Score:
        """Return 1 on a match (and an equal group), else 0; evidence: the matched text."""
        group = self.config.group
        if group is not None and case.reference is None:
            return Score.none(
                JudgementStatus.NOT_APPLICABLE,
                f"the case has no reference to compare group {group!r} with",
            )
        match = self._match(case.text)
        if match is None:
            return Score(
                0.0, evidence={"matched": None}, well_formed=None if group is None else False
            )
        if group is None:
            return Score(1.0, evidence={"matched": match[0][:200]})
        try:
            caught = match[group]
        except IndexError:
            raise Unjudgeable(f"the pattern has no group {group!r}") from None
        return Score(
            float(caught == str(case.reference)),
            evidence={"matched": match[0][:200], "group": caught},
            well_formed=True,
        )

    def _match(self, text: str) -> Any:
        pattern = compiled(self.config.pattern, self.config.ignore_case)
        find = pattern.fullmatch if self.config.full else pattern.search
        try:
            return find(text, timeout=self.config.timeout)
        except TimeoutError:
            raise Unjudgeable(
                f"the pattern did not finish in {self.config.timeout} s on this answer"
            ) from None


def compiled(pattern: str, ignore_case: bool) -> Any:
    """Return the compiled pattern (the package keeps a cache). Raises ValueError if it is not a
    regular expression or repeats too often."""
    try:
        import regex
    except ImportError:
        raise MissingExtra.of("reward function 'regex'", "regex", "train") from None
    if (repeats := written_out(pattern)) > MOST_REPEATS:
        raise ValueError(
            f"its counted repeats come to {repeats}; at most {MOST_REPEATS} are compiled"
        )
    if (size := repeats * len(pattern)) > MOST_WRITTEN:
        raise ValueError(
            f"its {len(pattern)} characters and {repeats} repeats come to {size:,} written out; "
            f"at most {MOST_WRITTEN:,} are compiled"
        )
    try:
        return regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)
    except (regex.error, OverflowError, RecursionError) as error:
        raise ValueError(f"it is no regular expression: {error}") from None


def written_out(pattern: str) -> int:
    """Return an upper bound for how often one item of the pattern is repeated: counts of groups may
    nest and are multiplied with each other and with the largest count of an item.

    >>> written_out(r"(?:a{3}){5}")
    15
    """
    counts = [
        (bool(group), max(int(low or 0), int(high or 0), 1))
        for group, low, high in COUNTS.findall(pattern)
    ]
    return math.prod(count for group, count in counts if group) * max(
        (count for group, count in counts if not group), default=1
    )
