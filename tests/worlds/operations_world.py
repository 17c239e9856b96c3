"""What the operational pages show: data, runs with curves, versions with evaluations and
deployments, an experiment with outcomes, jobs, held feedback and a decision that waits."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tests.approvals import approve
from tests.servers.scripted_upstream import (
    END,
    Received,
    ScriptedUpstream,
    chat_events,
    chat_reply,
    chunk,
    reply,
    stream_head,
)
from tests.worlds.experiment_world import ExperimentWorld
from tests.worlds.gateway_world import AGENT, opened_home, running, serve_remote
from tests.worlds.pages_world import PagesWorld, add_queue, fill, small_home
from thumbwheel.access import keys, users
from thumbwheel.app.routing_table import RoutingTable
from thumbwheel.capture.cases import add_case
from thumbwheel.capture.ingest import ingest
from thumbwheel.capture.trace_filter import TraceFilter
from thumbwheel.core import ids
from thumbwheel.datasets.build import build
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import switch
from thumbwheel.evaluation.replay_types import ReplaySpec
from thumbwheel.evaluation.trace_replay import replay_traces, select_traces
from thumbwheel.export import store as export_store
from thumbwheel.export.types import Export, Parity, ParityLimits
from thumbwheel.gateway.settings import GatewayConfig
from thumbwheel.jobs import queue
from thumbwheel.loop import turn_store
from thumbwheel.loop.quarantine import hold_bursts
from thumbwheel.loop.trigger_types import Pending, TriggerConfig, Wish, WishState
from thumbwheel.models import versions
from thumbwheel.models.types import Agent, Basis, EndpointAddress, ModelVersion
from thumbwheel.rewards import ledger
from thumbwheel.rewards.component import components
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.types import EvaluationPlan, RunState, Status

GOLD = {
    "Which form settles a late refund?": "Form 5.",
    "How long may a parcel take within the country?": "Three days.",
    "Can I pay by invoice?": "Yes, from the second order on.",
}
STEPS = 120
DEV_LOSS = 2.25
"""Of the base on dev rows."""
RUNS = {"run_sft": "sft", "run_dpo": "dpo", "run_kto": "kto"}
ANSWERS = {
    "large": "Yes. Fill in form 5 within 14 days. You get the money back in about three days, "
    "by the way in which you paid.",
    "small": "Yes, with form 5.",
}
"""Model -> its answer to everything."""
EXPERIMENT_UNITS = 160
BURST = 60
REPLAYED = 4
"""Recorded traces that v0 answered again."""


def _answer(request: Received) -> Iterable[bytes]:
    """Answer as the asked model: the small one in fewer words."""
    if not request.body:
        return [reply(chat_reply())]
    body = json.loads(request.body)
    text = ANSWERS[body["model"]]
    if not body.get("stream"):
        return [reply(chat_reply(text))]
    return [stream_head(), *map(chunk, chat_events(text)), END]


@contextmanager
def operations(ws: Workspace, folder: Path) -> Iterator[dict[str, str]]:
    """All of it, in a home whose agent has traces and thumbs; its models answer meanwhile. Gives
    the parts of the addresses of its pages."""
    with ScriptedUpstream(_answer) as upstream:
        for model in ("large", "small"):
            serve_remote(ws, EndpointAddress(upstream.url, model), alias=None)
        switch.promote(ws, versions.version(ws, AGENT, "v0"))
        _feedback(ws, folder)
        dataset_id = build(ws, AGENT, "labels", DatasetConfig(dev=0.25, gate=0.25)).id
        candidate = _runs(ws, dataset_id, folder)
        approve(ws, candidate, Basis.GOLD, losses=2)
        _export(ws, candidate)
        for question, answer in GOLD.items():
            case_id = add_case(
                ws, AGENT, "ann", input=question, reference=answer, checker="exact_answer"
            )
        ledger.run(ws, Agent.named(AGENT), components(ws, AGENT, ledger.settings(ws, AGENT)))
        experiment = _experiment(ws)
        _loop(ws, candidate)
        ended = queue.enqueue(ws, "dataset build", {"agent": AGENT}, agent=AGENT, asked_by="ann")
        queue.cancel(ws, ended.id)
        job = queue.enqueue(ws, "evaluate", {"agent": AGENT, "version": "v3"}, agent=AGENT)
        keys.add(ws, "mobile-app", agents=[AGENT], days=90)
        users.add(ws, "ann", password="correct horse battery", role="editor", agent=AGENT)
        yield {
            "dataset": dataset_id,
            "experiment": experiment,
            "job": job.id,
            "candidate": candidate.name,
            "case": case_id,
        }


def _replay(ws: Workspace) -> str:
    """Let v0 answer recorded traces again; return the id of the replay."""
    newest = select_traces(ws, Agent.named(AGENT), TraceFilter(), REPLAYED)
    return replay_traces(ws, ReplaySpec(version="v0", agent=AGENT, traces=tuple(newest))).id


def _feedback(ws: Workspace, folder: Path) -> None:
    """Thumbs up and down on forty answers, and a burst of one rater."""
    lines: list[dict[str, Any]] = []
    began = datetime.now(UTC) - timedelta(minutes=30)
    for number in range(40):
        trace = {"type": "trace", "id": f"faq-{number}", "input": f"What about case {number}?"}
        lines.append(trace | {"output": f"Case {number} is settled by form {number % 7}."})
        thumb = {"type": "feedback", "kind": "thumb", "target": {"trace": f"faq-{number}"}}
        lines.append(thumb | {"value": number % 3 > 0, "rater": f"customer-{number % 9}"})
    for number in range(BURST):
        thumb = {"type": "feedback", "kind": "thumb", "target": {"trace": f"faq-{number % 40}"}}
        said_at = (began + timedelta(seconds=number)).isoformat()
        more = {"id": f"burst-{number}", "rater": "visitor-7", "occurred_at": said_at}
        lines.append(thumb | {"value": True} | more)
    file = folder / "operations.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ingest(ws, AGENT, "jsonl", file)
    hold_bursts(ws, Agent.named(AGENT), TriggerConfig(burst=BURST), datetime.now(UTC))


def _runs(ws: Workspace, dataset_id: str, folder: Path) -> ModelVersion:
    """Three runs with curves; the first gave a version, which is returned, the last one trains."""
    agent = Agent.named(AGENT)
    base = versions.ensure_base(ws, AGENT, "HuggingFaceTB/SmolLM2-135M-Instruct", "f" * 64)
    began = datetime.now(UTC) - timedelta(hours=2)

    def work(connection: sa.Connection) -> None:
        for number, (run_id, algorithm) in enumerate(RUNS.items()):
            row: dict[str, Any] = {
                "id": run_id,
                "agent_id": agent.id,
                "algorithm": algorithm,
                "dataset_id": dataset_id,
                "base": base.base,
                "base_fingerprint": base.base_fingerprint,
                "seed": 1,
                "config": {"learning_rate": 5e-4, "lora_r": 16, "num_train_epochs": 3.0},
                "environment": {"torch": "2.9.0"},
                "state": "running" if algorithm == "kto" else "finished",
                "recorded_at": began + timedelta(minutes=20 * number),
            }
            if algorithm != "kto":
                row["metrics"] = _figures(number)
                row["ended_at"] = row["recorded_at"] + timedelta(minutes=12)
            connection.execute(schema.runs.insert().values(**row))

    ws.db.write(work)
    for number, run_id in enumerate(RUNS):
        write_curves(ws, run_id, STEPS, number)
    training = Status(RunState.RUNNING, result={"planned_steps": 400})
    RunDir(ws.home.runs / "run_kto").write_status(training)
    adapter = folder / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    return versions.add_candidate(ws, base, "run_sft", adapter)


def _export(ws: Workspace, version: ModelVersion) -> None:
    """Files that stand for a GGUF of the version."""
    folder = ws.home.path / "exports" / "shop-q8"
    folder.mkdir(parents=True)
    path = folder / "model.gguf"
    path.write_bytes(b"GGUF" * 1000)
    files = {path.name: {"sha256": ids.file_hash(path), "size": path.stat().st_size}}
    limits = ParityLimits(0.01, 0.95)
    parity = Parity(5, 200, "Q8_0", 0.02, 0.0004, 0.991, 0.5, True, limits, size=4000)
    row = Export(ids.new("exp"), AGENT, version.name, "gguf", folder, files, parity, "Q8_0")
    ws.db.write(lambda connection: export_store.add(connection, ws.home, version, row))


def _figures(seed: int) -> dict[str, Any]:
    """What the curves of `write_curves` come to."""
    gain = _gain(seed, 1.0)
    return {
        "steps": STEPS,
        "planned_steps": STEPS,
        "best_step": STEPS,
        "evaluation": asdict(EvaluationPlan(80, 300, 12, 11, 0.14, 0.15)),
        "seconds": 640.2,
        "peak_memory_gb": 3.1,
        "dev_base": {"eval_loss": DEV_LOSS, "eval_rewards/margins": 0.0},
        "dev_best": {"eval_loss": DEV_LOSS - gain, "eval_rewards/margins": 1.4 * gain},
    }


def _gain(seed: int, share: float) -> float:
    """What is gained on dev rows after this share of the steps."""
    return (0.65 + 0.08 * seed) * (1 - math.exp(-3 * share))


def write_curves(ws: Workspace, run_id: str, steps: int, seed: int) -> None:
    """Metrics of a run as a training writes them."""
    folder = RunDir(ws.home.runs / run_id)
    folder.path.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    lines = []
    for step in range(1, steps + 1):
        progress = 1 - math.exp(-3 * step / steps)
        line: dict[str, Any] = {
            "step": step,
            "loss": 2.3 - (0.7 + 0.1 * seed) * progress + draw.gauss(0, 0.025),
            "rewards/margins": (1.0 + 0.3 * seed) * progress + draw.gauss(0, 0.03),
            "rewards/accuracies": min(1.0, 0.5 + 0.4 * progress + draw.gauss(0, 0.012)),
            "kl": 0.4 * progress**2 + abs(draw.gauss(0, 0.01)),
            "learning_rate": 2e-4 * (1 - step / steps),
            "grad_norm": 1.0,
        }
        if step % max(1, steps // 10) == 0:
            gain = _gain(seed, step / steps)
            line |= {"eval_loss": DEV_LOSS - gain, "eval_rewards/margins": 1.4 * gain}
        lines.append(json.dumps(line) + "\n")
    folder.metrics.write_text("".join(lines))


def _experiment(ws: Workspace) -> str:
    """One in which people like the second arm better, not yet decided."""
    with RoutingTable(ws, GatewayConfig(), 3600.0) as table:
        world = ExperimentWorld(ws, table)
        experiment = world.begin("v0", "v1", guards=["error_rate"], min_units=100)
        draw = random.Random(7)
        for number in range(EXPERIMENT_UNITS):
            trace, choice = world.ask(f"person-{number}")
            likes = {"v0": 0.55, "v1": 0.7}[choice.version]
            world.rate(trace, draw.random() < likes)
        world.turn()
        return experiment.id


def _loop(ws: Workspace, candidate: ModelVersion) -> None:
    now = datetime.now(UTC)
    evidence = {
        "settings": {},
        "verdict": "approved",
        "reasons": ["'Do you sell gift cards?': 'Yes, from 10 euros.' instead of 'No.'"],
        "gain": {"before": 0.033, "after": 0.667, "gain": 0.633, "low": 0.465, "high": 0.761},
    }
    question = f"make {candidate.name} live (basis gold: approved on cases that you reviewed)?"
    pending = Pending(
        "dec_waiting",
        None,
        Wish.PROMOTE,
        candidate.id,
        candidate.name,
        question,
        evidence,
        WishState.WAITING,
        None,
        None,
        now,
        None,
    )
    ws.db.write(lambda c: turn_store.add_pending(c, Agent.named(AGENT).id, pending))


@contextmanager
def running_operations(
    folder: Path, lines: Sequence[dict[str, Any]] | None = None
) -> Iterator[PagesWorld]:
    """A server over a home that has something for every page, beside these lines, those of the
    small home by default."""
    with opened_home(folder / "home") as ws:
        fill(ws, folder, small_home() if lines is None else lines)
        with operations(ws, folder) as parts, running(ws, drain_every=0.02) as server:
            add_queue(ws)
            yield PagesWorld(ws, server.url, {**parts, "replay": _replay(ws)})
