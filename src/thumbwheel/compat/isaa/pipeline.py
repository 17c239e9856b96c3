"""`TrainingPipeline`: from an agent's feedback to a deployed model in one call.

It trains, evaluates, asks the gate, and exports and deploys what the gate approved. A failure,
which a rejection is too, is under `error` in the results, and `success` is then false.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from thumbwheel.app.open import opener
from thumbwheel.compat.training_rows import report_refused
from thumbwheel.core import log
from thumbwheel.core.errors import Conflict, DataError, ThumbwheelError
from thumbwheel.db.workspace import Workspace

RESULTS = "pipeline_results.json"


class TrainingPipeline:
    """The pipeline of one agent. `method` is one of `thumbwheel train`, or `auto`: what the data
    plan recommends.

    `traces` is a folder of trace files and checkpoints that is imported first, beside what the home
    has. `settings` are those of the method. Results and models go below `output_dir` (default
    ./rl_training/AGENT). Where nothing could judge fresh answers, `grpo` becomes `grpo_offline`,
    which is then the method in the results.
    """

    def __init__(
        self,
        agent_name: str,
        base_model: str = "Qwen/Qwen2.5-1.5B-Instruct",
        method: str = "grpo",
        *,
        traces: str | Path | None = None,
        settings: Mapping[str, Any] | None = None,
        output_dir: str | Path | None = None,
        home: str | Path | None = None,
    ) -> None:
        self.agent_name = agent_name
        self.base_model = base_model
        self.method = method
        self.traces = traces and Path(traces)
        self.settings = settings
        self.output_dir = Path(output_dir or Path("rl_training") / agent_name)
        self.opener = opener(Path(home) if home else None, None, "info")
        self.results: dict[str, Any] = {}

    def run_full_pipeline(
        self, deploy_ollama: bool = False, model_name: str | None = None
    ) -> dict[str, Any]:
        """Run it and return the results, which are also written to pipeline_results.json.

        With `deploy_ollama` the model is served as `model_name` (default toolbox-AGENT).
        """
        self.results = {
            "start_time": _now(),
            "agent_name": self.agent_name,
            "base_model": self.base_model,
            "method": self.method,
            "dataset_size": None,
            "training": None,
            "model_path": None,
            "ollama_model": None,
            "success": False,
        }
        served_as = (model_name or f"toolbox-{self.agent_name}") if deploy_ollama else None
        try:
            with self.opener() as ws:
                self._run(ws, served_as)
            self.results["success"] = True
        except ThumbwheelError as error:
            self.results["error"] = str(error)
            log.say(f"error: {error}")
        self.results["end_time"] = _now()
        self.output_dir.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.results, indent=2, ensure_ascii=False) + "\n"
        (self.output_dir / RESULTS).write_text(text, encoding="utf-8")
        return self.results

    def _run(self, ws: Workspace, served_as: str | None) -> None:
        from thumbwheel.capture.ingest import ingest
        from thumbwheel.datasets.choose_shape import AUTO
        from thumbwheel.deploy.types import public_name
        from thumbwheel.engine.base_check import find_base
        from thumbwheel.evaluation.policy import Verdict
        from thumbwheel.loop.cycle import release_candidate
        from thumbwheel.loop.cycle_checks import OLLAMA, check_ready
        from thumbwheel.loop.cycle_types import CycleConfig, CycleReport
        from thumbwheel.models.types import CANARY
        from thumbwheel.models.versions import require_agent
        from thumbwheel.training.data_plan import choose
        from thumbwheel.training.train import train
        from thumbwheel.training.types import RunState

        config = CycleConfig(
            export=("merged",), export_to=self.output_dir, deploy=OLLAMA if served_as else None
        )
        check_ready(ws, config)
        if self.traces:
            report_refused(ingest(ws, self.agent_name, "flowagent", self.traces))
        if self.method == AUTO:
            self.results["method"] = choose(ws, self.agent_name).method
        elif self.method == "grpo" and not self._can_judge(ws):
            self.results["method"] = "grpo_offline"
            log.say(
                "grpo answers afresh, and nothing here could judge that: there is no reward "
                "model, no reward function and no case"
            )
            log.say(
                "so grpo_offline learns from the recorded answers of each question, as their grpo "
                "was meant to"
            )
        if self.results["method"] == "grpo_offline":
            self._hold_out(ws)
        base = find_base(self.base_model, ws.home.cache)
        learner = require_agent(ws, self.agent_name)
        trained = train(ws, learner, self.results["method"], base, options=self.settings)
        self.results |= _training_results(
            ws, trained.run_id, self.results["method"], trained.metrics
        )
        if trained.version is None:
            why = "it was stopped, or it made a reward model"
            if trained.state is RunState.NOTHING_LEARNED:
                why = str(trained.reason)
            raise Conflict(f"run {trained.run_id!r}", why, "Nothing was exported")
        cycle = CycleReport(self.agent_name, version=trained.version)
        release_candidate(ws, cycle, config, {"name": served_as})
        if cycle.verdict is Verdict.REJECTED:
            what = f"version {trained.version!r} of agent {self.agent_name!r}"
            raise Conflict(
                what,
                f"the gate rejected it: {'; '.join(cycle.reasons)}",
                "The model that answers today was left as it is",
            )
        if cycle.verdict is not Verdict.APPROVED:
            served_as = public_name(self.agent_name, CANARY)
            if cycle.deployment:
                log.say(
                    f"approved for a canary only, so it answers as {served_as!r} and nothing else "
                    "was touched"
                )
        self.results |= {
            "model_path": str(cycle.exports[0].path),
            "ollama_model": cycle.deployment and served_as,
        }

    def _hold_out(self, ws: Workspace) -> None:
        """Build datasets of single answers too: the gate compares by their held-out rows, and a
        dataset of groups has none."""
        from thumbwheel.datasets.build import build
        from thumbwheel.datasets.types import DatasetConfig

        for shape in ("pairs", "labels"):
            try:
                build(ws, self.agent_name, shape, ws.settings(DatasetConfig, "dataset"))
            except DataError as error:
                log.say(f"no held-out {shape}: {error}")

    def _can_judge(self, ws: Workspace) -> bool:
        """Whether fresh answers could be judged: by what the settings name, or by the rows' own
        references and checkers."""
        from thumbwheel.datasets.build import build, load_rows
        from thumbwheel.datasets.types import DatasetConfig
        from thumbwheel.training.algorithms.grpo import GrpoConfig

        config = ws.settings(GrpoConfig, "train.grpo", self.settings)
        functions = {name.partition("=")[0] for name in config.reward_functions}
        if config.reward_model is not None or functions - {"checker"}:
            return True
        # the checker alone needs rows that it can check
        try:
            prompts = build(ws, self.agent_name, "prompts", ws.settings(DatasetConfig, "dataset"))
        except DataError:
            return False
        rows = load_rows(ws, prompts.id, "train")
        return any(row.checker or row.reference is not None for row in rows)


def _training_results(
    ws: Workspace, run_id: str, method: str, metrics: Mapping[str, Any]
) -> dict[str, Any]:
    from thumbwheel.datasets.build import find
    from thumbwheel.training.train import find_run

    run = find_run(ws, run_id)
    last = metrics.get("last_step") or {}
    return {
        "dataset_size": find(ws, run.agent, run.dataset_id).manifest["counts"]["train"],
        "training": {
            "method": method,
            "training_time_seconds": metrics.get("seconds"),
            "train_loss": last.get("loss"),
            "epochs": last.get("epoch"),
            "total_steps": metrics.get("steps"),
        },
    }


def _now() -> str:
    return datetime.now(UTC).isoformat()
