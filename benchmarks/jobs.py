"""kill -9 of servers and workers while they do jobs: is a job lost, or a step done twice?

    python benchmarks/jobs.py --kills 2000

A server with three workers does jobs whose steps each write a row and note the step in one write.
Processes are killed at every border of a step (by the job itself) and at random moments; every
tenth time it is the server. At the end each job has to be done once: every step by one row, and
all results as without kills. Besides: how many jobs a second go through, and what idle workers
cost.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import psutil
import raw
import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.servers.job_worker import BORDERS, WorkerProcess, opened, started
from thumbwheel.core.clock import utc_now
from thumbwheel.db.schema import agents
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs import claims, queue, store
from thumbwheel.jobs.host import process_started
from thumbwheel.jobs.types import Job, JobsConfig, JobState

WORKERS = 3
STEPS = 6
JOBS_AHEAD = 12
"""Jobs that are not done at any time, so that a kill always hits one."""
SERVER_EVERY = 10
"""Every which kill is that of the server."""
LEASE = 2.0


@dataclass
class Report:
    """What the kills have cost."""

    kills: int
    kills_at_borders: int
    kills_of_servers: int
    seconds: float
    jobs: int
    lost: int
    wrong: int
    """Jobs with another result than without kills."""
    repeated_steps: int
    takeovers: int
    claims_a_second: float = 0.0
    """Jobs enqueued, claimed and finished, three durable writes each."""
    idle_ms_a_second: float = 0.0
    """CPU of `thumbwheel serve` and two workers together, with nothing to do."""


def run(folder: Path, *, kills: int, seed: int = 0, figures: bool = True) -> Report:
    """Kill `kills` times, in a new home below `folder`; `figures` also measures rate and idling."""
    chance = random.Random(seed)
    home = folder / "home"
    began = time.monotonic()
    counts: Counter[str] = Counter()
    with opened(home) as ws:
        server = _server(home)
        try:
            while counts["kills"] < kills:
                _top_up(ws, chance, counts, kills)
                time.sleep(chance.uniform(0.0, 0.1))
                counts["borders"] = len(list(folder.glob("killed-*")))
                if counts["random"] % SERVER_EVERY == SERVER_EVERY - 1:
                    server.process.kill()
                    server.process.wait()
                    counts["servers"] += 1
                    server = _server(home)
                else:
                    _kill_worker(ws, chance)
                counts["random"] += 1
                counts["kills"] = counts["random"] + len(list(folder.glob("killed-*")))
            _await_the_end(ws)
            seconds = time.monotonic() - began
        finally:
            server.end()
        report = _report(ws, folder, counts, seconds)
        if figures:
            report.idle_ms_a_second = _idle(ws)
            report.claims_a_second = _claims_a_second(ws)
        return report


def _server(home: Path) -> WorkerProcess:
    return started(home, "--serve", str(WORKERS), "--lease", str(LEASE), "--crashes", "1000")


def _top_up(ws: Workspace, chance: random.Random, counts: Counter[str], kills: int) -> None:
    """Ask for jobs, every second of which kills its own worker at a border."""
    waiting = queue.counts(ws)
    ahead = sum(waiting.get(state, 0) for state in (JobState.QUEUED, JobState.RUNNING))
    for _ in range(JOBS_AHEAD - ahead):
        number = counts["jobs"] = counts["jobs"] + 1
        spec: dict[str, object] = {"name": f"job{number}", "steps": STEPS, "seconds": 0.03}
        if number % 2 == 0 and counts["kills"] < kills:
            border = chance.choice(BORDERS)
            step = STEPS if border == "end" else chance.randrange(STEPS)
            spec["kills"] = [[step, border]]
        queue.enqueue(ws, "steps", spec, key=f"job{number}")


def _kill_worker(ws: Workspace, chance: random.Random) -> None:
    """Kill a worker that has a job, at a random moment of the next steps."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        with ws.db.read() as connection:
            pids = {
                worker.id: worker.pid
                for worker in store.all_workers(connection)
                if process_started(worker.pid) == worker.process_started
            }
            held = [job.worker_id for job in store.held(connection) if job.worker_id in pids]
        if held:
            time.sleep(chance.uniform(0.0, 0.1))
            with suppress(ProcessLookupError):
                os.kill(pids[str(chance.choice(held))], signal.SIGKILL)
            return
        time.sleep(0.01)


