"""Pairs of answers of which people preferred one.

Forms: {prompt?, chosen, rejected} as texts or chat lists (without `prompt` their common beginning is it); the hh-rlhf dialogue
("\\n\\nHuman: ... \\n\\nAssistant: ..."); PandaLM (instruction, input, response1, response2, annotator1..n with 0 for a tie), where
each annotator is a rater with a judgement of their own: contradictions are kept here and resolved by a named rule later.
"""

from __future__ import annotations

import re
from typing import Any

from thumbwheel.capture.source import AnyRecord, JsonLines, Row
from thumbwheel.capture.types import FeedbackRecord, Rater, TargetRef, TraceRecord, Unreadable

Messages = list[dict[str, Any]]
Verdict = tuple[Rater | None, list[list[int]]]
"""Who judged, and the ranking."""
SPEAKER = re.compile(r"\n\n(Human|Assistant):")
ROLE = {"Human": "user", "Assistant": "assistant"}
ANNOTATOR = re.compile(r"annotator_?\d+")
PANDALM = ("instruction", "input", "response1", "response2")
VERDICTS = {0: [[0, 1]], 1: [[0], [1]], 2: [[1], [0]]}
EXAMPLE = (
    '{"prompt": "Name a red fruit.", "chosen": "A cherry.", "rejected": "A banana."}\n'
    '{"chosen": "\\n\\nHuman: Hi\\n\\nAssistant: Hello!", "rejected": "\\n\\nHuman: Hi\\n\\nAssistant: What?"}\n'
    '{"instruction": "...", "input": "", "response1": "Yes.", "response2": "No.", "annotator1": 1, "annotator2": 0}'
)


def claims(row: Row) -> bool:
    """A pair has chosen and rejected, or two responses with annotators."""
    return {"chosen", "rejected"} <= row.keys() or {"response1", "response2"} <= row.keys()


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """Two traces and one preference for each rater."""
    if "response1" in row or "response2" in row:
        return _pandalm(row)
    for key in ("chosen", "rejected"):
        if row.get(key) is None:
            raise Unreadable(f"key {key!r} is missing")
    prompt, chosen, rejected = _split(row.get("prompt"), row["chosen"], row["rejected"])
    rest = {key: value for key, value in row.items() if key not in ("prompt", "chosen", "rejected")}
    return _records(prompt, (chosen, rejected), [(None, [[0], [1]])], rest)


def _pandalm(row: dict[str, Any]) -> list[AnyRecord]:
    instruction, context, *answers = (_text(row, key) for key in PANDALM)
    names = [key for key in row if ANNOTATOR.fullmatch(key)]
    if not names:
        raise Unreadable("it has no annotator1, annotator2, ...: nobody judged the two responses")
    for name in names:
        if type(row[name]) is not int or row[name] not in VERDICTS:
            raise Unreadable(f"{name} {row[name]!r} is none of 0 (tie), 1, 2")
    text = "\n\n".join(part for part in (instruction, context) if part)
    verdicts: list[Verdict] = [(Rater(id=name, kind="person"), VERDICTS[row[name]]) for name in names]
    rest = {key: value for key, value in row.items() if key not in PANDALM and key not in names}
    return _records([{"role": "user", "content": text}], (answers[0], answers[1]), verdicts, rest)


def _text(row: Row, key: str) -> str:
    """The text at `key`; the published file holds answers such as a bare true, which stand for the word."""
    value = row.get(key, "" if key == "input" else None)
    if not isinstance(value, str | bool | int | float):
        raise Unreadable(f"key {key!r} is {value!r}, not a text")
    return str(value)


def _records(prompt: Messages, answers: tuple[str, str], verdicts: list[Verdict], rest: dict[str, Any]) -> list[AnyRecord]:
    if answers[0] == answers[1]:
        raise Unreadable("the two answers are the same text: there is nothing to prefer")
    traces = [TraceRecord.model_validate({"input": prompt, "output": answer}) for answer in answers]
    targets = [TargetRef(kind="trace", id=trace.identified()[0]) for trace in traces]
    judged = [
        FeedbackRecord(kind="preference", value={"ranking": ranking}, targets=targets, rater=rater, metadata=rest or None)
        for rater, ranking in verdicts
    ]
    return [*traces, *judged]


def _split(prompt: Any, chosen: Any, rejected: Any) -> tuple[Messages, str, str]:
    """(prompt, answer, answer): a given prompt is taken off the front of both, otherwise their common beginning is it."""
    if isinstance(chosen, str) and isinstance(rejected, str):
        if SPEAKER.match(chosen) and SPEAKER.match(rejected):
            return _split_chats(_messages(prompt) if prompt is not None else None, _dialogue(chosen), _dialogue(rejected))
        if prompt is not None:
            return _messages(prompt), chosen, rejected
        return _split_texts(chosen, rejected)
    if isinstance(chosen, list) and isinstance(rejected, list):
        return _split_chats(_messages(prompt) if prompt is not None else None, chosen, rejected)
    raise Unreadable("chosen and rejected are neither two texts nor two lists of chat messages")


def _messages(prompt: Any) -> Messages:
    if isinstance(prompt, str):
        return _dialogue(prompt) if SPEAKER.match(prompt) else [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list):
        raise Unreadable(f"prompt {str(prompt)[:60]!r} is neither a text nor a list of chat messages")
    return prompt


def _dialogue(text: str) -> Messages:
    """The messages of an hh-rlhf dialogue; a text without speakers is the user's."""
    parts = SPEAKER.split(text)
    if len(parts) == 1:
        return [{"role": "user", "content": text}]
    return [{"role": ROLE[speaker], "content": said.strip()} for speaker, said in zip(parts[1::2], parts[2::2], strict=True)]


def _split_chats(prompt: Messages | None, chosen: Messages, rejected: Messages) -> tuple[Messages, str, str]:
    if prompt:
        prompt = prompt[:-1] if prompt[-1] == {"role": "assistant", "content": ""} else prompt
        tails = [chat[len(prompt) :] if chat[: len(prompt)] == prompt else chat for chat in (chosen, rejected)]
    else:
        shared = 0
        while shared < min(len(chosen), len(rejected)) - 1 and chosen[shared] == rejected[shared]:
            shared += 1
        prompt, tails = chosen[:shared], [chosen[shared:], rejected[shared:]]
    if not prompt:
        raise Unreadable("chosen and rejected have no prompt: none is given and they do not begin alike")
    return prompt, _answer(tails[0], "chosen"), _answer(tails[1], "rejected")


def _answer(tail: Messages, what: str) -> str:
    if len(tail) != 1:
        raise Unreadable(f"after the prompt {what} has {len(tail)} messages, not one answer")
    if not isinstance(tail[0], dict) or tail[0].get("role") != "assistant" or not isinstance(tail[0].get("content"), str):
        raise Unreadable(f"the last message of {what} is no text of the assistant")
    return str(tail[0]["content"])


def _split_texts(chosen: str, rejected: str) -> tuple[Messages, str, str]:
    """The common beginning up to a white space is the prompt."""
    end = next((i for i, (one, other) in enumerate(zip(chosen, rejected, strict=False)) if one != other), min(len(chosen), len(rejected)))
    while end and not chosen[end - 1].isspace():
        end -= 1
    prompt = chosen[:end].strip()
    if not prompt:
        raise Unreadable("chosen and rejected have no prompt: none is given and they do not begin alike")
    return [{"role": "user", "content": prompt}], chosen[end:], rejected[end:]


SOURCE = JsonLines(parse, claims, EXAMPLE)
