"""`thumbwheel jobs ...`, `thumbwheel worker` and `thumbwheel schedule ...`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thumbwheel.app.job_progress import event_line
from thumbwheel.core import present
from thumbwheel.jobs.types import Job, JobEvent, JobPage, Schedule, WorkerRow

if TYPE_CHECKING:
    from thumbwheel.db.workspace import Workspace

JobId = Annotated[str, typer.Argument(help="The job, or the beginning of its id.", metavar="JOB")]
Name = Annotated[str, typer.Argument(help="The schedule.", metavar="NAME")]

jobs = typer.Typer(no_args_is_help=True)
schedule = typer.Typer(no_args_is_help=True)


@jobs.command("list")
def list_(
    ctx: typer.Context,
    state: Annotated[
        list[str] | None,
        typer.Option(
            help="Only queued, running, cancelling, cancelled, succeeded or failed; repeatable."
        ),
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Only of this kind, as train.")] = None,
    of_agent: Annotated[str | None, typer.Option(help="Only of this agent.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, newest first.")] = 50,
    after: Annotated[str | None, typer.Option(help="Go on after this page's cursor.")] = None,
) -> present.Answer[JobPage]:
    """List the jobs and their states, newest first, and the workers.

    Example: thumbwheel jobs list --state running --state queued
    """
    from thumbwheel.access.presented import actor_names
    from thumbwheel.app.job_paths import shown_job
    from thumbwheel.jobs import queue

    states = [_state(name) for name in state or ()]
    agents = None if of_agent is None else [of_agent]
    with ctx.obj() as ws:
        page, next_page = queue.jobs(
            ws, states=states, kind=kind, agents=agents, after=after, limit=limit
        )
        page = [shown_job(ws, row, ctx.obj.owns_home) for row in page]
        workers = queue.live_workers(ws)
        names = actor_names(ws)
    columns: dict[str, Callable[[Job], object]] = {
        "job": lambda job: job.id,
        "kind": lambda job: job.kind,
        "agent": lambda job: job.agent,
        "state": lambda job: job.state,
        "asked (UTC)": lambda job: f"{job.recorded_at:%Y-%m-%d %H:%M}",
        "by": lambda job: names.get(job.asked_by or "", job.asked_by),
        "progress": _progress,
    }
    empty = "no jobs; long work of a served home becomes one: thumbwheel serve"
    listed = present.records(page, "jobs", columns, empty=empty)
    parts = [*listed.parts, present.Note(_workers_line(workers))]
    if next_page is not None:
        parts.append(present.Note(f"more: --after {next_page}"))
    return present.page(JobPage(page, next_page, len(workers)), parts)


def _state(name: str) -> Any:
    from thumbwheel.core.errors import InputError
    from thumbwheel.core.plugins import nearest
    from thumbwheel.jobs.types import JobState

    try:
        return JobState(name)
    except ValueError:
        states = [state.value for state in JobState]
        raise InputError(
            f"--state {name!r}",
            "no such state",
            f"Known: {', '.join(states)}.{nearest(name, states)}",
        ) from None


def _workers_line(workers: list[WorkerRow]) -> str:
    if not workers:
        return "no worker is alive: thumbwheel serve, or thumbwheel worker"
    return "1 worker is alive" if len(workers) == 1 else f"{len(workers)} workers are alive"


def _progress(job: Job) -> str:
    progress = job.progress
    if progress is None:
        return ""
    of_total = f" of {progress['total']:.0f}" if progress["total"] else ""
    return f"{progress['what']}: {progress['done']:.0f}{of_total} {progress['unit']}".rstrip()


@jobs.command()
def show(ctx: typer.Context, job: JobId) -> present.Answer[Job]:
    """Show a job: its request, its progress, and its result or why it failed.

    Example: thumbwheel jobs show job_06h1
    """
    from thumbwheel.jobs import queue

    with ctx.obj() as ws:
        return _job_answer(ctx, ws, queue.job(ws, job))


def _job_answer(ctx: typer.Context, ws: Workspace, row: Job) -> present.Answer[Job]:
    from thumbwheel.access.presented import actor_names
    from thumbwheel.app.job_paths import shown_job
    from thumbwheel.jobs.queue import obstacle

    job = shown_job(ws, row, ctx.obj.owns_home)
    asked_by = actor_names(ws).get(job.asked_by or "", job.asked_by)
    rows: list[present.Row] = [
        ("state", job.state),
        ("waits", obstacle(ws, row)),
        ("agent", job.agent),
        ("asked", f"{job.recorded_at:%Y-%m-%d %H:%M:%S} UTC"),
        ("asked by", asked_by),
        ("began", job.started_at and f"{job.started_at:%Y-%m-%d %H:%M:%S} UTC"),
        ("ended", job.ended_at and f"{job.ended_at:%Y-%m-%d %H:%M:%S} UTC"),
        ("attempts", job.attempts),
        ("progress", _progress(job)),
        ("spec", present.json_text(job.spec, indent=None)),
    ]
    if job.error is not None:
        rows.append((job.error["kind"], f"{job.error['why']}. {job.error['fix']}"))
    if job.result is not None:
        rows.append(("result", present.shortened(present.json_text(job.result, indent=None), 400)))
    shown = [row for row in rows if row[1] not in (None, "")]
    return present.record(job, f"{job.kind} {job.id}", shown)


@jobs.command()
def logs(
    ctx: typer.Context,
    job: JobId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")
    ] = False,
    after: Annotated[
        int, typer.Option(min=0, help="Only what came after the event of this number.")
    ] = 0,
) -> present.Answer[list[JobEvent]] | present.Lines[JobEvent]:
    """Show the messages and the progress of a job, in order. With --follow --json, one event a
    line.

    Example: thumbwheel jobs logs job_06h1 --follow
    """
    from thumbwheel.app.job_paths import shown_event
    from thumbwheel.jobs import queue

    def followed() -> Iterator[JobEvent]:
        with ctx.obj() as ws:
            yield from queue.follow(ws, job, after)

    if follow:
        return present.Lines(followed(), _line)
    with ctx.obj() as ws:
        rows = queue.events(ws, job, after, limit=100_000)
        events = [shown_event(ws, row, ctx.obj.owns_home) for row in rows]
    return present.page(events, map(_line, events))


def _line(event: JobEvent) -> str:
    return event_line(event.kind, event.content, event.recorded_at)


@jobs.command()
def cancel(ctx: typer.Context, job: JobId) -> present.Answer[Job]:
    """Stop a job: at once where it waits, at a checkpoint where it runs. It can be resumed.

    Example: thumbwheel jobs cancel job_06h1
    """
    from thumbwheel.jobs import queue

    with ctx.obj() as ws:
        return _job_answer(ctx, ws, queue.cancel(ws, job))


@jobs.command()
def resume(ctx: typer.Context, job: JobId) -> present.Answer[Job]:
    """Let a cancelled job go on where it stopped.

    Example: thumbwheel jobs resume job_06h1
    """
    from thumbwheel.jobs import queue

    with ctx.obj() as ws:
        return _job_answer(ctx, ws, queue.resume(ws, job))


@jobs.command()
def retry(ctx: typer.Context, job: JobId) -> present.Answer[Job]:
    """Try a failed job again; what it did before it failed is used.

    Example: thumbwheel jobs retry job_06h1
    """
    from thumbwheel.jobs import queue

    with ctx.obj() as ws:
        return _job_answer(ctx, ws, queue.retry(ws, job))


def worker(
    ctx: typer.Context,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End once no job waits that could be done.")
    ] = False,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Do the jobs of this home, one at a time, until it is stopped.

    `thumbwheel serve` starts workers by itself. More of them, also on other hosts where the home's
    database is PostgreSQL, share the jobs. On Ctrl-C or SIGTERM the job stops at a checkpoint, and
    another worker goes on with it.

    Example: thumbwheel worker --until-idle
    """
    import signal

    from thumbwheel.app.job_kinds import job_kinds, part_kinds
    from thumbwheel.core.child import die_with_parent
    from thumbwheel.jobs.supervisor import SPENT
    from thumbwheel.jobs.types import JobsConfig
    from thumbwheel.jobs.worker import Worker

    if parent is not None:
        die_with_parent(signal.SIGTERM)
        if os.getppid() != parent:  # it died before the call
            raise typer.Exit
    process = Worker(
        open_home=ctx.obj,
        kinds=job_kinds(),
        part_kinds=part_kinds(),
        config=ctx.obj.settings().load(JobsConfig, "jobs"),
        settings=ctx.obj.settings_fingerprint(),
        stop_when_idle=until_idle,
    )
    if not process.run():
        return
    # What a job has loaded, or left half done, stays in memory until its process ends. The
    # interpreter is not taken apart: threads of a job that was interrupted may never end.
    sys.stderr.flush()
    if parent is not None:
        os._exit(SPENT)  # the server starts a fresh one
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


