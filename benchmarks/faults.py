"""What a service has to survive, one fault after the other: `thumbwheel serve` with two workers and
PostgreSQL.

    make bench-faults
    make bench-faults ARGS="--short"

While the faults happen, an app sends traces all the time; each that was acknowledged has to be a
row in the end. Every fault hits a job that runs: it has to come to its end once, with all that it
was asked for. The short form, which is a test, leaves out the training, and PostgreSQL is away for
seconds instead of a minute. The server is Debian's where that is installed, else the embedded one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx2
import psutil
import raw
import sqlalchemy as sa

from tests.servers.postgres_server import Databases, PostgresServer
from tests.servers.thumbwheel_server import lasting_port, serve_command
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.dialects import VARIABLE
from thumbwheel.db.schema import agents, metadata, traces
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs import queue, schedules, store
from thumbwheel.jobs.types import Job, JobState
from thumbwheel.models import versions
from thumbwheel.models.types import Agent

ROOT = Path(__file__).parents[1]
DEBIANS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
LEASE = 3.0
WORKERS = 2
LINES = 3_000
"""Of an import: it lasts a few seconds."""
CANCELS = 5
"""Imports of which one has to be cancelled before its end."""
RATE = 20.0
"""Traces a second that the app sends."""
LEARNER = Agent.named("learner")
PASSWORD = "correct horse battery staple"
SHIFTED = """
import sys
from datetime import timedelta
from thumbwheel.core import clock
real, ahead = clock.utc_now, timedelta(days=float(sys.argv.pop(1)))
clock.utc_now = lambda: real() + ahead
from thumbwheel.cli.main import main
main()
"""
"""A program whose clock goes wrong by so many days."""


@dataclass(frozen=True)
class Result:
    """What became of a fault."""

    fault: str
    survived: bool
    seconds: float
    evidence: str


def until(condition: Callable[[], object], seconds: float = 180.0, what: str = "") -> float:
    """Wait; returns the seconds that it took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"not within {seconds:g} s: {what or condition}")
        time.sleep(0.02)
    return time.monotonic() - began


class App:
    """Sends traces all the time, and remembers those that were acknowledged."""

    def __init__(self, url: str) -> None:
        self.acknowledged: list[str] = []
        self.failures = 0
        self._url = url
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> App:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        with httpx2.Client(trust_env=False, timeout=5) as client:
            while not self._ended.wait(1 / RATE):
                number += 1
                name = f"app-{number}"
                trace = {"agent": "app", "type": "trace", "id": name, "input": "hi", "output": "ho"}
                with suppress(httpx2.HTTPError):
                    answer = client.post(f"{self._url}/api/traces", json=trace)
                    if answer.status_code == 202:
                        self.acknowledged.append(name)
                        continue
                self.failures += 1


@dataclass
class Service:
    """The server, its database and its home."""

    home: Home
    ws: Workspace
    postgres: PostgresServer
    port: int
    log: Path
    process: subprocess.Popen[bytes] | None = None
    client: httpx2.Client = field(init=False)
    problems: list[str] = field(default_factory=list)
    """What was wrong when the server said so last."""

    def __post_init__(self) -> None:
        self.client = httpx2.Client(base_url=self.url, trust_env=False, timeout=30)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server, and wait until its workers have signed on."""
        command = serve_command(self.home.path, self.port, WORKERS)
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(command, stderr=output, env=environment())
        until(self.is_ready, what="the server is ready")
        token = self.home.access_token.read_text().strip()
        self.client.headers["authorization"] = f"Bearer {token}"
        until(lambda: len(self.workers()) == WORKERS, what="both workers run")

    def is_ready(self) -> bool:
        with suppress(httpx2.HTTPError):
            return self.client.get("/ready").status_code == 200
        return False

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """As systemd does."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(90)

    def workers(self) -> dict[str, int]:
        """Worker -> its process, of those that signed on and live."""
        with self.ws.db.read() as connection:
            rows = store.all_workers(connection)
        return {row.id: row.pid for row in rows if psutil.pid_exists(row.pid)}

    def job(self, job: Job) -> Job:
        return queue.job(self.ws, job.id)

    def holder(self, job: Job) -> int | None:
        """The process that does the job."""
        return self.workers().get(str(self.job(job).worker_id))

    def ended(self, job: Job, seconds: float = 240.0) -> Job:
        """The job, once it has ended."""
        until(lambda: self.job(job).has_ended, seconds, f"the job {job.kind} ends")
        return self.job(job)

    def is_green(self) -> bool:
        """What health says; where it is red, the log of the benchmark says why."""
        health = self.client.get("/health")
        problems = health.json()["problems"]
        if problems and list(problems) != self.problems:
            self.problems = list(problems)
            print(f"health: {problems}", file=sys.stderr, flush=True)
        return health.status_code == 200

    def post(self, path: str, content: Any = None) -> Any:
        """The answer to a request that has to succeed."""
        answer = self.client.post(path, json=content)
        assert answer.is_success, f"{path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None


