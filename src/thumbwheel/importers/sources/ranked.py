"""Several answers to one prompt that somebody compared.

Forms: a list of answers with a score or rank of each, in the answers themselves or in a list beside
them (UltraFeedback, Nectar, distilabel); two answers under numbered or lettered keys with a verdict
(PKU-SafeRLHF, LMSYS arena, AlpacaFarm, SHP), with a strength from -3 to 3 (HelpSteer 2 and 3), or
with a score of each (WebGPT). Every answer becomes a trace, the comparison one preference over all
of them, with ties. A verdict that can be read in two ways is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from thumbwheel.core.present import shortened
from thumbwheel.importers.fields import content_text, unpacked
from thumbwheel.importers.marks import plain
from thumbwheel.importers.messages import (
    Messages,
    chat,
    is_chat,
    split_answer,
    tools_of,
    with_media,
)
from thumbwheel.importers.pairs import (
    PROMPTS,
    essences,
    given_prompt,
    is_tie,
    messages_of,
    ranked_records,
    split_pair,
    with_system,
)
from thumbwheel.importers.source import JsonLines, Row
from thumbwheel.importers.types import AnyRecord, Unreadable

LISTS = ("completions", "responses", "answers", "generations", "candidates", "outputs")
"""Keys of a list of answers."""
INDEXES = (
    "chosen-index",
    "chosen-idx",
    "best-index",
    "best-idx",
    "best-response-index",
    "preferred-index",
    "winner-index",
    "selected-index",
)
"""Keys of the position of the best answer, counted from 0."""
UNCLEAR = ("ranking", "best", "chosen-answer", "choice", "winner", "selected", "preferred")
"""Keys beside a list of answers that can be read in two ways."""
TEXTS = ("response", "answer", "completion", "text", "content", "output", "generation")
"""Keys of the text of an answer that is an object."""
MARKS = (
    "rank",
    "fine-grained-score",
    "overall-score",
    "score",
    "rating",
    "reward",
    "ranks",
    "scores",
    "ratings",
    "rewards",
)
"""What tells the order of answers, the surest first: of UltraFeedback's scores the one that is made
of four is, because some of its overall scores are known to be wrong."""
STEM = re.compile(
    r"(response|answer|completion|output|conversation|human_ref|generation|summary|reply|candidate)"
    r"[-_ ]?(a|b|0|1|2|left|right)",
    re.IGNORECASE,
)
SIDES = (("a", "b"), ("0", "1"), ("1", "2"), ("left", "right"))
VERDICTS = (
    "winner",
    "better",
    "better_response_id",
    "preferred",
    "preference",
    "choice",
    "label",
    "labels",
    "vote",
    "selected",
    "comparison",
)
"""Keys of a verdict over two answers."""
LABELS = {"preferred": 1, "non-preferred": 0}
"""Labels of Bedrock's candidates -> their scores."""
CHATS = ("messages", "contents")
"""Keys of a chat that the answers go on with; `contents` is Gemini's."""
SYSTEMS = ("system_instruction", "systemInstruction", "system")
STRENGTHS = ("overall_preference", "preference_strength")
"""Keys of a verdict from -3, the first answer is much better, to 3."""
ASKED = frozenset({*PROMPTS, "context", "history", "system", "system_prompt"})
EXAMPLE = (
    '{"instruction": "Name a red fruit.", "completions": [{"response": "A cherry.", "model": "m", '
    '"overall_score": 8}, {"response": "A stone.", "model": "n", "overall_score": 2}]}\n'
    '{"prompt": "Name a red fruit.", "response_a": "A cherry.", "response_b": "A stone.", '
    '"winner": "a"}'
)


@dataclass(frozen=True)
class TwoAnswers:
    """The keys of two answers, and the words for their sides."""

    keys: tuple[str, str]
    sides: tuple[str, str]
    stem: str


def claims(row: Row) -> bool:
    """Return whether the row has several answers to a prompt with scores, ranks or a verdict."""
    if {"chosen", "rejected"} & row.keys():
        return False
    if _candidates(row) is not None:
        return True
    answers = _list_of_answers(row)
    if answers is not None:
        return "labels" not in row and _is_compared(row, answers)
    two = _two_answers(row)
    return two is not None and any(_verdict_keys(row, two))


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """Return a trace for each answer and the preference over them. Raises Unreadable."""
    candidates = _candidates(row)
    if candidates is not None:
        row = {**row, "messages": row["messages"][:-1], "completions": candidates}
    answers = _list_of_answers(row)
    if answers is not None:
        ranking = _ranking_of_list(row, answers)
        prompt = _prompt(row)
        messages = _messages(answers)
    else:
        two = _two_answers(row)
        if two is None:
            raise Unreadable("it holds neither a list of answers nor two of them")
        ranking = _verdict(row, two)
        prompt, messages = _two_messages(row, two)
    return _records(row, prompt, messages, ranking)


