"""The checks of a benchmark task: a small function for each type of check. The function gets the
check's parameters and a reply, and returns (passed, detail).

`passed` is None for a check that cannot be decided here (no tools were offered, files, no judge):
it is skipped and does not count. To add a check: a function, and its line in VALIDATORS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from thumbwheel.core.errors import ConfigError
from thumbwheel.core.plugins import nearest
from thumbwheel.rewards.function import Case
from thumbwheel.rewards.functions import FUNCTIONS

NUMBER = re.compile(r"\d+(?:\.\d+)?")
UNCERTAIN = re.compile(
    r"\b("
    r"i(?:['’]m| am)? not (?:sure|certain)|"
    r"i (?:do not|don['’]t|cannot|can['’]t) (?:know|say|tell|find)|"
    r"no (?:information|data)|not (?:available|specified|mentioned)|"
    r"unclear|unknown|uncertain|insufficient"
    r")\b",
    re.IGNORECASE,
)
"""Words with which an answer admits that it does not know."""
MISSING = object()
"""Stands for the value of a text that is no JSON, and of a key that an object lacks."""
Params = Mapping[str, Any]
"""A check as it stands in the YAML file: its type and its parameters."""
ToolCalls = Sequence[Mapping[str, Any]]
"""Name, args and result of each."""
Outcome = tuple[bool | None, str]
"""Whether it passed (None: skipped), and why."""
Validator = Callable[[Params, "CheckedReply"], Outcome]


@dataclass(frozen=True)
class CheckedReply:
    """A reply that is checked."""

    text: str
    tokens: int | None = None
    seconds: float | None = None
    tool_calls: ToolCalls | None = None
    """None if no tools were offered."""
    truth: str | None = None
    """The facts that the reply may state."""
    judge: Callable[[str], bool | None] | None = field(default=None, compare=False)
    """Returns whether the reply meets a criterion in words; None without a verdict."""


def check(params: Params, reply: CheckedReply) -> dict[str, Any]:
    """Return the result of one check: validator, passed, detail, skipped."""
    passed, detail = VALIDATORS[str(params["type"])](params, reply)
    return {
        "validator": params["type"],
        "passed": bool(passed),
        "detail": detail,
        "skipped": passed is None,
    }


def require_valid(params: Any, where: str) -> None:
    """Raise ConfigError for a check of unknown type, or with parameters that it cannot read."""
    if not isinstance(params, Mapping) or params.get("type") not in VALIDATORS:
        name = params.get("type") if isinstance(params, Mapping) else params
        hint = nearest(str(name), VALIDATORS)
        raise ConfigError(
            f"check {name!r} of {where}",
            "no such check",
            f"Known: {', '.join(VALIDATORS)}.{hint}",
        )
    for inner in params.get("checks") or ():
        require_valid(inner, where)
    # on any reply a check reads its parameters
    try:
        VALIDATORS[params["type"]](params, CheckedReply("", tool_calls=()))
    except (KeyError, TypeError, ValueError, re.error) as error:
        raise ConfigError(
            f"check {params['type']!r} of {where}",
            f"{type(error).__name__}: {error}",
            "Give the check its parameters",
        ) from None


def _text(params: Params, *names: str) -> str:
    """Return the first of these parameters that is present, else `value`. Raises KeyError if none
    is."""
    for name in (*names, "value"):
        if name in params:
            return str(params[name])
    raise KeyError(names[0] if names else "value")


def _number(params: Params, *names: str) -> float:
    return float(_text(params, *names))


def _contains(params: Params, reply: CheckedReply) -> Outcome:
    wanted = _text(params, "text", "substring")
    detail = f"looked for {wanted!r}"
    if params.get("case_sensitive", False):
        return wanted in reply.text, detail
    return wanted.casefold() in reply.text.casefold(), detail


def _equals(params: Params, reply: CheckedReply) -> Outcome:
    wanted = _text(params, "text", "expected")
    return reply.text.strip() == wanted.strip(), f"expected {wanted!r}"


def _regex(params: Params, reply: CheckedReply) -> Outcome:
    pattern = _text(params, "pattern")
    ignore_case = bool(params.get("ignore_case", False))
    function = FUNCTIONS.get("regex").create({"pattern": pattern, "ignore_case": ignore_case})
    (score,) = function.score([Case(reply.text)])
    return score.value == 1.0, str(score.evidence.get("reason") or f"pattern {pattern!r}")


def _characters(sign: int) -> Validator:
    """Return a validator for at least (1) or at most (-1) so many characters."""

    def validate(params: Params, reply: CheckedReply) -> Outcome:
        excess = len(reply.text) - _number(params, "count", "n")
        return sign * excess >= 0, f"{len(reply.text)} characters"

    return validate


def _tokens(params: Params, reply: CheckedReply) -> Outcome:
    limit = _number(params, "max", "n")
    if reply.tokens is None:
        return None, "nobody counted tokens"
    return reply.tokens <= limit, f"{reply.tokens} tokens"


def _latency(params: Params, reply: CheckedReply) -> Outcome:
    limit = _number(params, "ms", "max_ms")
    if reply.seconds is None:
        return None, "nobody measured it"
    return 1000 * reply.seconds <= limit, f"{1000 * reply.seconds:.0f} ms"


def _json(text: str) -> Any:
    """Return the value of a JSON text; MISSING if the text is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return MISSING


def _json_valid(params: Params, reply: CheckedReply) -> Outcome:
    return _json(reply.text) is not MISSING, "parsed as JSON"


