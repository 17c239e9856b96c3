"""The checks of a turn: whether it can do everything it is asked for, over which base it trains,
what it would do, and whether something was changed since it was stopped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thumbwheel.core import ids
from thumbwheel.core.errors import Conflict, InputError
from thumbwheel.core.figures import size
from thumbwheel.datasets.dataplan import DataPlan
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.engine.base_check import find_base
from thumbwheel.experiments.types import ExperimentConfig
from thumbwheel.export.formats import FORMATS
from thumbwheel.export.package import precision
from thumbwheel.export.types import GGUF_MODEL
from thumbwheel.llm import convert, tools
from thumbwheel.loop.cycle_types import CycleConfig, CyclePlan
from thumbwheel.loop.decidable import missing_by_plan
from thumbwheel.models import versions
from thumbwheel.models.base import NAMES
from thumbwheel.models.types import LIVE, Agent
from thumbwheel.training.algorithms import ALGORITHMS
from thumbwheel.training.base_picker import available_bases, proposed_base
from thumbwheel.training.data_plan import data_plan
from thumbwheel.training.train import dry_run

GGUF, OLLAMA = "gguf", "ollama"


def check_ready(ws: Workspace, config: CycleConfig) -> None:
    """Raise any error that would stop the turn later: an unknown name or precision, a missing tool,
    an Ollama that does not answer."""
    for method in config.methods:
        if ALGORITHMS.get(method).produces_reward_model:
            why = "it makes a reward model, and a turn compares versions of the agent's model"
            raise InputError(
                f"method {method!r}", why, f"Train it separately: thumbwheel train {method}"
            )
    for name in config.export:
        FORMATS.get(name)
    if config.experiment:
        ws.settings(ExperimentConfig, "experiment", {"metric": config.experiment})
    takes_gguf = GGUF in config.export
    if config.deploy:
        target = TARGETS.get(config.deploy)
        target.check(ws.settings(target.Config, f"deploy.{config.deploy}"))
        takes_gguf |= GGUF_MODEL in target.kinds
    if config.quant and not takes_gguf:
        raise InputError(
            f"quant {config.quant!r}",
            "no exported or deployed file is a GGUF file",
            "Leave --quant out",
        )
    if takes_gguf:
        convert.check_quantizer(precision(GGUF, config.quant) or "")
        for program in ("converter", "library", "bindings"):
            tools.require(program)


def check_unchanged(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise Conflict if a file of an exported folder was changed or removed."""
    for name, file in files.items():
        path = folder / name
        if not path.is_file() or ids.file_hash(path) != file["sha256"]:
            raise Conflict(
                f"export {str(folder)!r}",
                f"{name} was changed or removed since it was written",
                "Move that folder away, then start the cycle again: it resumes",
            )


def plan_cycle(ws: Workspace, agent: Agent, config: CycleConfig) -> CyclePlan:
    """Return the plan of `run_cycle`, with the time and memory of each training; nothing is trained
    or stored."""
    check_ready(ws, config)
    base_name = config.base or default_base(ws, agent)
    rules = ws.settings(DatasetConfig, "dataset")
    plan = data_plan(ws, agent.slug, rules)
    methods = config.methods or plan.eligible
    trainings = {}
    for method in methods:
        trainings[method] = dry_run(ws, agent, method, find_base(base_name, ws.home.cache))
    after = [f"export {name}" for name in config.export]
    if config.deploy:
        after.append(f"deploy on {config.deploy}")
    if config.deploy and config.experiment:
        after.append(f"let live traffic decide by {config.experiment}")
    return CyclePlan(
        plan=plan_in_words(ws, agent, plan, rules), trainings=trainings, if_approved=after
    )


def plan_in_words(ws: Workspace, agent: Agent, plan: DataPlan, rules: DatasetConfig) -> list[str]:
    """Return the lines of the plan, and what the gate lacks to decide on the version: a person who
    reads it first may spare a training."""
    missing = missing_by_plan(ws, agent, plan, rules)
    return [*plan.to_words(), *([f"Before you train: {missing}."] if missing else [])]


def _proposal() -> str:
    """Return the option that names the base proposed for this machine, with how to get it."""
    proposal = proposed_base(available_bases())
    if proposal is None:
        return ""
    about = [size(1e9 * proposal.size_gb), proposal.license or "licence: see its card"]
    if not proposal.is_here:
        about.append(f"get it first: thumbwheel models fetch {proposal.name}")
    return f"--base {proposal.name} ({', '.join(about)}); "


def default_base(ws: Workspace, agent: Agent) -> str:
    """Return the name of the live version's base, else of the newest version's. Raises InputError
    without a version."""
    local = [version for version in versions.versions(ws, agent) if version.endpoint is None]
    if not local:
        raise InputError(
            f"the base of agent {agent.slug!r}",
            "no training has run for it yet, so its base is unknown",
            f"Name it: {_proposal()}--base takes {NAMES}. List all: thumbwheel models available",
        )
    live_id = versions.aliases_of(ws, agent).get(LIVE)
    for version in local:
        if version.id == live_id:
            return version.base
    return local[-1].base
