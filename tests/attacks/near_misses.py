"""Texts that a pattern nearly matches, made from the pattern itself, and the cost of a search.

A pattern that goes back over what it has read shows it where one of its pieces is repeated and the
rest of it never comes. So each pattern is read as a tree, and every prefix of an example of it, and
every repeated part, is pumped up. Not here: which code is attacked with them.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from types import FrameType
from typing import Any

PLAIN = "a1- .:@=x"
"""Characters from which an example is taken where several will do."""
ENDINGS = ("", "\0", "\n", "!", "a", "1", " ")
RATIO = 2.5
"""At most so many times as long takes a text of twice the length."""
MEASURABLE = 0.02
"""Seconds of processor time above which a ratio says something."""
TRIES = 4
MOST_SECONDS = 4.0
"""Of one search; no honest one takes a hundredth of it."""


class TookTooLong(AssertionError):
    """A search that was stopped."""


def near_misses(pattern: str, flags: int = 0) -> list[tuple[str, str, str]]:
    """Return (beginning, what is repeated, ending) of texts that nearly match `pattern`."""
    tree = parser.parse(pattern, flags)
    examples = _examples(tree)
    pumps: dict[tuple[str, str], None] = {}
    for example in examples:
        for end in range(1, min(len(example), 24) + 1):
            pumps["", example[:end]] = None
            pumps[example[:end], example[end - 1]] = None
        pumps["", example] = None
    for beginning, body in _repeats(tree, ""):
        pumps[beginning, body] = None
        pumps["", beginning + body] = None
        pumps["", body] = None
    return [(start, body, end) for start, body in pumps if body for end in ENDINGS]


def pumped(miss: tuple[str, str, str], length: int) -> str:
    """Return a text of about `length` characters."""
    beginning, body, ending = miss
    return beginning + body * (max(length - len(beginning), 1) // len(body) + 1) + ending


def assert_linear(search: Callable[[str], object], miss: tuple[str, str, str], most: int) -> None:
    """Fail where `search` of a text of up to `most` characters takes more than RATIO times as long
    as that of half of it.

    A busy machine can only make single measurements longer. So the shortest of several counts, and
    a ratio that is too large must be seen in every try.
    """
    length = 256
    seconds = 0.0
    while length <= most:
        before, seconds = seconds, _seconds(search, pumped(miss, length))
        if seconds > MEASURABLE and seconds > RATIO * before:
            _assert_ratio(search, miss, length)
        length *= 2


def _assert_ratio(search: Callable[[str], object], miss: tuple[str, str, str], length: int) -> None:
    # what grows too fast does so twice; a text that leaves the processor's cache does it once
    ratios = []
    for _ in range(TRIES):
        quarter = min(_seconds(search, pumped(miss, length // 4)) for _ in range(3))
        half = min(_seconds(search, pumped(miss, length // 2)) for _ in range(3))
        whole = min(_seconds(search, pumped(miss, length)) for _ in range(2))
        ratios.append(whole / max(half, 1e-9))
        is_linear = ratios[-1] <= RATIO or whole <= RATIO**2 * quarter
        if is_linear or whole < MEASURABLE:
            return
    raise AssertionError(
        f"{length} characters of {miss!r}: {ratios} times the time of half of them"
    )


def _seconds(search: Callable[[str], object], text: str) -> float:
    with stopped_after(MOST_SECONDS, f"{len(text)} characters, {text[:40]!r}..."):
        start = time.process_time()
        search(text)
        return time.process_time() - start


@contextmanager
def stopped_after(seconds: float, what: str) -> Iterator[None]:
    """Raise TookTooLong in what runs longer, in processor time, so that a busy machine counts for
    nothing. The matcher of `re` lets a signal in."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TookTooLong(f"more than {seconds} s of processor time: {what}")

    previous = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


