"""`thumbwheel evaluate`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thumbwheel.core import present
from thumbwheel.core.config import options as options_of
from thumbwheel.core.files import write_output
from thumbwheel.core.options import Here
from thumbwheel.evaluation.result import EvaluationResult, ReplayedDecision
from thumbwheel.evaluation.types import EvaluationConfig
from thumbwheel.jobs.request import JobRequest

if TYPE_CHECKING:
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
    here: Here = False,
) -> JobRequest[EvaluationResult, EvaluationResult] | present.Answer[ReplayedDecision]:
    """Compare a version with what runs today on held-out rows, and let the gate decide.

    The primary measure is the success of fresh greedy answers on gold cases; see `thumbwheel case
    add`. Answers are kept: the same command after Ctrl-C goes on where it was. Suites: success,
    preference, json_agent, reward, regression, judge, benchmark, code.

    Example: thumbwheel evaluate latest --agent support --suite success --suite regression --output
    results.json

    Example: thumbwheel evaluate v3 --agent support --as gguf:model-q4_k_m.gguf
    """
    from thumbwheel.core.errors import InputError
    from thumbwheel.evaluation.jobs import EvaluateSpec

    if replay is not None:
        return _replay(ctx, replay)
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
            "only one version can be compared with",
            "Give one of the two",
        )

    spec = EvaluateSpec.model_validate(
        {
            "version": version,
            "agent": agent,
            "compare_base": compare_base,
            "against": against,
            "as": form,
            "against_as": against_form,
            "gate": gate,
            "options": options,
        }
    )

    def show(result: EvaluationResult) -> present.Answer[EvaluationResult]:
        if output is not None:
            write_output("--output", output, present.json_text(result) + "\n")
        return present.page(result, evaluation_page(result))

    return JobRequest("evaluate", spec, show, here=here)


def evaluation_page(evaluation: EvaluationResult) -> Iterator[present.Part]:
    """Return the tables for a person."""
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
    yield present.Table(title, columns, [_measure_row(evaluation.primary)])
    for suite in evaluation.suites:
        primary_name = evaluation.primary.name
        rows = [_measure_row(measure) for measure in suite.measures if measure.name != primary_name]
        if rows:
            yield present.Table(f"suite {suite.name}", columns, rows)
    guards = [
        (guard.name, _number(guard.before), _number(guard.after), guard.n)
        for guard in evaluation.guards
    ]
    yield present.Table("guards", ("guard", "before", "after", "n"), guards)
    if evaluation.slices:
        slices = [_measure_row(measure) for measure in evaluation.slices]
        yield present.Table("slices", columns, slices)
    if evaluation.serving:
        yield _serving_table(evaluation)
    if evaluation.examples:
        examples = []
        for example in evaluation.examples:
            values = f"{example.value_before:g} -> {example.value_after:g}"
            texts = (_short(example.before), _short(example.after))
            examples.append((example.case, values, *texts))
        yield present.Table("most changed", ("case", "value", "before", "after"), examples)
    for remark in remarks(evaluation):
        yield present.Note(remark)
    if decision := evaluation.decision:
        title = f"decision: {decision.verdict} ({decision.id})"
        yield _reasons_table(title, decision.reasons)


def _reasons_table(title: str, reasons: Iterable[str]) -> present.Table:
    return present.Table(title, ("reasons",), [(reason,) for reason in reasons])


def remarks(evaluation: Evaluation) -> list[str]:
    """Return the lines that a reader needs besides the tables."""
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
            f"note: this is comparison {evaluation.reads} on these rows, over all versions; the "
            "gate asks for more confidence each time"
        )
    return lines


def _serving_table(evaluation: Evaluation) -> present.Table:
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
    return present.Table("quality, time and price of an answer", columns, rows)


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
    return present.shortened(" ".join(text.split()), 100)


def _replay(ctx: typer.Context, decision_id: str) -> present.Answer[ReplayedDecision]:
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
    replayed = ReplayedDecision(
        id=stored.id,
        identical=True,
        verdict=again.verdict,
        reasons=again.reasons,
        inputs=stored.inputs,
    )
    title = f"decision {stored.id}: {again.verdict}, identical on replay"
    return present.page(replayed, [_reasons_table(title, again.reasons)])
