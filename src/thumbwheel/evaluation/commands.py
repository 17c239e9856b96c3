"""`thumbwheel evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from thumbwheel.core.config import options as options_of
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
    from thumbwheel.core.errors import InputError

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
    found = _evaluate(
        ctx, options, version, agent, _Compared(compare_base, against, form, against_form), gate
    )
    _answer(*found, output, as_json)


class _Compared(NamedTuple):
    """What is compared with what."""

    base: bool
    against: str | None
    form: str | None
    against_form: str | None


def _evaluate(
    ctx: typer.Context,
    options: dict[str, Any],
    version: str,
    agent: str,
    compared: _Compared,
    gate: bool,
) -> tuple[Evaluation, StoredDecision | None]:
    from thumbwheel.core import log
    from thumbwheel.evaluation.declaration import policy_of
    from thumbwheel.evaluation.evaluate import evaluate as verb
    from thumbwheel.evaluation.gate import gate as decide
    from thumbwheel.evaluation.gate import unusual, waits
    from thumbwheel.evaluation.responders import base_of
    from thumbwheel.models import versions

    with ctx.obj() as ws:
        config = ws.settings(EvaluationConfig, "evaluation", options)
        against = (
            base_of(ws, versions.version(ws, agent, version)).name
            if compared.base
            else compared.against
        )
        evaluation = verb(
            ws,
            agent,
            version,
            config,
            against=against,
            form=compared.form,
            against_form=compared.against_form,
        )
        policy = policy_of(ws, agent)
        why = unusual(evaluation, policy) or waits(evaluation, policy)
        if gate and why:
            log.say(f"the gate does not decide: {why}")
        return evaluation, decide(ws, evaluation) if gate and not why else None


def _answer(
    evaluation: Evaluation, stored: StoredDecision | None, output: Path | None, as_json: bool
) -> None:
    from thumbwheel.core import log

    results = answer(evaluation, stored)
    if output is not None:
        _write(output, results)
    if as_json:
        log.answer(results)
    else:
        show(evaluation, stored)


def answer(evaluation: Evaluation, stored: StoredDecision | None) -> dict[str, Any]:
    """What `--json` prints: the evaluation, and under `decision` the decision with its id and
    policy."""
    decided = None
    if stored is not None:
        decided = {
            "id": stored.id,
            **stored.decision.model_dump(mode="json"),
            "policy": stored.policy.model_dump(mode="json"),
        }
    return {
        **evaluation.model_dump(mode="json", exclude={"read", "signature"}),
        "decision": decided,
    }


def _write(output: Path, results: dict[str, Any]) -> None:
    import json

    from thumbwheel.core.errors import InputError

    try:
        output.write_text(
            json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
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
    log.table(title, columns, [_line(evaluation.primary)])
    for suite in evaluation.suites:
        if shown := [one for one in suite.measures if one.name != evaluation.primary.name]:
            log.table(f"suite {suite.name}", columns, [_line(one) for one in shown])
    guards = [
        (one.name, _number(one.before), _number(one.after), one.n) for one in evaluation.guards
    ]
    log.table("guards", ("guard", "before", "after", "n"), guards)
    if evaluation.slices:
        log.table("slices", columns, [_line(one) for one in evaluation.slices])
    _show_serving(evaluation)
    if evaluation.examples:
        rows = [
            (
                one.case,
                f"{one.value_before:g} -> {one.value_after:g}",
                _short(one.before),
                _short(one.after),
            )
            for one in evaluation.examples
        ]
        log.table("most changed", ("case", "value", "before", "after"), rows)
    for remark in remarks(evaluation):
        log.say(remark)
    if stored is not None:
        log.table(
            f"decision: {stored.decision.verdict} ({stored.id})",
            ("reasons",),
            [(reason,) for reason in stored.decision.reasons],
        )


def remarks(evaluation: Evaluation) -> list[str]:
    """What has to be known besides the tables."""
    from thumbwheel.evaluation.secondary_tests import described

    words = described(one.details for one in evaluation.suites)
    found = [f"other methods on the same answers: {words}"] if words else []
    found += [f"left out: {count} x {reason}" for reason, count in evaluation.dropped.items()]
    found += [f"note: {note}" for note in evaluation.notes]
    if evaluation.prompting is not None:
        found.append(f"weights or a prompt: {evaluation.weights_pay}")
    if evaluation.reads > 1:
        found.append(
            f"note: this is look {evaluation.reads} at these rows, over all versions; the gate "
            "asks for more confidence each time"
        )
    return found


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
    rows = [
        (
            one.side,
            _number(one.success),
            one.answers,
            *(_number(value) for value in (one.tokens, one.seconds, one.slowest, one.cost)),
        )
        for one in evaluation.serving
    ]
    if rows:
        log.table("quality, time and price of an answer", columns, rows)


def _line(one: Measure) -> tuple[object, ...]:
    interval = "not known" if one.spread.error is None else f"{one.low:+.3f} .. {one.high:+.3f}"
    shown = "" if one.adjusted is None else f"{one.adjusted:.2g}"
    return (
        one.name,
        f"{one.before:.3f}",
        f"{one.after:.3f}",
        f"{one.gain:+.3f}",
        interval,
        shown,
        one.n,
        one.clusters,
    )


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