def _records(
    row: Row, prompt: Messages, messages: Messages, ranking: list[list[int]]
) -> list[AnyRecord]:
    """Return the records. An answer that occurs twice counts with its better rank. Raises
    Unreadable if fewer than two different answers remain."""
    best: dict[Any, int] = {}
    rank_of = {index: rank for rank, group in enumerate(ranking) for index in group}
    for index, essence in enumerate(map(repr, essences(messages))):
        if essence not in best or rank_of[index] < rank_of[best[essence]]:
            best[essence] = index
    if len(best) < 2:
        raise Unreadable("its answers are the same text: there is nothing to prefer")
    distinct = sorted(best.values())
    position = {index: number for number, index in enumerate(distinct)}
    groups = [[position[index] for index in group if index in position] for group in ranking]
    groups = [group for group in groups if group]
    tools = tools_of(row.get("tools"))
    rest = {
        key: value
        for key, value in row.items()
        if isinstance(value, str | int | float) and key not in ASKED and not STEM.fullmatch(key)
    }
    about = {"metadata": {"tools": tools}} if tools else {}
    return ranked_records(
        with_media(prompt, row),
        [messages[index] for index in distinct],
        [(None, groups)],
        rest,
        **about,
    )


def _candidates(row: Row) -> list[Any] | None:
    """Return the answers with their scores in the last turn of a chat, in Bedrock's form; None for
    any other row."""
    turns = row.get("messages")
    last = turns[-1] if isinstance(turns, list) and turns else None
    candidates = last.get("candidates") if isinstance(last, dict) else None
    if not isinstance(candidates, list):
        return None
    scored = []
    for candidate in candidates:
        label = candidate.get("preferenceLabel") if isinstance(candidate, dict) else None
        if label not in LABELS:
            return None
        scored.append({"content": candidate.get("content"), "score": LABELS[label]})
    return scored


def _list_of_answers(row: Row) -> list[Any] | None:
    for key in LISTS:
        answers = unpacked(row.get(key))
        if isinstance(answers, list) and len(answers) > 1:
            are_texts = all(isinstance(answer, str) for answer in answers)
            if are_texts or all(_text_of(answer) is not None for answer in answers):
                return answers
    return None


def _text_of(answer: Any) -> Any:
    """Return the text, or the message, of an answer that is an object; None if it has none."""
    if not isinstance(answer, Mapping):
        return None
    return next((answer[key] for key in TEXTS if answer.get(key) is not None), None)


def _messages(answers: list[Any]) -> Messages:
    messages: Messages = []
    for answer in answers:
        content = answer if isinstance(answer, str) else _text_of(answer)
        turn = {"role": "assistant", "content": content}
        if isinstance(content, dict) and is_chat([content]):
            turn = content
        messages += chat([turn])
    if len(messages) != len(answers):
        raise Unreadable("one of its answers is no answer of the assistant")
    return messages


def _marks(row: Row, answers: list[Any]) -> tuple[str, list[float]] | None:
    """Return (name, numbers) of the first field that orders the answers; None if there is none."""
    for name in MARKS:
        values: Any = None
        if all(isinstance(answer, Mapping) for answer in answers):
            values = [_under(answer, name) for answer in answers]
        if values is None or None in values:
            values = unpacked(_under(row, name))
        if isinstance(values, list) and len(values) == len(answers):
            numbers = list(map(_number, values))
            if None not in numbers:
                return name, [number for number in numbers if number is not None]
    return None


def _is_compared(row: Row, answers: list[Any]) -> bool:
    """Return whether anything beside a list of answers compares them."""
    if _marks(row, answers) is not None or _missing_mark(row, answers):
        return True
    return any(_under(row, name) is not None for name in (*INDEXES, *UNCLEAR))


def _missing_mark(row: Row, answers: list[Any]) -> str:
    """Return the name of the scores in a list beside the answers of which one is missing, or an
    empty text."""
    for name in MARKS:
        values = unpacked(_under(row, name))
        if isinstance(values, list) and len(values) == len(answers):
            numbers = list(map(_number, values))
            if None in numbers and any(number is not None for number in numbers):
                return name
    return ""