def environment() -> dict[str, str]:
    """The variables of the server; workers take over what is dead after a short lease."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), str(ROOT)]),
        "THUMBWHEEL_JOBS__LEASE_SECONDS": str(LEASE),
        "OMP_NUM_THREADS": "1",
    }


# a job that every fault may hit


@dataclass
class Import:
    """An import that runs; afterwards every line of it has to be a row, once."""

    service: Service
    agent: str
    job: Job

    @classmethod
    def begun(cls, service: Service, agent: str) -> Import:
        """As soon as a part of its lines are rows."""
        file = service.home.path.parent / f"{agent}.jsonl"
        with file.open("w") as stream:
            for number in range(LINES):
                line = {"type": "trace", "id": f"t{number}", "input": f"q{number}", "output": "a"}
                stream.write(json.dumps(line) + "\n")
        spec = {"source": "jsonl", "path": str(file), "agent": agent}
        job = queue.enqueue(service.ws, "import", spec, agent=agent)
        running = cls(service, agent, job)
        until(lambda: running.rows() > 0, what="the first lines are rows")
        state = service.job(job).state
        assert state is JobState.RUNNING, f"the import is {state}"
        return running

    def rows(self) -> int:
        with self.service.ws.db.read() as connection:
            count = sa.select(sa.func.count()).select_from(traces)
            of_agent = sa.select(agents.c.id).where(agents.c.slug == self.agent)
            query = count.where(traces.c.agent_id.in_(of_agent))
            return int(connection.execute(query).scalar_one())

    def check(self) -> str:
        """Wait for its end; what it came to."""
        ended = self.service.ended(self.job)
        rows = self.rows()
        assert ended.state is JobState.SUCCEEDED, f"{ended.state}: {ended.error}"
        assert rows == LINES, f"{rows} rows of {LINES} lines"
        return f"{ended.attempts} attempts, {ended.crashes} crashes, {rows} rows of {LINES}"


# the faults


def worker_killed(service: Service) -> str:
    """kill -9 of the worker that has the job: another takes over."""
    running = Import.begun(service, "worker-killed")
    pid = service.holder(running.job)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    seconds = until(
        lambda: service.holder(running.job) not in (pid, None), what="another worker has the job"
    )
    return f"taken over after {seconds:.1f} s; {running.check()}"


def zombie(service: Service) -> str:
    """A worker that stands still for longer than its lease and wakes up again."""
    running = Import.begun(service, "zombie")
    pid = service.holder(running.job)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    until(lambda: service.holder(running.job) not in (pid, None), what="another has the job")
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    return running.check()


def server_killed(service: Service) -> str:
    """kill -9 of the server, whose workers end with it; the next one goes on."""
    running = Import.begun(service, "server-killed")
    service.kill()
    service.start()
    return running.check()


def cancelled_and_resumed(service: Service) -> str:
    """Cancelled over HTTP, it stops within five seconds; resumed, it goes on."""
    for attempt in range(CANCELS):
        running = Import.begun(service, f"cancelled-{attempt}")
        began = time.monotonic()
        service.client.post(f"/api/jobs/{running.job.id}/cancel")
        ended = service.ended(running.job, 5.0)
        seconds = time.monotonic() - began
        if ended.state is JobState.CANCELLED:
            break  # else it was over before it heard of it
    rows = running.rows()
    assert rows < LINES, "it was over before"
    service.post(f"/api/jobs/{running.job.id}/resume")
    return f"cancelled after {seconds:.1f} s and {rows} rows; {running.check()}"


def database_restarted(service: Service) -> str:
    """PostgreSQL is started anew under load."""
    running = Import.begun(service, "restarted")
    service.postgres.stop("immediate")
    service.postgres.start()
    return running.check()


def database_gone(service: Service, seconds: float) -> str:
    """PostgreSQL is away for a long time: what apps send is taken, and health says what is wrong.

    Which part says it first depends on which looks first.
    """
    running = Import.begun(service, "gone")
    service.postgres.stop("immediate")
    try:
        time.sleep(seconds)
        trace = {"agent": "app", "type": "trace", "id": "while-gone", "input": "hi", "output": "ho"}
        accepted = service.client.post("/api/traces", json=trace).status_code
        assert accepted == 202, f"a trace is answered {accepted}"
        health = service.client.get("/health")
        problems = health.json()["problems"]
        assert health.status_code == 503 and problems, f"health is {health.text}"
    finally:
        service.postgres.start()
    back = until(service.is_green, what="health is green")
    until(lambda: len(service.workers()) == WORKERS, what="both workers run")
    return f"{len(problems)} problems named; green {back:.1f} s after; {running.check()}"


def clock_jumped(service: Service) -> str:
    """Two workers whose clocks are a day ahead, beside two whose are right: a daily schedule is due
    once, and nobody's job is taken away."""
    running = Import.begun(service, "clock")
    pending = {"agent": "app"}
    schedule = schedules.add(service.ws, "daily", "reward pending", pending, "30 3 * * *")
    command = [sys.executable, "-c", SHIFTED, "1", "--home", str(service.home.path), "worker"]
    with service.log.open("ab") as output:
        ahead = [
            subprocess.Popen(command, stderr=output, env=environment()) for _ in range(WORKERS)
        ]
    try:
        until(lambda: jobs_of(service, schedule.id), what="the schedule is due")
        until(lambda: len(service.workers()) == 2 * WORKERS, what="all four workers run")
        evidence = running.check()
        assert service.job(running.job).crashes == 0, "a worker that lived was taken for dead"
    finally:
        for process in ahead:
            process.terminate()
            process.wait(60)
    until(lambda: next_of(service) < tomorrow_after_next(), what="the schedule is right again")
    jobs = jobs_of(service, schedule.id)
    schedules.remove(service.ws, "daily")
    assert len(jobs) == 1, f"{len(jobs)} jobs of one day"
    return f"1 job by two schedulers; {evidence}"


