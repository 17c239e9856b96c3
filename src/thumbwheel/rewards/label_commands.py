"""`thumbwheel label`: learn from labels, suggest more, review or accept them; how far raters and
judging models agree."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from thumbwheel.core import log
from thumbwheel.core.config import options
from thumbwheel.rewards.label_config import LearnConfig

label = typer.Typer()

Agent = Annotated[str, typer.Option("--agent", "-a", help="The agent whose traces are meant.")]
AsJson = Annotated[bool, typer.Option("--json", help="The answer as JSON on standard output.")]
Rater = Annotated[str, typer.Option(help="Who judges; the verdicts are theirs.")]
KEYS = {"y": True, "n": False, "s": None}
"""What a reviewer may type, besides q to stop."""


@label.command("learn")
@options(LearnConfig)
def learn_(
    ctx: typer.Context,
    agent: Agent,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the classifier here, for the reward function `learned`."),
    ] = None,
    as_json: AsJson = False,
    options: Mapping[str, Any] = {},
) -> None:
    """Fit a classifier on what people called good and bad, and say how good it is on traces that it
    had not seen.

    Example: thumbwheel label learn --agent support --out classifier.json
    """
    from thumbwheel.models.documents import as_bytes
    from thumbwheel.rewards.learn import learn

    with ctx.obj() as ws:
        name, classifier = learn(ws, agent, ws.settings(LearnConfig, "label", options))
    if out is not None:
        _write(out, as_bytes(classifier.document()))
    if as_json:
        log.answer({"classifier": name, **classifier.about})
        return
    _show_report(f"classifier {name[:12]} of {agent}", classifier.about["report"])


def _write(path: Path, content: bytes) -> None:
    from thumbwheel.core.errors import InputError

    try:
        path.write_bytes(content)
    except OSError as error:
        raise InputError(
            f"--out {str(path)!r}", error.strerror or str(error), "Name a file that can be written"
        ) from None


def _show_report(title: str, report: Mapping[str, Any]) -> None:
    labels = (
        f"{report['labels']}: {report['good']} good, {report['bad']} bad, of "
        f"{report['groups']} prompts or sessions"
    )
    accuracy = (
        f"{_interval(report['accuracy'])}; always the more frequent label: {report['majority']:.3f}"
    )
    brier = (
        f"{_interval(report['brier'])}; the share of good ones for all: "
        f"{report['brier_majority']:.3f}"
    )
    rows = [
        ("labels", labels),
        ("accuracy", accuracy),
        ("gain over that", _interval(report["gain"])),
        ("area under the ROC curve", _interval(report["auc"])),
        ("Brier score", brier),
    ]
    log.table(f"{title} (cross-validated, 95 % intervals)", ["", ""], rows)


def _interval(figure: Mapping[str, Any]) -> str:
    if figure["value"] is None:
        return "unknown: too little to tell"
    ends = "" if figure["low"] is None else f" ({figure['low']:.3f} to {figure['high']:.3f})"
    return f"{figure['value']:.3f}{ends}"


@label.command("suggest")
@options(LearnConfig)
def suggest_(
    ctx: typer.Context,
    agent: Agent,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="Open suggestions to have, at most.")
    ] = 50,
    as_json: AsJson = False,
    options: Mapping[str, Any] = {},
) -> None:
    """Suggest labels for traces without one, the most telling first: uncertain, and unlike those
    before.

    Suggestions are not feedback: nothing learns from one until a person has reviewed or accepted
    it. Example: thumbwheel label suggest --agent support --limit 50
    """
    from thumbwheel.rewards.suggest import suggest

    with ctx.obj() as ws:
        suggested = suggest(ws, agent, limit, ws.settings(LearnConfig, "label", options))
    if as_json:
        log.answer(vars(suggested))
        return
    _show_report(f"classifier {suggested.classifier[:12]} of {agent}", suggested.report)
    seen = (
        ""
        if suggested.looked_at == suggested.unlabelled
        else f" (of {suggested.looked_at} traces without a label)"
    )
    log.say(
        f"{suggested.new} new suggestions{seen}. Next: thumbwheel label review --agent {agent} "
        "--rater YOU"
    )


@label.command("review")
def review(
    ctx: typer.Context,
    agent: Agent,
    rater: Rater,
    show: Annotated[
        bool,
        typer.Option("--show", help="Show what is suggested before you decide; that sways people."),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="For scripts: one JSON line a question, one line with y, n, s or q back."
        ),
    ] = False,
) -> None:
    """Decide, one trace after the other, whether the answer is good: y, n, s (skip) or q (stop).

    Each verdict is stored at once as a thumb of yours; stop whenever you like, and the same command
    goes on. Example: thumbwheel label review --agent support --rater anna
    """
    from thumbwheel.rewards.suggest import decide, questions

    became: dict[str, int] = {}
    with ctx.obj() as ws:
        for question in questions(ws, agent):
            _ask(question, show, as_json)
            key = _key(as_json)
            if key not in KEYS:
                break
            state = decide(ws, agent, question, KEYS[key], rater, "shown" if show else "review")
            became[state] = became.get(state, 0) + 1
    if as_json:
        log.answer({"done": became}, indent=None)
    else:
        log.say(
            ", ".join(f"{count} {state}" for state, count in became.items())
            or "nothing was decided"
        )


def _ask(question: Any, show: bool, as_json: bool) -> None:
    if as_json:
        row = {
            "id": question.id,
            "trace": question.trace_id,
            "prompt": list(question.prompt),
            "answer": question.text,
        }
        if show:
            row |= {"good": question.good, "confidence": round(question.confidence, 3)}
        log.answer(row, indent=None)
        return
    from rich.panel import Panel
    from rich.text import Text

    screen = log.console(stderr=False)
    for message in question.prompt:
        content = message.get("content")
        text = content if isinstance(content, str) else json.dumps(content)
        screen.print(Text(f"{message['role']}: {text}", style="dim"))
    screen.print(Panel(Text(question.text), title=Text(question.trace_id), title_align="left"))
    if show:
        verdict = "good" if question.good else "bad"
        screen.print(Text(f"suggested: {verdict} ({question.confidence:.0%})"))


def _key(as_json: bool) -> str:
    """y, n, s or q; the end of the input is q, and anything else is asked again."""
    while True:
        if not as_json:
            log.write("Is this answer good? [y/n/s/q] ")
        line = sys.stdin.readline()
        typed = line.strip().strip('"').lower()[:1]
        if not line or typed == "q":
            return "q"
        if typed in KEYS:
            return typed


@label.command("accept")
def accept_(
    ctx: typer.Context,
    agent: Agent,
    rater: Rater,
    names: Annotated[
        list[str] | None, typer.Argument(help="Suggestions or traces.", metavar="[ID]...")
    ] = None,
    min_confidence: Annotated[
        float | None, typer.Option(min=0.5, max=1.0, help="All from this confidence on, unseen.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Take suggestions as they are, as thumbs of yours. Unseen, so they count nothing for how often
    suggestions are right.

    Example: thumbwheel label accept --agent support --rater anna --min-confidence 0.95
    """
    from thumbwheel.rewards.suggest import accept

    with ctx.obj() as ws:
        accepted = accept(ws, agent, rater, names or [], min_confidence)
    if as_json:
        log.answer({"accepted": accepted})
    else:
        log.say(f"{len(accepted)} accepted")


