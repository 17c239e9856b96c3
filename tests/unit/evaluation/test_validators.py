"""The checks of benchmark tasks, one line each."""

import pytest

from thumbwheel.core.errors import ConfigError
from thumbwheel.evaluation.validators import VALIDATORS, CheckedReply, check, require_valid

CALLS = (
    {"name": "search", "args": {"q": "fox", "n": 2}, "result": "42 foxes in the den"},
    {"name": "mail", "args": {}, "result": None},
)
TOOLS = CheckedReply("There are 42 foxes.", 7, 0.2, CALLS, truth="42 foxes live in the den")


@pytest.mark.parametrize(
    ("params", "text", "passed"),
    [
        ({"type": "contains", "text": "FOX"}, "a fox", True),
        ({"type": "contains", "text": "FOX", "case_sensitive": True}, "a fox", False),
        ({"type": "not_contains", "value": "dog"}, "a fox", True),
        ({"type": "equals", "expected": "yes"}, " yes\n", True),
        ({"type": "regex", "pattern": "^f.x$"}, "fox", True),
        ({"type": "char_count_gte", "n": 4}, "fox", False),
        ({"type": "char_count_lte", "count": 3}, "fox", True),
        ({"type": "json_valid"}, "{", False),
        ({"type": "json_valid"}, "null", True),
        ({"type": "json_has_key", "key": "a.b"}, '{"a": {"b": null}}', True),
        ({"type": "json_has_key", "key": "a.c"}, '{"a": {"b": 1}}', False),
        (
            {
                "type": "any_of",
                "checks": [{"type": "equals", "text": "a"}, {"type": "equals", "text": "b"}],
            },
            "b",
            True,
        ),
        (
            {
                "type": "all_of",
                "checks": [{"type": "equals", "text": "a"}, {"type": "equals", "text": "b"}],
            },
            "b",
            False,
        ),
        ({"type": "none_of", "checks": [{"type": "contains", "text": "a"}]}, "b", True),
        ({"type": "admits_uncertainty"}, "I don't know that.", True),
        ({"type": "admits_uncertainty"}, "I’m not sure, and I don’t know.", True),
        ({"type": "admits_uncertainty"}, "I am not certain.", True),
        ({"type": "admits_uncertainty"}, "I cannot tell.", True),
        ({"type": "no_uncertainty"}, "It is 7.", True),
        ({"type": "no_uncertainty"}, "I am not late.", True),
        ({"type": "json_has_key", "key": "a"}, "no JSON", False),
        ({"type": "max_tokens", "n": 5}, "x", None),
        ({"type": "latency_lte", "ms": 5}, "x", None),
        ({"type": "file_exists", "path": "x"}, "x", None),
        ({"type": "judge", "criteria": "is it kind?"}, "x", None),
        ({"type": "tool_called", "tool": "search"}, "x", None),
        ({"type": "no_hallucination"}, "7 foxes", None),
    ],
)
def test_of_text(params, text, passed):
    require_valid(params, "task")
    result = check(params, CheckedReply(text))
    assert (result["passed"], result["skipped"]) == (bool(passed), passed is None)


@pytest.mark.parametrize(
    ("params", "passed"),
    [
        ({"type": "max_tokens", "max": 7}, True),
        ({"type": "latency_lte", "ms": 100}, False),
        ({"type": "tool_called", "tool": "search"}, True),
        ({"type": "tool_not_called", "tool": "mail"}, False),
        ({"type": "tool_called_n", "tool": "search", "n": 1}, True),
        ({"type": "tool_called_with", "tool": "search", "args": {"q": "fox"}}, True),
        ({"type": "tool_called_with", "tool": "search", "args": {"q": "dog"}}, False),
        ({"type": "tool_order", "tools": ["search", "mail"]}, True),
        ({"type": "tool_order", "tools": ["mail", "search"]}, False),
        ({"type": "tool_calls_lte", "n": 1}, False),
        ({"type": "tool_calls_gte", "n": 2}, True),
        ({"type": "tool_result_in_response"}, False),
        ({"type": "response_uses_tool_data"}, True),
        ({"type": "no_hallucination"}, True),
    ],
)
def test_of_tools_tokens_and_time(params, passed):
    require_valid(params, "task")
    assert check(params, TOOLS)["passed"] is passed


def test_every_validator_is_known_by_its_test():
    tested = {"judge_compare"}
    for mark in (*test_of_text.pytestmark, *test_of_tools_tokens_and_time.pytestmark):
        tested |= {args[0]["type"] for args in mark.args[1]}
    assert tested == set(VALIDATORS)


@pytest.mark.parametrize(
    "params",
    [
        {"type": "contains"},
        {"type": "regex", "pattern": "("},
        {"type": "tool_called_n", "n": 1},
        "contains",
    ],
)
def test_a_check_that_cannot_be_read_is_refused_before_anything_is_asked(params):
    if isinstance(params, dict) and params.get("pattern"):
        from thumbwheel.core.errors import ThumbwheelError

        with pytest.raises(ThumbwheelError):
            require_valid(params, "task 'a'")
        return
    with pytest.raises(ConfigError, match="task 'a'"):
        require_valid(params, "task 'a'")
