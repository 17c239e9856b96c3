"""Our own lines: `{"type": "trace" | "feedback" | "case", ...}`.

Keys of a trace: those of TraceRecord, and those of the model call that made the answer
(LLM_FIELDS). Keys of feedback: those of FeedbackRecord, with `target` or `targets` as {"trace":
id}, {"session": id} or {"step": [id, n]}, `rater` as an id or an object, and for a preference the
index of the better target (null: a tie) instead of a ranking. Keys of a case: those of CaseRecord.

A trace or feedback that says `received_at` in place of `occurred_at` came over HTTP without a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from thumbwheel.core.plugins import nearest
from thumbwheel.importers.source import JsonLines, Row
from thumbwheel.importers.types import (
    LLM_FIELDS,
    AnyRecord,
    CaseRecord,
    FeedbackRecord,
    TargetRef,
    TraceRecord,
    Unreadable,
)

TRACE = frozenset({"type", *TraceRecord.model_fields, *LLM_FIELDS})
FEEDBACK = frozenset({"type", *FeedbackRecord.model_fields, "target", "shown"})
CASE = frozenset({"type", *CaseRecord.model_fields})
RECEIVED = "received_at"
TARGET_KINDS = ("trace", "session", "step")
EXAMPLE = (
    '{"type": "trace", "id": "t1", "input": "How do I reset it?", "output": "Hold the button.", '
    '"model": "llama3.2"}\n'
    '{"type": "feedback", "target": {"trace": "t1"}, "kind": "thumb", "value": true, "rater": '
    '"customer-17"}\n'
    '{"type": "case", "id": "c1", "input": "2 + 2?", "reference": "4", "checker": "exact_answer"}'
)


def claims(row: Row) -> bool:
    """Return whether the row has a type of Thumbwheel's own lines."""
    return isinstance(row.get("type"), str) and row["type"] in KINDS


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """Return the records of one line. Raises Unreadable for an unknown type."""
    kind = row.get("type")
    if not isinstance(kind, str) or kind not in KINDS:
        near = nearest(kind, KINDS) if isinstance(kind, str) else ""
        raise Unreadable(f"type {kind!r} is none of {', '.join(KINDS)}.{near}")
    if row.get(RECEIVED) is None or kind == "case":
        return [KINDS[kind](row)]
    if row.get("occurred_at") is not None:
        raise Unreadable(f"it has both occurred_at and {RECEIVED}; give one of them")
    fields = {key: value for key, value in row.items() if key != RECEIVED}
    return [KINDS[kind](fields | {"occurred_at": row[RECEIVED]}).received_at()]


def _demand_known(row: Row, keys: frozenset[str], what: str) -> None:
    for key in row.keys() - keys:
        raise Unreadable(f"key {key!r} is unknown in {what}.{nearest(key, sorted(keys))}")


def _trace(row: dict[str, Any]) -> TraceRecord:
    _demand_known(row, TRACE, "a trace")
    call = {key: row[key] for key in LLM_FIELDS if row.get(key) is not None}
    fields = {key: value for key, value in row.items() if key != "type" and key not in LLM_FIELDS}
    fields["steps"] = _steps(fields.get("steps") or [], call)
    return TraceRecord.model_validate(fields)


def _steps(steps: Any, call: Mapping[str, Any]) -> Any:
    """Return `steps` with the keys of the answering call in the last llm step; append one if there
    is none. Raises Unreadable if the two differ about a key."""
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise Unreadable("steps is no list of objects")
    llm_steps = [i for i, step in enumerate(steps) if step.get("kind", "llm") == "llm"]
    if not llm_steps:
        return [*steps, {"kind": "llm", **call}] if call or not steps else steps
    last = llm_steps[-1]
    for key in call.keys() & steps[last].keys():
        if steps[last][key] not in (None, call[key]):
            raise Unreadable(
                f"the trace and its last llm step differ about {key!r}: {call[key]!r} and "
                f"{steps[last][key]!r}"
            )
    return [*steps[:last], {**steps[last], **call}, *steps[last + 1 :]]


def _feedback(row: dict[str, Any]) -> FeedbackRecord:
    _demand_known(row, FEEDBACK, "feedback")
    fields = {key: value for key, value in row.items() if key not in ("type", "target", "shown")}
    fields["targets"] = _targets(row)
    if isinstance(row.get("rater"), str | int):
        fields["rater"] = {"id": row["rater"]}
    if row.get("retracts") and row.get("kind") is None:
        fields |= {"kind": "comment", "value": row.get("comment") or ""}
    if "shown" in row:
        metadata = row.get("metadata") or {}
        if not isinstance(metadata, dict):
            raise Unreadable(f"metadata {metadata!r} is no object")
        fields["metadata"] = {**metadata, "shown": _shown(row["shown"], len(fields["targets"]))}
    return FeedbackRecord.model_validate(fields | _short_forms(fields))


def _short_forms(fields: Mapping[str, Any]) -> dict[str, Any]:
    kind, value, name = fields.get("kind"), fields.get("value"), fields.get("name")
    if kind == "preference" and "value" in fields and not isinstance(value, dict):
        return {"value": {"ranking": _ranking(value, len(fields["targets"]))}}
    if kind == "label" and name is None and isinstance(value, str) and value:
        return {"name": value, "value": True}
    return {"name": "outcome"} if kind == "outcome" and name is None else {}


def _ranking(better: Any, count: int) -> list[list[int]]:
    """Convert the index of the better target to a ranking of all `count` targets; None is a tie of
    all. Raises Unreadable for any other value."""
    if better is None:
        return [list(range(count))]
    if type(better) is not int or not 0 <= better < count:
        raise Unreadable(
            f"preference {better!r} is no index of its {count} targets, no ranking, and not null "
            "for a tie"
        )
    return [[better], [i for i in range(count) if i != better]]


def _shown(shown: Any, count: int) -> list[int]:
    if not isinstance(shown, list) or sorted(map(repr, shown)) != sorted(map(repr, range(count))):
        raise Unreadable(f"shown {shown!r} is no order of the {count} targets' positions")
    return shown


def _targets(row: Row) -> list[TargetRef]:
    if "target" in row and "targets" in row:
        raise Unreadable("it has both target and targets; give one of them")
    targets = row.get("targets") or []
    if row.get("target") is not None:
        targets = [row["target"]]
    if not isinstance(targets, list):
        raise Unreadable(f"targets {targets!r} is no list")
    return [_target(target) for target in targets]


def _target(target: Any) -> TargetRef:
    kinds = [kind for kind in TARGET_KINDS if kind in target] if isinstance(target, dict) else []
    if len(kinds) != 1 or target.keys() - {*kinds, "source"}:
        raise Unreadable(
            f'target {target!r} is none of {{"trace": id}}, {{"session": id}}, {{"step": [id, n]}},'
            ' each with an optional "source"'
        )
    (kind,) = kinds
    name, step = target[kind], None
    if kind == "step":
        if not isinstance(name, list) or len(name) != 2:
            raise Unreadable(f"step {name!r} is no [trace id, position]")
        name, step = name
    return TargetRef.model_validate(
        {"kind": kind, "id": name, "step": step, "source": target.get("source")}
    )


def _case(row: dict[str, Any]) -> CaseRecord:
    _demand_known(row, CASE, "a case")
    return CaseRecord.model_validate({key: value for key, value in row.items() if key != "type"})


KINDS: dict[str, Callable[[dict[str, Any]], AnyRecord]] = {
    "trace": _trace,
    "feedback": _feedback,
    "case": _case,
}


SOURCE = JsonLines(parse, claims, EXAMPLE, reason="our own lines say their type")