@label.command("status")
def status_(ctx: typer.Context, agent: Agent, as_json: AsJson = False) -> None:
    """Labels, suggestions by state, and how often reviewers agreed with suggestions, by their
    confidence."""
    from thumbwheel.rewards.suggest import status

    with ctx.obj() as ws:
        counts = status(ws, agent)
    if as_json:
        log.answer(counts)
        return
    log.table(
        f"labels of {agent}",
        ["", "count"],
        [*counts["labels"].items(), *counts["suggestions"].items()],
    )
    if counts["bands"]:
        rows = [
            (
                f"{band['from']:.1f} to {band['to']:.1f}",
                band["reviewed"],
                band["agreed"],
                _band(band),
            )
            for band in counts["bands"]
        ]
        log.table(
            "reviewers and suggestions",
            ["confidence", "reviewed", "agreed", "share (95 % interval)"],
            rows,
        )
        log.say(f"kappa {_interval(counts['kappa'])}")


def _band(band: Mapping[str, Any]) -> str:
    return f"{band['share']:.2f} ({band['low']:.2f} to {band['high']:.2f})"


@label.command("agreement")
def agreement_(ctx: typer.Context, agent: Agent, as_json: AsJson = False) -> None:
    """How far raters agree beyond chance: all people, each against the crowd of the others, and
    judging models against the people.

    Example: thumbwheel label agreement --agent support
    """
    from thumbwheel.models.documents import documents
    from thumbwheel.rewards.agreement import KIND, agreement

    with ctx.obj() as ws:
        panels = agreement(ws, agent)
        stated = [
            panel.content | {"recorded_at": str(panel.recorded_at)}
            for panel in documents(ws, KIND, agent)
        ]
    if as_json:
        log.answer({"panels": [panel.as_dict() for panel in panels], "judges": stated})
        return
    for panel in panels:
        rows: list[tuple[object, ...]] = [
            (f"all people, alpha ({metric})", figure.units, "", _interval(figure.as_dict()))
            for metric, figure in panel.people.items()
        ]
        rows += [
            (
                f"{rater.rater}, kappa",
                rater.agreement.units,
                rater.torn,
                _interval(rater.agreement.as_dict()),
            )
            for rater in panel.raters
        ]
        rows += [
            (
                f"judge {rater.rater}, kappa",
                rater.agreement.units,
                rater.torn,
                _interval(rater.agreement.as_dict()),
            )
            for rater in panel.judges
        ]
        log.table(
            f"{panel.kind} of {agent}",
            ["who", "compared", "no crowd", "agreement (95 % interval)"],
            rows,
        )
    _show_judges(stated)
    if not panels and not stated:
        log.say("no two raters judged the same thing")