def _ranking_of_list(row: Row, answers: list[Any]) -> list[list[int]]:
    """Return the ranking of a list of answers. Raises Unreadable if nothing orders them, or a value
    can be read in two ways."""
    marks = _marks(row, answers)
    if marks is not None:
        name, numbers = marks
        return _ranking(numbers, is_rank=name.startswith("rank"))
    if name := _missing_mark(row, answers):
        raise Unreadable(f"one of its answers has no number under {name}")
    count = len(answers)
    for name in INDEXES:
        index = _under(row, name)
        if index is None:
            continue
        if type(index) is not int or not 0 <= index < count:
            raise Unreadable(f"{name} {index!r} is no position from 0 to {count - 1}")
        return [[index], [other for other in range(count) if other != index]]
    order = unpacked(_under(row, "ranking"))
    ranking = _order(order, count)
    if ranking is not None:
        return ranking
    name = next((name for name in UNCLEAR if _under(row, name) is not None), "")
    if not name:
        raise Unreadable("nothing says which of its answers is better")
    raise Unreadable(
        f"{name} {shortened(repr(_under(row, name)))} can be read in two ways; write `ranks`, a "
        "list with the place of each answer, or `chosen_index`, the position of the best from 0"
    )


def _order(values: Any, count: int) -> list[list[int]] | None:
    """Return the ranking in a list that says the same as an order of answers and as the place of
    each; None for any other value."""
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        return None
    places = [value - min(values) for value in values] if values else []
    if sorted(places) != list(range(count)) or min(values) not in (0, 1):
        return None
    if any(places[places[index]] != index for index in range(count)):
        return None
    return [[index] for index in places]


def _under(row: Mapping[str, Any], name: str) -> Any:
    """Return the value of the key with this plain name, in any spelling; None if there is none."""
    return next((value for key, value in row.items() if plain(str(key)) == name), None)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _ranking(numbers: list[float], is_rank: bool) -> list[list[int]]:
    """Group equal answers, the best first: by highest score, or by lowest rank. Raises Unreadable
    if an answer has no score."""
    if any(number != number for number in numbers):  # NaN
        raise Unreadable("one of its answers has no score")
    groups: dict[float, list[int]] = {}
    for index, number in enumerate(numbers):
        groups.setdefault(number, []).append(index)
    return [groups[number] for number in sorted(groups, reverse=not is_rank)]


def _two_answers(row: Row) -> TwoAnswers | None:
    """Return the keys of two answers that are numbered or lettered; None if there are none."""
    stems: dict[str, dict[str, str]] = {}
    for key in row:
        match = STEM.fullmatch(key)
        if match is not None:
            stems.setdefault(match[1].casefold(), {})[match[2].casefold()] = key
    for stem, keys in stems.items():
        for first, second in SIDES:
            if keys.keys() == {first, second}:
                return TwoAnswers((keys[first], keys[second]), (first, second), stem)
    return None


def _verdict_keys(row: Row, two: TwoAnswers) -> Iterator[str]:
    """Yield the keys that say which of two answers is better."""
    yield from (key for key in (*STRENGTHS, *VERDICTS) if row.get(key) is not None)
    yield from (key for key in row if key.startswith("winner_"))
    if _scores_of_sides(row, two) is not None:
        yield "score"


def _verdict(row: Row, two: TwoAnswers) -> list[list[int]]:
    """Return the ranking of two answers. Raises Unreadable if nothing says which is better, or a
    value can be read in two ways."""
    for key in STRENGTHS:
        strength = _number(row.get(key))
        if strength is not None:
            return [[0, 1]] if strength == 0 else _better(0 if strength < 0 else 1)
    one_hot = [key for key in row if key.startswith("winner_") and row[key] in (1, True, "1")]
    if one_hot:
        return _named_side(one_hot[0].removeprefix("winner_"), two, one_hot[0], row)
    for key in VERDICTS:
        if row.get(key) is not None:
            return _said_side(row[key], two, key, row)
    scores = _scores_of_sides(row, two)
    if scores is None:
        raise Unreadable("nothing says which of its two answers is better")
    return _ranking(scores, is_rank=False)


def _said_side(value: Any, two: TwoAnswers, key: str, row: Row) -> list[list[int]]:
    """Convert a verdict to a ranking. Raises Unreadable if it names neither side."""
    if isinstance(value, dict):  # as Label Studio has it
        value = value.get("selected")
    number = _number(value)
    if number is None or (isinstance(value, str) and value.casefold() in two.sides):
        return _named_side(str(value), two, key, row)
    sides = list(map(_number, two.sides))
    if number in sides:
        return _better(sides.index(number))
    if two.stem == "human_ref" and number in (0, 1):
        return _better(0 if number == 1 else 1)  # SHP: 1 says that A is better
    raise Unreadable(
        f"{key} {value!r} does not say which of {two.keys[0]} and {two.keys[1]} is better; write "
        f"{two.sides[0]} or {two.sides[1]}"
    )


