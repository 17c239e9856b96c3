"""The token contract over several chat templates: one BOS, one turn end, the same prompt for
training and serving."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thumbwheel.core.errors import DataError, ModelError
from thumbwheel.engine.prompt import PromptBuilder, TargetText
from thumbwheel.models.template_settings import TemplateSettings

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] "
    "}}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WITH_BOS = (
    "{{ bos_token }}{% for message in messages %}<|start|>{{ message['role'] }}<|end|>\n\n"
    "{{ message['content'] | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|end|>\n\n{% endif %}"
)
STRIPS_THOUGHT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' and not loop.last %}{{ "
    "message['content'].split('</think>')[-1] }}"
    "{% else %}{{ message['content'] }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_TURN_END = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
STRICT = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% "
    "endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] "
    "}}<|im_end|>\n{% endfor %}"
)
TOOLS = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}{% for call in message.get('tool_calls') or [] %}"
    "<call>{{ call.function.name }} {{ call.function.arguments | tojson }}</call>"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% "
    "endif %}"
)
HELLO = [{"role": "system", "content": "the fox"}, {"role": "user", "content": "hello"}]


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_chatml(bpe):
    tokenizer = bpe(CHATML, eos="<|im_end|>")
    builder = PromptBuilder(tokenizer)
    text = (
        "<|im_start|>system\nthe "
        "fox<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert builder.render(HELLO) == text
    assert builder.prompt(HELLO) == ids_of(tokenizer, text)
    row = builder.row(HELLO, "yes or no")
    assert row.prompt_ids == tuple(builder.prompt(HELLO)) and not row.boundary_mismatch
    assert list(row.completion_ids) == ids_of(
        tokenizer, "yes or no<|im_end|>"
    )  # the newline after it is no target
    assert builder.template_name == "tokenizer" and builder.stop_ids == (
        tokenizer.convert_tokens_to_ids("<|im_end|>"),
    )


def test_bos_of_the_template_and_of_the_tokenizer_is_one(bpe):
    tokenizer = bpe(WITH_BOS, bos="<s>", adds_bos=True)
    builder = PromptBuilder(tokenizer)
    assert (
        builder.prompt(HELLO).count(tokenizer.bos_token_id) == 1
        and builder.prompt(HELLO)[0] == tokenizer.bos_token_id
    )
    without = PromptBuilder(bpe(WITH_BOS.removeprefix("{{ bos_token }}"), bos="<s>", adds_bos=True))
    assert without.prompt(HELLO) == builder.prompt(HELLO)
    twice = PromptBuilder(bpe("{{ bos_token }}" + WITH_BOS, bos="<s>", adds_bos=True))
    assert twice.prompt(HELLO) == builder.prompt(HELLO)
    row = builder.row(HELLO, "yes")
    assert (
        row.completion_ids[-1] == tokenizer.convert_tokens_to_ids("<|eot|>")
        and not row.boundary_mismatch
    )
    assert builder.stop_ids == (tokenizer.convert_tokens_to_ids("<|eot|>"), tokenizer.eos_token_id)


def test_a_tokenizer_that_adds_no_bos_gets_none(bpe):
    assert PromptBuilder(bpe(CHATML, bos="<s>")).prompt(HELLO)[0] != bpe().convert_tokens_to_ids(
        "<s>"
    )


def test_history_is_shown_as_the_template_rewrites_it(bpe):
    tokenizer = bpe(STRIPS_THOUGHT, eos="<|im_end|>")
    chat = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>one</think>b"},
        {"role": "user", "content": "c"},
    ]
    row = PromptBuilder(tokenizer).row(chat, "<think>two</think>d")
    shown = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
    assert (
        tokenizer.decode(row.prompt_ids)
        == shown + "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.decode(row.completion_ids) == "<think>two</think>d<|im_end|>"


def test_a_template_without_turn_end_closes_with_eos(bpe):
    tokenizer = bpe(NO_TURN_END)
    builder = PromptBuilder(tokenizer)
    assert builder.turn_end_ids == (tokenizer.eos_token_id,)
    assert builder.row(HELLO, "yes").completion_ids[-1] == tokenizer.eos_token_id
    with pytest.raises(ModelError, match="ends an answer"):
        PromptBuilder(bpe(NO_TURN_END, eos=None)).turn_end_ids  # noqa: B018


def test_no_template_takes_the_named_fallback_and_saves_it(bpe, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = bpe(None)
    builder = PromptBuilder(tokenizer)
    assert builder.template_name == "plain-v1"
    assert builder.render(HELLO) == "### System:\nthe fox\n\n### User:\nhello\n\n### Assistant:\n"
    assert builder.row(HELLO, "yes").completion_ids[-1] == tokenizer.eos_token_id
    tokenizer.save_pretrained(tmp_path)
    again = PromptBuilder(AutoTokenizer.from_pretrained(tmp_path))
    assert again.template_name == "plain-v1" and again.template_hash == builder.template_hash
    assert again.prompt(HELLO) == builder.prompt(HELLO)
    with pytest.raises(ModelError, match="plain-v1"):
        PromptBuilder(bpe(None), fallback_template="fancy")


def test_cut_answers_get_no_turn_end(bpe):
    builder = PromptBuilder(bpe(CHATML))
    whole, cut = (
        builder.row(HELLO, "the quick", finish_reason=reason) for reason in ("stop", "length")
    )
    assert whole.completion_ids == cut.completion_ids + builder.turn_end_ids


def test_captured_ids_win(bpe):
    tokenizer = bpe(CHATML, eos="<|im_end|>")
    builder = PromptBuilder(tokenizer)
    spelled = tuple(token for letter in "yes" for token in ids_of(tokenizer, letter))
    assert spelled != tuple(ids_of(tokenizer, "yes"))
    row = builder.row(HELLO, "yes", captured_ids=spelled)
    assert row.completion_ids == spelled + builder.turn_end_ids
    assert (
        builder.row(HELLO, "yes", captured_ids=row.completion_ids).completion_ids
        == row.completion_ids
    )
    assert (
        builder.row(HELLO, "yes", captured_ids=spelled, finish_reason="length").completion_ids
        == spelled
    )
    for foreign in (
        [10**6],
        ids_of(tokenizer, "no"),
        [],
    ):  # captured from a model with another tokenizer
        assert builder.row(HELLO, "yes", captured_ids=foreign) == builder.row(HELLO, "yes")


def test_a_border_inside_a_token_is_counted_and_the_prompt_stays(bpe):
    tokenizer = bpe(
        "{% for message in messages %}{{ message['content'] }}{% endfor %}{% if "
        "add_generation_prompt %}the qu{% endif %}"
    )
    builder = PromptBuilder(tokenizer)
    row = builder.row([{"role": "user", "content": ""}], "ick brown")
    assert row.boundary_mismatch
    assert list(row.prompt_ids) == ids_of(tokenizer, "the qu")
    assert list(row.completion_ids[:-1]) == ids_of(tokenizer, "ick brown")


def test_refusals_of_a_template_are_data(bpe):
    builder = PromptBuilder(bpe(STRICT), settings=TemplateSettings(system="refuse"))
    with pytest.raises(DataError, match="System role not supported"):
        builder.prompt(HELLO)
    fitted = builder.fit(HELLO, [TargetText("yes")], 100)
    assert fitted.rows == () and "System role not supported" in fitted.refused
    for broken in (
        [{"content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
        ["hello"],
    ):
        assert builder.fit(broken, [TargetText("yes")], 100).refused


def test_tools_and_tool_calls(bpe):
    tokenizer = bpe(TOOLS, eos="<|im_end|>")
    builder = PromptBuilder(tokenizer)
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "find", "arguments": '{"a": 1}'}}],
    }
    chat = [{"role": "user", "content": "a"}, call]
    shown = tokenizer.decode(builder.row(chat, "b", tools=[{"name": "find"}]).prompt_ids)
    assert '<call>find {"a": 1}</call><|im_end|>' in shown and '[{"name": "find"}]' in shown
    assert (
        chat[1]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    )  # what was given stays as it is


def _talk(turns):
    chat = [{"role": "system", "content": "the fox"}]
    for number in range(turns):
        chat += [
            {"role": "user", "content": f"hello {number} " * 4},
            {"role": "assistant", "content": f"answer {number}"},
        ]
    return [*chat, {"role": "user", "content": "last"}]


@given(room=st.integers(1, 400), turns=st.integers(0, 5), long=st.integers(1, 60))
def test_overflow_drops_the_oldest_turns_alike(bpe, room, turns, long):
    tokenizer = bpe(CHATML, eos="<|im_end|>")
    builder = PromptBuilder(tokenizer)
    targets = [TargetText("yes"), TargetText("no " * long)]
    fitted = builder.fit(_talk(turns), targets, room)
    least = builder.fit(_talk(0), targets, 10**6)
    if fitted.refused:
        assert (
            max(row.length for row in least.rows) > room
            and not fitted.rows
            and str(room) in fitted.refused
        )
        return
    assert all(
        row.length <= room and row.dropped_turns == fitted.dropped_turns for row in fitted.rows
    )
    assert len({row.prompt_ids for row in fitted.rows}) == 1
    assert [row.completion_ids for row in fitted.rows] == [row.completion_ids for row in least.rows]
    text = tokenizer.decode(fitted.rows[0].prompt_ids)
    assert (
        text.startswith("<|im_start|>system\nthe fox<|im_end|>\n<|im_start|>user\n")
        and "last<|im_end|>" in text
    )
    turn_numbers = [number for number in range(turns) if f"answer {number}" in text]
    assert turn_numbers == list(range(fitted.dropped_turns, turns))
    if fitted.dropped_turns:
        more = builder._rows(
            [_talk(turns)[0], *_talk(turns)[1 + 2 * (fitted.dropped_turns - 1) :]], targets, None
        )
        assert max(row.length for row in more) > room


def test_options_reach_the_template_and_its_hash(bpe):
    template = (
        CHATML + "{% if add_generation_prompt and not enable_thinking | default(true) "
        "%}<think></think>{% endif %}"
    )
    plain, short = (
        PromptBuilder(bpe(template)),
        PromptBuilder(bpe(template), options={"enable_thinking": False}),
    )
    assert short.render(HELLO) == plain.render(HELLO) + "<think></think>"
    assert short.template_hash != plain.template_hash
