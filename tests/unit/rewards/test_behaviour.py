"""Rewards that look at what a run did: tool outcomes, expected calls, tasks, budgets, form; and the
defects that they must not have."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.public_data import public_data
from thumbwheel.core.errors import ConfigError
from thumbwheel.rewards.calls import calls_of_text
from thumbwheel.rewards.function import Case, JudgementStatus, Step
from thumbwheel.rewards.functions import FUNCTIONS

SINGLE = ("live_simple", "multiple", "parallel", "parallel_multiple", "simple_python")


def score(name, case, **config):
    return FUNCTIONS.get(name).create(config).score([case])[0]


def tools(*statuses, **more):
    return tuple(
        Step("tool", f"tool{number}", status=status, **more)
        for number, status in enumerate(statuses)
    )


def tasks(*given_tasks):
    return tuple(
        Step("task", input=None if name is None else {"task_id": name}, status=status)
        for name, status in given_tasks
    )


# --- tool_success


def test_tool_success_counts_real_outcomes():
    assert (
        score("tool_success", Case("", steps=tools("ok", "success", "error", "failed"))).value
        == 0.5
    )
    lying = (
        Step("tool", "a", output="Error: no such order"),
        Step("tool", "b", output={"isError": True}),
        Step("tool", "c", output="4"),
    )
    result = score("tool_success", Case("", steps=lying))
    assert result.value == pytest.approx(1 / 3)
    assert [failure["tool"] for failure in result.evidence["failures"]] == ["a", "b"]
    assert score("tool_success", Case("", steps=lying), tools=["c"]).value == 1


def test_tool_success_without_tools_is_not_applicable_and_compatible_keeps_its_middle():
    plain = Case("hi", prompt=[{"role": "user", "content": "hello"}])
    assert score("tool_success", plain).status is JudgementStatus.NOT_APPLICABLE
    assert score("tool_success", plain, compatible=True).value == 0.5
    assert (
        score(
            "tool_success",
            Case("hi", prompt=[{"role": "user", "content": "Search it"}]),
            compatible=True,
        ).value
        == 0.3
    )


def test_tool_success_compatible_adds_a_tenth_for_suitable_tools():
    steps = (Step("tool", "web_search"), Step("tool", "calculator", status="error"))
    case = Case("", prompt=[{"role": "user", "content": "find a hotel"}], steps=steps)
    assert score("tool_success", case, compatible=True).value == pytest.approx(0.55)
    assert (
        score("tool_success", Case("", prompt=case.prompt, steps=steps[:1]), compatible=True).value
        == 1
    )


# --- task_completion


def test_task_completion():
    run = tasks(("a", "completed"), ("b", "failed"), ("c", "created"), ("d", "completed"))
    assert score("task_completion", Case("", steps=run)).value == pytest.approx(2 / 4 - 0.2 / 4)
    assert score("task_completion", Case("", steps=tasks(("a", "failed")))).value == 0


def test_defect_0c8_completion_cannot_exceed_one_and_no_tasks_are_no_middle():
    twice = tasks(("a", "created"), ("a", "completed"), ("a", "completed"), (None, "error"))
    assert score("task_completion", Case("", steps=twice)).value == pytest.approx(1 / 2 - 0.1)
    assert score("task_completion", Case("done")).status is JudgementStatus.NOT_APPLICABLE


# --- efficiency


def test_efficiency_weighs_what_is_known():
    run = (
        Step("llm", prompt_tokens=800, completion_tokens=200),
        Step("tool", "t"),
        Step("reasoning"),
        Step("reasoning"),
        Step("reasoning"),
    )
    result = score("efficiency", Case("", steps=run))
    assert result.value == pytest.approx((0.4 * 0.5 + 0.3 * 0.9 + 0.3 * 0.8) / 1.0)
    assert score("efficiency", Case("", steps=run[:1])).value == 0.5
    assert score("efficiency", Case("", steps=run[:1]), tokens=1000).value == 0
    with pytest.raises(ConfigError, match="every weight"):
        FUNCTIONS.get("efficiency").create(
            {"tokens_weight": 0, "calls_weight": 0, "steps_weight": 0}
        )


def test_defect_0c3_tokens_that_nobody_counted_are_unknown_and_not_efficient():
    unknown = (Step("llm", prompt_tokens=10), Step("llm", prompt_tokens=5, completion_tokens=5))
    assert score("efficiency", Case("", steps=unknown)).status is JudgementStatus.NOT_APPLICABLE
    assert score(
        "efficiency", Case("", steps=(*unknown, Step("tool", "t")))
    ).value == pytest.approx(0.9)


# --- format_compliance


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "List<int> and Map<String, List<int>>",
        "read from <stdin> or <your name>",
        "a < b and c > d",
        "`<b>bold</b>`",
        "```html\n<b>bold</b>\n```\nthere",
        "~~~\n<a href='x'>\n```\n~~~",
        "vector<string> of <string>",
    ],
)
def test_defect_0c12_fences_generics_and_placeholders_are_no_violations(text):
    result = score("format_compliance", Case(text))
    assert (result.value, result.well_formed) == (1, True)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<b>x</b>", 0.8),
        ("<br/>", 0.9),
        ('<a href="x">', 0.9),
        ("<thinking> well", 0.9),
        ("</p>", 0.9),
        ("```\nopen", 0.9),
        ("<i/>" * 9, 0.5),
    ],
)
def test_format_violations_take_a_tenth_and_half_at_the_most(text, value):
    result = score("format_compliance", Case(text))
    assert (result.value, result.well_formed) == (pytest.approx(value), False)


def test_format_rules_of_an_agent():
    assert score("format_compliance", Case("<b>x</b>"), xml=True).value == 1
    assert score("format_compliance", Case("<b>x</b>"), allowed_tags=["B"]).value == 1
    assert (
        score(
            "format_compliance",
            Case("hello"),
            must_contain=["Regards"],
            must_not_contain=["HELL"],
            most_characters=4,
        ).value
        == 0.7
    )
    assert score("format_compliance", Case("```\nx\n```"), fences=False).value == 0.9
    assert score("format_compliance", Case("{"), valid_json=True, penalty=1, most=1).value == 0
    assert score("format_compliance", Case('{"a": 1}'), valid_json=True).value == 1


# --- tool_match

WEATHER = [{"get_weather": {"city": ["Paris", "Paris, FR"], "days": [3], "unit": ["celsius", ""]}}]


@pytest.mark.parametrize(
    "answer",
    [
        '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}',
        '[{"function": {"name": "get_weather", "arguments": "{\\"city\\": \\"paris, fr\\", '
        '\\"days\\": 3}"}}]',
        '{"tool_calls": [{"id": "1", "function": {"name": "get_weather", "arguments": {"city": '
        '"Paris", "days": 3}}}]}',
        'I call:\n```json\n{"get_weather": {"city": "Paris", "days": 3, "unit": "celsius"}}\n```',
        "get_weather(city='Paris', days=3)",
        "[get_weather('Paris', 3)]",
        "Let me look.\nget_weather(city='Paris', days=3)\nOne moment.",
        '<tool_call>{"name": "get_weather", "parameters": {"city": "Paris", "days": '
        "3.0}}</tool_call>",
    ],
)
def test_tool_match_reads_the_ways_in_which_calls_are_written(answer):
    result = score("tool_match", Case(answer, WEATHER))
    assert (result.value, result.well_formed) == (1, True)


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("get_weather(city='Rome', days=3)", 3 / 4),
        ("get_weather(city='Paris', days='3')", 3 / 4),
        ("get_weather(city='Paris', days=True)", 3 / 4),
        ("get_weather(city='Paris')", 3 / 4),
        ("get_weather(city='Paris', days=3, mood='good')", 4 / 5),
        ("[get_weather(city='Paris', days=3), get_weather(city='Paris', days=3)]", 1 / 2),
        ("get_forecast(city='Paris', days=3)", 0),
        ("It is sunny.", 0),
    ],
)
def test_tool_match_partial_credit_is_as_stated(answer, value):
    assert score("tool_match", Case(answer, WEATHER)).value == pytest.approx(value)
    assert score("tool_match", Case(answer, WEATHER), partial=False).value == 0


def test_tool_match_any_order_or_that_of_the_reference():
    reference = [{"f": {"a": [1]}}, {"f": {"a": [2]}}, {"g": {}}]
    assert score("tool_match", Case("[g(), f(a=2), f(a=1)]", reference)).value == 1
    assert score(
        "tool_match", Case("[g(), f(a=2), f(a=1)]", reference), ordered=True
    ).value == pytest.approx(1 / 3)
    assert score("tool_match", Case("[f(a=1), f(a=2), g()]", reference), ordered=True).value == 1


def test_tool_match_prefers_what_the_run_did_over_what_it_says():
    case = Case(
        "get_weather(city='Paris', days=3)",
        WEATHER,
        steps=(Step("tool", "get_weather", {"city": "Oslo", "days": 3}),),
    )
    assert score("tool_match", case).value == pytest.approx(3 / 4)
    hooked = Step("tool", "get_weather", {"args": ["Paris"], "kwargs": {"days": 3}})
    assert score("tool_match", Case("done", WEATHER, steps=(hooked,))).value == 1


NUMBERS = [
    ("1000000001", 1000000000, False),
    ("1000000000", 1000000000, True),
    ("1000000000.0", 1000000000, True),
    ("1000000001.0", 1000000000, False),
    ("999999999999", 1000000000000, False),
    (str(10**30 + 1), 10**30, False),
    ("1" * 400, int("1" * 400), True),
    ("1" * 400, 1.5, False),
    ("10000000.01", 10000000.02, False),
    ("2.9999999999", 3, False),
    ("0.30000000000000004", 0.3, True),
    ("'1,000'", "1000", True),
    ("'1,2'", "12", False),
    ("'1 2'", "12", False),
    ("'5 mg'", "5mg", True),
    ("True", 1, False),
]


@pytest.mark.parametrize(("written", "wanted", "same"), NUMBERS)
@pytest.mark.parametrize("form", ["allowed", "exact", "nested"])
def test_tool_match_takes_no_number_for_another(written, wanted, same, form):
    references = {
        "allowed": [{"pay": {"amount": [wanted]}}],
        "exact": [{"name": "pay", "arguments": {"amount": wanted}}],
        "nested": [{"pay": {"amount": [{"value": [wanted]}]}}],
    }
    answer = f"pay(amount={{'value': {written}}})" if form == "nested" else f"pay(amount={written})"
    result = score("tool_match", Case(answer, references[form]))
    assert (result.value == 1) == same


@pytest.mark.parametrize(
    ("function", "answer", "reference"),
    [
        ("exact_answer", "1000000001", "1000000000"),
        ("exact_answer", "#### 1,000,000,001", "#### 1000000000"),
        ("exact_answer", str(10**40 + 1), str(10**40)),
        ("json_fields", '{"a": 1000000001}', {"a": 1000000000}),
        ("json_fields", f'{{"a": {10**40 + 1}}}', {"a": 10**40}),
    ],
)
def test_no_other_function_takes_one_whole_number_for_another(function, answer, reference):
    assert score(function, Case(answer, reference)).value == 0


def test_tool_match_where_no_call_is_wanted():
    assert score("tool_match", Case("I cannot do that.", [])).value == 1
    assert score("tool_match", Case("f(a=1)", [])).value == 0
    assert score("tool_match", Case("f(a=1)")).status is JudgementStatus.NOT_APPLICABLE
    assert score("tool_match", Case("f(a=1)", [1])).status is JudgementStatus.FAILED


@pytest.mark.parametrize(
    "text",
    [
        "-" * 5000 + "f()",
        "f(" * 5000,
        "not " * 4000 + "f()",
        "f" + ".a" * 9000 + "()",
        "f(**x)",
        "lambda: f()",
        "(" * 64,
    ],
)
def test_tool_match_does_not_choke_on_what_is_no_call(text):
    assert calls_of_text(text) is None or score("tool_match", Case(text, WEATHER)).value == 0


def bfcl(name):
    with public_data(f"tool-calls/bfcl-v4-{name}-expected.jsonl").open() as lines:
        return [json.loads(line)["ground_truth"] for line in lines]


def concrete(value):
    """What a model would write for an expected value: the first choice everywhere."""
    if isinstance(value, dict):
        picked = {
            key: [choice for choice in choices if choice != ""]
            if isinstance(choices, list)
            else [choices]
            for key, choices in value.items()
        }
        return {key: concrete(choices[0]) for key, choices in picked.items() if choices}
    return [concrete(choice) for choice in value] if isinstance(value, list) else value


def calls_of(reference):
    return [(name, concrete(arguments)) for call in reference for name, arguments in call.items()]


def as_json(calls):
    return json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls])


def as_python(calls):
    return (
        "["
        + ", ".join(
            f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
            for name, arguments in calls
        )
        + "]"
    )


def mutants(calls):
    (name, arguments), *rest = calls
    yield rest
    yield [*calls, calls[0]]
    yield [(name + "_x", arguments), *rest]
    yield [(name, arguments | {"surplus": 1}), *rest]
    for key in arguments:
        yield [(name, arguments | {key: "something else entirely"}), *rest]


@pytest.mark.parametrize("name", SINGLE)
def test_bfcl_expected_calls_score_one_and_mutated_ones_less(name):
    references = bfcl(name)
    function = FUNCTIONS.get("tool_match").create({})
    for reference in references:
        calls = calls_of(reference)
        for text in (as_json(calls), as_python(calls)):
            assert function.score([Case(text, reference)])[0].value == 1, text
        changed = [Case(as_json(mutant), reference) for mutant in mutants(calls)]
        assert all(
            result.value is not None and result.value < 1 for result in function.score(changed)
        ), reference
    assert (
        len(references)
        == {
            "live_simple": 130,
            "multiple": 106,
            "parallel": 114,
            "parallel_multiple": 110,
            "simple_python": 205,
        }[name]
    )


def test_bfcl_turns_of_python_calls_score_one_and_less_with_one_left_out():
    for reference in bfcl("multi_turn_base"):
        calls = [call for turn in reference for call in turn]
        assert score("tool_match", Case(f"[{', '.join(calls)}]", reference)).value == 1
        assert score("tool_match", Case(f"[{', '.join(calls[1:])}]", reference)).value < 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from("fgh"),
            st.dictionaries(st.sampled_from("abc"), st.integers() | st.text(max_size=5)),
        ),
        max_size=5,
    )
)
def test_calls_equal_themselves_in_any_order(calls):
    reference = [{"name": name, "arguments": arguments} for name, arguments in calls]
    assert (
        score("tool_match", Case(as_json(reversed(calls)) if calls else "none", reference)).value
        == 1
    )
