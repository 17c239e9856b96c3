"""Two answers to one prompt and which one somebody preferred: the records, and where the prompt
ends when it is not given apart.

Shared by the sources whose rows are pairs. Not here: what the keys of a row are called
(`sources/`).
"""

from __future__ import annotations

import re
from typing import Any

from thumbwheel.capture.fields import Messages
from thumbwheel.capture.types import (
    AnyRecord,
    FeedbackRecord,
    Rater,
    TraceRecord,
    Unreadable,
)

Verdict = tuple[Rater | None, list[list[int]]]
"""Who judged, and the ranking."""
SPEAKER = re.compile(r"\n\n(Human|Assistant):")
ROLE = {"Human": "user", "Assistant": "assistant"}
NO_PROMPT = "chosen and rejected have no prompt: none is given and they do not begin alike"


def pair_records(
    prompt: Messages,
    answers: tuple[str, str],
    verdicts: list[Verdict],
    rest: dict[str, Any],
    **fields: Any,
) -> list[AnyRecord]:
    """Two traces and one preference a verdict; `rest` is the metadata of the preferences, `fields`
    are further keys of both traces."""
    if answers[0] == answers[1]:
        raise Unreadable("the two answers are the same text: there is nothing to prefer")
    traces = [
        TraceRecord.model_validate({"input": prompt, "output": answer} | fields)
        for answer in answers
    ]
    targets = [trace.as_target() for trace in traces]
    preferences = [
        FeedbackRecord(
            kind="preference",
            value={"ranking": ranking},
            targets=targets,
            rater=rater,
            metadata=rest or None,
        )
        for rater, ranking in verdicts
    ]
    return [*traces, *preferences]


def split_pair(prompt: Any, chosen: Any, rejected: Any) -> tuple[Messages, str, str]:
    """(prompt, answer, answer): a given prompt is taken off the front of both, otherwise their
    common beginning is it."""
    messages = messages_of(prompt) if prompt is not None else None
    if isinstance(chosen, str) and isinstance(rejected, str):
        if SPEAKER.match(chosen) and SPEAKER.match(rejected):
            return _split_chats(messages, _dialogue(chosen), _dialogue(rejected))
        if messages is not None:
            return messages, chosen, rejected
        return _split_texts(chosen, rejected)
    if isinstance(chosen, list) and isinstance(rejected, list):
        return _split_chats(messages, chosen, rejected)
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
    turns = zip(parts[1::2], parts[2::2], strict=True)
    return [{"role": ROLE[speaker], "content": words.strip()} for speaker, words in turns]


def _split_chats(
    prompt: Messages | None, chosen: Messages, rejected: Messages
) -> tuple[Messages, str, str]:
    if prompt:
        if prompt[-1] == {"role": "assistant", "content": ""}:
            prompt = prompt[:-1]
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
        raise Unreadable(NO_PROMPT)
    return prompt, _answer(tails[0], "chosen"), _answer(tails[1], "rejected")


def _answer(tail: Messages, what: str) -> str:
    if len(tail) != 1:
        raise Unreadable(f"after the prompt {what} has {len(tail)} messages, not one answer")
    (message,) = tail
    is_answer = isinstance(message, dict) and message.get("role") == "assistant"
    if not is_answer or not isinstance(message.get("content"), str):
        raise Unreadable(f"the last message of {what} is no text of the assistant")
    return str(message["content"])


def _split_texts(chosen: str, rejected: str) -> tuple[Messages, str, str]:
    """The common beginning up to a white space is the prompt."""
    end = 0
    while end < min(len(chosen), len(rejected)) and chosen[end] == rejected[end]:
        end += 1
    while end and not chosen[end - 1].isspace():
        end -= 1
    prompt = chosen[:end].strip()
    if not prompt:
        raise Unreadable(NO_PROMPT)
    return [{"role": "user", "content": prompt}], chosen[end:], rejected[end:]