def jobs_of(service: Service, schedule_id: str) -> list[Job]:
    with service.ws.db.read() as connection:
        return store.listed(connection, schedule_id=schedule_id, limit=10)


def next_of(service: Service) -> float:
    """When the one schedule is due, by the right clocks, as seconds of the epoch."""
    (schedule,) = schedules.schedules(service.ws)
    assert schedule.next_at is not None
    return schedule.next_at.timestamp()


def tomorrow_after_next() -> float:
    return time.time() + 86_400


def agent_deleted(service: Service) -> str:
    """The rows of an agent go while a job writes such rows: the job ends, with what to do, and the
    worker goes on."""
    running = Import.begun(service, "deleted")
    service.ws.db.write(partial(delete_agent, slug="deleted"))
    ended = service.ended(running.job)
    if ended.error is not None:
        assert ended.error["fix"], ended.error
    after = queue.enqueue(service.ws, "reward pending", {"agent": "app"}, agent="app")
    assert service.ended(after).state is JobState.SUCCEEDED
    why = "" if ended.error is None else f" ({ended.error['kind']})"
    return f"the job {ended.state}{why}; the next one is done"


def delete_agent(connection: sa.Connection, slug: str) -> None:
    """As somebody does by hand: every row of the agent."""
    agent_ids = sa.select(agents.c.id).where(agents.c.slug == slug)
    for table in reversed(metadata.sorted_tables):
        if table is agents:
            continue
        if "agent_id" in table.c:
            connection.execute(table.delete().where(table.c.agent_id.in_(agent_ids)))
            continue
        for reference in table.foreign_keys:
            owner = reference.column.table
            if "agent_id" in owner.c:
                owned = sa.select(owner.c.id).where(owner.c.agent_id.in_(agent_ids))
                connection.execute(table.delete().where(reference.parent.in_(owned)))
    connection.execute(agents.delete().where(agents.c.slug == slug))


def key_revoked(service: Service) -> str:
    """A key opens nothing from the answer on that says so."""
    secret = service.post("/api/keys", {"name": "app", "verb": ["read"]})["secret"]
    with httpx2.Client(base_url=service.url, trust_env=False) as client:
        client.headers["authorization"] = f"Bearer {secret}"
        assert client.get("/api/agents/app/traces").status_code == 200
        assert service.client.delete("/api/keys/app").is_success
        status = client.get("/api/agents/app/traces").status_code
    assert status == 401, f"a revoked key is answered {status}"
    return "401 from the next request on"


