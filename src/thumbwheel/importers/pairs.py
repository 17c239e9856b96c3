"""Two answers to one prompt and which one somebody preferred: the records, and where the prompt
ends when it is not given apart.

Shared by the sources whose rows are pairs. Not here: what the keys of a row are called
(`sources/`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from thumbwheel.importers.fields import content_text, unpacked
from thumbwheel.importers.marks import RANKS, Mark, kind_of_name, plain, read_mark
from thumbwheel.importers.messages import (
    Messages,
    answer_fields,
    chat,
    is_chat,
    turns_of_pairs,
    with_media,
    without_old_thoughts,
)
from thumbwheel.importers.types import (
    AnyRecord,
    FeedbackRecord,
    Rater,
    Records,
    TraceRecord,
    Unreadable,
)

Verdict = tuple[Rater | None, list[list[int]]]
"""Who judged, and the ranking."""
Message = Mapping[str, Any]
Answers = tuple[str | Message, str | Message]
PROMPTS = ("prompt", "instruction", "question", "query", "input", "user_message", "user_input")
"""Names of the prompt of a row, the surest first."""
CHATS = (
    "messages",
    "conversations",
    "conversation",
    "context_messages",
    "prompt_messages",
    "context",
)
"""Names of a chat that a row's answers go on with."""
SYSTEMS = ("system", "system_prompt")
NO_INPUT = "<noinput>"
"""How Alpaca's own files say that an instruction has no input."""
NOT_ASKED = re.compile(
    r"(.*[_-])?(id|ids|model|models|source|dataset|split|subset|category|type|kind|language|lang|"
    r"hash|url|date|time|timestamp|created_at|author|annotator|rater|name|title|reason|rationale|"
    r"comment|explanation|topic|task|domain|tag|tags|label|status|version|config)"
)
"""Names of texts of which nobody would think that they were asked."""
MAY_BE_ASKED = re.compile(
    r"(.*[_-])?(category|type|kind|name|title|reason|rationale|comment|explanation|topic|task|"
    r"domain|tag|tags|label|status)"
)
"""Names among them whose sentences may be what was asked."""
SPEAKER = re.compile(r"\n\n(Human|Assistant):")
LINE_SPEAKER = re.compile(
    r"(?:\A|\n)\s{0,8}(?:#{2,3} )?(System|Human|User|Assistant|SYSTEM|HUMAN|USER|ASSISTANT):"
)
"""Who speaks, at the beginning of a line."""
ROLE = {"human": "user", "user": "user", "assistant": "assistant", "system": "system"}
CHOSEN_MARK = re.compile(r"(?:(?:chosen|rejected)[_-])(.+)|(.+)[_-](?:chosen|rejected)")
"""A key that says something about one of the two answers: score_chosen, rejected_avg_rating."""
EQUAL_SCORES = "some pairs have the same score for both answers"
MARGIN = "margin"
"""By how much the chosen answer is the better one."""
PAIR_LABELS = (
    "label",
    "kto_tag",
    "preference",
    "is_preferred",
    "correct",
    "is_correct",
    "winner",
    "better",
    MARGIN,
)
"""Keys of a verdict on a pair."""
TIES = frozenset(
    {"tie", "tie-(bothbad)", "both", "equal", "same", "both-bad", "bothbad", "draw", "both-good"}
)
"""Words of a verdict that prefers neither answer."""
NO_PROMPT = "chosen and rejected have no prompt: none is given and they do not begin alike"
COMMON_BEGINNING = "the prompt is the words with which both answers begin, because no column has it"


def pair_records(
    prompt: Messages,
    answers: Answers,
    verdicts: list[Verdict],
    rest: dict[str, Any],
    **fields: Any,
) -> list[AnyRecord]:
    """Return two traces, and one preference per verdict. `rest` is the metadata of the preferences,
    `fields` are additional keys of both traces. Raises Unreadable if both answers are the same."""
    messages = [_message(answer) for answer in answers]
    if _essence(messages[0]) == _essence(messages[1]):
        raise Unreadable("the two answers are the same text: there is nothing to prefer")
    return ranked_records(prompt, messages, verdicts, rest, **fields)


