"""The commands of capture: `import`, `feedback add|list|stats`, `case add|list`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thumbwheel.capture.trace_types import (
    AddedCases,
    AddedFeedback,
    CaseDraft,
    CasePage,
    FeedbackFigures,
    FeedbackTarget,
    ListedCase,
    ListedFeedback,
)
from thumbwheel.core import present
from thumbwheel.core.errors import DataError
from thumbwheel.core.options import Here
from thumbwheel.importers.import_report import DetectedFile, ImportReport, SampleRow
from thumbwheel.importers.location import path_or_address
from thumbwheel.jobs.request import JobRequest

if TYPE_CHECKING:
    from thumbwheel.capture.feedback import FeedbackStats
    from thumbwheel.importers.detect import Detection

Agent = Annotated[
    str, typer.Option("--agent", "-a", help="The agent (app) that the data belongs to.")
]
ColumnOptions = Annotated[
    list[str] | None,
    typer.Option(help="MEANING=COLUMN of a table, repeatable: prompt=question."),
]
ScaleOptions = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=WORST:BEST of its numbers, or its words from worst to best, repeatable: "
        "rating=1:10, rating=poor:fair:good."
    ),
]
TimezoneOption = Annotated[
    str | None,
    typer.Option(help="The zone of times that are written without one [default: UTC]."),
]
Limit = Annotated[int, typer.Option(min=1, help="How many to show, newest first.")]
After = Annotated[
    str | None, typer.Option(help="Go on behind this row: the id of the last one of a page.")
]

feedback = typer.Typer()
case = typer.Typer()


def import_(
    ctx: typer.Context,
    source: Annotated[
        str | None,
        typer.Argument(help="The format, as named below.", metavar="SOURCE", show_default=False),
    ] = None,
    path: Annotated[
        Path | None,
        typer.Argument(
            parser=path_or_address, help="The file (also .gz), folder or address.", metavar="PATH"
        ),
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", help="The agent (app) that the data belongs to.")
    ] = None,
    detect: Annotated[
        Path | None,
        typer.Option(
            parser=path_or_address,
            metavar="PATH",
            help="Only name the source of this file, folder or address, and show rows.",
        ),
    ] = None,
    column: ColumnOptions = None,
    scale: ScaleOptions = None,
    timezone: TimezoneOption = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="The stored secret that the server wants, or the password of the database: "
            "thumbwheel secrets set NAME."
        ),
    ] = None,
    agent_type: Annotated[
        str | None,
        typer.Option(
            "--agent-type", "--agent-id", help="Only the rows of this agent, as the data calls it."
        ),
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(help="Only ratings with this tag, repeatable: any of them.")
    ] = None,
    without_tag: Annotated[
        list[str] | None, typer.Option(help="No ratings with this tag, repeatable.")
    ] = None,
    min_confidence: Annotated[
        float | None, typer.Option(help="No ratings of what the app was less sure of.")
    ] = None,
    gold: Annotated[
        bool,
        typer.Option("--gold", help="You reviewed the cases in this file: import them as gold."),
    ] = False,
    reviewer: Annotated[str, typer.Option(help="Who reviewed them, with --gold.")] = "owner",
    rejects: Annotated[
        Path | None,
        typer.Option(help="Write every refused line here (JSON: number, reason, text)."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and check the file; store nothing.")
    ] = False,
    here: Here = False,
) -> JobRequest[ImportReport, ImportReport] | present.Answer[DetectedFile]:
    """Bring traces, feedback and cases in from a file: JSON lines, a JSON array, CSV or Parquet.

    Importing twice adds nothing; a line that cannot be taken is refused with its number and reason
    and stops nothing. The exit code is 0 only where no line was refused. Example: thumbwheel import
    jsonl ratings.jsonl --agent support --rejects refused.jsonl

    Without SOURCE the first rows say which source reads the file: thumbwheel import FILE --agent
    support. Not sure what a file is? thumbwheel import --detect FILE names its source, shows what
    three rows become, and stores nothing.

    jsonl, our own lines (ids are yours; feedback may come before its trace, also in another
    file):

        {"type": "trace", "id": "t1", "session": "s1", "input": "How do I reset it?", "output":
        "Hold the button.", "model": "m1"}

        {"type": "feedback", "target": {"trace": "t1"}, "kind": "thumb", "value": true, "rater":
        "customer-17"}

        {"type": "feedback", "targets": [{"trace": "t1"}, {"trace": "t2"}], "kind": "preference",
        "value": 1}

        {"type": "case", "id": "c1", "input": "2 + 2?", "reference": "4", "checker": "exact_answer",
        "group": "sums"}

    Kinds: thumb (true/false), rating (1 to 5, or with "scale"), score (0 to 1), correction (the
    whole better text), preference (index of the better target, null for a tie), label and outcome
    (with "name"), comment.

    preference, pairs of answers:

        {"prompt": "Name a red fruit.", "chosen": "A cherry.", "rejected": "A banana."}

        {"chosen": "\\n\\nHuman: Hi\\n\\nAssistant: Hello!", "rejected": "\\n\\nHuman:
        Hi\\n\\nAssistant: What?"}

        {"instruction": "Sum it up.", "input": "...", "response1": "...", "response2": "...",
        "annotator1": 1, "annotator2": 0}

    graded, solutions judged right or wrong:

        {"question": "3 + 4?", "ground_truth": "#### 7", "model-a": {"is_correct": false,
        "solution": "A: 8"}}

    openwebui, langfuse, openai, trl: what these programs export or take.

    csv, parquet, tables with any columns: by --column, or guessed by name and shown.

    tau, bfcl, mbpp, humaneval, mt_bench, llmfao: published task sets, runs
    and comparisons.
    """
    from thumbwheel.capture.jobs import ImportSpec
    from thumbwheel.core import log
    from thumbwheel.core.errors import InputError
    from thumbwheel.importers.detect import Options, address_of
    from thumbwheel.importers.detect import detect as detected
    from thumbwheel.importers.location import Address
    from thumbwheel.importers.rating_filter import RatingFilter
    from thumbwheel.importers.sources import SOURCES

    ratings = RatingFilter(frozenset(tag or ()), frozenset(without_tag or ()), min_confidence)
    options = Options.parsed(column, scale, agent_type, gold, ratings, timezone)
    if detect is not None:
        return _detection_answer(detect, source, options)
    if path is None and source is not None and source not in SOURCES.names():
        alone = path_or_address(source)
        if isinstance(alone, Address) or alone.exists():
            source, path = None, alone
    if source is None and path is not None:
        detection = detected(path, options)
        source = detection.source
        log.say(f"reads {path} as {detection.words()}")
    if source is None or agent is None:
        missing = "SOURCE and PATH" if source is None else "--agent"
        raise InputError(
            f"import without {missing}",
            "a source, a path and an agent are needed",
            "Give: thumbwheel import SOURCE PATH --agent AGENT",
        )
    if path is None:
        path = address_of(source)
        log.say(f"reads {path}")
    spec = ImportSpec(
        source=source,
        path=path.url if isinstance(path, Address) else str(path.absolute()),
        agent=agent,
        column=tuple(column or ()),
        scale=tuple(scale or ()),
        timezone=timezone,
        key=key,
        agent_type=agent_type,
        tag=tuple(tag or ()),
        without_tag=tuple(without_tag or ()),
        min_confidence=min_confidence,
        gold=gold,
        reviewer=reviewer,
        rejects=rejects and rejects.absolute(),
        dry_run=dry_run,
    )

    def show(report: ImportReport) -> present.Answer[ImportReport]:
        parts = list(_import_page(report, dry_run, rejects))
        if gold and not report.cases:
            unused = (
                f"--gold changed nothing: a line of source {source!r} is no case. Write cases as "
                "jsonl, or: thumbwheel case add"
            )
            parts.append(present.Note(unused))
        answer = present.page(report, parts)
        return answer.ending(DataError.exit_code) if report.refused else answer

    # An address may hold a password, which belongs into no table.
    stays_here = here or dry_run or isinstance(path, Address)
    return JobRequest("import", spec, show, here=stays_here)


def import_help() -> str:
    """Return the help of `import`: its docstring, and what the sources of plugins say that they
    read."""
    import inspect

    from thumbwheel.importers.sources import SOURCES

    paragraphs = [inspect.getdoc(import_) or ""]
    for name in SOURCES.names():
        about = getattr(SOURCES.get(name), "about", "")
        if about:
            paragraphs.append(f"{name}: {about}")
    return "\n\n".join(paragraphs)


def _detection_answer(path: Path, source: str | None, options: Any) -> present.Answer[DetectedFile]:
    from thumbwheel.importers.detect import detect, sample

    detection = detect(path, options, source)
    rows = sample(path, detection.source, options)
    detected = DetectedFile(detection.source, detection.why, detection.mapping, rows)
    return present.page(detected, _detection_page(path, detection, rows))


def _detection_page(
    path: Path, detection: Detection, rows: list[SampleRow]
) -> Iterator[present.Part]:
    yield detection.words()
    for line in detection.mapping:
        yield f"  {line}"
    shown = []
    for row in rows:
        lines = [f"refused: {row.refused}"] if row.records is None else row.records
        shown += [(row.number, line) for line in lines]
    yield present.Table("Its first rows, nothing stored", ("line", "becomes"), shown)
    command = f"thumbwheel import {detection.source} {path} --agent AGENT"
    yield present.Note(f"Bring it in: {command}")


def _import_page(report: Any, dry_run: bool, rejects: Path | None) -> Iterator[present.Part]:
    counts = [("read", report.read)]
    if not dry_run:
        counts += [("stored", report.stored), ("duplicates", report.duplicates)]
    if report.erased:
        counts.append(("erased earlier", report.erased))
    counts.append(("refused", report.refused))
    counts += [(f"left out: {reason}", count) for reason, count in report.left_out.items()]
    prefix = "found" if dry_run else "new"
    counts += [(f"{prefix}: {noun}", count) for noun, count in report.records.items()]
    title = f"{report.source} -> {report.agent}"
    if dry_run:
        title += " (dry run, nothing stored)"
    for line in report.columns:
        yield present.Note(line)
    yield present.Table(title, ("lines", "count"), counts)
    for line in report.words():
        yield present.Note(f"note: {line}")
    if report.refused:
        refusals = [(refusal["number"], refusal["reason"]) for refusal in report.refusals]
        yield present.Table("Refused lines", ("line", "reason"), refusals)
        not_shown = report.refused - len(report.refusals)
        more = f"{not_shown} more. " if not_shown else ""
        advice = f"All of them are in {rejects}" if rejects else "Keep them with --rejects FILE"
        yield present.Note(more + advice)
    if report.stored and report.records["feedback"]:
        yield present.Note(f"What it would teach: thumbwheel dataset plan --agent {report.agent}")


@feedback.command("add")
def feedback_add(
    ctx: typer.Context,
    target: Annotated[
        str, typer.Argument(help="The trace or session: our id (trc_...) or its own.")
    ],
    agent: Agent,
    thumb: Annotated[str | None, typer.Option(help="up or down.")] = None,
    rating: Annotated[str | None, typer.Option(help="A number from 1 to 5.")] = None,
    score: Annotated[str | None, typer.Option(help="A number from 0 to 1.")] = None,
    correction: Annotated[
        str | None, typer.Option(help="The whole text that the answer should have been.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="NAME=VALUE; true and false are taken as such.")
    ] = None,
    outcome: Annotated[
        str | None, typer.Option(help="NAME=VALUE; a number from 0 to 1, true or false.")
    ] = None,
    comment: Annotated[
        str | None, typer.Option(help="A remark, alone or beside one of the others.")
    ] = None,
    rater: Annotated[str | None, typer.Option(help="Who judged.")] = None,
    supersedes: Annotated[
        str | None, typer.Option(help="The earlier feedback that this one replaces.")
    ] = None,
    retracts: Annotated[
        str | None, typer.Option(help="The earlier feedback that is taken back.")
    ] = None,
) -> present.Answer[AddedFeedback]:
    """Add one judgement about a trace: exactly one of --thumb, --rating, --score, --correction,
    --label, --outcome, --comment.

    Example: thumbwheel feedback add t1 --agent support --thumb down --rater customer-17
    """
    from thumbwheel.capture.feedback import add_feedback

    options = {
        "thumb": thumb,
        "rating": rating,
        "score": score,
        "correction": correction,
        "label": label,
        "outcome": outcome,
    }
    typed = {key: text for key, text in options.items() if text is not None}
    kind, name, value = _signal(typed, comment, retracts)
    note = comment if kind != "comment" else None
    with ctx.obj() as ws:
        fields = {"name": name, "comment": note, "supersedes": supersedes, "retracts": retracts}
        feedback_id = add_feedback(ws, agent, target, kind, value, rater=rater, **fields)
    return present.message(AddedFeedback(feedback_id, kind, value), f"stored {feedback_id}")


def _signal(
    signals: dict[str, str], comment: str | None, retracts: str | None
) -> tuple[str, str | None, Any]:
    """Return (kind, name, value) of the one signal that was typed. Raises InputError for none or
    several."""
    from thumbwheel.capture.feedback import number
    from thumbwheel.core.errors import InputError

    if not signals and (comment is not None or retracts):
        return "comment", None, comment or ""
    if len(signals) != 1:
        typed = ", ".join(f"--{key}" for key in signals) or "none"
        fix = (
            "Give exactly one of --thumb, --rating, --score, --correction, --label, --outcome, "
            "--comment"
        )
        raise InputError(f"signal {typed}", "feedback has exactly one signal", fix)
    ((kind, text),) = signals.items()
    if kind in ("rating", "score"):
        return kind, None, number(text, f"--{kind}")
    if kind == "correction":
        return kind, None, text
    if kind == "thumb":
        if text not in ("up", "down"):
            raise InputError(
                f"--thumb {text!r}", "a thumb points up or down", "Give --thumb up or --thumb down"
            )
        return kind, None, text == "up"
    # a label or an outcome: NAME=VALUE
    name, equals, value = text.partition("=")
    if not name or not equals or not value:
        raise InputError(
            f"--{kind} {text!r}", "it is not NAME=VALUE", f"Give for example --{kind} resolved=true"
        )
    truth = {"true": True, "false": False}.get(value.lower())
    if truth is not None:
        return kind, name, truth
    if kind == "label":
        return kind, name, value
    return kind, name, number(value, f"--outcome {name}")


@feedback.command("list")
def feedback_list(
    ctx: typer.Context,
    agent: Agent,
    kind: Annotated[str | None, typer.Option(help="Only this kind, for example thumb.")] = None,
    limit: Limit = 20,
    after: After = None,
) -> present.Answer[list[ListedFeedback]]:
    """List the newest feedback.

    A page has at most 8 MiB: go on with `after` until nothing comes.
    """
    from thumbwheel.capture.feedback import list_feedback
    from thumbwheel.capture.traces import said_for

    with ctx.obj() as ws:
        rows = list_feedback(ws, agent, kind=kind, limit=limit, after=after)
    listed = [ListedFeedback.of(row) for row in rows]
    columns: dict[str, Callable[[ListedFeedback], object]] = {
        "id": lambda entry: entry.id,
        "kind": lambda entry: f"{entry.kind} {entry.name or ''}".strip(),
        "value": lambda entry: _clip(entry.value),
        "target": lambda entry: _target_names(entry.targets),
        "rater": lambda entry: said_for(vars(entry)) or entry.rater,
        "occurred": lambda entry: f"{entry.occurred_at or entry.recorded_at:%Y-%m-%d %H:%M}",
    }
    empty = (
        "no feedback, or none like that; bring some in: thumbwheel import --help, or let people "
        f"rate: thumbwheel queue create rate --agent {agent}"
    )
    return present.records(listed, f"feedback of {agent}", columns, data=listed, empty=empty)


def _clip(value: Any) -> str:
    return present.shortened(str(value).replace("\n", " "))


def _target_names(targets: Sequence[FeedbackTarget]) -> str:
    names = []
    for target in targets:
        missing = "" if target.target_id else " (not arrived)"
        names.append(target.external_id + missing)
    return ", ".join(names)


@feedback.command("stats")
def feedback_stats(
    ctx: typer.Context,
    agent: Agent,
    period: Annotated[
        str, typer.Option(help="The share of positive feedback by day, week or month.")
    ] = "week",
) -> present.Answer[FeedbackFigures]:
    """Count the feedback by kind and by rater: how positive it is, and how much waits for its
    trace.

    What people called good or bad is also shown over time and by the model version that gave the
    answer. There each person counts once for an answer, by the newest thumb, rating or score, and
    no outcome of a program does.

    Example: thumbwheel feedback stats --agent support --period month
    """
    from thumbwheel.capture.feedback import feedback_stats as count_feedback

    with ctx.obj() as ws:
        stats = count_feedback(ws, agent, period)
    return present.page(
        FeedbackFigures.model_validate(stats.as_dict()), _stats_page(stats, agent, period)
    )


def _stats_page(stats: FeedbackStats, agent: str, period: str) -> Iterator[present.Part]:
    signals = [
        (name, signal.count, _percent(signal.share), len(signal.raters))
        for name, signal in stats.signals.items()
    ]
    columns = ("signal", "count", "positive", "raters")
    yield present.Table(f"feedback of {agent}", columns, signals)
    yield present.Table("raters", ("rater", "count"), stats.raters.most_common(20))
    for title, counts in ((period, stats.periods), ("version", stats.versions)):
        if not counts:
            continue
        rows = [
            (name, len(count.raters), count.judged, count.positive, _percent(count.share))
            for name, count in counts.items()
        ]
        heads = (title, "people", "answers", "positive", "share")
        yield present.Table(f"positive feedback of people by {title}", heads, rows)
    yield present.Note(
        f"{stats.replaced} superseded, retracted or said anew, {stats.unresolved} targets have "
        "not arrived"
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


@case.command("add")
def case_add(
    ctx: typer.Context,
    agent: Agent,
    input: Annotated[str | None, typer.Option(help="What the agent is asked.")] = None,
    reference: Annotated[str | None, typer.Option(help="A right answer.")] = None,
    checker: Annotated[
        str | None,
        typer.Option(
            help="What compares an answer with the reference, for example exact_answer; one with "
            "settings (regex) comes by --file."
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Cases of one group are not independent, for example of one customer."),
    ] = None,
    slice: Annotated[
        list[str] | None,
        typer.Option(help="KEY=VALUE, repeatable: the parts of the table of results."),
    ] = None,
    id: Annotated[
        str | None, typer.Option(help="Your id of the case [default: the hash of its content].")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="A JSON file instead: one case or a list, with the keys of a case line."),
    ] = None,
    reviewer: Annotated[str, typer.Option(help="Who reviewed it.")] = "owner",
) -> present.Answer[AddedCases]:
    """Add a gold case: an input that you reviewed, with a reference, a checker, or both.

    Example: thumbwheel case add --agent support --input "2 + 2?" --reference 4 --checker
    exact_answer
    """
    from thumbwheel.capture.cases import add_case, read_cases
    from thumbwheel.core.errors import InputError

    slices = {}
    for text in slice or []:
        key, _, value = text.partition("=")
        if not key or not value:
            raise InputError(
                f"--slice {text!r}", "it is not KEY=VALUE", "Give for example --slice topic=billing"
            )
        slices[key] = value
    typed = {
        "id": id,
        "input": input,
        "reference": reference,
        "checker": checker,
        "group": group,
        "slices": slices or None,
    }
    if file is not None and any(value is not None for value in typed.values()):
        raise InputError(
            f"--file {str(file)!r}",
            "the case is given both as a file and as options",
            "Give one of them",
        )
    with ctx.obj() as ws:
        cases = read_cases(file) if file else [typed]
        ids = [add_case(ws, agent, reviewer, **fields) for fields in cases]
    more = " ..." if len(ids) > 5 else ""
    return present.message(AddedCases(ids), f"stored {', '.join(ids[:5])}{more}")


CaseId = Annotated[str, typer.Argument(help="The case: cas_..., see case list.")]
Reviewer = Annotated[str, typer.Option(help="Who reviewed it.")]


@case.command("edit")
def case_edit(
    ctx: typer.Context,
    case: CaseId,
    agent: Agent,
    reference: Annotated[
        str | None, typer.Option(help="The right answer; JSON where it was no text.")
    ] = None,
    checker: Annotated[
        str | None, typer.Option(help="What compares an answer with it, for example exact_answer.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Cases of one group are not independent, for example of one customer."),
    ] = None,
    reviewer: Reviewer = "owner",
) -> present.Answer[AddedCases]:
    """Change what makes an answer to a case right; it is gold from now on.

    Evaluations of before keep their results. Example: thumbwheel case edit cas_0f3k2m8v1 --agent
    support --reference "Three days."
    """
    from thumbwheel.capture.cases import edit_case
    from thumbwheel.models.versions import require_agent

    with ctx.obj() as ws:
        edit_case(
            ws,
            require_agent(ws, agent),
            case,
            reviewer,
            reference=reference,
            checker=checker,
            group=group,
        )
    return present.message(AddedCases([case]), f"changed {case}")


@case.command("from-traces")
def case_from_traces(
    ctx: typer.Context,
    agent: Agent,
    traces: Annotated[
        list[str] | None, typer.Argument(metavar="[TRACE]...", help="Ids of traces.")
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Instead of naming traces, draw so many questions that people corrected, or whose "
            "answers they liked.",
        ),
    ] = None,
    reviewer: Reviewer = "owner",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the cases; store nothing.")
    ] = False,
) -> present.Answer[AddedCases]:
    """Make gold cases of traces: the question, with the newest correction as the right answer, or
    without one the answer that was given. You vouch that it is right.

    A model is never trained on the question of a gold case. Without a checker of its own, a fresh
    answer is right if it says exactly the reference: use this for short answers.

    Example: thumbwheel case from-traces trc_0f3k2m8v1 trc_1h5m3n9x2 --agent support

    Example: thumbwheel case from-traces --count 40 --agent support --dry-run
    """
    from thumbwheel.capture.cases import case_drafts, draw_drafts, store_drafts
    from thumbwheel.core.errors import InputError
    from thumbwheel.models.versions import require_agent

    if bool(traces) == (count is not None):
        why = "traces are named and --count draws some" if traces else "no trace is named"
        raise InputError("case from-traces", why, "Give either ids of traces, or --count NUMBER")
    with ctx.obj() as ws:
        owner = require_agent(ws, agent)
        if count is None:
            drafts = case_drafts(ws, owner, traces or ())
        else:
            drafts = draw_drafts(ws, owner, count)
        stored = [] if dry_run else store_drafts(ws, owner, drafts, reviewer)
    columns: dict[str, Callable[[CaseDraft], object]] = {
        "question": lambda draft: _clip(draft.input[-1].get("content")),
        "right answer": lambda draft: _clip(draft.reference),
    }
    if dry_run:
        title = f"gold cases of {agent}, nothing stored"
        return present.records(drafts, title, columns, data=AddedCases([], drafts))
    text = f"{len(stored)} gold cases stored"
    if count is not None:
        text += (
            f"; you vouch for them. See them: thumbwheel case list --agent {agent}; a wrong one: "
            f"thumbwheel case review CASE --undo --agent {agent}"
        )
    return present.message(AddedCases(stored), text)


@case.command("review")
def case_review(
    ctx: typer.Context,
    case: Annotated[list[str], typer.Argument(help="The cases: cas_..., see case list.")],
    agent: Agent,
    undo: Annotated[bool, typer.Option("--undo", help="Take back that they are gold.")] = False,
    reviewer: Reviewer = "owner",
) -> present.Answer[AddedCases]:
    """Vouch for cases, as many as you like: they are gold from now on.

    Example: thumbwheel case review cas_0f3k2m8v1 cas_1h5m3n9x2 --agent support --reviewer anna
    """
    from thumbwheel.capture.cases import vouch_for, withdraw_reviews
    from thumbwheel.models.versions import require_agent

    with ctx.obj() as ws:
        if undo:
            withdraw_reviews(ws, require_agent(ws, agent), case)
        else:
            vouch_for(ws, require_agent(ws, agent), case, reviewer)
    state = "not gold any more" if undo else "gold"
    return present.message(AddedCases(case), f"{len(case)} cases: {state}")


@case.command("list")
def case_list(
    ctx: typer.Context,
    agent: Agent,
    basis: Annotated[str | None, typer.Option(help="gold or feedback.")] = None,
    limit: Limit = 20,
    after: After = None,
) -> present.Answer[CasePage]:
    """List the newest cases, and count those of each basis."""
    from thumbwheel.capture.cases import list_cases

    with ctx.obj() as ws:
        counts, rows = list_cases(ws, agent, basis=basis, limit=limit, after=after)
    totals = ", ".join(f"{count} {basis}" for basis, count in counts.items()) or "none"
    columns: dict[str, Callable[[ListedCase], object]] = {
        "id": lambda case: case.id,
        "basis": lambda case: case.basis,
        "input": lambda case: _clip(case.input),
        "reference": lambda case: _clip(case.reference),
        "checker": lambda case: case.checker,
        "group": lambda case: case.group_key,
    }
    page = CasePage(counts, [ListedCase(**row) for row in rows])
    empty = f"no cases, or none like that; review one: thumbwheel case add --agent {agent} --help"
    title = f"cases of {agent}: {totals}"
    return present.records(page.cases, title, columns, data=page, empty=empty)
