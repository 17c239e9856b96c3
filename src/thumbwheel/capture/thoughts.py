"""Thoughts of a model that stand in the text of its answer."""

from __future__ import annotations

import re

_THINK = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)


def without_thoughts(text: str) -> tuple[str, str]:
    """Return (what a model thought, what it answered) of a text with <think> ... </think> at its
    beginning; some servers leave out the opening mark.

    >>> without_thoughts("<think>Two and two.</think>  4")
    ('Two and two.', '4')
    """
    thoughts = []
    while match := _THINK.match(text):
        thoughts.append(match[1].strip())
        text = text[match.end() :]
    if not thoughts and "</think>" in text and "<think>" not in text:
        thought, _, text = text.partition("</think>")
        thoughts.append(thought.strip())
        text = text.lstrip()
    elif text.lstrip().startswith("<think>"):
        thoughts.append(text.lstrip().removeprefix("<think>").strip())
        text = ""
    return "\n\n".join(thoughts), text