def user_deleted(service: Service) -> str:
    """A session of a user who was removed opens nothing any more."""
    service.post("/api/users", {"name": "ann", "password": PASSWORD, "role": "viewer"})
    with httpx2.Client(base_url=service.url, trust_env=False) as client:
        login = {"name": "ann", "password": PASSWORD}
        assert client.post("/api/login", json=login).is_success
        assert client.get("/api/agents/app/traces").status_code == 200
        assert service.client.delete("/api/users/ann").is_success
        status = client.get("/api/agents/app/traces").status_code
    assert status == 401, f"a session of nobody is answered {status}"
    return "401 from the next request on"


# the training, which the full form hits on every level


@dataclass
class Training:
    """A training that is hit on every level; in the end its curve is that of one that nothing
    disturbed."""

    service: Service
    job: Job
    undisturbed: Path
    full_disk: Path
    """While there is this file, the disk of the training is full."""

    @classmethod
    def asked(cls, service: Service, folder: Path) -> Training:
        from tests.models.tiny_models import tiny_base
        from tests.training_rows import SHORT_TRAINING, frozen
        from thumbwheel.engine.base_check import find_base
        from thumbwheel.training.train import train

        ws = service.ws
        base = tiny_base(folder / "base")
        dataset = frozen(ws, "learner", "labels", 32, 6)
        weights = find_base(str(base), ws.home.cache)
        whole = train(ws, LEARNER, "kto", weights, dataset=dataset, options=SHORT_TRAINING)
        full_disk = folder / "full-disk"
        full_disk.touch()
        os.environ["FULL_DISK_FILE"] = str(full_disk)
        service.stop()
        service.start()
        callbacks = ["training_callbacks:Slow", "training_callbacks:FullDiskWhileFile"]
        spec = {
            "method": "kto",
            "agent": LEARNER.slug,
            "base": str(base),
            "dataset": dataset.id,
            "options": {**SHORT_TRAINING, "callbacks": callbacks},
        }
        job = queue.enqueue(ws, "train", spec, agent=LEARNER.slug)
        return cls(service, job, ws.home.runs / whole.run_id, full_disk)

    def steps(self, folder: Path | None = None) -> list[dict[str, Any]]:
        """What the run wrote down, but how long it took."""
        from thumbwheel.training.rundir import RunDir

        notes = self.service.job(self.job).notes
        if folder is None and "run" not in notes:
            return []
        directory = RunDir(folder or self.service.ws.home.runs / notes["run"])
        lines = directory.read_metrics()
        return [{key: line[key] for key in line if key != "step_seconds"} for line in lines]

    def reach(self, step: int) -> int:
        """Wait for a step; the process of the worker."""
        until(lambda: any(row["step"] >= step for row in self.steps()), 120, f"step {step}")
        holder = self.service.holder(self.job)
        assert holder is not None, "nobody has the job"
        return holder

    def fill_disk(self) -> str:
        ended = self.service.ended(self.job)
        assert ended.error is not None and ended.error["kind"] == "StorageError", ended.error
        self.full_disk.unlink()
        self.service.post(f"/api/jobs/{self.job.id}/retry")
        return "StorageError, and a retry goes on"

    def cancel(self) -> str:
        self.reach(8)
        self.service.post(f"/api/jobs/{self.job.id}/cancel")
        seconds = until(
            lambda: self.service.job(self.job).state is JobState.CANCELLED, 5.0, "cancelled"
        )
        self.service.post(f"/api/jobs/{self.job.id}/resume")
        return f"at a checkpoint after {seconds:.1f} s"

    def kill_child(self) -> str:
        for process in psutil.Process(self.reach(11)).children():
            if "thumbwheel.training.process" in process.cmdline():
                process.kill()
        ended = self.service.ended(self.job)
        assert ended.error is not None and "out of memory?" in ended.error["why"], ended.error
        self.service.post(f"/api/jobs/{self.job.id}/retry")
        return "it says so, and a retry goes on"

    def kill_worker(self) -> str:
        os.kill(self.reach(14), signal.SIGKILL)
        return "taken over"

    def kill_server(self) -> str:
        self.reach(17)
        self.service.kill()
        self.service.start()
        return "the next one goes on"

    def check(self) -> str:
        ended = self.service.ended(self.job)
        assert ended.state is JobState.SUCCEEDED, ended.error
        assert self.steps() == self.steps(self.undisturbed), "another curve"
        names = [version.name for version in versions.versions(self.service.ws, LEARNER)]
        assert names == ["v0", "v1", "v2"], names
        return f"{ended.attempts} attempts, the same curve, one version"