def ranked_records(
    prompt: Messages,
    messages: Sequence[Message],
    verdicts: list[Verdict],
    rest: dict[str, Any],
    **fields: Any,
) -> list[AnyRecord]:
    """Return a trace for each of several answers to a prompt, and one preference per verdict."""
    traces = [
        TraceRecord.model_validate({"input": prompt} | answer_fields(message) | fields)
        for message in messages
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


def essences(messages: Iterable[Message]) -> list[tuple[Any, Any]]:
    """Return for each answer (its content, its calls), as a reader would see it."""
    return [_essence(message) for message in messages]


def _message(answer: str | Message) -> Message:
    if isinstance(answer, str):
        return chat([{"role": "assistant", "content": answer}])[0]
    return answer


def _essence(message: Message) -> tuple[Any, Any]:
    """Return (content, calls) of an answer, as a reader would see it."""
    content = message.get("content")
    return content.strip() if isinstance(content, str) else content, message.get("tool_calls")


def rejected_answers(rejected: Any) -> list[Any]:
    """Return the answers that were rejected for one: each text of a list, else the one that is
    there."""
    answers = unpacked(rejected)
    if isinstance(answers, list) and answers and all(isinstance(text, str) for text in answers):
        return answers
    return [rejected]


def distinct_records(records: Iterable[AnyRecord], remarks: Iterable[str] = ()) -> Records:
    """Return the records without those that occur again, as the better answer of several pairs
    does."""
    distinct = {record.name_and_fingerprint(): record for record in records}
    return Records(distinct.values(), dict.fromkeys(remarks))


def has_side(row: Mapping[str, Any]) -> bool:
    """Return whether the row has an answer of a pair; true and false there are marks."""
    sides = [row.get("chosen"), row.get("rejected")]
    return any(side is not None and not isinstance(side, bool) for side in sides)


def pair_of_row(
    row: Mapping[str, Any], chosen: Any, rejected: Any
) -> tuple[Messages, Answers, str]:
    """Return (prompt, the two answers, a remark or an empty text) of a row that has the prompt
    under one of the usual names. Raises Unreadable if it may have the prompt under another name."""
    prompt = given_prompt(row)
    chosen, rejected = _opened(chosen), _opened(rejected)
    remark = checked_scores(row)
    are_texts = isinstance(chosen, str) and isinstance(rejected, str)
    if prompt is None and are_texts and not (is_dialogue(chosen) and is_dialogue(rejected)):
        if any(key in row for key in PROMPTS):
            raise Unreadable("its prompt is empty")  # a cell of the column that has the prompts
        other = _other_text(row)
        if other is not None:
            raise Unreadable(
                f"none of its keys is known to be the prompt; if it is {other!r}: thumbwheel "
                f"import csv FILE --column prompt={other}"
            )
        messages, *answers = _split_texts(chosen, rejected)
        return messages, (answers[0], answers[1]), COMMON_BEGINNING
    messages, first, second = split_pair(prompt, chosen, rejected)
    return with_media(messages, row), (first, second), remark


def checked_scores(row: Mapping[str, Any]) -> str:
    """Return a remark if both answers have the same score, else an empty text. Raises Unreadable if
    the row says that the rejected answer is the better one, or that neither is preferred."""
    scores = _scores_of_sides(row)
    for name, sides in scores.items():
        is_rank = name in RANKS  # the first is the best
        worse, better = ("rejected", "chosen") if is_rank else ("chosen", "rejected")
        if len(sides) == 2 and sides[worse] < sides[better]:
            raise Unreadable(
                f"{name} of {better} ({sides[better]:g}) is higher than that of {worse} "
                f"({sides[worse]:g}): nobody can say which answer is better"
            )
    for key in PAIR_LABELS:
        if is_tie(row.get(key)):
            raise Unreadable(f"{key} {row[key]!r}: neither answer is preferred")
        if _speaks_against(key, read_mark(row.get(key))):
            raise Unreadable(f"{key} {row[key]!r}: nobody can say which answer is better")
    for key in ("tie", "is_tie"):
        if row.get(key) is True:
            raise Unreadable(f"{key} is true: neither answer is preferred")
    are_equal = any(len(set(sides.values())) == 1 < len(sides) for sides in scores.values())
    return EQUAL_SCORES if are_equal else ""


def _scores_of_sides(row: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the numbers of the two sides: name of the score or rank -> side -> number."""
    scores: dict[str, dict[str, float]] = {}
    for key, value in row.items():
        match = CHOSEN_MARK.fullmatch(key.casefold())
        mark = None if match is None else read_mark(value)  # numbers of CSV are texts
        if match is None or mark is None or mark.number is None:
            continue
        name = match[1] or match[2]
        if name in RANKS or kind_of_name(name, in_training_data=True) in ("rating", "score"):
            side = "chosen" if "chosen" in key.casefold() else "rejected"
            scores.setdefault(name, {})[side] = mark.number
    return scores


def is_tie(verdict: Any) -> bool:
    """Return whether a verdict prefers neither of two answers.

    >>> is_tie("Both bad"), is_tie("a")
    (True, False)
    """
    return isinstance(verdict, str) and plain(verdict) in TIES


def _speaks_against(key: str, mark: Mark | None) -> bool:
    """Return whether a verdict on a pair is one against it."""
    if mark is None:
        return False
    if mark.number is None:
        return mark.thumb is False
    return mark.number < 0 or (mark.number == 0 and key != MARGIN)


def _opened(value: Any) -> Any:
    """Return a chat or message that is JSON in a text, as in CSV, or the only text of a list; any
    other value unchanged."""
    opened = unpacked(value)
    if isinstance(opened, list) and len(opened) == 1 and isinstance(opened[0], str):
        return opened[0]
    if is_chat(opened) or (isinstance(opened, dict) and is_chat([opened])):
        return opened
    return value


def given_prompt(row: Mapping[str, Any]) -> Messages | None:
    """Return the messages of a row's prompt: the prompt or instruction with its input, the turns
    before it, the system text; None if the row has no prompt. Raises Unreadable for an empty
    one."""
    values = {key: row[key] for key in PROMPTS if row.get(key) is not None}
    chats = [_opened(row[key]) for key in CHATS if row.get(key) is not None]
    if not values and not any(map(is_chat, chats)):
        return None
    filled = {key: value for key, value in values.items() if not _is_empty(value)}
    if filled:
        key, value = next(iter(filled.items()))
        value = _opened(value)
        context = row.get("input")
        if key == "instruction" and context not in (None, "", NO_INPUT):
            if not isinstance(context, str):
                raise Unreadable("its input is no text")
            value = with_context(value, context) if isinstance(value, str) else value
        elif isinstance(value, str) and (text := context_text(row.get("context"))):
            value = with_context(value, text)
        messages = messages_of(value)
    elif values:
        raise Unreadable("its prompt is empty")
    else:
        messages = chat(next(value for value in chats if is_chat(value)))
    messages = [*history_of(row.get("history")), *messages]
    system = next((content_text(row[key]) for key in SYSTEMS if row.get(key)), None)
    return with_system(messages, system)


def _is_empty(value: Any) -> bool:
    return value == [] or (isinstance(value, str) and not value.strip())


def with_system(messages: Messages, system: Any) -> Messages:
    """Return the messages with a system text. Raises Unreadable if they have a different one."""
    text = content_text(system)
    if not text:
        return messages
    if messages and messages[0]["role"] in (*SYSTEMS, "developer"):
        if messages[0]["content"] != text:
            raise Unreadable("it has two system texts, beside the prompt and in it")
        return messages
    return [{"role": "system", "content": text}, *messages]


def context_text(context: Any) -> str:
    """Return the text that a question is about; several passages become one text. An empty text
    for anything else."""
    context = unpacked(context)
    if isinstance(context, list) and all(isinstance(passage, str) for passage in context):
        return "\n\n".join(passage for passage in context if passage.strip())
    return context if isinstance(context, str) and context.strip() else ""


def with_context(instruction: str, context: str) -> str:
    """Return an instruction and its input as one text."""
    return f"{instruction}\n\n{context}"


def history_of(turns: Any) -> Messages:
    """Return earlier turns in the form of Alpaca's files, pairs of a question and an answer, or a
    chat. Raises Unreadable."""
    turns = unpacked(turns)
    if turns in (None, "", [], {}):
        return []
    if is_chat(turns):
        return chat(turns)
    pairs = turns_of_pairs(turns)
    if pairs is None:
        raise Unreadable("its history is no list of pairs of a question and an answer")
    return chat(pairs)


def _other_text(row: Mapping[str, Any]) -> str | None:
    """Return the first key whose value might be the prompt, or None."""
    for key, value in row.items():
        name = key.casefold()
        is_sentence = isinstance(value, str) and " " in value.strip()
        if key in ("chosen", "rejected"):
            continue
        if NOT_ASKED.fullmatch(name) and not (MAY_BE_ASKED.fullmatch(name) and is_sentence):
            continue
        if (isinstance(value, str) and value.strip()) or is_chat(value):
            return key
    return None


def split_pair(
    prompt: Any, chosen: Any, rejected: Any
) -> tuple[Messages, str | Message, str | Message]:
    """Return (prompt, answer, answer). A given prompt is removed from the start of both chats;
    otherwise their common beginning is the prompt. For two texts the prompt must be given, unless
    they are dialogues. Raises Unreadable."""
    messages = messages_of(prompt) if prompt is not None else None
    if isinstance(chosen, dict) and isinstance(rejected, dict):
        chosen, rejected = [chosen], [rejected]
    if isinstance(chosen, str) and isinstance(rejected, str):
        if is_dialogue(chosen) and is_dialogue(rejected):
            return _split_chats(messages, _dialogue(chosen), _dialogue(rejected))
        if messages is not None:
            return messages, *_without_prompt(messages, chosen, rejected)
        raise Unreadable(NO_PROMPT)
    if is_chat(chosen) and is_chat(rejected):
        return _split_chats(messages, chat(chosen), chat(rejected))
    raise Unreadable("chosen and rejected are neither two texts nor two lists of chat messages")


def messages_of(prompt: Any) -> Messages:
    """Return a prompt as messages: a text is the user's, a dialogue in hh-rlhf format is split.
    Raises Unreadable."""
    if isinstance(prompt, str):
        if not is_dialogue(prompt):
            return [{"role": "user", "content": prompt}]
        messages = _dialogue(prompt)
        if messages[-1]["role"] == "assistant" and not messages[-1]["content"]:
            messages.pop()  # only the word that asks for the answer
        return messages
    if not is_chat(prompt):
        raise Unreadable(
            f"prompt {str(prompt)[:60]!r} is neither a text nor a list of chat messages"
        )
    return chat(prompt)


def _dialogue(text: str) -> Messages:
    """Return the messages of an hh-rlhf dialogue; a text without speakers is the user's."""
    speaker_mark = SPEAKER if SPEAKER.match(text) else LINE_SPEAKER
    parts = speaker_mark.split(text)
    if len(parts) == 1:
        return [{"role": "user", "content": text}]
    turns = zip(parts[1::2], parts[2::2], strict=True)
    return [
        {"role": ROLE[speaker.casefold()], "content": words.strip()} for speaker, words in turns
    ]


def is_dialogue(text: str) -> bool:
    """Return whether a text begins with a speaker and the assistant speaks in it."""
    if SPEAKER.match(text):
        return True
    speakers = [match[1].casefold() for match in LINE_SPEAKER.finditer(text)]
    return LINE_SPEAKER.match(text) is not None and "assistant" in speakers[1:]


def _without_prompt(prompt: Messages, chosen: str, rejected: str) -> tuple[str, str]:
    """Return both answers without the prompt if both begin with it, as in older files."""
    content = prompt[-1]["content"]
    asked = content.strip() if isinstance(content, str) else ""
    first, second = chosen.lstrip(), rejected.lstrip()
    if not asked or not (first.startswith(asked) and second.startswith(asked)):
        return chosen, rejected
    return first[len(asked) :].lstrip(), second[len(asked) :].lstrip()


def _split_chats(
    prompt: Messages | None, chosen: Messages, rejected: Messages
) -> tuple[Messages, Message, Message]:
    shared = 0
    while shared < min(len(chosen), len(rejected)) - 1 and chosen[shared] == rejected[shared]:
        shared += 1
    if prompt and prompt[-1]["role"] == "assistant" and not prompt[-1]["content"]:
        prompt = prompt[:-1]
    tails = [_after(prompt, messages) for messages in (chosen, rejected)] if prompt else []
    is_one_of_several = max(map(len, tails), default=2) > 1
    if is_one_of_several and (not prompt or prompt[-1] in chosen[:shared]):
        # no prompt, or only one of the questions of the dialogue before both answers
        system = [part for part in prompt or [] if part["role"] in (*SYSTEMS, "developer")]
        dialogue = chosen[:shared]
        has_system = bool(dialogue) and dialogue[0]["role"] in (*SYSTEMS, "developer")
        prompt = dialogue if has_system else [*system, *dialogue]
        tails = [chosen[shared:], rejected[shared:]]
    if not prompt:
        raise Unreadable(NO_PROMPT)
    prompt = without_old_thoughts(prompt)
    return prompt, _answer(tails[0], "chosen"), _answer(tails[1], "rejected")


def _after(prompt: Messages, messages: Messages) -> Messages:
    """Return the messages without the prompt at their start, with or without its system text."""
    asked = [message for message in prompt if message["role"] not in SYSTEMS]
    for beginning in (prompt, asked):
        if messages[: len(beginning)] == beginning:
            return messages[len(beginning) :]
    return messages


def _answer(tail: Sequence[Message], what: str) -> Message:
    if len(tail) != 1:
        raise Unreadable(f"after the prompt {what} has {len(tail)} messages, not one answer")
    (message,) = tail
    is_text = isinstance(message.get("content"), str)
    if message.get("role") != "assistant" or not (is_text or message.get("tool_calls")):
        raise Unreadable(f"the last message of {what} is no answer of the assistant")
    return message


def _split_texts(chosen: str, rejected: str) -> tuple[Messages, str, str]:
    """Return (prompt, answer, answer); the prompt is the common beginning, up to a white space.
    Raises Unreadable if there is none."""
    end = 0
    while end < min(len(chosen), len(rejected)) and chosen[end] == rejected[end]:
        end += 1
    while end and not chosen[end - 1].isspace():
        end -= 1
    prompt = chosen[:end].strip()
    if not prompt:
        raise Unreadable(NO_PROMPT)
    return [{"role": "user", "content": prompt}], chosen[end:], rejected[end:]


def with_remark(records: list[AnyRecord], remark: str) -> list[AnyRecord]:
    """Return the records of a row with a remark for a person, if there is one."""
    return Records(records, (remark,)) if remark else records