def _await_the_end(ws: Workspace) -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        counts = queue.counts(ws)
        if not any(counts.get(state, 0) for state in (JobState.QUEUED, JobState.RUNNING)):
            return
        time.sleep(0.1)


def _idle(ws: Workspace) -> float:
    """Of `thumbwheel serve` with two workers, once they have started."""
    home = str(ws.home.path)
    command = [sys.executable, "-m", "thumbwheel", "--home", home, "serve", "--workers", "2"]
    server = psutil.Popen([*command, "--port", "0"], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while len(queue.live_workers(ws)) < 2 and time.monotonic() < deadline:
            time.sleep(0.5)
        time.sleep(5)
        processes = [server, *server.children()]
        before = sum(sum(process.cpu_times()[:2]) for process in processes)
        time.sleep(20)
        after = sum(sum(process.cpu_times()[:2]) for process in processes)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    return round((after - before) / 20 * 1000, 1)


def _claims_a_second(ws: Workspace) -> float:
    """Enqueue, claim and finish, each a durable write, by one process."""
    number, began = 100, time.monotonic()
    config = JobsConfig.model_validate({})  # the defaults
    for _ in range(number):
        queue.enqueue(ws, "nothing", {})
        now = utc_now()

        def claim(connection: sa.Connection, now: datetime = now) -> Job | None:
            return claims.claim(connection, "wrk_bench", {"nothing": ()}, config, now)

        job = ws.db.write(claim)
        assert job is not None

        def finish(connection: sa.Connection, job: Job = job, now: datetime = now) -> None:
            claims.finish(connection, job, JobState.SUCCEEDED, now)

        ws.db.write(finish)
    return round(number / (time.monotonic() - began), 1)


def _report(ws: Workspace, folder: Path, counts: Counter[str], seconds: float) -> Report:
    lost = wrong = takeovers = n_jobs = 0
    rows: Counter[str] = Counter()
    with ws.db.read() as connection:
        for slug in connection.execute(sa.select(agents.c.slug)).scalars():
            rows[slug.partition("-by-")[0]] += 1
        for number in range(1, counts["jobs"] + 1):
            job = store.by_key(connection, f"job{number}")
            n_jobs += 1
            if job is None or not job.has_ended:
                lost += 1
                continue
            takeovers += job.crashes
            expected = {"name": f"job{number}", "steps": STEPS}
            steps = [rows[f"job{number}-{step}"] for step in range(STEPS)]
            if job.state is not JobState.SUCCEEDED or job.result != expected or 0 in steps:
                wrong += 1
    return Report(
        kills=counts["kills"],
        kills_at_borders=len(list(folder.glob("killed-*"))),
        kills_of_servers=counts["servers"],
        seconds=round(seconds, 1),
        jobs=n_jobs,
        lost=lost,
        wrong=wrong,
        repeated_steps=sum(count - 1 for count in rows.values() if count > 1),
        takeovers=takeovers,
    )


def main() -> int:
    """Print the report and write it as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    raw.option(parser, "jobs")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="thumbwheel-jobs-") as folder:
        report = run(Path(folder), kills=options.kills, seed=options.seed)
    for name, value in asdict(report).items():
        print(f"{name.replace('_', ' '):28} {value}")
    raw.write(options.json, **asdict(report), workers=WORKERS, lease=LEASE)
    return 0 if report.lost + report.wrong + report.repeated_steps == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
