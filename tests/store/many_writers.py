"""What several processes do to one home at the same moment. Each function runs in every process;
`number` is that of the process. They begin together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.unit.evaluation.test_gate_decisions import judged
from thumbwheel.access import audit
from thumbwheel.access.audit import Act
from thumbwheel.capture.cases import add_case
from thumbwheel.capture.ingest import save, scope_of
from thumbwheel.core.config import Home, Sources
from thumbwheel.datasets.build import freeze
from thumbwheel.datasets.types import Dataset
from thumbwheel.db.dialects import VARIABLE
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import JOBS
from thumbwheel.evaluation.evaluate import store_evaluation
from thumbwheel.importers.source import Line
from thumbwheel.importers.sources.jsonl import SOURCE
from thumbwheel.jobs import claims, queue
from thumbwheel.jobs.types import JobsConfig, JobState
from thumbwheel.models import versions
from thumbwheel.review.hand_out import next_items
from thumbwheel.review.queues import require_queue
from thumbwheel.review.rate import RatingRequest, rate
from thumbwheel.review.types import RaterVerdict

AGENT = "support"
ROUNDS = 8
"""How often each process does what it does."""
JOBS_OF = {"train": ("heavy",), "import": (), "turn": ("cycle of {agent}",)}


@dataclass(frozen=True)
class Host:
    """One of the processes."""

    home: Path
    url: str
    number: int
    processes: int
    meeting: Path
    """An empty folder in which the processes wait for each other."""

    def run(self, action: Callable[[Workspace, Host], Any]) -> Any:
        """Open the home, wait for the other processes, do `action` and return its result."""
        sources = Sources({}, "none", {VARIABLE: self.url})
        with Workspace.open(Home.at(self.home), sources) as ws:
            (self.meeting / str(self.number)).touch()
            end = time.monotonic() + 120
            while len(list(self.meeting.iterdir())) < self.processes:
                assert time.monotonic() < end, "a process is missing"
                time.sleep(0.002)
            return action(ws, self)


def lines(*rows: dict[str, Any]) -> list[Line]:
    items = [SOURCE.item(number, dict(row), "") for number, row in enumerate(rows)]
    assert all(isinstance(item, Line) for item in items), items
    return [item for item in items if isinstance(item, Line)]


def add_versions(ws: Workspace, host: Host) -> list[int]:
    parent = versions.ensure_base(ws, AGENT, "base", "f" * 64)
    numbers = []
    for turn in range(ROUNDS):
        adapter = ws.home.path / f"adapter-{host.number}-{turn}"
        adapter.mkdir()
        (adapter / "adapter.safetensors").write_text(f"{host.number} {turn}")
        (adapter / "shared.json").write_text("the same in all")
        numbers.append(versions.add_candidate(ws, parent, None, adapter).number)
    return numbers


def point_alias(ws: Workspace, host: Host) -> None:
    agent = versions.require_agent(ws, AGENT)
    for turn in range(ROUNDS):
        candidates = versions.versions(ws, agent)
        version = candidates[(host.number + turn * host.processes) % len(candidates)]
        versions.point(ws, version, "canary", f"{host.number}-{turn}")


def write_audit(ws: Workspace, host: Host) -> None:
    for turn in range(ROUNDS):
        audit.record(ws, Act(f"host-{host.number}", "test", content={"turn": turn}))


def claim_jobs(ws: Workspace, host: Host) -> list[tuple[str, str, int]]:
    """Claim and finish jobs until none is left; return (id, kind, what was held meanwhile)."""
    config, done = JobsConfig(heavy=1), []
    for _ in range(200):
        now = datetime.now(UTC)
        job = ws.db.write(
            lambda connection: claims.claim(
                connection, f"wrk_{host.number}", JOBS_OF, config, datetime.now(UTC)
            ),
            JOBS,
        )
        if job is None:
            if not queue.counts(ws).keys() & {JobState.QUEUED, JobState.RUNNING}:
                break
            continue
        running, _ = queue.jobs(ws, states=[JobState.RUNNING], kind=job.kind)
        done.append((job.id, job.kind, len(running)))
        ws.db.write(
            lambda connection: claims.finish(connection, job, JobState.SUCCEEDED, now),  # noqa: B023 - done
            JOBS,
        )
    return done


def enqueue_once(ws: Workspace, host: Host) -> list[str]:
    return [
        queue.enqueue(ws, "import", {"turn": turn}, agent=AGENT, key=f"key-{turn}").id
        for turn in range(ROUNDS)
    ]


def answer_and_judge(ws: Workspace, host: Host) -> None:
    """Half of the processes store answers, the others feedback about them."""
    scope = scope_of(ws, AGENT, "sdk")
    for turn in range(ROUNDS):
        if host.number % 2:
            rows = [
                {
                    "type": "feedback",
                    "id": f"f{turn}-{part}",
                    "kind": "thumb",
                    "value": True,
                    "target": {"trace": f"t{turn}-{part}"},
                    "rater": f"r{host.number}",
                }
                for part in range(5)
            ]
        else:
            rows = [
                {"type": "trace", "id": f"t{turn}-{part}", "input": f"{part}?", "output": "Yes."}
                for part in range(5)
            ]
        save(ws, scope, lines(*rows))


def contradict(ws: Workspace, host: Host) -> list[bool]:
    """Store another answer under the same id as the other processes; return which were taken."""
    scope = scope_of(ws, AGENT, "sdk")
    stored = []
    for turn in range(ROUNDS):
        row = {"type": "trace", "id": f"same-{turn}", "input": "?", "output": f"{host.number}"}
        (result,) = save(ws, scope, lines(row))
        stored.append(bool(result.new))
    return stored


def weigh_rater(ws: Workspace, host: Host) -> list[bool]:
    """Store feedback of the same raters, each process with another weight."""
    scope = scope_of(ws, AGENT, "sdk")
    stored = []
    for turn in range(ROUNDS):
        row = {
            "type": "feedback",
            "id": f"w{turn}-{host.number}",
            "kind": "thumb",
            "value": True,
            "target": {"trace": "t"},
            "rater": {"id": f"judge {turn}", "weight": host.number + 1},
        }
        (result,) = save(ws, scope, lines(row))
        stored.append(bool(result.new))
    return stored


def share_messages(ws: Workspace, host: Host) -> int:
    """Store the same questions for another agent each."""
    scope = scope_of(ws, f"agent-{host.number}", "sdk")
    stored = 0
    for turn in range(ROUNDS):
        order = range(20) if host.number % 2 else range(19, -1, -1)
        rows = [
            {
                "type": "trace",
                "id": f"{turn}-{part}",
                "output": "Yes.",
                "input": [
                    {"role": "system", "content": f"Be short {turn}."},
                    {"role": "user", "content": f"Question {turn} {part}?"},
                ],
            }
            for part in order
        ]
        stored += sum(bool(result.new) for result in save(ws, scope, lines(*rows)))
    return stored


def freeze_dataset(ws: Workspace, host: Host) -> list[str]:
    path = ws.home.path / f"train-{host.number}.parquet"
    path.write_text("the same rows")
    ids = []
    for turn in range(ROUNDS):
        dataset = Dataset(
            f"dst_{turn:024d}",
            AGENT,
            "chats",
            f"{turn:064d}",
            {"counts": {"train": 1}},
            datetime.now(UTC) + timedelta(microseconds=host.number),
        )
        ids.append(freeze(ws, dataset, {"train": path}, confirm=True).id)
    return ids


def store_evaluations(ws: Workspace, host: Host) -> list[str]:
    agent = versions.require_agent(ws, AGENT)
    candidate, incumbent = versions.versions(ws, agent)[:2]
    stored = []
    for turn in range(ROUNDS):
        measured = judged(
            [0, 1],
            [1, 1],
            id=f"evl_{host.number}_{turn}",
            agent=AGENT,
            key=f"key {turn}",
            candidate_id=candidate.id,
            against_id=incumbent.id,
        )
        stored.append(store_evaluation(ws, measured).id)
    return stored


def review_case(ws: Workspace, host: Host) -> list[str]:
    """Vouch for the same cases as the other processes."""
    return [
        add_case(
            ws,
            AGENT,
            f"reviewer {host.number}",
            id=f"case-{turn}",
            input=[{"role": "user", "content": f"{turn}?"}],
            reference="4",
        )
        for turn in range(ROUNDS)
    ]


def rate_items(ws: Workspace, host: Host) -> list[str]:
    agent = versions.require_agent(ws, AGENT)
    rating_queue = require_queue(ws, agent, "q")
    rater, rated = f"rater {host.number}", []
    while batch := next_items(ws, rating_queue, rater, 2).items:
        for item in batch:
            request = RatingRequest(rating_queue, item.id, rater, f"{item.id}-{rater}")
            rate(ws, agent, request, RaterVerdict(thumb=True))
            rated.append(item.id)
    return rated