def _show_judges(stated: Iterable[Mapping[str, Any]]) -> None:

    rows = [
        (
            statement["model"],
            statement["judge"][:12],
            statement["pairs"],
            _interval({**statement, "value": statement["kappa"]}),
            statement["recorded_at"][:16],
        )
        for statement in stated
    ]
    if rows:
        log.table(
            "stated agreement of judges with people",
            ["model", "judge", "pairs", "kappa (95 % interval)", "recorded"],
            rows,
        )


@label.command("trust")
def trust_(
    ctx: typer.Context,
    agent: Agent,
    url: Annotated[str, typer.Option(help="The endpoint, for example http://127.0.0.1:11434/v1.")],
    model: Annotated[str, typer.Option(help="The judging model.")],
    criteria: Annotated[
        str | None,
        typer.Option(help="What makes an answer better [default: that of the function `judge`]."),
    ] = None,
    api_key_variable: Annotated[
        str | None, typer.Option(help="The environment variable that holds the key.")
    ] = None,
    structured: Annotated[bool, typer.Option(help="Ask with response_format.")] = True,
    most: Annotated[
        int, typer.Option(min=1, help="Pairs to ask about, at most; each is two questions.")
    ] = 300,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the statement here, for the setting `agreement` of the function `judge`."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ask a judging model about pairs that people compared, and state how far it agrees with them.

    Without that it is no checker of cases, and as the suite that decides it allows a canary at
    most.

    Example: thumbwheel label trust --agent support --url http://127.0.0.1:11434/v1 --model qwen3:8b
    --out agreement.json
    """
    from thumbwheel.core.config import build
    from thumbwheel.models.documents import as_bytes
    from thumbwheel.rewards.agreement import trust
    from thumbwheel.rewards.functions.judge import Judge

    settings = {
        "url": url,
        "model": model,
        "criteria": criteria,
        "api_key_variable": api_key_variable,
        "structured": structured,
    }
    judge = Judge(
        build(
            Judge.Config,
            {key: value for key, value in settings.items() if value is not None},
            "options",
        )
    )  # type: ignore[arg-type]
    with ctx.obj() as ws:
        stated = trust(ws, agent, judge, most)
    if out is not None:
        _write(out, as_bytes(stated))
    if as_json:
        log.answer(stated)
        return
    _show_judges([stated | {"recorded_at": "now"}])
    for reason, count in stated["reasons"]:
        log.say(f"{count} pairs without a verdict: {reason}")
