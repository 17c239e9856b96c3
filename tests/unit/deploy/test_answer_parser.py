"""Thoughts and tool calls are found in what models write, wherever it is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thumbwheel.deploy.answer_parser import AnswerParser, ParsedCall, Part, Text, Thought

TOOLS = ("move", "look")
MOVE, LOOK = ParsedCall("move", '{"to": "A"}'), ParsedCall("look", "{}")
HERMES = '<tool_call>\n{"name": "move", "arguments": {"to": "A"}}\n</tool_call>'
ANSWERS: dict[str, tuple[str, list[Part] | None]] = {
    "text": ("  Hello <b>you</b>.\n", [Text("  Hello <b>you</b>.\n")]),
    "a thought": (
        "<think>\nHm < 3.\n</think>\n\nYes.",
        [Thought("\nHm < 3.\n"), Text("Yes.")],
    ),
    "a thought that was cut": ("<think>Hm.</thi", [Thought("Hm.</thi")]),
    "hermes": (HERMES, [MOVE]),
    "hermes, text and two calls": (
        f'I go. \n{HERMES}\n<tool_call>{{"name": "look", "arguments": {{}}}}</tool_call>\n',
        [Text("I go."), MOVE, LOOK],
    ),
    "a thought and a call": (f"<think>So.</think>\n{HERMES}", [Thought("So."), MOVE]),
    "hermes without its end": (HERMES.removesuffix("</tool_call>"), [MOVE]),
    "a call that was cut": (HERMES[:30], [Text(HERMES[:30])]),
    "a call that is no JSON": (
        "<tool_call>move!</tool_call> Done",
        [Text("<tool_call>move!</tool_call>"), Text(" Done")],
    ),
    "mistral": ('[TOOL_CALLS] [{"name": "move", "arguments": {"to": "A"}}]', [MOVE]),
    "mistral, two": (
        '[TOOL_CALLS][{"name":"move","arguments":{"to":"A"}},{"name":"look","arguments":{}}]',
        [MOVE, LOOK],
    ),
    "mistral after text": (
        'I go.[TOOL_CALLS][{"name": "move", "arguments": {"to": "A"}}]',
        [Text("I go."), MOVE],
    ),
    "mistral without its mark": ('[{"name": "look", "arguments": {}}]', [LOOK]),
    "llama": ('{"name": "move", "parameters": {"to": "A"}}', [MOVE]),
    "llama, two": (
        '{"name": "move", "parameters": {"to": "A"}}; {"name": "look", "parameters": {}}',
        [MOVE, LOOK],
    ),
    "openai's form": (
        '{"type": "function", "function": {"name": "look", "parameters": {}}}',
        [LOOK],
    ),
    "JSON that is an answer": ('{"name": "Ann", "arguments": {}}', None),
    "JSON with more": ('{"name": "move", "parameters": {}} is what I would do', None),
    "arguments that are none": ('{"name": "move", "parameters": 3}', None),
    "a list": ("[1, 2]", None),
    "a mark that is none": ("a <tool_cal and [TOOL", None),
    "deep": ("[" * 5000, None),
    "nothing": ("", []),
}


def parts_of(pieces: list[str], tools: tuple[str, ...] = TOOLS, **more: bool) -> list[Part]:
    """The parts, those that follow each other merged."""
    parser = AnswerParser(tools, **more)
    parts: list[Part] = []
    for index in range(len(pieces)):
        for part in parser.feed(pieces[index], index == len(pieces) - 1):
            last = parts[-1] if parts else None
            if isinstance(part, Text) and isinstance(last, Text):
                parts[-1] = Text(last.text + part.text)
            elif isinstance(part, Thought) and isinstance(last, Thought):
                parts[-1] = Thought(last.text + part.text)
            else:
                parts.append(part)
    return parts


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_has_its_parts_wherever_it_is_cut(name: str) -> None:
    answer, given_parts = ANSWERS[name]
    expected = [Text(answer)] if given_parts is None else parts_of([answer])
    if given_parts is not None:
        merged = [part for part in given_parts if isinstance(part, ParsedCall | Thought)]
        assert [part for part in expected if isinstance(part, ParsedCall | Thought)] == merged
        texts = "".join(part.text for part in given_parts if isinstance(part, Text))
        assert "".join(part.text for part in expected if isinstance(part, Text)) == texts
    assert parts_of(list(answer) or [""]) == expected
    for cut in range(0, len(answer), max(1, len(answer) // 100)):
        assert parts_of([answer[:cut], answer[cut:]]) == expected
    assert parts_of([*answer, ""]) == expected


def test_without_tools_no_call_is_looked_for() -> None:
    assert parts_of([HERMES], ()) == [Text(HERMES)]
    assert parts_of(['{"name": "move", "parameters": {}}'], ()) != [MOVE]


def test_a_prompt_may_have_opened_the_thoughts() -> None:
    pieces = ["Hm.</think>", "\n\nYes."]
    assert parts_of(pieces, begins_with_thought=True) == [Thought("Hm."), Text("Yes.")]


def test_text_comes_as_soon_as_it_is_clear() -> None:
    parser = AnswerParser(TOOLS)
    assert parser.feed("Hello") == [Text("Hello")]
    assert parser.feed(" <to") == []
    assert parser.feed("day> I") == [Text(" <today> I")]


@given(
    st.lists(
        st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]"])
        | st.sampled_from(
            ['{"name": "move", "arguments": {}}', " ", "\n", "{", "[", "a", '"', "<"]
        ),
        max_size=8,
    ),
    st.data(),
)
@settings(max_examples=300, deadline=None)
def test_cuts_change_nothing_in_any_text(words: list[str], data: st.DataObject) -> None:
    text = "".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    ends = [*cuts, len(text)]
    pieces = [text[start:end] for start, end in zip([0, *cuts], ends, strict=True)]
    assert parts_of(pieces) == parts_of([text])
