"""`thumbwheel evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thumbwheel.core.config import options as options_of
from thumbwheel.evaluation.types import EvaluationConfig

if TYPE_CHECKING:
    from thumbwheel.evaluation.types import Evaluation, Measure, StoredDecision


@options_of(EvaluationConfig)
def evaluate(
    ctx: typer.Context,
    options: dict[str, Any],
    version: Annotated[str | None, typer.Argument(help="The version to judge: v3, an alias, or latest.")] = None,
    agent: Annotated[str | None, typer.Option(help="The agent that the version belongs to.")] = None,
    compare_base: Annotated[bool, typer.Option("--compare-base", help="Compare with the base, even where another is live.")] = False,
    gate: Annotated[bool, typer.Option(help="Decide on the version and store the decision.")] = True,
    replay: Annotated[str | None, typer.Option(help="Decide a stored decision again from its inputs, and compare.")] = None,
    output: Annotated[Path | None, typer.Option(help="Also write the results as JSON to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Compare a version with what runs today on held-out rows, and let the gate decide.

    The primary measure is the success of fresh greedy answers on gold cases; see `thumbwheel case add`.

    Example: thumbwheel evaluate latest --agent support --output results.json
    """
    from thumbwheel.core.errors import InputError

    if replay is not None:
        _replay(ctx, replay, as_json)
        return
    if version is None or agent is None:
        raise InputError("evaluate", "it needs a version and its agent", "For example: thumbwheel evaluate latest --agent support")
    if output is not None and (output.is_dir() or not output.parent.is_dir()):
        raise InputError(f"--output {str(output)!r}", "no file can be written there", "Name a file in a folder that exists")
    _evaluate(ctx, options, version, agent, compare_base, gate, output, as_json)


def _evaluate(
    ctx: typer.Context,
    options: dict[str, Any],
    version: str,
    agent: str,
    compare_base: bool,
    gate: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    from thumbwheel.core import log
    from thumbwheel.evaluation import evaluate as verb
    from thumbwheel.evaluation.gate import gate as decide
    from thumbwheel.models import versions

    with ctx.obj() as ws:
        config = ws.settings(EvaluationConfig, "evaluation", options)
        against = verb.base_of(ws, versions.version(ws, agent, version)).name if compare_base else None
        evaluation = verb.evaluate(ws, agent, version, config, against=against)
        stored = decide(ws, evaluation) if gate else None
    results = answer(evaluation, stored)
    if output is not None:
        _write(output, results)
    if as_json:
        log.answer(results)
    else:
        show(evaluation, stored)


def answer(evaluation: Evaluation, stored: StoredDecision | None) -> dict[str, Any]:
    """What `--json` prints: the evaluation, and under `decision` the decision with its id and policy."""
    decided = None
    if stored is not None:
        decided = {"id": stored.id, **stored.decision.model_dump(mode="json"), "policy": stored.policy.model_dump(mode="json")}
    return {**evaluation.model_dump(mode="json"), "decision": decided}


def _write(output: Path, results: dict[str, Any]) -> None:
    import json

    from thumbwheel.core.errors import InputError

    try:
        output.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"output file {str(output)!r}", error.strerror or str(error), "Name a file that can be written") from None


def show(evaluation: Evaluation, stored: StoredDecision | None) -> None:
    """The tables for a person."""
    from thumbwheel.core import log

    columns = ("measure", "before", "after", "gain", f"{evaluation.primary.level:.0%} interval", "n", "groups")
    title = f"{evaluation.candidate} against {evaluation.against} ({evaluation.agent}), basis {evaluation.basis}"
    ranked = [one for one in evaluation.preferences if one.name != evaluation.primary.name]
    log.table(title, columns, [_line(one) for one in (evaluation.primary, *evaluation.opinions, *ranked)])
    guards = [(one.name, _number(one.before), _number(one.after), one.n) for one in evaluation.guards]
    log.table("guards", ("guard", "before", "after", "n"), guards)
    if evaluation.slices:
        log.table("slices", columns, [_line(one) for one in evaluation.slices])
    if evaluation.examples:
        rows = [
            (one.case, f"{one.value_before:g} -> {one.value_after:g}", _short(one.before), _short(one.after)) for one in evaluation.examples
        ]
        log.table("most changed", ("case", "value", "before", "after"), rows)
    for reason, count in evaluation.dropped.items():
        log.say(f"left out: {count} x {reason}")
    for note in evaluation.notes:
        log.say(f"note: {note}")
    if evaluation.reads > 1:
        log.say(f"note: this is read {evaluation.reads} of held-out rows for this version; the gate asks for more confidence each time")
    if stored is not None:
        log.table(f"decision: {stored.decision.verdict} ({stored.id})", ("reasons",), [(reason,) for reason in stored.decision.reasons])


def _line(one: Measure) -> tuple[object, ...]:
    interval = f"{one.low:+.3f} .. {one.high:+.3f}"
    return (one.name, f"{one.before:.3f}", f"{one.after:.3f}", f"{one.gain:+.3f}", interval, one.n, one.clusters)


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3f}"


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 100 else flat[:97] + "..."


def _replay(ctx: typer.Context, decision_id: str, as_json: bool) -> None:
    from thumbwheel.core import log
    from thumbwheel.core.errors import Conflict
    from thumbwheel.evaluation.gate import replay

    with ctx.obj() as ws:
        stored, again = replay(ws, decision_id)
    if stored.decision != again:
        raise Conflict(
            f"decision {decision_id!r}",
            f"it was {stored.decision.verdict}, and the same inputs and policy now give {again.verdict}: {'; '.join(again.reasons)}",
            "The gate's code has changed since; evaluate the version again",
        )
    if as_json:
        log.answer({"id": stored.id, "identical": True, **again.model_dump(mode="json"), "inputs": stored.inputs.model_dump(mode="json")})
    else:
        log.table(f"decision {stored.id}: {again.verdict}, identical on replay", ("reasons",), [(reason,) for reason in again.reasons])
