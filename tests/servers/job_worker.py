"""Workers with a kind of job of their own, in processes that tests and benchmarks kill.

    python -m tests.servers.job_worker HOME --lease 1 --host elsewhere
    python -m tests.servers.job_worker HOME --serve 2          # a server with two workers

A job of kind `steps` writes one row a step (an agent, whose name may be there once only) and notes
the step, both in one write: a step that is done twice is an error of the database.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids, log
from thumbwheel.core.config import Config, Home, Sources
from thumbwheel.core.errors import InputError
from thumbwheel.db.schema import agents
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs import current, store
from thumbwheel.jobs.host import Host
from thumbwheel.jobs.part_types import PartHandler, PartKind, PartOutcome
from thumbwheel.jobs.parts import share
from thumbwheel.jobs.supervisor import SPENT
from thumbwheel.jobs.types import HEAVY, Job, JobKind, JobsConfig
from thumbwheel.jobs.worker import Worker

BORDERS = ("begin", "before write", "after write", "end")


class StepsSpec(Config):
    """What to do."""

    name: str
    steps: int
    seconds: float = 0.0
    """Of a step."""
    kills: tuple[tuple[int, str], ...] = ()
    """(step, border) at which the worker kills itself, once each."""
    holds_until: str | None = None
    """A file that the steps wait for, from `holds_from` on."""
    holds_from: int = 0


def run_steps(ws: Workspace, spec: StepsSpec) -> dict[str, Any]:
    """Do the steps that are not done yet."""
    job = current._job
    assert job is not None
    with log.progress("steps", spec.steps, "steps") as advance:
        first = int(current.notes().get("steps", 0))
        advance(first)
        for step in range(first, spec.steps):
            die(ws, spec, step, "begin")
            time.sleep(spec.seconds)
            if spec.holds_until and step >= spec.holds_from:
                while not Path(spec.holds_until).exists():
                    time.sleep(0.02)
            die(ws, spec, step, "before write")
            ws.db.write(lambda connection, step=step: _do(connection, job, spec, step))
            die(ws, spec, step, "after write")
            advance(1)
    die(ws, spec, spec.steps, "end")
    return {"name": spec.name, "steps": spec.steps}


def _do(connection: sa.Connection, job: Job, spec: StepsSpec, step: int) -> None:
    row = {
        "id": ids.new("agt"),
        "slug": f"{spec.name}-{step}-by-{os.getpid()}",
        "recorded_at": datetime.now(UTC),
    }
    done = connection.execute(
        sa.select(sa.func.count()).where(agents.c.slug.like(f"{spec.name}-{step}-by-%"))
    ).scalar_one()
    assert done == 0, f"step {step} of {spec.name} is done twice"
    connection.execute(agents.insert().values(**row))
    store.set_values(connection, job.id, notes={"steps": step + 1})


def die(ws: Workspace, spec: StepsSpec, step: int, border: str) -> None:
    """Kill this process the first time that it comes to a border that the spec names."""
    if (step, border) in spec.kills:
        mark = ws.home.path.parent / f"killed-{spec.name}-{step}-{border.replace(' ', '-')}"
        with suppress(FileExistsError):
            mark.touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)


class CodeSpec(Config):
    """What somebody's code does."""

    code: str


def run_code(ws: Workspace, spec: CodeSpec) -> None:
    # compiled beforehand: Python ends a process by SIGINT after an interrupt in the text itself
    exec(compile(spec.code, "somebody.py", "exec"), {"os": os, "sys": sys, "time": time})


class SharedSpec(Config):
    """What to do in parts."""

    name: str
    parts: int
    folder: str
    """Where the files are that a part waits for: here-NUMBER in the worker of the job, there-NUMBER
    in others; each says before, as at-here-NUMBER, that it waits."""
    holds: tuple[str, ...] = ()
    """Those that wait."""
    fails: str | None = None
    """What does so fails."""


def run_shared(ws: Workspace, spec: SharedSpec) -> dict[str, Any]:
    def spec_of(number: int) -> dict[str, Any]:
        return spec.model_dump(mode="json") | {"number": number}

    def do(number: int) -> PartOutcome:
        return do_part("here", spec_of(number))

    results = share(ws, "numbers", spec.parts, spec_of, do, lambda index: None)
    return {"results": results}


@contextmanager
def opened_parts(ws: Workspace) -> Iterator[PartHandler]:
    yield partial(do_part, "there")


