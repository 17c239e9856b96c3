"""Two answers to one prompt and who preferred which: the records, and where the prompt ends when it
is not given apart.

Shared by the sources whose rows are pairs. Not here: what the keys of a row are called
(`sources/`).
"""

from __future__ import annotations

import re
from typing import Any

from thumbwheel.capture.fields import Messages
from thumbwheel.capture.source import AnyRecord
from thumbwheel.capture.types import FeedbackRecord, Rater, TargetRef, TraceRecord, Unreadable

Verdict = tuple[Rater | None, list[list[int]]]
"""Who judged, and the ranking."""
SPEAKER = re.compile(r"\n\n(Human|Assistant):")
ROLE = {"Human": "user", "Assistant": "assistant"}


def pair_records(
    prompt: Messages,
    answers: tuple[str, str],
    verdicts: list[Verdict],
    rest: dict[str, Any],
    **more: Any,
) -> list[AnyRecord]:
    """Two traces and one preference a verdict; `more` are keys of both traces."""
    if answers[0] == answers[1]:
        raise Unreadable("the two answers are the same text: there is nothing to prefer")
    traces = [
        TraceRecord.model_validate({"input": prompt, "output": answer} | more) for answer in answers
    ]
    targets = [TargetRef(kind="trace", id=trace.identified()[0]) for trace in traces]
    judged = [
        FeedbackRecord(
            kind="preference",
            value={"ranking": ranking},
            targets=targets,
            rater=rater,
            metadata=rest or None,
        )
        for rater, ranking in verdicts
    ]
    return [*traces, *judged]


def split_pair(prompt: Any, chosen: Any, rejected: Any) -> tuple[Messages, str, str]:
    """(prompt, answer, answer): a given prompt is taken off the front of both, otherwise their
    common beginning is it."""
    if isinstance(chosen, str) and isinstance(rejected, str):
        if SPEAKER.match(chosen) and SPEAKER.match(rejected):
            return _split_chats(
                messages_of(prompt) if prompt is not None else None,
                _dialogue(chosen),
                _dialogue(rejected),
            )
        if prompt is not None:
            return messages_of(prompt), chosen, rejected
        return _split_texts(chosen, rejected)
    if isinstance(chosen, list) and isinstance(rejected, list):
        return _split_chats(messages_of(prompt) if prompt is not None else None, chosen, rejected)
    raise Unreadable("chosen and rejected are neither two texts nor two lists of chat messages")


def messages_of(prompt: Any) -> Messages:
    """A prompt as messages: a text is the user's, a dialogue of the hh-rlhf form is taken apart."""
    if isinstance(prompt, str):
        return _dialogue(prompt) if SPEAKER.match(prompt) else [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list):
        raise Unreadable(
            f"prompt {str(prompt)[:60]!r} is neither a text nor a list of chat messages"
        )
    return prompt


def _dialogue(text: str) -> Messages:
    """The messages of an hh-rlhf dialogue; a text without speakers is the user's."""
    parts = SPEAKER.split(text)
    if len(parts) == 1:
        return [{"role": "user", "content": text}]
    return [
        {"role": ROLE[speaker], "content": said.strip()}
        for speaker, said in zip(parts[1::2], parts[2::2], strict=True)
    ]


def _split_chats(
    prompt: Messages | None, chosen: Messages, rejected: Messages
) -> tuple[Messages, str, str]:
    if prompt:
        prompt = prompt[:-1] if prompt[-1] == {"role": "assistant", "content": ""} else prompt
        tails = [
            chat[len(prompt) :] if chat[: len(prompt)] == prompt else chat
            for chat in (chosen, rejected)
        ]
    else:
        shared = 0
        while shared < min(len(chosen), len(rejected)) - 1 and chosen[shared] == rejected[shared]:
            shared += 1
        prompt, tails = chosen[:shared], [chosen[shared:], rejected[shared:]]
    if not prompt:
        raise Unreadable(
            "chosen and rejected have no prompt: none is given and they do not begin alike"
        )
    return prompt, _answer(tails[0], "chosen"), _answer(tails[1], "rejected")


def _answer(tail: Messages, what: str) -> str:
    if len(tail) != 1:
        raise Unreadable(f"after the prompt {what} has {len(tail)} messages, not one answer")
    if (
        not isinstance(tail[0], dict)
        or tail[0].get("role") != "assistant"
        or not isinstance(tail[0].get("content"), str)
    ):
        raise Unreadable(f"the last message of {what} is no text of the assistant")
    return str(tail[0]["content"])


def _split_texts(chosen: str, rejected: str) -> tuple[Messages, str, str]:
    """The common beginning up to a white space is the prompt."""
    end = next(
        (i for i, (one, other) in enumerate(zip(chosen, rejected, strict=False)) if one != other),
        min(len(chosen), len(rejected)),
    )
    while end and not chosen[end - 1].isspace():
        end -= 1
    prompt = chosen[:end].strip()
    if not prompt:
        raise Unreadable(
            "chosen and rejected have no prompt: none is given and they do not begin alike"
        )
    return [{"role": "user", "content": prompt}], chosen[end:], rejected[end:]