def _examples(tree: Any) -> list[str]:
    """Return texts that match: one of each alternative of the outermost branches."""
    alternatives = _branches(tree)
    return list(dict.fromkeys(_example(alternative) for alternative in alternatives))


def _branches(tree: Any) -> list[Any]:
    """Return the tree once for each alternative of its first branches, at most 60."""
    nodes = list(tree)
    for position, (code, argument) in enumerate(nodes):
        if code is codes.SUBPATTERN:
            choices = _branches(argument[-1])
            wrapped = [
                nodes[:position] + list(choice) + nodes[position + 1 :] for choice in choices
            ]
        elif code is codes.BRANCH:
            wrapped = []
            for choice in argument[1]:
                for inner in _branches(choice):
                    wrapped.append(nodes[:position] + list(inner) + nodes[position + 1 :])
        else:
            continue
        if len(wrapped) > 1:
            return wrapped[:60]
    return [nodes]


def _example(tree: Any) -> str:
    return "".join(_node(code, argument) for code, argument in tree)


def _node(code: Any, argument: Any) -> str:
    if code is codes.LITERAL:
        return chr(argument)
    if code is codes.NOT_LITERAL:
        return next(each for each in PLAIN if each != chr(argument))
    if code is codes.ANY:
        return "a"
    if code is codes.IN:
        return _member(argument)
    if code is codes.CATEGORY:
        return _member([(code, argument)])
    if code is codes.SUBPATTERN:
        return _example(argument[-1])
    if code is codes.ATOMIC_GROUP:
        return _example(argument)
    if code is codes.BRANCH:
        return _example(argument[1][0])
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        low, high, body = argument
        return _example(body) * min(max(low, 1), high)
    return ""


def _member(items: Any) -> str:
    """Return a character of a set."""
    matches = re.compile(_set_of(items)).match
    code, argument = items[-1]
    last = (
        chr(argument[0] if code is codes.RANGE else argument) if code is not codes.CATEGORY else ""
    )
    characters = PLAIN + "".join(map(chr, range(33, 127))) + last + "\u200b"
    return next(character for character in characters if matches(character))


def _repeats(tree: Any, beginning: str) -> Iterator[tuple[str, str]]:
    """Yield (an example of what stands before, an example of what is repeated)."""
    for code, argument in tree:
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            body = argument[2]
            yield beginning, _example(body)
            yield from _repeats(body, beginning)
            for character in _characters(body):
                yield beginning, character
        elif code is codes.SUBPATTERN:
            yield from _repeats(argument[-1], beginning)
        elif code is codes.ATOMIC_GROUP:
            yield from _repeats(argument, beginning)
        elif code is codes.BRANCH:
            for choice in argument[1]:
                yield from _repeats(choice, beginning)
        beginning += _node(code, argument)


def _characters(body: Any) -> Iterator[str]:
    """Yield characters of a repeated set that a person would not take first: those that other
    parts of a pattern may match too."""
    for code, argument in body:
        if code is codes.IN:
            matches = re.compile(_set_of(argument)).match
            for character in "٠1a -\t_.":
                if matches(character):
                    yield character


def _set_of(items: Any) -> str:
    """Return a set as it is written, of its literals, ranges and categories."""
    names = {
        codes.CATEGORY_DIGIT: r"\d",
        codes.CATEGORY_NOT_DIGIT: r"\D",
        codes.CATEGORY_SPACE: r"\s",
        codes.CATEGORY_NOT_SPACE: r"\S",
        codes.CATEGORY_WORD: r"\w",
        codes.CATEGORY_NOT_WORD: r"\W",
    }
    written = ""
    for code, argument in items:
        if code is codes.NEGATE:
            written += "^"
        elif code is codes.LITERAL:
            written += re.escape(chr(argument))
        elif code is codes.RANGE:
            written += f"{re.escape(chr(argument[0]))}-{re.escape(chr(argument[1]))}"
        elif code is codes.CATEGORY:
            written += names[argument]
    return f"[{written}]"
