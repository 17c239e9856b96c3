"""The checks of a benchmark task: one small function a type, from what the check says and a reply
to (passed, detail).

What cannot be decided here (tools that were not offered, files, a judge that is not named) is None:
skipped, and out of the denominator. To add a check: a function, and its line in VALIDATORS.
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

UNCERTAIN = re.compile(
    r"\b(i(?: do no|')?t? ?(?:am|'m)? ?not (?:sure|certain)|i (?:do not|don't|cannot|can't) "
    r"(?:know|say|tell|find)|no (?:information|data)|"
    r"unclear|unknown|not (?:available|specified|mentioned)|uncertain|insufficient)\b",
    re.IGNORECASE,
)
Found = tuple[bool | None, str]
"""Whether it passed (None: skipped), and why."""


@dataclass(frozen=True)
class Reply:
    """What is checked. `tool_calls`: name, args and result of each; None where no tools were
    offered."""

    text: str
    tokens: int | None = None
    seconds: float | None = None
    tool_calls: Sequence[Mapping[str, Any]] | None = None
    truth: str | None = None
    judge: Callable[[str], bool | None] | None = field(default=None, compare=False)


def check(given: Mapping[str, Any], reply: Reply) -> dict[str, Any]:
    """The result of one check: validator, passed, detail, skipped."""
    passed, detail = VALIDATORS[str(given["type"])](given, reply)
    return {
        "validator": given["type"],
        "passed": bool(passed),
        "detail": detail,
        "skipped": passed is None,
    }


def require(given: Any, where: str) -> None:
    """Raise ConfigError for a check of no known type, or with parameters that it cannot read."""
    if not isinstance(given, Mapping) or given.get("type") not in VALIDATORS:
        name = given.get("type") if isinstance(given, Mapping) else given
        hint = nearest(str(name), VALIDATORS)
        raise ConfigError(
            f"check {name!r} of {where}",
            "there is no validator of that name",
            f"Known: {', '.join(VALIDATORS)}.{hint}",
        )
    for inner in given.get("checks") or ():
        require(inner, where)
    try:
        VALIDATORS[given["type"]](given, Reply("", tool_calls=()))
    except (KeyError, TypeError, ValueError, re.error) as error:
        raise ConfigError(
            f"check {given['type']!r} of {where}",
            f"{type(error).__name__}: {error}",
            "Give it its parameters",
        ) from None


def _text(given: Mapping[str, Any], *names: str) -> str:
    for name in (*names, "value"):
        if name in given:
            return str(given[name])
    raise KeyError(names[0] if names else "value")


def _number(given: Mapping[str, Any], *names: str) -> float:
    return float(_text(given, *names))


def _contains(given: Mapping[str, Any], reply: Reply) -> Found:
    wanted = _text(given, "text", "substring")
    strict = bool(given.get("case_sensitive", False))
    return (
        wanted in reply.text if strict else wanted.casefold() in reply.text.casefold()
    ), f"looked for {wanted!r}"


def _equals(given: Mapping[str, Any], reply: Reply) -> Found:
    wanted = _text(given, "text", "expected")
    return reply.text.strip() == wanted.strip(), f"expected {wanted!r}"


def _regex(given: Mapping[str, Any], reply: Reply) -> Found:
    function = FUNCTIONS.get("regex").create(
        {"pattern": _text(given, "pattern"), "ignore_case": bool(given.get("ignore_case", False))}
    )
    (score,) = function.score([Case(reply.text)])
    return score.value == 1.0, str(
        score.evidence.get("reason") or f"pattern {given.get('pattern') or given.get('value')!r}"
    )


def _characters(sign: int) -> Callable[[Mapping[str, Any], Reply], Found]:
    return lambda given, reply: (
        sign * (len(reply.text) - _number(given, "count", "n")) >= 0,
        f"{len(reply.text)} characters",
    )


def _tokens(given: Mapping[str, Any], reply: Reply) -> Found:
    limit = _number(given, "max", "n")
    return (
        (None, "nobody counted tokens")
        if reply.tokens is None
        else (reply.tokens <= limit, f"{reply.tokens} tokens")
    )


def _latency(given: Mapping[str, Any], reply: Reply) -> Found:
    limit = _number(given, "ms", "max_ms")
    return (
        (None, "nobody measured it")
        if reply.seconds is None
        else (1000 * reply.seconds <= limit, f"{1000 * reply.seconds:.0f} ms")
    )


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return ...


def _json_valid(given: Mapping[str, Any], reply: Reply) -> Found:
    return _json(reply.text) is not ..., "parsed as JSON"


def _json_has_key(given: Mapping[str, Any], reply: Reply) -> Found:
    found, path = _json(reply.text), _text(given, "key")
    for part in path.split("."):
        found = found[part] if isinstance(found, dict) and part in found else ...
    return found is not ..., f"key {path!r}"


def _several(decide: Callable[[list[bool]], bool]) -> Callable[[Mapping[str, Any], Reply], Found]:
    """Of the checks inside; skipped ones leave."""

    def of(given: Mapping[str, Any], reply: Reply) -> Found:
        inner = [check(one, reply) for one in given["checks"]]
        known = [one["passed"] for one in inner if not one["skipped"]]
        return (decide(known) if known else None), "; ".join(
            f"{one['validator']}: {one['detail']}" for one in inner
        )

    return of


def _judge(given: Mapping[str, Any], reply: Reply) -> Found:
    asked = _text(given, "criteria", "prompt", "question")
    passed = reply.judge(asked) if reply.judge else None
    return (
        passed,
        "no judge is named, or it gave no verdict" if passed is None else f"judged by {asked!r}",
    )


def _tool(
    of: Callable[[Mapping[str, Any], list[Mapping[str, Any]], Reply], bool],
) -> Callable[[Mapping[str, Any], Reply], Found]:
    """A check of the calls of tools."""

    def found(given: Mapping[str, Any], reply: Reply) -> Found:
        if reply.tool_calls is None:
            return None, "no tools were offered"
        calls = list(reply.tool_calls)
        return of(given, calls, reply), f"calls: {', '.join(_names(calls)) or 'none'}"

    return found


def _names(calls: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(one.get("name")) for one in calls]


def _called_with(given: Mapping[str, Any], calls: list[Mapping[str, Any]], reply: Reply) -> bool:
    wanted = dict(given.get("args") or {})
    return any(
        one.get("name") == _text(given, "tool", "name")
        and wanted.items() <= dict(one.get("args") or {}).items()
        for one in calls
    )


def _order(given: Mapping[str, Any], calls: list[Mapping[str, Any]], reply: Reply) -> bool:
    names = iter(_names(calls))
    return all(tool in names for tool in given["tools"])


def _results(calls: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(one.get("result")) for one in calls if one.get("result") not in (None, "")]


def _in_response(given: Mapping[str, Any], calls: list[Mapping[str, Any]], reply: Reply) -> bool:
    named = [one for one in calls if not given.get("tool") or one.get("name") == given["tool"]]
    return any(one.strip() in reply.text for one in _results(named))


def _uses_data(given: Mapping[str, Any], calls: list[Mapping[str, Any]], reply: Reply) -> bool:
    said = set(re.findall(r"\w{3,}", reply.text.casefold()))
    return any(said & set(re.findall(r"\w{3,}", one.casefold())) for one in _results(calls))


def _no_invention(given: Mapping[str, Any], reply: Reply) -> Found:
    """Numbers of the answer all stand in what it could know: the truth and the results of tools."""
    known = " ".join(
        [
            reply.truth or "",
            *(str(one) for one in given.get("facts") or ()),
            *_results(reply.tool_calls or ()),
        ]
    )
    if not known.strip():
        return None, "there is no ground truth to compare with"
    invented = set(re.findall(r"\d+(?:\.\d+)?", reply.text)) - set(
        re.findall(r"\d+(?:\.\d+)?", known)
    )
    return not invented, f"numbers from nowhere: {', '.join(sorted(invented)) or 'none'}"


def _not(
    of: Callable[[Mapping[str, Any], Reply], Found],
) -> Callable[[Mapping[str, Any], Reply], Found]:
    def found(given: Mapping[str, Any], reply: Reply) -> Found:
        passed, detail = of(given, reply)
        return None if passed is None else not passed, detail

    return found


def _uncertain(given: Mapping[str, Any], reply: Reply) -> Found:
    match = UNCERTAIN.search(reply.text)
    return match is not None, f"it says {match[0]!r}" if match else "it says nothing of the kind"


VALIDATORS: dict[str, Callable[[Mapping[str, Any], Reply], Found]] = {
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
    "any_of": _several(any),
    "all_of": _several(all),
    "none_of": _several(lambda known: not any(known)),
    "judge": _judge,
    "judge_compare": _judge,
    "file_exists": lambda given, reply: (None, "an answer writes no files here"),
    "tool_calls_lte": _tool(lambda given, calls, reply: len(calls) <= _number(given, "n", "max")),
    "tool_calls_gte": _tool(lambda given, calls, reply: len(calls) >= _number(given, "n", "min")),
    "tool_called": _tool(lambda given, calls, reply: _text(given, "tool", "name") in _names(calls)),
    "tool_not_called": _tool(
        lambda given, calls, reply: _text(given, "tool", "name") not in _names(calls)
    ),
    "tool_called_n": _tool(
        lambda given, calls, reply: (
            _names(calls).count(_text(given, "tool", "name")) == int(given["n"])
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
