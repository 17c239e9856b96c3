"""`thumbwheel evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thumbwheel.core.config import options as options_of
from thumbwheel.core.present import shortened
from thumbwheel.evaluation.types import EvaluationConfig

if TYPE_CHECKING:
    from thumbwheel.evaluation.policy import StoredDecision
    from thumbwheel.evaluation.types import Evaluation, Measure


@options_of(EvaluationConfig)
def evaluate(
    ctx: typer.Context,
    options: dict[str, Any],
    version: Annotated[
        str | None, typer.Argument(help="The version to judge: v3, an alias, or latest.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="The agent that the version belongs to.")
    ] = None,
    compare_base: Annotated[
        bool,
        typer.Option(
            "--compare-base",
            help="Compare with the base, even where another is live; the gate decides nothing "
            "then, "
            "and it is a look at the rows.",
        ),
    ] = False,
    against: Annotated[str | None, typer.Option(help="Compare with this version.")] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--as",
            help="How the version is served: hf:FOLDER, gguf:FILE, URL#MODEL (default: as "
            "trained).",
        ),
    ] = None,
    against_form: Annotated[
        str | None,
        typer.Option(
            "--against-as",
            help="How the other one is served: also recorded, for what the app's model answered.",
        ),
    ] = None,
    gate: Annotated[
        bool, typer.Option(help="Decide on the version and store the decision.")
    ] = True,
    replay: Annotated[
        str | None,
        typer.Option(help="Decide a stored decision again from its inputs, and compare."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Also write the results as JSON to this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Compare a version with what runs today on held-out rows, and let the gate decide.

    The primary measure is the success of fresh greedy answers on gold cases; see `thumbwheel case
    add`. Answers are kept: the same command after Ctrl-C goes on where it was. Suites: success,
    preference, json_agent, reward, regression, judge, benchmark, code.

    Example: thumbwheel evaluate latest --agent support --suite success --suite regression --output
    results.json

    Example: thumbwheel evaluate v3 --agent support --as gguf:model-q4_k_m.gguf
    """
    from thumbwheel.core import log
    from thumbwheel.core.errors import InputError
    from thumbwheel.evaluation import evaluate as verbs
    from thumbwheel.evaluation.declaration import policy_of
    from thumbwheel.evaluation.gate import gate as decide
    from thumbwheel.evaluation.gate import why_refused, why_waiting
    from thumbwheel.evaluation.responders import base_of
    from thumbwheel.models import versions

    if replay is not None:
        _replay(ctx, replay, as_json)
        return
    if version is None or agent is None:
        raise InputError(
            "evaluate",
            "it needs a version and its agent",
            "For example: thumbwheel evaluate latest --agent support",
        )
    if output is not None and (output.is_dir() or not output.parent.is_dir()):
        raise InputError(
            f"--output {str(output)!r}",
            "no file can be written there",
            "Name a file in a folder that exists",
        )
    if compare_base and against is not None:
        raise InputError(
            f"--compare-base and --against {against!r}",
            "there is one version to compare with",
            "Give one of the two",
        )

    decision = None
    with ctx.obj() as ws:
        config = ws.settings(EvaluationConfig, "evaluation", options)
        candidate = versions.version(ws, agent, version)
        incumbent = versions.version(ws, agent, against) if against is not None else None
        if compare_base:
            incumbent = base_of(ws, candidate)
        evaluation = verbs.evaluate(
            ws, candidate, config, against=incumbent, form=form, against_form=against_form
        )
        policy = policy_of(ws, agent)
        why_not = why_refused(evaluation, policy) or why_waiting(evaluation, policy)
        if gate and why_not:
            log.say(f"the gate does not decide: {why_not}")
        elif gate:
            decision = decide(ws, evaluation)
    results = answer(evaluation, decision)
    if output is not None:
        _write(output, results)
    if as_json:
        log.answer(results)
    else:
        show(evaluation, decision)


def answer(evaluation: Evaluation, stored: StoredDecision | None) -> dict[str, Any]:
    """What `--json` prints: the evaluation, with the decision, its id and its policy under
    `decision`."""
    results = evaluation.model_dump(mode="json", exclude={"read", "signature"})
    results["decision"] = None
    if stored is not None:
        results["decision"] = {
            "id": stored.id,
            **stored.decision.model_dump(mode="json"),
            "policy": stored.policy.model_dump(mode="json"),
        }
    return results


def _write(output: Path, results: dict[str, Any]) -> None:
    import json

    from thumbwheel.core.errors import InputError

    text = json.dumps(results, indent=2, ensure_ascii=False)
    try:
        output.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"output file {str(output)!r}",
            error.strerror or str(error),
            "Name a file that can be written",
        ) from None