def _named_side(word: str, two: TwoAnswers, key: str, row: Row) -> list[list[int]]:
    word = word.strip().casefold()
    if is_tie(word):
        return [[0, 1]]
    for index, (name, side) in enumerate(zip(two.keys, two.sides, strict=True)):
        words = (side, name.casefold(), f"model_{side}", f"model {side}", f"assistant_{side}")
        if word in words or word == ("left", "right")[index]:
            return _better(index)
    named = [
        _is_named(word, side, name, row) for name, side in zip(two.keys, two.sides, strict=True)
    ]
    if sum(named) == 1:
        return _better(named.index(True))
    raise Unreadable(f"{key} {word!r} is neither {two.keys[0]}, nor {two.keys[1]}, nor a tie")


def _is_named(word: str, side: str, key: str, row: Row) -> bool:
    """Return whether a verdict is the answer of a side itself, or the name of its model."""
    names = [row.get(key), *(row.get(f"{stem}_{side}") for stem in ("model", "generator", "name"))]
    return any(isinstance(name, str) and name.strip().casefold() == word for name in names)


def _better(index: int) -> list[list[int]]:
    return [[index], [1 - index]]


def _scores_of_sides(row: Row, two: TwoAnswers) -> list[float] | None:
    """Return the scores of two answers from keys with the same endings; None if one is missing."""
    for name in ("score", "rating", "reward"):
        values = [
            row.get(f"{name}_{side}", row.get(f"{name}_{side.upper()}")) for side in two.sides
        ]
        numbers = [number for number in map(_number, values) if number is not None]
        if len(numbers) == 2:
            return numbers
    return None


def _two_messages(row: Row, two: TwoAnswers) -> tuple[Messages, Messages]:
    """Return the prompt and the two answers, which may be whole conversations. Raises Unreadable if
    they are neither two texts nor two chats."""
    first, second = (_only(unpacked(row[key])) for key in two.keys)
    if _are_turns(first) and _are_turns(second):
        raise Unreadable("its answers are those of several turns, which are not one answer")
    if is_chat(first) and is_chat(second):
        prompt, *answers = split_pair(None, first, second)
        return prompt, [dict(answer) for answer in answers if isinstance(answer, Mapping)]
    if isinstance(first, str) and isinstance(second, str):
        return _prompt(row), _messages([first, second])
    raise Unreadable(f"{two.keys[0]} and {two.keys[1]} are neither two texts nor two chats")


def _only(value: Any) -> Any:
    """Return the only text of a list, as the files of the arena have it; other values unchanged."""
    return value[0] if _are_turns(value) and len(value) == 1 else value


def _are_turns(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(part, str) for part in value)


def _chat_before(row: Row) -> Messages | None:
    """Return the chat that the answers continue, with the system prompt beside it; None if there is
    none."""
    for key in CHATS:
        if is_chat(row.get(key)):
            system = next((row[name] for name in SYSTEMS if row.get(name)), None)
            return with_system(chat(row[key]), system)
    return None


def _prompt(row: Row) -> Messages:
    """Return the prompt, also in the forms of HelpSteer 3, SHP and WebGPT. Raises Unreadable."""
    prompt = row.get("prompt")
    if isinstance(prompt, str) and prompt.lstrip().startswith("["):
        prompts = unpacked(prompt)
        if isinstance(prompts, list) and all(isinstance(part, str) for part in prompts):
            if len(prompts) != 1:
                raise Unreadable("its prompt has several turns and no answers between them")
            row = {**row, "prompt": prompts[0]}
    question = row.get("question")
    if isinstance(question, Mapping):
        row = {**row, "question": content_text(question.get("full_text") or question)}
    messages = _chat_before(row) or given_prompt(row)
    for key in ("context", "history"):
        value = row.get(key)
        if messages is None and (isinstance(value, str) or is_chat(value)) and value:
            return messages_of(value)
    if messages is None:
        raise Unreadable("none of its keys is known to be the prompt")
    if messages[-1]["role"] == "assistant":
        messages, _ = split_answer(messages, "its prompt")
    return messages


SOURCE = JsonLines(
    parse,
    claims,
    EXAMPLE,
    about="several answers to a prompt with scores, ranks or a verdict",
    reason="several answers to a prompt with their scores, ranks or a verdict",
)
"""The source."""
