"""How much less a job costs the busiest of four hosts that share its parts than one host alone: a
dataset build, the answers of an evaluation, programs in the sandbox.

    make bench-parts
    make bench-parts ARGS="--traces 40000"

What is compared is processor time, so that a machine that is busy with other work measures the
same. This process plays the hosts in turn: a part goes to the host that has spent least so far, and
is done by the code that does it there, from its spec as JSON, through PostgreSQL and a bucket
(moto). After each step all wait for the busiest. `busiest` is the time of the parts of the busiest
host plus everything that is not shared; `alone` is the same job by one host without parts. The time
of children, such as sandboxes, counts. PostgreSQL and the bucket themselves do not, nor the start
of a process with its imports.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
import raw
import torch
from dataset_scale import lines

from tests.bucket_hosts import Hosts
from tests.models.tiny_models import tiny_base
from tests.servers.postgres_server import Databases, PostgresServer
from tests.servers.s3_server import S3Server
from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Sources
from thumbwheel.datasets import build_parts, collect
from thumbwheel.datasets.build import build
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import JOBS
from thumbwheel.engine.load import base_fingerprint
from thumbwheel.evaluation import answer_parts, responder
from thumbwheel.evaluation.local_model import LocalModel
from thumbwheel.evaluation.types import Ask, EvaluationConfig
from thumbwheel.jobs import claims, current, queue, store
from thumbwheel.jobs.host import Host
from thumbwheel.jobs.part_types import PartHandler, PartOutcome
from thumbwheel.jobs.types import JobsConfig, WorkerRow
from thumbwheel.models import versions
from thumbwheel.rewards import judge_parts
from thumbwheel.rewards.judge_traces import judge_traces

N_HOSTS = 4
SETTINGS = {"rewards": {"components": {"code_execution": {"weight": 1}}}}
OPENERS = {
    build_parts.PART_KIND: build_parts.collecting,
    responder.ANSWERS: answer_parts.answering,
    judge_parts.SCORES: judge_parts.judging,
}
PROGRAM = """```python
def smallest_divisors(limit):
    found = []
    for number in range(2, limit):
        divisor = 2
        while number % divisor:
            divisor += 1
        found.append(divisor)
    return found

assert sum(smallest_divisors({limit})) > {limit}
```"""


def spent() -> float:
    """Seconds of processor time of this process and all its descendants so far."""
    whole = time.process_time()
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        whole += times.user + times.system + times.children_user + times.children_system
    return whole


@dataclass
class PlayedHosts:
    """Hosts that this process plays in turn; the first one has the job."""

    workspaces: list[Workspace]
    handlers: dict[tuple[int, str], PartHandler] = field(default_factory=dict)
    in_parts: float = 0.0
    """Seconds in parts, of all hosts."""
    of_busiest: float = 0.0
    """The same, of the busiest host of each step."""
    n_parts: int = 0

    def share(
        self,
        ws: Workspace,
        kind: str,
        n_parts: int,
        spec_of: Callable[[int], dict[str, Any]],
        do: Callable[[int], PartOutcome],
        advance: Callable[[int], None],
    ) -> list[Any]:
        """Do the parts, as `jobs.parts.share`."""
        results = []
        seconds = [0.0] * len(self.workspaces)
        with ExitStack() as stack:
            for index in range(n_parts):
                number = seconds.index(min(seconds))
                began = spent()
                if number == 0:
                    outcome = do(index)
                else:
                    spec = json.loads(json.dumps(spec_of(index)))
                    outcome = self._handler(stack, number, kind)(spec)
                self.workspaces[number].db.write(outcome.effect, outcome.lock)
                seconds[number] += spent() - began
                results.append(outcome.result)
                advance(index)
        self.handlers.clear()
        self.in_parts += sum(seconds)
        self.of_busiest += max(seconds)
        self.n_parts += n_parts
        return results

    def _handler(self, stack: ExitStack, number: int, kind: str) -> PartHandler:
        if (number, kind) not in self.handlers:
            handler = stack.enter_context(OPENERS[kind](self.workspaces[number]))
            self.handlers[number, kind] = handler
        return self.handlers[number, kind]


@contextmanager
def cluster(folder: Path) -> Iterator[list[Workspace]]:
    """The hosts of one home."""
    postgres, storage = PostgresServer(), S3Server()
    try:
        postgres.create()
        url = Databases(postgres.start().url()).migrated()
        os.environ.update(storage.environment)
        hosts = Hosts(folder, url, storage.bucket())
        names = ["first", "second", *(f"host-{number}" for number in range(3, N_HOSTS + 1))]
        for name in names[2:]:
            hosts.join(name)
        with ExitStack() as stack:
            yield [
                stack.enter_context(
                    Workspace.open(hosts.home(name), Sources(SETTINGS, "none", hosts.variables))
                )
                for name in names
            ]
    finally:
        postgres.close()
        storage.stop()


@contextmanager
def doing_a_job(ws: Workspace) -> Iterator[None]:
    now = datetime.now(UTC)
    row = WorkerRow("wrk_bench", Host.of(ws.home).id, 1, 1, "", 0, now, now)
    ws.db.write(lambda connection: store.add_worker(connection, row))
    queue.enqueue(ws, "bench", {})
    job = ws.db.write(
        lambda connection: claims.claim(connection, row.id, {"bench": ()}, JobsConfig(), now), JOBS
    )
    assert job is not None
    with current.doing(job):
        yield


T = TypeVar("T")


def measured(
    workspaces: list[Workspace],
    prepare: Callable[[], T],
    work: Callable[[T], Any],
    module: Any,
    patches: Mapping[str, Any],
) -> dict[str, Any]:
    """Seconds of processor time of `work` alone and shared, each with what `prepare` returns, which
    does not count."""
    figures: dict[str, Any] = {}
    answers = []
    for name, n_hosts in (("alone", 1), ("busiest", N_HOSTS)):
        hosts = PlayedHosts(workspaces[:n_hosts])
        values: dict[str, Any] = {"share": hosts.share}
        if n_hosts > 1:
            values |= {"has_helpers": lambda ws: True, **patches}
        before = {attribute: getattr(module, attribute, None) for attribute in values}
        prepared = prepare()
        for attribute, value in values.items():
            setattr(module, attribute, value)
        try:
            began = spent()
            answers.append(work(prepared))
            whole = spent() - began
        finally:
            for attribute, value in before.items():
                setattr(module, attribute, value)
        figures[name] = whole - hosts.in_parts + hosts.of_busiest
    assert answers[0] == answers[1], answers
    figures["parts"] = hosts.n_parts
    figures["not_shared"] = whole - hosts.in_parts
    figures["times"] = figures["alone"] / figures["busiest"]
    return figures


def measure_build(workspaces: list[Workspace], folder: Path, n_traces: int) -> dict[str, Any]:
    """Labels of an agent with this many traces."""
    ws, agent = workspaces[0], f"build-{n_traces}"
    if agent not in [learner.slug for learner in versions.agents(ws)]:
        file = folder / "lines.jsonl"
        with file.open("w") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines(n_traces * 5 // 4))
        report = ingest(ws, agent, "jsonl", file)
        assert not report.refused, report.refusals
    return measured(
        workspaces,
        lambda: None,
        lambda _: build(ws, agent, "labels").id,
        build_parts,
        {"TRACES_A_PART": n_traces // N_HOSTS},
    )


def measure_evaluation(workspaces: list[Workspace], folder: Path, n_prompts: int) -> dict[str, Any]:
    """Answers of a tiny model to prompts that it was not asked before."""
    ws, base = workspaces[0], folder / "base"
    if not base.exists():
        tiny_base(base)
    version = versions.ensure_base(ws, "evaluated", str(base), base_fingerprint(base))
    config = EvaluationConfig(batch_size=8, max_new_tokens=32, dtype="float32", max_length=256)

    def new_questions() -> list[Ask]:
        first = time.time_ns()
        return [
            Ask([{"role": "user", "content": f"Where is parcel {first + number}?"}], 32)
            for number in range(n_prompts)
        ]

    def answer(asks: list[Ask]) -> int:
        model = LocalModel(ws, version, [], config)
        replies = responder.ask(ws, version.agent_id, model.responder(version), asks, "answers")
        return sum(len(reply) for reply in replies)

    return measured(workspaces, new_questions, answer, responder, {})


def measure_sandbox(workspaces: list[Workspace], folder: Path, n_traces: int) -> dict[str, Any]:
    """Programs that compute for some milliseconds."""
    ws, file = workspaces[0], folder / "programs.jsonl"

    def new_agent() -> str:
        agent = f"coder-{time.time_ns()}"
        with file.open("w") as out:
            for number in range(n_traces):
                answer = PROGRAM.replace("{limit}", str(600 + number % 50))
                line = {"type": "trace", "id": f"{agent}-{number}", "output": answer}
                out.write(json.dumps(line | {"input": f"Divisors {agent} {number}"}) + "\n")
        ingest(ws, agent, "jsonl", file)
        return agent

    def judge(agent: str) -> dict[str, int]:
        return judge_traces(ws, agent, ["code_execution"]).components["code_execution"].statuses

    return measured(workspaces, new_agent, judge, judge_parts, {"TRACES_A_PART": 25})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=int, default=40_000, help="of the dataset")
    parser.add_argument("--prompts", type=int, default=2_000, help="of the evaluation")
    parser.add_argument("--programs", type=int, default=1_000, help="in the sandbox")
    parser.add_argument("--rounds", type=int, default=3)
    raw.option(parser, "parts")
    options = parser.parse_args()
    collect.MAX_WORKERS = 1  # a host is one processor
    torch.set_num_threads(1)
    jobs = {
        "build": (measure_build, options.traces),
        "evaluation": (measure_evaluation, options.prompts),
        "sandbox": (measure_sandbox, options.programs),
    }
    result: dict[str, Any] = {"hosts": N_HOSTS}
    with (
        tempfile.TemporaryDirectory() as name,
        cluster(Path(name)) as workspaces,
        doing_a_job(workspaces[0]),
    ):
        for job, (measure, size) in jobs.items():
            if not size:
                continue
            measure(workspaces, Path(name), size // 20)  # loads what is loaded once
            rounds = [measure(workspaces, Path(name), size) for _ in range(options.rounds)]
            figures = {
                fact: round(median(figures[fact] for figures in rounds), 2) for fact in rounds[0]
            }
            result[job] = {"size": size, **figures}
            print(job, result[job], flush=True)
    raw.write(options.json, **result)


if __name__ == "__main__":
    main()