def show(evaluation: Evaluation, stored: StoredDecision | None) -> None:
    """The tables for a person."""
    from thumbwheel.core import log

    columns = (
        "measure",
        "before",
        "after",
        "gain",
        f"{evaluation.primary.level:.0%} interval",
        "p (Holm)",
        "n",
        "groups",
    )
    title = (
        f"{evaluation.candidate} against {evaluation.against} ({evaluation.agent}), basis "
        f"{evaluation.basis}"
    )
    log.table(title, columns, [_measure_row(evaluation.primary)])
    for suite in evaluation.suites:
        shown = [measure for measure in suite.measures if measure.name != evaluation.primary.name]
        if shown:
            log.table(f"suite {suite.name}", columns, [_measure_row(measure) for measure in shown])
    guards = [
        (guard.name, _number(guard.before), _number(guard.after), guard.n)
        for guard in evaluation.guards
    ]
    log.table("guards", ("guard", "before", "after", "n"), guards)
    if evaluation.slices:
        log.table("slices", columns, [_measure_row(measure) for measure in evaluation.slices])
    _show_serving(evaluation)
    if evaluation.examples:
        examples = []
        for example in evaluation.examples:
            values = f"{example.value_before:g} -> {example.value_after:g}"
            texts = (_short(example.before), _short(example.after))
            examples.append((example.case, values, *texts))
        log.table("most changed", ("case", "value", "before", "after"), examples)
    for remark in remarks(evaluation):
        log.say(remark)
    if stored is not None:
        log.table(
            f"decision: {stored.decision.verdict} ({stored.id})",
            ("reasons",),
            [(reason,) for reason in stored.decision.reasons],
        )


def remarks(evaluation: Evaluation) -> list[str]:
    """What a reader has to know besides the tables."""
    from thumbwheel.evaluation.secondary_tests import tests_in_words

    lines = []
    if tests := tests_in_words(suite.details for suite in evaluation.suites):
        lines.append(f"other methods on the same answers: {tests}")
    lines += [f"left out: {count} x {reason}" for reason, count in evaluation.dropped.items()]
    lines += [f"note: {note}" for note in evaluation.notes]
    if evaluation.prompting is not None:
        lines.append(f"weights or a prompt: {evaluation.weights_pay}")
    if evaluation.reads > 1:
        lines.append(
            f"note: this is look {evaluation.reads} at these rows, over all versions; the gate "
            "asks for more confidence each time"
        )
    return lines


def _show_serving(evaluation: Evaluation) -> None:
    from thumbwheel.core import log

    columns = (
        "side",
        "success",
        "answers",
        "tokens",
        "seconds (median)",
        "seconds (95 %)",
        "cost of 1,000",
    )
    rows = []
    for serving in evaluation.serving:
        row = (
            serving.side,
            _number(serving.success),
            serving.answers,
            _number(serving.tokens),
            _number(serving.seconds),
            _number(serving.slowest),
            _number(serving.cost),
        )
        rows.append(row)
    if rows:
        log.table("quality, time and price of an answer", columns, rows)


def _measure_row(measure: Measure) -> tuple[object, ...]:
    interval = "not known"
    if measure.spread.error is not None:
        interval = f"{measure.low:+.3f} .. {measure.high:+.3f}"
    return (
        measure.name,
        f"{measure.before:.3f}",
        f"{measure.after:.3f}",
        f"{measure.gain:+.3f}",
        interval,
        "" if measure.adjusted is None else f"{measure.adjusted:.2g}",
        measure.n,
        measure.clusters,
    )


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3f}"


def _short(text: str) -> str:
    return shortened(" ".join(text.split()), 100)


def _replay(ctx: typer.Context, decision_id: str, as_json: bool) -> None:
    from thumbwheel.core import log
    from thumbwheel.core.errors import Conflict
    from thumbwheel.evaluation.gate import replay

    with ctx.obj() as ws:
        stored, again = replay(ws, decision_id)
    if stored.decision != again:
        raise Conflict(
            f"decision {decision_id!r}",
            f"it was {stored.decision.verdict}, and the same inputs and policy now give "
            f"{again.verdict}: {'; '.join(again.reasons)}",
            "The gate's code has changed since; evaluate the version again",
        )
    if as_json:
        log.answer(
            {
                "id": stored.id,
                "identical": True,
                **again.model_dump(mode="json"),
                "inputs": stored.inputs.model_dump(mode="json"),
            }
        )
    else:
        log.table(
            f"decision {stored.id}: {again.verdict}, identical on replay",
            ("reasons",),
            [(reason,) for reason in again.reasons],
        )
