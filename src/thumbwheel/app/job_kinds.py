"""The kinds of jobs: command path -> what a worker has to know. A kind is a spec class and a
handler in the `jobs.py` of its stage; both are imported when they are first needed. A plugin brings
a `JobKind` by an entry point."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cache
from importlib import import_module
from typing import NamedTuple

from thumbwheel.access.types import Verb
from thumbwheel.core.errors import InputError
from thumbwheel.core.plugins import VariantTable, missing_variant, nearest
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs.part_types import PartHandler, PartKind
from thumbwheel.jobs.types import HEAVY, JobKind

CYCLE = "cycle of {agent}"
"""The resource of kinds that turn an agent's wheel: one turn at a time."""


class Location(NamedTuple):
    """Where a kind is."""

    module: str
    spec: str
    handler: str
    needs: tuple[str, ...] = ()
    is_urgent: bool = False
    verb: Verb = "run"


class PartLocation(NamedTuple):
    """Where a kind of parts is."""

    module: str
    opener: str
    needs: tuple[str, ...] = ()

    def opened(self, ws: Workspace) -> AbstractContextManager[PartHandler]:
        """Open what does such parts."""
        opener = getattr(import_module(self.module), self.opener)
        handler: AbstractContextManager[PartHandler] = opener(ws)
        return handler


LOCATIONS: Mapping[str, Location] = {
    "import": Location("thumbwheel.capture.jobs", "ImportSpec", "run_import"),
    "reward run": Location("thumbwheel.rewards.jobs", "RewardRunSpec", "run_rewards"),
    "reward pending": Location("thumbwheel.rewards.jobs", "RewardPendingSpec", "run_pending"),
    "dataset build": Location("thumbwheel.training.jobs", "DatasetBuildSpec", "run_build"),
    "train": Location("thumbwheel.loop.jobs", "TrainSpec", "run_train", (HEAVY,)),
    "train auto": Location(
        "thumbwheel.loop.jobs", "TrainAutoSpec", "run_train_auto", (HEAVY, CYCLE)
    ),
    "evaluate": Location("thumbwheel.evaluation.jobs", "EvaluateSpec", "run_evaluate", (HEAVY,)),
    "replay run": Location("thumbwheel.evaluation.jobs", "ReplaySpec", "run_replay", (HEAVY,)),
    "export": Location("thumbwheel.export.jobs", "ExportSpec", "run_export", (HEAVY,)),
    "deploy": Location("thumbwheel.deploy.jobs", "DeploySpec", "run_deploy", (), True, "deploy"),
    "loop approve": Location(
        "thumbwheel.loop.jobs", "LoopApproveSpec", "run_approve", (), True, "decide"
    ),
    "loop check": Location("thumbwheel.loop.jobs", "LoopCheckSpec", "run_check"),
    "loop run": Location(
        "thumbwheel.loop.jobs", "LoopRunSpec", "run_loop", (HEAVY, CYCLE), verb="deploy"
    ),
    "models fetch": Location("thumbwheel.models.jobs", "FetchSpec", "run_fetch"),
    "notify": Location("thumbwheel.notify.jobs", "NotifySpec", "run_notify", (), True, "own"),
}

PLUGINS: VariantTable[JobKind] = VariantTable("job kind", "thumbwheel.job_kinds", {})


PARTS: Mapping[str, PartLocation] = {
    "answers": PartLocation("thumbwheel.evaluation.answer_parts", "answering", (HEAVY,)),
    "programs": PartLocation("thumbwheel.evaluation.program_parts", "running", (HEAVY,)),
    "prompts": PartLocation("thumbwheel.datasets.build_parts", "collecting", (HEAVY,)),
    "scores": PartLocation("thumbwheel.rewards.judge_parts", "judging", (HEAVY,)),
}
"""Kinds of the parts of jobs that workers of other hosts do, too."""


def part_kinds() -> dict[str, PartKind]:
    """Return name -> kind of the parts; what does them is imported when the first one is done."""
    return {name: PartKind(location.opened, location.needs) for name, location in PARTS.items()}


def _names() -> list[str]:
    plugins = [name for name in PLUGINS.names() if name not in LOCATIONS]
    return [*LOCATIONS, *plugins]


@cache
def job_kind(name: str) -> JobKind:
    """Return the kind with this name. Raises InputError."""
    names = _names()
    if name not in names:
        if error := missing_variant(PLUGINS.kind, PLUGINS.group, name):
            raise InputError(error.what, error.why, error.fix)
        raise InputError(
            f"job kind {name!r}",
            "there is none",
            f"Known: {', '.join(names)}.{nearest(name, names)}",
        )
    if name not in LOCATIONS:
        return PLUGINS.get(name)
    location = LOCATIONS[name]
    module = import_module(location.module)
    spec, handler = getattr(module, location.spec), getattr(module, location.handler)
    return JobKind(spec, handler, location.needs, location.is_urgent)


def verb_of(kind: str) -> Verb:
    """Return the verb that a principal needs on an agent to enqueue, schedule or control a job of
    this kind."""
    return LOCATIONS[kind].verb if kind in LOCATIONS else "run"


def job_kinds() -> dict[str, JobKind]:
    """Return name -> kind for all kinds."""
    return {name: job_kind(name) for name in _names()}
