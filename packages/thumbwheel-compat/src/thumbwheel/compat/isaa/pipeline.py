"""`TrainingPipeline`: from an agent's runs to a deployed model in one call.

It trains, evaluates, asks the gate, and exports and deploys what the gate approved. A failure,
which a rejection is too, is under `error` in the results, and `success` is then false. Where too
few questions were rated to prove anything, it says so before it trains; with `unproved` the version
is exported all the same, and marked.

Step by step (`prepare_data`, `train`, `save`, `export_to_gguf`, `deploy_to_ollama`) it is the
trainer and the exporter of this package, which do not ask the gate.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.compat.isaa.checkpoints import checkpoint_folder
from thumbwheel.compat.isaa.collector import trace_files
from thumbwheel.compat.script_home import open_home, with_home
from thumbwheel.compat.training_rows import import_rows, report_refused
from thumbwheel.core import ids, log
from thumbwheel.core.config import Home, merge
from thumbwheel.core.errors import Conflict, DataError, InputError, ThumbwheelError
from thumbwheel.db.workspace import Workspace

if TYPE_CHECKING:
    from datasets import Dataset

    from thumbwheel.compat.isaa.datasets import DatasetPipeline
    from thumbwheel.compat.isaa.hardware import HardwareConfig
    from thumbwheel.compat.isaa.training import RewardFunc, RLTrainer, TrainingConfig
    from thumbwheel.loop.cycle_types import CycleConfig
    from thumbwheel.training.types import RunResult

RESULTS = "pipeline_results.json"
NOT_PROVED = "not-proved"
"""Ends the name of the folder of a version that too few questions were there to judge."""
COMPUTED = {"preset": "isaa", "arithmetic": "applicable"}
"""The reward of runs that nobody judged: what can be computed from the run itself."""


class TrainingPipeline:
    """The pipeline of one agent. `method` is one of `thumbwheel train`, or `auto`: what the data
    plan recommends.

    `traces` is a folder of trace files and checkpoints that is imported first, beside what the home
    has; by default these are the home's own: rl_traces and Agents/checkpoint/AGENT. Runs that
    nobody judged get a reward from their code, tools, tasks and form. `settings` are those of the
    method. Results and models go below `output_dir` (default ./rl_training/AGENT). Where nothing
    could judge fresh answers, `grpo` becomes `grpo_offline`, which is then the method in the
    results. `training_config` has the settings of the steps, which a script may change.
    """

    def __init__(
        self,
        agent_name: str,
        base_model: str = "Qwen/Qwen2.5-1.5B-Instruct",
        output_dir: str | Path | None = None,
        method: str = "grpo",
        *,
        traces: str | Path | None = None,
        settings: Mapping[str, Any] | None = None,
        home: str | Path | None = None,
    ) -> None:
        self.agent_name = agent_name
        self.agent = ids.slug_of(agent_name)
        self.base_model = base_model
        self.method = method
        self.traces = traces and Path(traces)
        self.settings = settings
        self.output_dir = Path(output_dir or Path("rl_training") / agent_name)
        self.home = Home.at(Path(home) if home else None).path
        self.results: dict[str, Any] = {}
        self.trainer: RLTrainer | None = None

    @cached_property
    def hw_config(self) -> HardwareConfig:
        """This machine."""
        from thumbwheel.compat.isaa.hardware import detect_hardware

        return detect_hardware()

    @cached_property
    def training_config(self) -> TrainingConfig:
        """The settings of the steps: those that suit this machine."""
        from thumbwheel.compat.isaa.training import TrainingConfig

        return TrainingConfig.from_hardware_config(
            self.hw_config,
            base_model=self.base_model,
            output_dir=str(self.output_dir),
            method=self.method,
        )

    @cached_property
    def data_pipeline(self) -> DatasetPipeline:
        """The runs of `traces`, else those of the home."""
        from thumbwheel.compat.isaa.datasets import DatasetPipeline

        return DatasetPipeline(
            self.agent_name,
            self.traces or self.home / "rl_traces",
            checkpoint_path=checkpoint_folder(self.home, self.agent_name),
        )

    def prepare_data(self) -> Dataset:
        """Write the examples of the method, grpo or kto, to METHOD_dataset.jsonl in `output_dir`,
        and return them as a Hugging Face dataset."""
        path = self.output_dir / f"{self.method}_dataset.jsonl"
        data = self.data_pipeline
        if self.method == "grpo":
            return data.grpo_builder.to_hf_dataset(data.build_grpo_dataset(path))
        return data.kto_builder.to_hf_dataset(data.build_kto_dataset(path))

    def train(
        self,
        dataset: Iterable[Any] | None = None,
        reward_funcs: Sequence[RewardFunc] | None = None,
    ) -> RunResult:
        """Train on a dataset (default: that of `prepare_data`) by `training_config`; `trainer` is
        then the `RLTrainer`."""
        from thumbwheel.compat.isaa.training import RLTrainer

        rows = self.prepare_data() if dataset is None else dataset
        self.trainer = RLTrainer(self.training_config).setup()
        return self.trainer.train(rows, reward_funcs)

    def save(self, merge_lora: bool = True) -> str:
        """Write the trained model to `final` in `output_dir`. Raises Conflict before training."""
        if self.trainer is None:
            raise Conflict("TrainingPipeline.save", "nothing was trained", "Call train() first")
        return self.trainer.save_model(merge_lora=merge_lora)

    def export_to_gguf(self, quantization: str = "Q4_K_M") -> str:
        """Convert the saved model, and return the path of the file."""
        from thumbwheel.compat.isaa.exporting import GGUFExporter

        return GGUFExporter(self.output_dir / "final").convert(quantization)

    def deploy_to_ollama(self, model_name: str | None = None) -> str:
        """Convert the saved model and make it a model of Ollama (default name: toolbox-AGENT).
        Return its name. Without an Ollama nothing is converted."""
        from thumbwheel.compat.isaa.exporting import OllamaDeployer

        deployer = OllamaDeployer()
        deployer.list_models()
        return deployer.create_model(model_name or self.served_as, self.export_to_gguf())

    @property
    def served_as(self) -> str:
        return f"toolbox-{self.agent}"

    def run_full_pipeline(
        self,
        reward_funcs: Sequence[RewardFunc] | None = None,
        deploy_ollama: bool = False,
        model_name: str | None = None,
        *,
        unproved: bool = False,
    ) -> dict[str, Any]:
        """Run it and return the results, which are also written to pipeline_results.json.

        With `reward_funcs` every recorded answer is worth the sum of what these functions say of
        it, beside what people said; each is called as TRL calls it, with `prompts` and
        `completions`. Only people's judgements enter the gate.

        With `deploy_ollama` the model is served as `model_name` (default toolbox-AGENT). With
        `unproved` a version that too few questions were there to judge is exported too, into a
        folder that ends in `not-proved`; it is not deployed.
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
            "proved": False,
            "success": False,
        }
        served_as = (model_name or self.served_as) if deploy_ollama else None
        try:
            with open_home(self.home, "info") as ws:
                self._run(ws, reward_funcs or (), served_as, unproved)
            self.results["success"] = True
        except ThumbwheelError as error:
            self.results["error"] = str(error)
            log.say(f"error: {error}")
        self.results["end_time"] = _now()
        self.output_dir.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.results, indent=2, ensure_ascii=False) + "\n"
        (self.output_dir / RESULTS).write_text(text, encoding="utf-8")
        return self.results

    def _run(
        self,
        ws: Workspace,
        reward_funcs: Sequence[RewardFunc],
        served_as: str | None,
        unproved: bool,
    ) -> None:
        from thumbwheel.loop.cycle_checks import OLLAMA, check_ready
        from thumbwheel.loop.cycle_types import CycleConfig

        config = CycleConfig(
            export=("merged",), export_to=self.output_dir, deploy=OLLAMA if served_as else None
        )
        check_ready(ws, config)
        self._import_runs(ws)
        if reward_funcs:
            self._reward_by(ws, reward_funcs)
        self._reward_unjudged_runs(ws)
        self._say_what_a_proof_needs(ws, unproved)
        self._choose_method(ws)
        version = self._train(ws)
        self._release(ws, version, config, served_as, unproved)

    def _choose_method(self, ws: Workspace) -> None:
        from thumbwheel.datasets.choose_shape import AUTO
        from thumbwheel.datasets.types import DatasetConfig
        from thumbwheel.training.data_plan import choose

        if self.method == AUTO:
            rules = ws.settings(DatasetConfig, "dataset")
            self.results["method"] = choose(ws, self.agent, config=rules).method
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

    def _train(self, ws: Workspace) -> str:
        """Train and return the name of the new version. Raises Conflict if there is none."""
        from thumbwheel.engine.base_check import find_base
        from thumbwheel.models.versions import require_agent
        from thumbwheel.training.train import train
        from thumbwheel.training.types import RunState

        method = self.results["method"]
        base = find_base(self.base_model, ws.home.cache)
        run = train(ws, require_agent(ws, self.agent), method, base, options=self.settings)
        self.results |= _training_results(ws, run.run_id, method, run.metrics)
        if run.version is None:
            why = "it was stopped, or it made a reward model"
            if run.state is RunState.NOTHING_LEARNED:
                why = str(run.reason)
            raise Conflict(f"run {run.run_id!r}", why, "Nothing was exported")
        return run.version

    def _release(
        self,
        ws: Workspace,
        name: str,
        config: CycleConfig,
        served_as: str | None,
        unproved: bool,
    ) -> None:
        """Evaluate the version, and export and deploy what the gate approves."""
        from thumbwheel.deploy.types import public_name
        from thumbwheel.evaluation.policy import GateVerdict
        from thumbwheel.loop.cycle import release_candidate
        from thumbwheel.loop.cycle_types import CycleReport
        from thumbwheel.models import versions
        from thumbwheel.models.types import CANARY, VersionState

        cycle = CycleReport(self.agent, version=name)
        try:
            release_candidate(ws, cycle, config, {"name": served_as})
        except DataError as error:  # nothing at all is held out
            if not unproved or cycle.evaluation is not None:
                raise
            log.say(error.why)
        # too few cases leave a version a candidate
        is_undecided = versions.version(ws, self.agent, name).state is VersionState.CANDIDATE
        if unproved and is_undecided:
            self._export_unproved(ws, name)
            return
        if cycle.verdict is GateVerdict.REJECTED:
            raise Conflict(
                f"version {name!r} of agent {self.agent!r}",
                f"the gate rejected it: {'; '.join(cycle.reasons)}",
                "The model that answers today was left as it is",
            )
        if cycle.verdict is not GateVerdict.APPROVED:
            served_as = public_name(self.agent, CANARY)
            if cycle.deployment:
                log.say(
                    f"approved for a canary only, so it answers as {served_as!r} and nothing else "
                    "was touched"
                )
        self.results |= {
            "model_path": str(cycle.exports[0].path),
            "ollama_model": cycle.deployment and served_as,
            "proved": True,
        }

    def _import_runs(self, ws: Workspace) -> None:
        """Import the folder that was named, else those of the home."""
        from thumbwheel.capture.ingest import ingest
        from thumbwheel.importers.detect import Options

        if self.traces:
            report_refused(ingest(ws, self.agent, "flowagent", self.traces))
            return
        recorded = ws.home.path / "rl_traces"
        if trace_files(recorded):
            options = Options(agent=self.agent_name)
            report_refused(ingest(ws, self.agent, "flowagent", recorded, options=options))
        checkpoints = checkpoint_folder(ws.home.path, self.agent_name)
        if any(checkpoints.glob("*.pkl")):
            report_refused(ingest(ws, self.agent, "flowagent", checkpoints))

    def _reward_by(self, ws: Workspace, reward_funcs: Sequence[RewardFunc]) -> None:
        """Store what the functions say of every recorded answer, as the score of a program. Raises
        InputError for a function that says too little."""
        from thumbwheel.compat.isaa.training import total_rewards

        traces = self.data_pipeline.collect_all_traces()
        prompts = [trace.user_query for trace in traces]
        answers = [trace.final_response for trace in traces]
        try:
            rewards = total_rewards(prompts, answers, reward_funcs)
        except ValueError as error:
            raise InputError("reward_funcs", str(error), "Return one number an answer") from None
        if not rewards:
            return
        scale = {"min": min(rewards), "max": max(rewards)}
        if scale["min"] == scale["max"]:
            scale["max"] += 1
        lines = []
        for trace, reward in zip(traces, rewards, strict=True):
            line = {
                "type": "feedback",
                "target": {"trace": trace.trace_id},
                "kind": "score",
                "value": reward,
                "scale": scale,
                "rater": {"id": "reward_funcs", "kind": "checker"},
            }
            lines.append(line)
        self.output_dir.mkdir(parents=True, exist_ok=True)
        import_rows(ws, self.agent, lines, self.output_dir / "rewards.thumbwheel.jsonl")

    def _reward_unjudged_runs(self, ws: Workspace) -> None:
        """Reward the runs by the ledger if nobody has judged any of them, as the replaced
        pipeline's rewards did."""
        from thumbwheel.models.versions import require_agent
        from thumbwheel.rewards import ledger
        from thumbwheel.rewards.component import components
        from thumbwheel.rewards.label import signals

        learner = require_agent(ws, self.agent)
        with ws.db.read() as connection:
            if signals(connection, learner):
                return
        computed = {"rewards": {"agents": {self.agent: COMPUTED}}, "dataset": {"reward": "ledger"}}
        ws.sources = replace(ws.sources, file=merge(computed, ws.sources.file))
        parts = components(ws, self.agent, ledger.settings(ws, self.agent))
        report = ledger.run(ws, learner, parts)
        log.say(
            f"nobody judged a run, so {report.rewarded} of {report.traces} get a reward from their "
            "code, tools, tasks and form; label some: collector.label_trace(trace_id, True)"
        )

    def _say_what_a_proof_needs(self, ws: Workspace, unproved: bool) -> None:
        """Say before the training whether the gate could decide on what it gives."""
        from thumbwheel.datasets.types import DatasetConfig
        from thumbwheel.loop import decidable
        from thumbwheel.models.versions import require_agent
        from thumbwheel.training.data_plan import data_plan

        rules = ws.settings(DatasetConfig, "dataset")
        plan = data_plan(ws, self.agent, rules)
        lack = decidable.shortage(ws, require_agent(ws, self.agent), plan, rules)
        if lack is None:
            return
        kinds = {decidable.GOLD: "gold cases", decidable.CASES: "held-out cases"}
        kind = kinds.get(lack.basis, "held-out questions")
        log.say(f"the gate decides on {lack.needed} different {kind}, and there are {lack.there}")
        add = with_home(f"thumbwheel case add --agent {self.agent}", self.home)
        ways = f"{lack.needed} gold cases ({add})"
        if lack.questions is not None:
            ways = f"about {lack.questions} different questions with rated answers, or {ways}"
        log.say(f"for a proof it needs {ways}")
        if unproved:
            log.say("it trains without one: the version is exported, and marked as not proved")
        else:
            log.say(
                "without one it trains a candidate, and exports it with "
                "run_full_pipeline(unproved=True) only"
            )

    def _export_unproved(self, ws: Workspace, name: str) -> None:
        from thumbwheel.export.package import export
        from thumbwheel.models import versions

        folder = self.output_dir / f"{self.agent}-{name}-merged-{NOT_PROVED}"
        exported = export(ws, versions.version(ws, self.agent, name), "merged", folder)
        self.results["model_path"] = str(exported.path)
        log.say(f"{name} is exported and not proved to be better than what runs today: {folder}")

    def _hold_out(self, ws: Workspace) -> None:
        """Build datasets of single answers too: the gate compares by their held-out rows, and a
        dataset of groups has none."""
        from thumbwheel.datasets.build import build
        from thumbwheel.datasets.types import DatasetConfig

        for shape in ("pairs", "labels"):
            try:
                build(ws, self.agent, shape, ws.settings(DatasetConfig, "dataset"))
            except DataError as error:
                log.say(f"no held-out {shape}: {error}")

    def _can_judge(self, ws: Workspace) -> bool:
        """Return whether fresh answers can be judged: by a function or model in the settings, or by
        the rows' own references and checkers."""
        from thumbwheel.datasets.build import build, load_rows
        from thumbwheel.datasets.types import DatasetConfig
        from thumbwheel.training.algorithms.grpo import GrpoConfig

        config = ws.settings(GrpoConfig, "train.grpo", self.settings)
        functions = {name.partition("=")[0] for name in config.reward_functions}
        if config.reward_model is not None or functions - {"checker"}:
            return True
        # the checker alone needs rows that it can check
        try:
            prompts = build(ws, self.agent, "prompts", ws.settings(DatasetConfig, "dataset"))
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