@schedule.command("list")
def list_schedules(
    ctx: typer.Context,
    of_agent: Annotated[str | None, typer.Option(help="Only of this agent.")] = None,
) -> present.Answer[Sequence[Schedule]]:
    """List the schedules, and when each fires next.

    Example: thumbwheel schedule list
    """
    from thumbwheel.jobs.schedules import schedules

    with ctx.obj() as ws:
        rows = schedules(ws, of_agent)
    columns: dict[str, Callable[[Schedule], object]] = {
        "schedule": lambda row: row.name,
        "job": lambda row: row.kind,
        "agent": lambda row: row.agent,
        "cron": lambda row: f"{row.cron} ({row.timezone})",
        "missed runs": lambda row: row.missed,
        "next (UTC)": lambda row: _next(row),
    }
    empty = "no schedules; add one: thumbwheel schedule add --help"
    return present.records(rows, "schedules", columns, empty=empty)


def _next(row: Schedule) -> str:
    if row.paused:
        return "paused"
    return f"{row.next_at:%Y-%m-%d %H:%M}" if row.next_at else "never again"


@schedule.command("add")
def add(
    ctx: typer.Context,
    name: Name,
    cron: Annotated[
        str, typer.Option(help='Minute, hour, day, month and weekday, as "30 3 * * 1-5".')
    ],
    job: Annotated[str, typer.Option(help='What to do: "loop run", "reward pending", train, ...')],
    agent: Annotated[str, typer.Option(help="The agent that it is for.")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="An option of that command, as deploy=embedded; repeatable."),
    ] = None,
    timezone: Annotated[str, typer.Option(help="The zone of these times, as Europe/Berlin.")] = (
        "UTC"
    ),
    missed: Annotated[
        str,
        typer.Option(
            help="What becomes of runs that no worker was there to start: once (one for all), "
            "skip, or all."
        ),
    ] = "once",
) -> present.Answer[Schedule]:
    """Let the clock ask for a job.

    Example: thumbwheel schedule add nightly --cron "30 3 * * *" --job "loop run" --agent support
    --timezone Europe/Berlin --set deploy=embedded
    """
    from thumbwheel.app.run_or_submit import checked_spec, spec_json
    from thumbwheel.core.errors import InputError
    from thumbwheel.jobs import schedules
    from thumbwheel.jobs.types import Missed

    rules = [rule.value for rule in Missed]
    if missed not in rules:
        raise InputError(
            f"--missed {missed!r}", "there is no such rule", f"Known: {', '.join(rules)}"
        )
    spec = checked_spec(job, {"agent": agent, **_spec_of(job, set_ or [])})
    with ctx.obj() as ws:
        row = schedules.add(
            ws,
            name,
            job,
            spec_json(spec),
            cron,
            agent=agent,
            timezone=timezone,
            missed=Missed(missed),
            asked_by=ctx.obj.actor,
        )
    return _schedule_answer(row)


