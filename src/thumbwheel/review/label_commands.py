"""`thumbwheel label`: learn from labels, suggest more, review or accept them; how far raters and
judging models agree."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from thumbwheel.core import present
from thumbwheel.core.config import options
from thumbwheel.core.files import write_output
from thumbwheel.review.label_config import LearnConfig
from thumbwheel.review.types import (
    AcceptedSuggestions,
    ClassifierReport,
    DecidedQuestion,
    LabelAgreement,
    LabelStatus,
    LearnedClassifier,
    ShownQuestion,
    Suggested,
)

if TYPE_CHECKING:
    from thumbwheel.review.agreement import Panel

label = typer.Typer()

Agent = Annotated[str, typer.Option("--agent", "-a", help="The agent whose traces are meant.")]
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
    options: Mapping[str, Any] = {},
) -> present.Answer[LearnedClassifier]:
    """Fit a classifier on what people called good and bad, and say how good it is on traces that it
    had not seen.

    Example: thumbwheel label learn --agent support --out classifier.json
    """
    from thumbwheel.models.documents import as_bytes
    from thumbwheel.review.learn import learn

    with ctx.obj() as ws:
        name, classifier = learn(ws, agent, ws.settings(LearnConfig, "label", options))
    if out is not None:
        write_output("--out", out, as_bytes(classifier.document()))
    learned = cast(LearnedClassifier, {"classifier": name, **classifier.about})
    return present.page(learned, [_report_table(name, agent, learned["report"])])


def _report_table(classifier: str, agent: str, report: ClassifierReport) -> present.Table:
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
    title = f"classifier {classifier[:12]} of {agent} (cross-validated, 95 % intervals)"
    return present.Table(title, ("", ""), rows)


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
    options: Mapping[str, Any] = {},
) -> present.Answer[Suggested]:
    """Suggest labels for traces without one, the most telling first: uncertain, and unlike those
    before.

    Suggestions are not feedback: nothing learns from one until a person has reviewed or accepted
    it. Example: thumbwheel label suggest --agent support --limit 50
    """
    from thumbwheel.review.suggest import suggest

    with ctx.obj() as ws:
        suggested = suggest(ws, agent, limit, ws.settings(LearnConfig, "label", options))
    seen = ""
    if suggested.looked_at != suggested.unlabelled:
        seen = f" (from {suggested.looked_at} of {suggested.unlabelled} traces without a label)"
    next_step = (
        f"{suggested.new} new suggestions{seen}. Next: thumbwheel label review --agent {agent} "
        "--rater YOU"
    )
    table = _report_table(suggested.classifier, agent, suggested.report)
    return present.page(suggested, [table, present.Note(next_step)])


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
    from thumbwheel.review.suggest import decide, questions

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
        present.show_json_line({"done": became})
        return
    counts = ", ".join(f"{count} {state}" for state, count in became.items())
    present.show([present.Note(counts or "nothing was decided")])


@label.command("questions")
def questions_(
    ctx: typer.Context,
    agent: Agent,
    limit: Annotated[int, typer.Option(min=1, help="How many, the most telling first.")] = 20,
    show: Annotated[
        bool, typer.Option("--show", help="Show what is suggested, too; that sways people.")
    ] = False,
) -> present.Answer[list[ShownQuestion]]:
    """List the suggestions that nobody has decided on; decide them one by one with `label decide`.
    It is `label review` for a page or a script.

    Example: thumbwheel label questions --agent support --limit 5
    """
    from thumbwheel.review.suggest import questions

    with ctx.obj() as ws:
        listed = list(islice(questions(ws, agent), limit))
    parts: list[present.Part] = []
    for question in listed:
        parts += [present.Note(question.id), *_question_page(question, show)]
    data = [_question_json(question, show) for question in listed]
    return present.page(data, parts or [present.Note("nothing is to be decided")])


@label.command("decide")
def decide_(
    ctx: typer.Context,
    question: Annotated[str, typer.Argument(help="Its id, from label questions.", metavar="ID")],
    agent: Agent,
    verdict: Annotated[str, typer.Option(help="y (the answer is good), n, or s (skip).")],
    rater: Rater,
    shown: Annotated[
        bool, typer.Option("--shown", help="The rater saw what was suggested.")
    ] = False,
) -> present.Answer[DecidedQuestion]:
    """Decide on one suggestion; the verdict is stored as a thumb of the rater.

    Example: thumbwheel label decide sug_06h1 --agent support --verdict y --rater anna
    """
    from thumbwheel.core.errors import InputError
    from thumbwheel.review.suggest import decide, open_question

    if verdict not in KEYS:
        raise InputError(f"--verdict {verdict[:40]!r}", "it is not a verdict", "Give y, n or s")
    with ctx.obj() as ws:
        asked = open_question(ws, agent, question)
        how = "shown" if shown else "review"
        state = decide(ws, agent, asked, KEYS[verdict], rater, how)
    decided = DecidedQuestion(asked.id, asked.trace_id, state)
    return present.message(decided, f"{asked.trace_id}: {state}")


def _ask(question: Any, show: bool, as_json: bool) -> None:
    if as_json:
        present.show_json_line(_question_json(question, show))
    else:
        present.show(_question_page(question, show))


def _question_json(question: Any, show: bool) -> ShownQuestion:
    return ShownQuestion(
        id=question.id,
        trace=question.trace_id,
        prompt=list(question.prompt),
        answer=question.text,
        good=question.good if show else None,
        confidence=round(question.confidence, 3) if show else None,
    )


def _question_page(question: Any, show: bool) -> Iterator[present.Part]:
    for message in question.prompt:
        content = message.get("content")
        text = content if isinstance(content, str) else json.dumps(content)
        yield f"{message['role']}: {text}"
    yield present.Box(question.trace_id, question.text)
    if show:
        verdict = "good" if question.good else "bad"
        yield f"suggested: {verdict} ({question.confidence:.0%})"


def _key(as_json: bool) -> str:
    """Read y, n, s or q; the end of the input is q, and any other key is asked for again."""
    while True:
        if not as_json:
            present.write("Is this answer good? [y/n/s/q] ")
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
) -> present.Answer[AcceptedSuggestions]:
    """Take suggestions as they are, as thumbs of yours. Unseen, so they count nothing for how often
    suggestions are right.

    Example: thumbwheel label accept --agent support --rater anna --min-confidence 0.95
    """
    from thumbwheel.review.suggest import accept

    with ctx.obj() as ws:
        accepted = accept(ws, agent, rater, names or [], min_confidence)
    return present.message(AcceptedSuggestions(list(accepted)), f"{len(accepted)} accepted")


@label.command("status")
def status_(ctx: typer.Context, agent: Agent) -> present.Answer[LabelStatus]:
    """Labels, suggestions by state, and how often reviewers agreed with suggestions, by their
    confidence."""
    from thumbwheel.review.suggest import status

    with ctx.obj() as ws:
        counts = status(ws, agent)
    return present.page(counts, _status_page(counts, agent))


def _status_page(counts: LabelStatus, agent: str) -> Iterator[present.Part]:
    rows: list[tuple[str, object]] = [
        *counts["labels"].items(),
        *counts["suggestions"].items(),
    ]
    yield present.Table(f"labels of {agent}", ("", "count"), rows)
    if not counts["bands"]:
        return
    bands = []
    for band in counts["bands"]:
        confidence = f"{band['from']:.1f} to {band['to']:.1f}"
        share = f"{band['share']:.2f} ({band['low']:.2f} to {band['high']:.2f})"
        bands.append((confidence, band["reviewed"], band["agreed"], share))
    columns = ("confidence", "reviewed", "agreed", "share (95 % interval)")
    yield present.Table("reviewers and suggestions", columns, bands)
    yield present.Note(f"kappa {_interval(counts['kappa'])}")


@label.command("agreement")
def agreement_(ctx: typer.Context, agent: Agent) -> present.Answer[LabelAgreement]:
    """Measure how far raters agree beyond chance: all people, each against the crowd of the others,
    and judging models against the people.

    Example: thumbwheel label agreement --agent support
    """
    from thumbwheel.models.documents import documents
    from thumbwheel.review.agreement import KIND, agreement

    with ctx.obj() as ws:
        panels = agreement(ws, agent)
        stated = [
            panel.content | {"recorded_at": str(panel.recorded_at)}
            for panel in documents(ws, KIND, agent)
        ]
    parts: list[present.Part] = [_panel_table(panel, agent) for panel in panels]
    if stated:
        parts.append(_judges_table(stated))
    if not parts:
        parts.append(present.Note("no two raters judged the same thing"))
    data = cast(LabelAgreement, {"panels": [panel.as_dict() for panel in panels], "judges": stated})
    return present.page(data, parts)


def _panel_table(panel: Panel, agent: str) -> present.Table:
    rows: list[tuple[object, ...]] = []
    for metric, figure in panel.people.items():
        alpha = _interval(figure.as_dict())
        rows.append((f"all people, alpha ({metric})", figure.units, "", alpha))
    for prefix, raters in (("", panel.raters), ("judge ", panel.judges)):
        for rater in raters:
            kappa = _interval(rater.agreement.as_dict())
            rows.append((f"{prefix}{rater.rater}, kappa", rater.agreement.units, rater.torn, kappa))
    columns = ("who", "compared", "no crowd", "agreement (95 % interval)")
    return present.Table(f"{panel.kind} of {agent}", columns, rows)


def _judges_table(stated: Iterable[Mapping[str, Any]]) -> present.Table:
    rows = []
    for statement in stated:
        kappa = _interval({**statement, "value": statement["kappa"]})
        judge, recorded = statement["judge"][:12], statement["recorded_at"][:16]
        rows.append((statement["model"], judge, statement["pairs"], kappa, recorded))
    columns = ("model", "judge", "pairs", "kappa (95 % interval)", "recorded")
    return present.Table("stated agreement of judges with people", columns, rows)


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
) -> present.Answer[Any]:
    """Ask a judging model about pairs that people compared, and state how far it agrees with them.

    Without that it is no checker of cases, and as the suite that decides it allows a canary at
    most.

    Example: thumbwheel label trust --agent support --url http://127.0.0.1:11434/v1 --model qwen3:8b
    --out agreement.json
    """
    from thumbwheel.core.config import build
    from thumbwheel.models.documents import as_bytes
    from thumbwheel.review.agreement import trust
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
        write_output("--out", out, as_bytes(stated))
    parts: list[present.Part] = [_judges_table([stated | {"recorded_at": "now"}])]
    for reason, count in stated["reasons"]:
        parts.append(present.Note(f"{count} pairs without a verdict: {reason}"))
    return present.page(stated, parts)