def training_faults(service: Service, folder: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """(fault, what does it) on one training, in the order of its steps."""
    training = Training.asked(service, folder)
    yield "disk full in a checkpoint", training.fill_disk
    yield "training cancelled and resumed", training.cancel
    yield "child killed for memory", training.kill_child
    yield "worker killed in a training", training.kill_worker
    yield "server killed in a training", training.kill_server
    yield "the training in the end", training.check


def faults(service: Service, folder: Path, short: bool) -> Iterator[tuple[str, Callable[[], str]]]:
    """(fault, what does it and says what happened)."""
    seconds = 4.0 if short else 60.0
    yield "worker killed", partial(worker_killed, service)
    yield "zombie worker", partial(zombie, service)
    yield "server killed", partial(server_killed, service)
    yield "cancelled and resumed", partial(cancelled_and_resumed, service)
    yield "PostgreSQL restarted", partial(database_restarted, service)
    yield f"PostgreSQL gone for {seconds:g} s", partial(database_gone, service, seconds)
    yield "clock jump, two schedulers", partial(clock_jumped, service)
    yield "agent deleted", partial(agent_deleted, service)
    yield "key revoked", partial(key_revoked, service)
    yield "user deleted", partial(user_deleted, service)
    if not short:
        yield from training_faults(service, folder)


@contextmanager
def served(folder: Path) -> Iterator[Service]:
    """A service in a new home below `folder`."""
    with ExitStack() as stack:
        postgres = PostgresServer(DEBIANS[-1] if DEBIANS else None)
        stack.callback(postgres.close)
        database = Databases(postgres.create().start().url()).migrated()
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = database
        stack.callback(restore, before)
        home = Home(folder / "home")
        ws = stack.enter_context(Workspace.open(home, Sources({}, "", dict(os.environ))))
        versions.ensure_agent(ws, "app")
        service = Service(home, ws, postgres, lasting_port(), folder / "server.log")
        stack.callback(service.stop)
        service.start()
        yield service


def restore(before: str | None) -> None:
    """Put the variable of the database back."""
    os.environ.pop(VARIABLE, None)
    if before is not None:
        os.environ[VARIABLE] = before


def run(folder: Path, short: bool) -> list[Result]:
    """Every fault; each after the one before was survived or not."""
    results = []
    with served(folder) as service, App(service.url) as app:
        for name, cause in faults(service, folder, short):
            began = time.monotonic()
            try:
                evidence, survived = cause(), True
            except Exception as error:
                evidence, survived = f"{type(error).__name__}: {error}", False
            seconds = round(time.monotonic() - began, 1)
            results.append(Result(name, survived, seconds, evidence))
            print(line_of(results[-1]), flush=True)
        app.__exit__()
        service.stop()
        results.append(acknowledged(service, app))
        print(line_of(results[-1]), flush=True)
    return results


def acknowledged(service: Service, app: App) -> Result:
    """Whether every acknowledged trace is a row."""
    began = time.monotonic()
    with service.ws.db.read() as connection:
        of_app = sa.select(agents.c.id).where(agents.c.slug == "app")
        query = sa.select(traces.c.external_id).where(traces.c.agent_id.in_(of_app))
        stored = set(connection.execute(query).scalars())
    lost = set(app.acknowledged) - stored
    evidence = f"{len(lost)} of {len(app.acknowledged)} lost, {app.failures} not acknowledged"
    seconds = round(time.monotonic() - began, 1)
    return Result("acknowledged traces", not lost and len(app.acknowledged) > 50, seconds, evidence)


def line_of(result: Result) -> str:
    mark = "survived" if result.survived else "FAILED"
    return f"{result.fault:34} {mark:9} {result.seconds:6.1f} s  {result.evidence}"


def main() -> int:
    """Print the table, and keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="without the training")
    raw.option(parser, "faults")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="thumbwheel-faults-") as folder:
        results = run(Path(folder), options.short)
    rows = [vars(result) for result in results]
    server = DEBIANS[-1].parent.name if DEBIANS else "embedded"
    raw.write(options.json, short=options.short, postgresql=server, faults=rows)
    return 0 if all(result.survived for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