def _json_has_key(params: Params, reply: CheckedReply) -> Outcome:
    value, path = _json(reply.text), _text(params, "key")
    for key in path.split("."):
        value = value.get(key, MISSING) if isinstance(value, dict) else MISSING
    return value is not MISSING, f"key {path!r}"


def _combined(decide: Callable[[list[bool]], bool]) -> Validator:
    """Return a validator that decides over inner checks; skipped ones do not count."""

    def validate(params: Params, reply: CheckedReply) -> Outcome:
        results = [check(inner, reply) for inner in params["checks"]]
        decided = [result["passed"] for result in results if not result["skipped"]]
        detail = "; ".join(f"{result['validator']}: {result['detail']}" for result in results)
        return (decide(decided) if decided else None), detail

    return validate


def _judge(params: Params, reply: CheckedReply) -> Outcome:
    criteria = _text(params, "criteria", "prompt", "question")
    passed = reply.judge(criteria) if reply.judge else None
    if passed is None:
        return None, "no judge is named, or it gave no verdict"
    return passed, f"judged by {criteria!r}"


def _tool(holds: Callable[[Params, ToolCalls, CheckedReply], bool]) -> Validator:
    """Return a validator of the tool calls; it is skipped if no tools were offered."""

    def validate(params: Params, reply: CheckedReply) -> Outcome:
        if reply.tool_calls is None:
            return None, "no tools were offered"
        names = ", ".join(_names(reply.tool_calls))
        return holds(params, reply.tool_calls, reply), f"calls: {names or 'none'}"

    return validate


def _names(calls: ToolCalls) -> list[str]:
    return [str(call.get("name")) for call in calls]


def _called_with(params: Params, calls: ToolCalls, reply: CheckedReply) -> bool:
    arguments = dict(params.get("args") or {})
    for call in calls:
        same_tool = call.get("name") == _text(params, "tool", "name")
        if same_tool and arguments.items() <= dict(call.get("args") or {}).items():
            return True
    return False


def _order(params: Params, calls: ToolCalls, reply: CheckedReply) -> bool:
    """Return whether the tools were called in this order, perhaps with other calls between."""
    names = iter(_names(calls))
    return all(tool in names for tool in params["tools"])


def _results(calls: ToolCalls) -> list[str]:
    return [str(call.get("result")) for call in calls if call.get("result") not in (None, "")]


def _in_response(params: Params, calls: ToolCalls, reply: CheckedReply) -> bool:
    """Return whether the whole result of a call is part of the answer."""
    tool = params.get("tool")
    chosen = [call for call in calls if not tool or call.get("name") == tool]
    return any(result.strip() in reply.text for result in _results(chosen))


def _uses_data(params: Params, calls: ToolCalls, reply: CheckedReply) -> bool:
    """Return whether the answer has a word in common with the results of the calls."""
    words = set(re.findall(r"\w{3,}", reply.text.casefold()))
    words_of_results = set(re.findall(r"\w{3,}", " ".join(_results(calls)).casefold()))
    return not words.isdisjoint(words_of_results)


def _no_invention(params: Params, reply: CheckedReply) -> Outcome:
    """Check that all numbers of the answer appear in the ground truth, the facts, or a tool's
    result."""
    facts = [str(fact) for fact in params.get("facts") or ()]
    sources = " ".join([reply.truth or "", *facts, *_results(reply.tool_calls or ())])
    if not sources.strip():
        return None, "there is no ground truth to compare with"
    invented = set(NUMBER.findall(reply.text)) - set(NUMBER.findall(sources))
    return not invented, f"numbers from nowhere: {', '.join(sorted(invented)) or 'none'}"


def _not(validator: Validator) -> Validator:
    def validate(params: Params, reply: CheckedReply) -> Outcome:
        passed, detail = validator(params, reply)
        return None if passed is None else not passed, detail

    return validate


def _uncertain(params: Params, reply: CheckedReply) -> Outcome:
    match = UNCERTAIN.search(reply.text)
    return match is not None, f"it says {match[0]!r}" if match else "it says nothing of the kind"


VALIDATORS: dict[str, Validator] = {
    "contains": _contains,
    "not_contains": _not(_contains),
    "equals": _equals,
    "regex": _regex,
    "char_count_gte": _characters(1),
    "char_count_lte": _characters(-1),
    "max_tokens": _tokens,
    "latency_lte": _latency,
    "json_valid": _json_valid,
    "json_has_key": _json_has_key,
    "any_of": _combined(any),
    "all_of": _combined(all),
    "none_of": _combined(lambda passed: not any(passed)),
    "judge": _judge,
    "judge_compare": _judge,
    "file_exists": lambda params, reply: (None, "an answer writes no files here"),
    "tool_calls_lte": _tool(lambda params, calls, _: len(calls) <= _number(params, "n", "max")),
    "tool_calls_gte": _tool(lambda params, calls, _: len(calls) >= _number(params, "n", "min")),
    "tool_called": _tool(lambda params, calls, _: _text(params, "tool", "name") in _names(calls)),
    "tool_not_called": _tool(
        lambda params, calls, _: _text(params, "tool", "name") not in _names(calls)
    ),
    "tool_called_n": _tool(
        lambda params, calls, _: (
            _names(calls).count(_text(params, "tool", "name")) == int(params["n"])
        )
    ),
    "tool_called_with": _tool(_called_with),
    "tool_order": _tool(_order),
    "tool_result_in_response": _tool(_in_response),
    "response_uses_tool_data": _tool(_uses_data),
    "no_hallucination": _no_invention,
    "admits_uncertainty": _uncertain,
    "no_uncertainty": _not(_uncertain),
}