def _spec_of(kind: str, settings: list[str]) -> dict[str, Any]:
    """Return the job spec from `NAME=VALUE` settings: fields of the kind's spec by name, all others
    as its options. Raises InputError for a setting without a value."""
    import yaml

    from thumbwheel.app.job_kinds import job_kind
    from thumbwheel.core.errors import InputError

    fields = job_kind(kind).spec.model_fields
    spec: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"--set {setting!r}", "it has no value", "Write it as epochs=2")
        value = yaml.safe_load(text)
        if name in fields or "options" not in fields:
            spec[name] = value
        else:
            spec.setdefault("options", {})[name] = value
    return spec


def _schedule_answer(row: Schedule) -> present.Answer[Schedule]:
    rows: list[present.Row] = [
        ("job", row.kind),
        ("agent", row.agent),
        ("cron", f"{row.cron} ({row.timezone})"),
        ("missed runs", row.missed),
        ("next", _next(row)),
        ("spec", present.json_text(row.spec, indent=None)),
    ]
    return present.record(row, f"schedule {row.name}", rows)


@schedule.command("pause")
def pause(
    ctx: typer.Context,
    name: Name,
    resume: Annotated[bool, typer.Option("--resume", help="Let it go on.")] = False,
) -> present.Answer[Schedule]:
    """Pause a schedule, or let it go on; what the pause left out is not made up for.

    Example: thumbwheel schedule pause nightly
    """
    from thumbwheel.jobs import schedules

    with ctx.obj() as ws:
        row = schedules.pause(ws, name, paused=not resume)
    return _schedule_answer(row)


@schedule.command("remove")
def remove(ctx: typer.Context, name: Name) -> present.Answer[Schedule]:
    """Delete a schedule; jobs that it asked for stay.

    Example: thumbwheel schedule remove nightly
    """
    from thumbwheel.jobs import schedules

    with ctx.obj() as ws:
        row = schedules.remove(ws, name)
    return present.message(row, f"schedule {row.name} is removed")