def do_part(where: str, content: dict[str, Any]) -> PartOutcome:
    number = content.pop("number")
    spec, name = SharedSpec.model_validate(content), f"{where}-{number}"
    if name in spec.holds:
        (Path(spec.folder) / f"at-{name}").touch()
        while not (Path(spec.folder) / name).exists():
            time.sleep(0.02)
    if where == spec.fails:
        raise InputError("this part", "it cannot be done there", "Do it elsewhere")
    slug = f"{spec.name}-{number}-by-{where}-{os.getpid()}"

    def effect(connection: sa.Connection) -> None:
        query = sa.select(agents.c.id).where(agents.c.slug.like(f"{spec.name}-{number}-by-%"))
        assert connection.execute(query).first() is None, f"part {number} is done twice"
        row = {"id": ids.new("agt"), "slug": slug, "recorded_at": datetime.now(UTC)}
        connection.execute(agents.insert().values(**row))

    return PartOutcome({"number": number, "where": where}, effect)


@contextmanager
def held_collecting(ws: Workspace) -> Iterator[PartHandler]:
    """Collect prompts of a dataset; while there is a file `hold` beside the home, wait with what
    was collected, and say so by a file `held`."""
    from thumbwheel.datasets.build_parts import collecting

    hold, held = (ws.home.path.parent / name for name in ("hold", "held"))
    with collecting(ws) as collect:

        def collect_and_hold(spec: dict[str, Any]) -> PartOutcome:
            outcome = collect(spec)
            while hold.exists():
                held.touch()
                time.sleep(0.02)
            return outcome

        yield collect_and_hold


PART_KINDS = {
    "numbers": PartKind(opened_parts, (HEAVY,)),
    "prompts": PartKind(held_collecting, (HEAVY,)),
}
KINDS = {
    "shared": JobKind(SharedSpec, run_shared, (HEAVY,)),
    "steps": JobKind(StepsSpec, run_steps),
    "code": JobKind(CodeSpec, run_code),
}


def opened(home: Path, settings: Mapping[str, Any] = {}) -> Workspace:
    return Workspace.open(Home(home), Sources(settings, "", os.environ))


@dataclass(frozen=True)
class WorkerProcess:
    """A worker of a home, or a server with several."""

    process: subprocess.Popen[bytes]

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> int:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        return self.process.wait(60)


def started(
    home: Path, *options: str, log_file: Path | None = None, environment: Mapping[str, str] = {}
) -> WorkerProcess:
    command = [sys.executable, "-m", "tests.servers.job_worker", str(home), *options]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    with (log_file or home.with_suffix(".log")).open("ab") as output:
        process = subprocess.Popen(command, stderr=output, env=variables, process_group=0)
    return WorkerProcess(process)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("home", type=Path)
    parser.add_argument("--lease", type=float, default=15.0)
    parser.add_argument("--crashes", type=int, default=10)
    parser.add_argument("--host")
    parser.add_argument("--needs", default="{}")
    parser.add_argument("--labels", nargs="*", default=[])
    parser.add_argument("--serve", type=int, default=0)
    parser.add_argument("--until-idle", action="store_true")
    parser.add_argument("--supervised", action="store_true")
    options = parser.parse_args(arguments)
    log.configure()
    if options.serve:
        return serve(options)
    work(options)
    return 0


def work(options: argparse.Namespace) -> None:
    """Do jobs until SIGTERM; as `thumbwheel worker`, in a fresh process after some of them."""
    is_spent = Worker(
        open_home=lambda: opened(options.home, {"host": {"labels": options.labels}}),
        kinds=KINDS,
        config=JobsConfig(
            lease_seconds=options.lease,
            crashes=options.crashes,
            needs=json.loads(options.needs),
        ),
        settings="",
        part_kinds=PART_KINDS,
        host=Host(options.host, options.home / "workers") if options.host else None,
        stop_when_idle=options.until_idle,
    ).run()
    if is_spent and options.supervised:
        os._exit(SPENT)
    if is_spent:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def serve(options: argparse.Namespace) -> int:
    """Keep so many workers alive until SIGTERM. They are forked, so that one that was killed is
    back in milliseconds."""
    from thumbwheel.core.child import die_with_parent

    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    server = os.getpid()
    workers: set[int] = set()
    while not stopped:
        while len(workers) < options.serve:
            worker = os.fork()
            if worker == 0:
                os.setpgrp()
                die_with_parent(signal.SIGTERM)
                if os.getppid() == server:
                    options.supervised = True
                    work(options)
                os._exit(0)
            workers.add(worker)
        ended, _ = os.waitpid(-1, os.WNOHANG)
        workers.discard(ended)
        if not ended:
            time.sleep(0.05)
    for worker in workers:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGTERM)
    for worker in workers:
        os.waitpid(worker, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
