"""Thoughts of a model that stand in the text of its answer."""

from __future__ import annotations

import re

MARKS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<reason>", "</reason>"),
    ("◁think▷", "◁/think▷"),
    ("[THINK]", "[/THINK]"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
)
"""How models mark what they think, at the beginning of an answer."""
AROUND_ANSWER = (
    ("<|begin_of_solution|>", "<|end_of_solution|>"),
    ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
)
"""Marks around an answer that follows marked thoughts."""
_CHANNEL = re.compile(
    r"(?:<\|start\|>assistant)?<\|channel\|>(analysis|commentary|final)<\|message\|>"
)
_CHANNEL_END = re.compile(r"<\|(?:end|return)\|>\s*")


def without_thoughts(text: str) -> tuple[str, str]:
    """Return (thoughts, answer) of a text with <think> ... </think> at its beginning; some servers
    leave out the opening mark.

    >>> without_thoughts("<think>Two and two.</think>  4")
    ('Two and two.', '4')
    >>> without_thoughts("<thinking>Two and two.</thinking>4")
    ('Two and two.', '4')
    """
    if _CHANNEL.match(text):
        return _channels(text)
    thoughts = []
    while (leading := _leading_thought(text)) is not None:
        thought, text = leading
        thoughts.append(thought)
    opening, closing = MARKS[0]
    if not thoughts and closing in text and opening not in text:
        thought, _, text = text.partition(closing)
        thoughts.append(thought.strip())
        text = text.lstrip()
    for opening, closing in AROUND_ANSWER:
        if thoughts and text.startswith(opening):
            text = text.removeprefix(opening).rstrip().removesuffix(closing).strip()
    return "\n\n".join(thoughts), text


def _leading_thought(text: str) -> tuple[str, str] | None:
    """Return (the thought at the start of a text, the rest), or None if it does not start with one.
    A thought without an end is all of the text."""
    text = text.lstrip()
    for opening, closing in MARKS:
        if text.startswith(opening):
            thought, _, rest = text.removeprefix(opening).partition(closing)
            return thought.strip(), rest.lstrip()
    return None


def _channels(text: str) -> tuple[str, str]:
    """Return (text of the channels before the last, the final channel) of a text in the format of
    gpt-oss."""
    thoughts, answer = [], ""
    while match := _CHANNEL.match(text):
        text = text[match.end() :]
        end = _CHANNEL_END.search(text)
        part = text[: end.start()] if end else text
        text = text[end.end() :] if end else ""
        if match[1] == "final":
            answer = part.strip()
        else:
            thoughts.append(part.strip())
    return "\n\n".join(thoughts), answer or text
